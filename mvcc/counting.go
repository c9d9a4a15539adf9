package mvcc

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"github.com/hawser-kv/hawser/mvcc/counts"
)

const (
	// minCheckpointEvents is the number of events between two checkpoints of
	// the counts, while the runs are few: so many are replayed at a start.
	minCheckpointEvents = 64 << 10
	// checkpointEventsPerRun lets checkpoints come at longer intervals in a
	// large store, as each may write every run.
	checkpointEventsPerRun = 16
	// checkEvery is the number of events after which the interval is looked at.
	checkEvery = 4 << 10

	// maintainEvery is the number of Apply calls from one look for runs to be
	// split to the next, and maintainRuns the number of runs that one looks at:
	// about a millisecond each.
	maintainEvery = 32
	maintainRuns  = 4
)

// counting is what a store does for its counts beside counting.
type counting struct {
	sync.Mutex // held by who writes a checkpoint or maintains

	applied atomic.Int64 // newest revision applied
	events  atomic.Int64 // since the last checkpoint
	due     atomic.Int64 // number of events at which the next one is thought of
	calls   atomic.Int64 // of Apply
}

// loadCounts reads the count index and tells it again what came after its last
// checkpoint.
func (s *Store) loadCounts(opts counts.Options) error {
	x, from, err := counts.Load(s.db, s.forgotten.Load(), opts)
	if err != nil {
		return err
	}
	s.counts = x
	s.counting.due.Store(checkEvery)
	if err := s.replayCounts(from); err != nil {
		return err
	}
	return s.commitNotes(func(b *pebble.Batch) error { return x.Recover(b, keyScanner{s}) })
}

// commitNotes commits what f has to note of the counts.
func (s *Store) commitNotes(f func(b *pebble.Batch) error) (err error) {
	b := s.db.NewBatch()
	defer func() { err = errors.Join(err, b.Close()) }()
	if err := f(b); err != nil || b.Empty() {
		return err
	}
	return b.Commit(pebble.NoSync)
}

// countEvents is told of what Apply staged, before it stages the next.
func (s *Store) countEvents(rev int64, events int) {
	c := &s.counting
	for {
		old := c.applied.Load()
		if rev <= old || c.applied.CompareAndSwap(old, rev) {
			break
		}
	}
	c.events.Add(int64(events))
}

// tendCounts writes a checkpoint when one is due and splits runs that grew too
// large. It is called before Apply stages anything: so mostly the batches before
// are committed.
func (s *Store) tendCounts() error {
	c := &s.counting
	calls := c.calls.Add(1)
	if c.events.Load() >= c.due.Load() && c.TryLock() {
		err := s.maybeCheckpointLocked()
		c.Unlock()
		if err != nil {
			return err
		}
	}
	if s.counts.NeedsMaintenance() && calls%maintainEvery == 0 && c.TryLock() {
		defer c.Unlock()
		// The runs are of any range: damage of their keys is not what is applied now.
		// Such a run stays whole, which is slower and as exact, and who needs its keys
		// meets the damage.
		if err := s.counts.Maintain(keyScanner{s}, maintainRuns); err != nil && !pebble.IsCorruptionError(err) {
			return err
		}
	}
	return nil
}

func (s *Store) maybeCheckpointLocked() error {
	c := &s.counting
	events := c.events.Load()
	if events < c.due.Load() {
		return nil // somebody was faster
	}
	if events < max(minCheckpointEvents, checkpointEventsPerRun*int64(s.counts.Runs())) {
		c.due.Store(events + checkEvery)
		return nil
	}
	return s.checkpointLocked(pebble.NoSync, nil)
}

// checkpointLocked writes what a start would otherwise have to replay. What stage
// puts into the batch is committed with it.
func (s *Store) checkpointLocked(sync *pebble.WriteOptions, stage func(b *pebble.Batch) error) (err error) {
	c := &s.counting
	b := s.db.NewBatch()
	defer func() { err = errors.Join(err, b.Close()) }()
	events := c.events.Load()
	err = s.counts.Checkpoint(b, c.applied.Load(), func() error {
		if stage != nil {
			if err := stage(b); err != nil {
				return err
			}
		}
		return b.Commit(sync)
	})
	if err != nil {
		return fmt.Errorf("mvcc: checkpoint of the counts: %w", err)
	}
	c.due.Store(c.events.Add(-events) + checkEvery)
	return nil
}

