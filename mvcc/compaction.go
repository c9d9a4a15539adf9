package mvcc

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// Compaction removes what no read at or above the forgotten revision can see. It
// is driven by the revision index: an event at or below the forgotten revision
// makes the version before it garbage, and a deletion below it also its own
// tombstone. So it costs what was written, not what is stored. The index itself
// goes with one range delete at the end.
//
//	SetForgotten(rev)      durable; counts fold their history
//	CompactStep ...        point deletes of versions, some events a step
//	last CompactStep       a checkpoint of the counts, and in the same batch
//	                       the rows of the index below rev go
//
// What stays of each key is its newest version at or below rev, if that is no
// tombstone below rev (etcd/C3): a tombstone exactly at rev, and the
// index rows of rev, serve a watch that begins at rev.
//
// Most rows of the index name the version before the event, its prior, or that
// there is none; then nothing is read but the index. Who evaluated the others did
// not learn it (a delete of a span, a transaction over several ranges): for them
// the versions are looked up. Therefore the events of many revisions are put in
// the order of their keys first (a window), so that neighbours in the engine are
// read together: in the order of the index every event would read its own block,
// which took 80 µs an event with a million keys' versions.
//
// Nothing but the forgotten revision is remembered: steps may be done again, and
// after a crash they are, from the first row of the index that is left. Steps
// need no sync: the log keeps the order, so rows of the index are never gone
// while the versions they name came back.
type compaction struct {
	sync.Mutex
	windowEvents int    // how many events a window holds at most
	target       int64  // the forgotten revision that is worked on
	next         []byte // event key to go on with behind the window, nil at the start
	// window is what is left of the window, by key, the oldest first: a step that
	// ends among the events of a key must not take its tombstone and leave what
	// was before. ended: the index has nothing behind the window.
	window   []namedVersion
	ended    bool
	removed  atomic.Uint64 // versions, since the start
	behind   int64         // revisions from next to target
	first    int64         // revision of the first row of the index when target was begun
	lookups  int64         // of versions that no row of the index names
	finished int64         // everything is removed up to this target
}

// again has the next step begin at the first row of the index: rows came to it
// by other means than Apply, perhaps below where the compaction is.
func (c *compaction) again() {
	c.Lock()
	defer c.Unlock()
	c.target, c.finished = noTarget, noTarget
}

// SetForgotten raises the forgotten revision: below it nothing can be read from
// now on, and versions may go. It is durable when the call returns. Everything at
// or below rev has been applied to every range of this engine, and is committed.
// A revision that is not above the forgotten one changes nothing. ErrPending while a
// deletion at or below it is not written out: who reads its events may still come.
func (s *Store) SetForgotten(rev int64) error {
	s.compaction.Lock()
	defer s.compaction.Unlock()
	if rev <= s.forgotten.Load() {
		return nil
	}
	if s.PendingFrom() <= rev {
		return ErrPending
	}
	row := binary.BigEndian.AppendUint64(nil, uint64(rev))
	if err := s.db.Set(forgottenKey, row, pebble.Sync); err != nil {
		return fmt.Errorf("mvcc: forget revisions below %d: %w", rev, err)
	}
	s.forgotten.Store(rev)
	s.counts.Forget(rev)
	return nil
}

// CompactStep removes what the next maxEvents events made garbage, and says
// whether all that the forgotten revision allows to remove is gone. One step in
// many reads a window of the index first.
func (s *Store) CompactStep(maxEvents int) (done bool, err error) {
	c := &s.compaction
	c.Lock()
	defer c.Unlock()
	if forgotten := s.forgotten.Load(); c.target != forgotten {
		c.target, c.next, c.window, c.ended = forgotten, nil, nil, false
	}
	if c.finished == c.target {
		return true, nil
	}
	more, err := s.removeVersions(maxEvents)
	if err != nil {
		return false, fmt.Errorf("mvcc: compact at %d: %w", c.target, err)
	}
	if more {
		return false, nil
	}
	if err := s.removeEvents(c.target); err != nil {
		return false, fmt.Errorf("mvcc: compact at %d: %w", c.target, err)
	}
	c.finished, c.next, c.ended = c.target, nil, false
	return true, nil
}

