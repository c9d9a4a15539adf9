package host

import (
	"bytes"
	"errors"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/adminpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/range/replica"
)

// DamagedRanges are the ranges whose replica on this node was found damaged and is not
// served any more. Each range that is not damaged goes on. The set lasts until the end
// of the process; the next one finds the damage again, at the latest when the damaged
// data is read. All methods are safe for concurrent use.
type DamagedRanges struct {
	mu struct {
		sync.Mutex
		// ranges are in ascending order.
		ranges []uint64
		// untold are those of them that Take has not returned yet.
		untold []uint64
		// changed is closed, and replaced, when a range is added.
		changed chan struct{}
	}
}

func newDamagedRanges() *DamagedRanges {
	d := &DamagedRanges{}
	d.mu.changed = make(chan struct{})
	return d
}

// add notes a damaged range.
func (d *DamagedRanges) add(id uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	at, found := slices.BinarySearch(d.mu.ranges, id)
	if found {
		return
	}
	d.mu.ranges = slices.Insert(d.mu.ranges, at, id)
	d.mu.untold = append(d.mu.untold, id)
	close(d.mu.changed)
	d.mu.changed = make(chan struct{})
}

// Has reports whether a range is damaged.
func (d *DamagedRanges) Has(id uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, found := slices.BinarySearch(d.mu.ranges, id)
	return found
}

// List returns the damaged ranges, ascending, and a channel that is closed when
// there is another.
func (d *DamagedRanges) List() (ids []uint64, changed <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.mu.ranges), d.mu.changed
}

// Take returns those of the damaged ranges that known accepts, each once.
func (d *DamagedRanges) Take(known func(id uint64) bool) (ids []uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.untold = slices.DeleteFunc(d.mu.untold, func(id uint64) bool {
		if !known(id) {
			return false
		}
		ids = append(ids, id)
		return true
	})
	return ids
}

// again wakes who waits for List to change: what it says means more than before.
func (d *DamagedRanges) again() {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.mu.changed)
	d.mu.changed = make(chan struct{})
}

// BlockDeletion takes the error of a step that writes out large deletions
// (mvcc.Store.MaterialiseStep). If it is damage of one span, the deletion is blocked,
// the ranges that have keys of the span are damaged from now on, and ok is true.
// Others go on. ranges may be none: the descriptors are damaged, too.
func (h *Host) BlockDeletion(err error) (ranges []uint64, ok bool) {
	var span *mvcc.SpanError
	if !IsDamage(err) || !errors.As(err, &span) {
		return nil, false
	}
	h.cfg.MVCC.Block(span)
	if ranges, err = h.rangesOf(span.Start, span.End); err != nil {
		h.log.Error("the ranges of a damaged deletion are not known", zap.Error(err))
	}
	h.log.Error("a large deletion is not written out: its keys are damaged", zap.Int64("revision", span.Revision),
		zap.String("start", adminpb.KeyText(span.Start)), zap.String("end", adminpb.KeyText(span.End)), zap.Uint64s("ranges", ranges), zap.Error(span.Err))
	for _, id := range ranges {
		h.Store.Post(id, replica.Damage{Err: span})
	}
	h.Damaged.again()
	return ranges, true
}

// rangesOf returns the ranges with a replica here that have keys of [start, end), end
// empty for the end of the keyspace.
func (h *Host) rangesOf(start, end []byte) (ranges []uint64, err error) {
	ids, err := replica.List(h.cfg.DB)
	for _, id := range ids {
		d := h.Readers.Descriptor(id)
		if d != nil && (len(end) == 0 || bytes.Compare(d.Start, end) < 0) && (len(d.End) == 0 || bytes.Compare(start, d.End) < 0) {
			ranges = append(ranges, id)
		}
	}
	return ranges, err
}

// Blocked returns the oldest large deletion at or below a revision that is blocked by
// damage, as the error of a range that has keys of it: nil if there is none.
func (h *Host) Blocked(upTo int64) *rangepb.Error {
	b, found := h.cfg.MVCC.Blocked(upTo)
	if !found {
		return nil
	}
	out := &rangepb.Error{Kind: rangepb.Corrupt}
	// Without ranges the error names none.
	if ranges, err := h.rangesOf(b.Start, b.End); err == nil && len(ranges) > 0 {
		out.RangeID = ranges[0]
	}
	return out
}

// failed takes what the replicas' reading side says of a damaged range.
func (h *Host) failed(id uint64) {
	h.Damaged.add(id)
	if h.cfg.Failed != nil {
		h.cfg.Failed()
	}
}