// Close makes everything that was committed durable, with a checkpoint of the
// counts, so that the next Open has nothing to replay. Nothing is applied
// meanwhile or afterwards.
func (s *Store) Close() error {
	s.counting.Lock()
	defer s.counting.Unlock()
	return s.checkpointLocked(pebble.Sync, nil)
}

// PrepareBoundary does beforehand what EnsureBoundary would have to read for: a
// run of keys, with what lies between them. It may be called at any time.
func (s *Store) PrepareBoundary(key []byte) error {
	if err := s.counts.Cut(key, keyScanner{s}); err != nil {
		return fmt.Errorf("mvcc: prepare boundary %q: %w", key, err)
	}
	return nil
}

// EnsureBoundary tells the counts that a range begins, or ends, at key, as
// revisions grow within a range only. It is called after the batch of the split
// is committed, and at a start for each replica; both before anything new is
// applied to the range and while what was applied to it is committed. The caller
// commits b, without sync, before anything is applied.
func (s *Store) EnsureBoundary(b *pebble.Batch, key []byte) error {
	if err := s.counts.EnsureBoundary(b, key, keyScanner{s}); err != nil {
		return fmt.Errorf("mvcc: %w", err)
	}
	return nil
}

// ReleaseBoundary takes EnsureBoundary back when two ranges become one; b is the
// batch that applies the merge.
func (s *Store) ReleaseBoundary(b *pebble.Batch, key []byte) error {
	return s.counts.ReleaseBoundary(b, key)
}

// InvalidateCounts announces that the data of [start, end), the span of one
// replica, is about to be replaced or removed by other means than Apply. The
// caller commits b with a sync, changes the data, and calls RebuildCounts. In
// between, counts of the span walk over its keys. If the process dies, the next
// Open counts anew.
func (s *Store) InvalidateCounts(b *pebble.Batch, start, end []byte) error {
	s.recent.clear()
	s.known.restart()
	return s.counts.Invalidate(b, start, end)
}

// RebuildCounts counts the keys of [start, end) anew after InvalidateCounts. What
// was applied to the span is committed, and nothing is applied meanwhile.
func (s *Store) RebuildCounts(start, end []byte) error {
	s.recent.clear()
	s.known.restart()
	s.compaction.again()
	return s.counts.Reset(start, end, keyScanner{s})
}