// Removed returns how many versions CompactStep has removed since the start.
func (s *Store) Removed() uint64 { return s.compaction.removed.Load() }

// Backlog estimates how many events CompactStep has still to go through, once it
// was called: revisions have one each, most of them.
func (s *Store) Backlog() int64 {
	c := &s.compaction
	c.Lock()
	defer c.Unlock()
	return int64(len(c.window)) + c.behind
}

// namedVersion is a version that the revision index names.
type namedVersion struct {
	key []byte
	rev int64
	sub uint32
	eventValue
}

// noTarget is no forgotten revision.
const noTarget = -1

// maxWindowKeyBytes bounds the keys of a window.
const maxWindowKeyBytes = 8 << 20

// removeVersions does one step through the window, and reads the next one when
// there is none.
func (s *Store) removeVersions(maxEvents int) (more bool, err error) {
	c := &s.compaction
	if len(c.window) == 0 && !c.ended {
		if err := s.readWindow(); err != nil {
			return false, err
		}
	}
	step := c.window[:min(max(maxEvents, 1), len(c.window))]
	g := garbage{s: s, at: c, batch: s.db.NewBatch()}
	defer func() { err = errors.Join(err, g.close()) }()
	for rest := step; len(rest) > 0; {
		n := 1
		for n < len(rest) && bytes.Equal(rest[n].key, rest[0].key) {
			n++
		}
		if err := g.ofKey(rest[:n]); err != nil {
			return false, err
		}
		rest = rest[n:]
	}
	b := g.batch
	if !b.Empty() {
		if err := b.Commit(pebble.NoSync); err != nil {
			return false, err
		}
		c.removed.Add(uint64(b.Count()))
	}
	if c.window = c.window[len(step):]; len(c.window) == 0 {
		c.window = nil // its keys go
	}
	return c.window != nil || !c.ended, nil
}

// readWindow reads the next rows of the index.
func (s *Store) readWindow() (err error) {
	c := &s.compaction
	lower, upper := EventSpan(0, c.target)
	if c.next != nil {
		lower = c.next
	}
	index, err := s.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, index.Close()) }()
	var window []namedVersion
	var names []byte // the bytes of the keys
	ok := index.First()
	for ; ok && len(window) < c.windowEvents && len(names) < maxWindowKeyBytes; ok = index.Next() {
		rev, sub, key, err := splitEventKey(index.Key())
		if err != nil {
			return err
		}
		event, err := decodeEventValue(index.Value(), rev)
		if err != nil {
			return err
		}
		n := len(names)
		names = append(names, key...)
		window = append(window, namedVersion{names[n:len(names):len(names)], rev, sub, event})
	}
	if err := index.Error(); err != nil {
		return err
	}
	if c.next == nil && len(window) > 0 {
		c.first = window[0].rev
	}
	c.next, c.ended, c.behind = nil, !ok, 0
	if ok {
		rev, _, _, err := splitEventKey(index.Key())
		if err != nil {
			return err
		}
		c.next, c.behind = bytes.Clone(index.Key()), c.target-rev+1
	}
	slices.SortFunc(window, func(a, b namedVersion) int {
		return cmp.Or(bytes.Compare(a.key, b.key), cmp.Compare(a.rev, b.rev), cmp.Compare(a.sub, b.sub))
	})
	c.window = window
	return nil
}

// garbage stages the removal of what a step finds.
type garbage struct {
	s        *Store
	at       *compaction
	batch    *pebble.Batch
	key      []byte
	versions *cursor // opened when first needed
}

func (g *garbage) close() error {
	err := g.batch.Close()
	if g.versions != nil {
		err = errors.Join(err, g.s.release(g.versions))
	}
	return err
}

