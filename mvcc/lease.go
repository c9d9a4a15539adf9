package mvcc

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// leaseReader is a view of the newest state that can name the keys that may be
// attached to a lease.
type leaseReader interface {
	View
	// leaseCandidates returns at least the keys of [start, end) that are
	// attached to the lease in the view, ascending, none twice.
	leaseCandidates(lease int64, start, end []byte) ([][]byte, error)
}

// LeaseKeys returns the live keys of [start, end) that are attached to a lease,
// ascending; a nil end is the end of the keyspace. The view is a Latest of the
// newest state or an Overlay over one: which keys a lease had at an older
// revision is not known.
func LeaseKeys(v View, lease int64, start, end []byte) ([][]byte, error) {
	r, ok := v.(leaseReader)
	if !ok {
		return nil, fmt.Errorf("mvcc: a %T does not know the keys of a lease", v)
	}
	if emptyInterval(start, end) || lease == 0 {
		return nil, nil
	}
	candidates, err := r.leaseCandidates(lease, start, end)
	if err != nil {
		return nil, err
	}
	// Rows are hints, as when the key's range left this node and came back.
	attached := candidates[:0]
	for _, key := range candidates {
		h, err := readHead(v, key)
		if err != nil {
			return nil, err
		}
		if h.version > 0 && h.lease == lease {
			attached = append(attached, key)
		}
	}
	return attached, nil
}

func (l *Latest) leaseCandidates(lease int64, start, end []byte) (found [][]byte, err error) {
	if l.rev != latestRevision {
		return nil, fmt.Errorf("mvcc: keys of a lease at revision %d", l.rev)
	}
	lower, upper := leaseSpan(lease)
	lower = append(lower, start...)
	if end != nil {
		upper = appendLeaseKey(nil, lease, end)
	}
	it, err := l.s.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return nil, fmt.Errorf("mvcc: keys of a lease: %w", err)
	}
	for ok := it.First(); ok; ok = it.Next() {
		found = append(found, bytes.Clone(it.Key()[leaseKeyHeaderLen:]))
	}
	return found, errors.Join(it.Error(), it.Close())
}

func (v *overlayView) leaseCandidates(lease int64, start, end []byte) ([][]byte, error) {
	base, ok := v.base.(leaseReader)
	if !ok {
		return nil, fmt.Errorf("mvcc: a %T does not know the keys of a lease", v.base)
	}
	found, err := base.leaseCandidates(lease, start, end)
	if err != nil {
		return nil, err
	}
	v.o.items.AscendGreaterOrEqual(overlayItem{key: start, rev: ownRevision, sub: math.MaxUint32}, func(it overlayItem) bool {
		if end != nil && bytes.Compare(it.key, end) >= 0 {
			return false
		}
		if it.eff.Lease == lease {
			found = append(found, it.key)
		}
		return true
	})
	slices.SortFunc(found, bytes.Compare)
	return slices.CompactFunc(found, bytes.Equal), nil
}
