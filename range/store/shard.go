package store

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/range/raftlog"
	"github.com/hawser-kv/hawser/range/shortage"
)

// shard is a worker's part of the store. Two sets of fields: those under mu are
// shared with everybody who posts, the others are the worker's.
//
// A slot exists while its group has a member, an item or a failure. So a group
// that nobody touches costs nothing here, not even a slot.
type shard struct {
	store *Store
	index int
	wake  chan struct{} // capacity 1

	mu struct {
		sync.Mutex
		slots map[uint64]*slot
		// ready holds slots to be flushed, in order, each once; the meta group
		// is in metaReady instead.
		ready     []*slot
		metaReady bool
		ticks     int // ticks to be delivered
		synced    int // batches at the front of syncing whose sync has ended
		syncErr   error
		refusing  error // what post answers; nil while the shard works
	}

	// loaded holds the slots with a member, by id, so that ticks come in an
	// order that does not depend on a map.
	loaded []*slot
	// syncing holds the batches whose sync is in flight, oldest first.
	syncing []*pendingSync
	// due holds OnDurable callbacks that wait for nothing any more.
	due []slotFunc
	// gated holds slots to flush when a sync ends.
	gated []*slot
	// touched holds slots flushed in this round.
	touched []*slot
	closed  bool

	round    Round
	taken    []*slot // of one pass; kept for its array
	items    []any   // likewise
	toSync   chan syncing
	counters struct {
		rounds, commits, syncs, flushes, batchBytes, loads, unloads atomic.Uint64
		loaded, syncing                                             atomic.Int64
	}
}

// slot is a group's place on its shard.
type slot struct {
	id uint64

	// Under shard.mu.
	inbox  []any
	queued bool // in the ready list

	// The worker's.
	member   Member
	inFlight int   // OnDurable callbacks outstanding
	gated    bool  // in shard.gated
	touched  bool  // in shard.touched
	again    bool  // Round.Again
	unload   bool  // Round.Unload
	failure  error // Round.Fail; sticky
}

type pendingSync struct {
	batch   *pebble.Batch
	durable []slotFunc
	// onDisk: a sync covers the batch, and SyncNext was not called for it yet.
	// Only under ManualSync.
	onDisk bool
}

func newShard(s *Store, index int) *shard {
	sh := &shard{store: s, index: index, wake: make(chan struct{}, 1)}
	sh.mu.slots = make(map[uint64]*slot)
	sh.round.shard = sh
	return sh
}

func (s *shard) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// post returns the reason why an item is refused.
func (s *shard) post(id uint64, ev any) error {
	s.mu.Lock()
	if err := s.mu.refusing; err != nil {
		s.mu.Unlock()
		return err
	}
	sl := s.mu.slots[id]
	if sl == nil {
		sl = &slot{id: id}
		s.mu.slots[id] = sl
	}
	if ev != nil {
		sl.inbox = append(sl.inbox, ev)
	}
	s.queueLocked(sl)
	s.mu.Unlock()
	s.wakeUp()
	return nil
}

func (s *shard) queueLocked(sl *slot) {
	if sl.queued {
		return
	}
	sl.queued = true
	if sl.id == metaGroup {
		s.mu.metaReady = true
		return
	}
	s.mu.ready = append(s.mu.ready, sl)
}

func (s *shard) queue(sl *slot) {
	s.mu.Lock()
	s.queueLocked(sl)
	s.mu.Unlock()
}

// takeReady moves the ready slots to s.taken, the meta group first.
func (s *shard) takeReady() {
	s.taken = s.taken[:0]
	s.mu.Lock()
	if s.mu.metaReady {
		s.mu.metaReady = false
		s.taken = append(s.taken, s.mu.slots[metaGroup])
	}
	s.taken = append(s.taken, s.mu.ready...)
	clear(s.mu.ready)
	s.mu.ready = s.mu.ready[:0]
	for _, sl := range s.taken {
		sl.queued = false
	}
	s.mu.Unlock()
}

// putBack returns slots that had no turn to the front of the ready list.
func (s *shard) putBack(rest []*slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var front []*slot
	for _, sl := range rest {
		if sl.queued {
			continue // something came for it meanwhile: it is in the list
		}
		if sl.id == metaGroup {
			s.queueLocked(sl)
			continue
		}
		sl.queued = true
		front = append(front, sl)
	}
	s.mu.ready = append(front, s.mu.ready...)
}