// ofKey stages the removal of what the events of one key in a step, from the
// oldest to the newest, make garbage: all their versions but the newest, that,
// too, if it is a tombstone below the target, and what was before the oldest.
func (g *garbage) ofKey(events []namedVersion) error {
	for i, e := range events {
		if last := i == len(events)-1; last && !(e.kind == eventDelete && e.rev < g.at.target) {
			break
		}
		if err := g.remove(e.key, Place{e.rev, e.sub}); err != nil {
			return err
		}
	}
	switch oldest := events[0]; {
	case oldest.prior != Place{}:
		return g.remove(oldest.key, oldest.prior)
	case oldest.kind == eventCreate && oldest.rev < g.at.target:
		// Before it is nothing, or a tombstone, which goes by an event of its own
		// unless it is one of the target itself.
		return nil
	default:
		return g.removeBefore(oldest)
	}
}

func (g *garbage) remove(key []byte, at Place) error {
	g.key = appendVersionKey(g.key[:0], key, at.Revision, at.Sub)
	return g.batch.Delete(g.key, nil)
}

// removeBefore stages the removal of the version before an event. The versions
// before that are named by events of their own, which had their turn, unless they
// are older than the index: nothing else will name those, so they go, too.
func (g *garbage) removeBefore(e namedVersion) error {
	if g.versions == nil {
		c, err := g.s.openCursor(nil, nil, false)
		if err != nil {
			return err
		}
		g.versions = c
	}
	g.at.lookups++
	it := g.versions.it
	g.key = appendVersionKey(g.key[:0], e.key, e.rev, e.sub)
	for ok := it.SeekPrefixGE(g.key); ok; ok = it.Next() {
		k := it.Key()
		_, rev, sub, isVersion := splitVersionKey(k)
		if !isVersion {
			return fmt.Errorf("%w: version key %x", errCorruptRow, k)
		}
		if rev == e.rev && sub == e.sub {
			continue
		}
		if err := g.batch.Delete(k, nil); err != nil {
			return err
		}
		if rev >= g.at.first {
			break
		}
	}
	return it.Error()
}

// removeEvents removes the rows of the index below rev. They are what the counts
// would be replayed from: so a checkpoint goes with it.
func (s *Store) removeEvents(rev int64) error {
	s.counting.Lock()
	defer s.counting.Unlock()
	return s.checkpointLocked(pebble.NoSync, func(b *pebble.Batch) error {
		lower, _ := EventSpan(0, 0)
		upper, _ := EventSpan(rev, rev)
		return b.DeleteRange(lower, upper, nil)
	})
}

// Garbage returns the number of versions that no read at or above the forgotten
// revision can see: none once CompactStep says that all is done. It walks all
// versions, for tests and for who looks for a leak.
func (s *Store) Garbage() (n int64, err error) {
	forgotten := s.forgotten.Load()
	lower, upper := VersionSpan(nil, nil)
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return 0, fmt.Errorf("mvcc: open iterator: %w", err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	var at []byte       // prefix of the key
	superseded := false // by a version at or below the forgotten revision
	for ok := it.First(); ok; ok = it.Next() {
		prefix, rev, _, isVersion := splitVersionKey(it.Key())
		if !isVersion {
			return 0, fmt.Errorf("%w: version key %x", errCorruptRow, it.Key())
		}
		if !bytes.Equal(prefix, at) {
			at, superseded = append(at[:0], prefix...), false
		}
		if rev > forgotten {
			continue
		}
		row, err := it.ValueAndErr()
		if err != nil {
			return 0, fmt.Errorf("mvcc: count garbage: %w", err)
		}
		v, err := decodeVersionValue(row, rev)
		if err != nil {
			return 0, err
		}
		if superseded || v.tombstone && rev < forgotten {
			n++
		}
		superseded = true
	}
	return n, it.Error()
}
