package mvcc

import (
	"bytes"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/hawser-kv/hawser/mvcc/counts"
	"github.com/hawser-kv/hawser/mvcc/keys"
)

// Apply stages the effects of one revision into a batch of the engine, and
// counts them. The caller commits the batch before anybody may read at rev or
// evaluate on it; if it cannot be committed, the process has to end. Revisions
// grow within a range. After a start the caller may apply again what it applied
// before, with the same effects: that changes nothing.
//
// Effects that no evaluation makes are a fault: Apply panics.
func (s *Store) Apply(b *pebble.Batch, rev int64, effs []Effect) error {
	if rev <= 0 {
		panic(fmt.Sprintf("mvcc: apply at revision %d", rev))
	}
	if err := s.tendCounts(); err != nil {
		return err
	}
	var few [4]counts.Change
	changes := few[:0]
	for i := range effs {
		e := &effs[i]
		e.check(rev)
		if e.IsSpan() {
			change, err := s.stageSpan(b, rev, e)
			if err != nil {
				return fmt.Errorf("mvcc: stage deletion from %q at %d: %w", e.Key, rev, err)
			}
			changes = append(changes, change)
			continue
		}
		kind := eventPut
		switch {
		case e.Tombstone:
			kind = eventDelete
			changes = append(changes, counts.Change{Key: e.Key, Delta: -1})
		case e.Version == 1:
			kind = eventCreate
			changes = append(changes, counts.Change{Key: e.Key, Delta: +1})
		}
		row, err := stageVersion(b, rev, e)
		if err != nil {
			return fmt.Errorf("mvcc: stage version of %q at %d: %w", e.Key, rev, err)
		}
		s.known.add(e.Key)
		s.recent.put(e.Key, rev, e.Sub, row)
		if err := stageEvent(b, rev, e, kind); err != nil {
			return fmt.Errorf("mvcc: stage event of %q at %d: %w", e.Key, rev, err)
		}
		if e.Lease != e.OldLease {
			s.pending.attaching(rev, e)
			if err := stageLease(b, e); err != nil {
				return fmt.Errorf("mvcc: stage lease of %q at %d: %w", e.Key, rev, err)
			}
		}
	}
	s.countEvents(rev, len(effs))
	return s.counts.Apply(b, rev, changes)
}

func stageEvent(b *pebble.Batch, rev int64, e *Effect, kind eventKind) error {
	var few [maxEventValueLen]byte
	value := appendEventValue(few[:0], rev, eventValue{kind, e.Prior})
	event := b.SetDeferred(eventKeyHeaderLen+len(e.Key), len(value))
	appendEventKey(event.Key[:0], rev, e.Sub, e.Key)
	copy(event.Value, value)
	return event.Finish()
}

// check panics if the effect cannot come from an evaluation.
func (e *Effect) check(rev int64) {
	ok := len(e.Key) > 0
	if e.Tombstone {
		ok = ok && e.Version == 0 && e.CreateRevision == 0 && e.Lease == 0 && len(e.Value) == 0
	} else {
		ok = ok && e.Version >= 1 && e.CreateRevision >= 0 && e.CreateRevision <= rev
	}
	if e.IsSpan() {
		ok = ok && e.Tombstone && e.Count > 0 && e.OldLease == 0 && e.Prior == Place{} && !emptyInterval(e.Key, e.End)
	}
	if prior := e.Prior; prior != (Place{}) {
		ok = ok && e.Version != 1 && 0 < prior.Revision && prior.Revision < rev
	}
	if !ok {
		panic(fmt.Sprintf("mvcc: effect at revision %d that nothing evaluates to: key %q, sub %d, create %d, version %d, lease %d, tombstone %t, prior %v, %d bytes",
			rev, e.Key, e.Sub, e.CreateRevision, e.Version, e.Lease, e.Tombstone, e.Prior, len(e.Value)))
	}
}

// version returns the version that the effect is at rev.
func (e *Effect) version(rev int64) version {
	v := version{createRevision: e.CreateRevision, version: e.Version, lease: e.Lease, tombstone: e.Tombstone, value: e.Value}
	if v.createRevision == 0 && !v.tombstone {
		v.createRevision = rev
	}
	return v
}

// stageVersion returns the row, which aliases the batch until its next operation.
func stageVersion(b *pebble.Batch, rev int64, e *Effect) (row []byte, err error) {
	v := e.version(rev)
	keyLen := 1 + len(e.Key) + bytes.Count(e.Key, []byte{escapeByte}) + 2 + suffixLen
	op := b.SetDeferred(keyLen, versionValueLen(&v, rev))
	appendVersionKey(op.Key[:0], e.Key, rev, e.Sub)
	appendVersionValue(op.Value[:0], &v, rev)
	return op.Value, op.Finish()
}

// tombstoneRow is the row of every tombstone.
var tombstoneRow = []byte{rowFormat<<4 | flagTombstone}

// leaseRow is the value of every row of the lease index.
var leaseRow = []byte{rowFormat << 4}

// stageLease keeps the lease index: which keys are attached to a lease.
func stageLease(b *pebble.Batch, e *Effect) error {
	if e.OldLease != 0 {
		if err := b.Delete(appendLeaseKey(nil, e.OldLease, e.Key), nil); err != nil {
			return err
		}
	}
	if e.Lease != 0 {
		return b.Set(appendLeaseKey(nil, e.Lease, e.Key), leaseRow, nil)
	}
	return nil
}

func leaseSpan(lease int64) (lower, upper []byte) {
	lower = appendLeaseKey(nil, lease, nil)
	if lease == -1 {
		return lower, []byte{keys.LeasePrefix + 1}
	}
	return lower, appendLeaseKey(nil, lease+1, nil)
}