// replayCounts applies the creations and deletions among the event rows from a
// revision on, revision by revision.
func (s *Store) replayCounts(from int64) (err error) {
	lower, upper := EventSpan(from, latestRevision)
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return fmt.Errorf("mvcc: replay counts: %w", err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	var (
		at      int64
		changes []counts.Change
		names   []byte // the bytes of the keys in changes
	)
	flush := func() error {
		err := s.counts.Apply(nil, at, changes)
		changes, names = changes[:0], names[:0]
		return err
	}
	var pending pendingList // not told yet
	if list := s.pending.list.Load(); list != nil {
		pending = *list
	}
	begin := func(rev int64) (err error) {
		if rev != at {
			err = flush()
			at = rev
		}
		return err
	}
	// tell tells of what is pending before a place.
	tell := func(rev int64, sub uint32) error {
		for len(pending) > 0 && (pending[0].rev < rev || pending[0].rev == rev && pending[0].next <= sub) {
			p := &pending[0]
			pending = pending[1:]
			if p.rev < from {
				continue
			}
			if err := begin(p.rev); err != nil {
				return err
			}
			changes = append(changes, s.spanChange(p))
		}
		return nil
	}
	whole := s.pending.list.Load()
	for ok := it.First(); ok; ok = it.Next() {
		rev, sub, key, err := splitEventKey(it.Key())
		if err != nil {
			return err
		}
		if whole.names(rev, sub) {
			continue // told of as a part of the span
		}
		event, err := decodeEventValue(it.Value(), rev)
		if err != nil {
			return err
		}
		if err := tell(rev, sub); err != nil {
			return err
		}
		if err := begin(rev); err != nil {
			return err
		}
		delta := 0
		switch event.kind {
		case eventCreate:
			delta = +1
		case eventDelete:
			delta = -1
		default:
			continue
		}
		n := len(names)
		names = append(names, key...)
		changes = append(changes, counts.Change{Key: names[n:len(names):len(names)], Delta: delta})
	}
	if err := it.Error(); err != nil {
		return fmt.Errorf("mvcc: replay counts: %w", err)
	}
	if err := tell(latestRevision, 0); err != nil {
		return err
	}
	return flush()
}

// count returns the number of keys in [start, end) that are live at rev.
func (s *Store) count(start, end []byte, rev int64) (int64, error) {
	n, err := s.counts.Count(start, end, rev, keyScanner{s})
	if errors.Is(err, counts.ErrForgotten) {
		return 0, ErrCompacted
	}
	return n, err
}

// keyScanner lets the count index look at the keys.
type keyScanner struct{ s *Store }

// CountAt implements counts.Scanner.
func (k keyScanner) CountAt(start, end []byte, rev int64) (n int64, err error) {
	l := Latest{k.s, rev}
	if emptyInterval(start, end) {
		return 0, nil
	}
	lower, upper := VersionSpan(start, end)
	c, err := l.open(lower, upper, false)
	if err != nil {
		return 0, err
	}
	err = c.scan(rev, ScanOptions{}, func(row) (bool, error) { n++; return true, nil })
	return n, k.s.releaseAfter(c, err)
}

// History implements counts.Scanner. It does not ask whether after is readable:
// the index folds what was forgotten meanwhile, and of that only sums matter.
func (k keyScanner) History(start, end []byte, after int64, fn func(key []byte, rev int64, delta int) error) error {
	if emptyInterval(start, end) {
		return nil
	}
	lower, upper := VersionSpan(start, end)
	c, err := k.s.openCursor(lower, upper, false)
	if err != nil {
		return err
	}
	return errors.Join(c.history(after, fn), k.s.release(c))
}

// maxHistorySteps is the number of versions of a key that a history steps over
// before it jumps to the revision in which the key was created.
const maxHistorySteps = 3

// history visits the creations and deletions of every key within the iterator's
// bounds that came after a revision, the newest first, and then, if the key was
// live at that revision, a creation at it. Versions that only changed a key are
// jumped over: what it costs depends on keys, creations and deletions.
func (c *cursor) history(after int64, fn func(key []byte, rev int64, delta int) error) error {
	var key []byte
	started := false
	created := int64(-1) // create revision of the life of the key that is told already
	until := int64(0)    // what is older ended at or before it
	steps := 0
	for ok := c.it.First(); ok; {
		prefix, rev, _, isVersion := splitVersionKey(c.it.Key())
		if !isVersion {
			return fmt.Errorf("%w: version key %x", errCorruptRow, c.it.Key())
		}
		value, err := c.it.ValueAndErr()
		if err != nil {
			return fmt.Errorf("mvcc: history: %w", err)
		}
		v, err := decodeVersionValue(value, rev)
		if err != nil {
			return err
		}
		if !started || !bytes.Equal(prefix, c.prefix) {
			started, created, until = true, -1, latestRevision
			c.prefix = append(c.prefix[:0], prefix...)
			if key, err = appendUserKey(key[:0], prefix); err != nil {
				return err
			}
		}
		switch {
		case v.tombstone:
			if rev <= after {
				break
			}
			created, until = -1, rev-1 // it has ended itself
			if err := fn(key, rev, -1); err != nil {
				return err
			}
		case v.createRevision != created:
			created, steps = v.createRevision, 0
			if c.pending != nil {
				ended := c.pending.kills(prefix, rev, until)
				if ended != 0 && ended <= after {
					ok = c.it.NextPrefix()
					continue
				}
				if ended != 0 {
					if err := fn(key, ended, -1); err != nil {
						return err
					}
				}
			}
			if err := fn(key, max(created, after), +1); err != nil {
				return err
			}
		}
		if !v.tombstone {
			until = created // another life came after it
		}
		switch {
		case rev <= after || !v.tombstone && created <= after:
			ok = c.it.NextPrefix() // older ones do not matter
		case !v.tombstone && rev > created && steps >= maxHistorySteps:
			c.seek = appendVersionSuffix(append(c.seek[:0], c.prefix...), created, math.MaxUint32)
			ok = c.it.SeekGE(c.seek)
		default:
			steps++
			ok = c.it.Next()
		}
	}
	if err := c.it.Error(); err != nil {
		return fmt.Errorf("mvcc: history: %w", err)
	}
	return nil
}