// visit gives a slot its turn: loads its member, hands it its items, flushes.
func (s *shard) visit(sl *slot) {
	s.mu.Lock()
	n := min(len(sl.inbox), s.store.cfg.MaxItems)
	s.items = append(s.items[:0], sl.inbox[:n]...)
	switch {
	case n == len(sl.inbox) && cap(sl.inbox) <= 2*s.store.cfg.MaxItems:
		clear(sl.inbox)
		sl.inbox = sl.inbox[:0]
	case n == len(sl.inbox):
		sl.inbox = nil // a burst's array is not kept
	default:
		sl.inbox = slices.Delete(sl.inbox, 0, n)
		s.queueLocked(sl) // at the back: others have their turn first
	}
	s.mu.Unlock()
	if !sl.touched {
		sl.touched = true
		s.touched = append(s.touched, sl)
	}
	if err := s.load(sl); err != nil {
		for _, ev := range s.items {
			refuse(ev, err)
		}
		clear(s.items)
		return
	}
	items := s.items
	for _, ev := range items {
		sl.member.Handle(ev)
	}
	clear(items)
	s.round.slot = sl
	sl.unload = false
	s.counters.flushes.Add(1)
	sl.member.Flush(&s.round)
	s.round.slot = nil
}

func (s *shard) load(sl *slot) error {
	if sl.failure != nil {
		// What has failed for a shortage is loaded again once none of its batches is under
		// way, whose rows would be taken for durable.
		if !shortage.Is(sl.failure) || sl.member != nil || sl.inFlight > 0 {
			return sl.failure
		}
		sl.failure = nil
	}
	if sl.member != nil {
		return nil
	}
	m, err := s.store.cfg.Loader(sl.id)
	if err != nil {
		err = fmt.Errorf("load group %d: %w", sl.id, err)
		if shortage.Is(err) {
			return err // another attempt may find it good
		}
		if errors.Is(err, ErrNotServed) || errors.Is(err, raftlog.ErrCorrupt) || errors.Is(err, raftlog.ErrFormat) {
			s.store.cfg.Logger.Error("group is not served", zap.Uint64("group", sl.id), zap.Error(err))
			sl.failure = err
		}
		return err
	}
	sl.member = m
	at, _ := slices.BinarySearchFunc(s.loaded, sl.id, bySlotID)
	s.loaded = slices.Insert(s.loaded, at, sl)
	s.counters.loads.Add(1)
	s.counters.loaded.Add(1)
	return nil
}

func bySlotID(sl *slot, id uint64) int { return cmp.Compare(sl.id, id) }

// close drops a slot's member.
func (s *shard) close(sl *slot, err error) {
	m := sl.member
	sl.member = nil
	at, found := slices.BinarySearchFunc(s.loaded, sl.id, bySlotID)
	if !found {
		panic(fmt.Sprintf("store: group %d has a member and is not loaded", sl.id))
	}
	s.loaded = slices.Delete(s.loaded, at, at+1)
	s.counters.unloads.Add(1)
	s.counters.loaded.Add(-1)
	m.Close(err)
}

// settle ends a round for the slots it touched: failures and unloads.
func (s *shard) settle() {
	for _, sl := range s.touched {
		sl.touched = false
		switch {
		case sl.failure != nil && sl.member != nil:
			s.store.cfg.Logger.Error("group stops", zap.Uint64("group", sl.id), zap.Error(sl.failure))
			s.close(sl, sl.failure)
		case sl.again:
			sl.again = false
			s.queue(sl)
		default:
			s.maybeUnload(sl)
		}
	}
	clear(s.touched)
	s.touched = s.touched[:0]
}

// maybeUnload drops a member that wants it and a slot that has nothing. A
// member with callbacks outstanding stays: one that was loaded anew would take
// for durable what is not yet.
func (s *shard) maybeUnload(sl *slot) {
	if sl.member != nil && (!sl.unload || sl.inFlight > 0) || sl.gated || sl.failure != nil {
		return
	}
	s.mu.Lock()
	idle := len(sl.inbox) == 0 && !sl.queued
	if idle && sl.inFlight == 0 {
		delete(s.mu.slots, sl.id)
	}
	s.mu.Unlock()
	if idle && sl.member != nil {
		s.close(sl, nil)
	}
}
