package replica

import (
	"cmp"
	"container/heap"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/range/shortage"
)

// Readers is the reading side of the replicas of a node (R5): it knows of each
// what it has resolved and which span it covers. All methods are safe for
// concurrent use and none of them wakes a range or waits for a worker.
//
// The replica publishes, on its worker and after the engine batch is visible.
// So what Readers knows is never ahead of the engine, and everything in it
// only grows: a check made before a view is opened holds in the view.
//
// A range that is not loaded is served from its rows, which hold what it had
// resolved when it went to sleep (R10).
type Readers struct {
	db    *pebble.DB
	store *mvcc.Store
	// Failed, if set before the first use, is called once for each range whose
	// replica has found damage and is not served any more, on any goroutine; it must
	// not block, nor call Readers.
	Failed func(rangeID uint64)

	mu struct {
		sync.RWMutex
		ranges map[uint64]*readState
	}
	ticks atomic.Int64
}

// maxAwaiting bounds the reads that wait at one range.
const maxAwaiting = 100_000

// NewReaders returns the reading side of the ranges on db.
func NewReaders(db *pebble.DB, store *mvcc.Store) *Readers {
	r := &Readers{db: db, store: store}
	r.mu.ranges = make(map[uint64]*readState)
	return r
}

// readState is what is published of one range. It exists from the first read
// or load on: a sleeping range keeps it. One without a replica on this node is
// kept while somebody waits at it.
type readState struct {
	rangeID  uint64
	resolved atomic.Int64
	desc     atomic.Pointer[rangepb.RangeDescriptor] // nil until the replica exists
	failed   atomic.Bool
	onFail   func(rangeID uint64)

	awaiting atomic.Int64
	mu       struct {
		sync.Mutex
		waiters awaiters
		// early wait for a descriptor of their epoch; their revision is resolved.
		early []awaiter
		// dropped: it is not of Readers any more, and nobody may wait at it.
		dropped bool
	}
}

// Await calls done once the replica has resolved rev under the named epoch or a
// later one: at once on the caller's goroutine if it has, else later on the
// worker, where done must not block. Errors: ErrFailed, ErrAwaitExpired,
// ErrTooManyRequests, a shortage (shortage.Is). A range that this node does not know yet is waited for: a
// split may be about to begin it.
func (r *Readers) Await(rangeID, epoch uint64, rev int64, done func(error)) {
	s, err := r.state(rangeID)
	if err != nil {
		done(err)
		return
	}
	if ok, err := s.resolves(epoch, rev); ok || err != nil {
		done(err)
		return
	}
	w := awaiter{epoch: epoch, revision: rev, since: r.ticks.Load(), done: done}
	if s.desc.Load() == nil {
		s = r.begin(rangeID, nil)
	}
	for !s.wait(w) {
		s = r.begin(rangeID, nil) // dropped meanwhile
	}
}

// View opens one engine view at revision rev (math.MaxInt64: what is applied)
// of the keys of the pieces, provided that every range has an epoch not below
// the named one, covers its piece and has resolved what it must. Errors:
// *rangepb.Error, ErrNotResolved, mvcc.ErrCompacted, ErrFailed. The caller closes
// the view.
func (r *Readers) View(rev int64, pieces ...rangepb.Piece) (*mvcc.Snapshot, error) {
	if err := r.Check(pieces...); err != nil {
		return nil, err
	}
	return r.store.Snapshot(rev)
}

// Check makes the checks of View for an engine view that is opened after it:
// what is published only grows, so they hold there, too.
func (r *Readers) Check(pieces ...rangepb.Piece) error {
	for i := range pieces {
		p := &pieces[i]
		s, err := r.state(p.RangeID)
		if err != nil {
			return err
		}
		ok, err := s.resolves(p.Epoch, p.Resolve)
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("%w: range %d epoch %d: %d, resolved %d", ErrNotResolved, p.RangeID, p.Epoch, p.Resolve, s.resolved.Load())
		}
		if desc := s.desc.Load(); !desc.Span().Covers(p.Span()) {
			return staleEpoch(p.RangeID, desc)
		}
	}
	return nil
}

// Resolved returns what the replica of the range has resolved. ok is false if
// this node has no such range.
func (r *Readers) Resolved(rangeID uint64) (rev int64, ok bool) {
	s, err := r.state(rangeID)
	if err != nil || s.desc.Load() == nil {
		return 0, false
	}
	return s.resolved.Load(), true
}

// Descriptor returns the descriptor that the replica of the range has applied,
// or nil. It must not be changed.
func (r *Readers) Descriptor(rangeID uint64) *rangepb.RangeDescriptor {
	s, err := r.state(rangeID)
	if err != nil {
		return nil
	}
	return s.desc.Load()
}

// Tick expires reads that have waited for more than maxTicks calls of Tick, with
// ErrAwaitExpired. Their callers nudge the range (R5) long before.
func (r *Readers) Tick(maxTicks int) {
	now := r.ticks.Add(1)
	r.mu.RLock()
	states := make([]*readState, 0, 16)
	// In any order: sorted below, so that callers hear of it in the order of ids.
	for _, s := range r.mu.ranges {
		if s.awaiting.Load() > 0 {
			states = append(states, s)
		}
	}
	r.mu.RUnlock()
	slices.SortFunc(states, func(a, b *readState) int { return cmp.Compare(a.rangeID, b.rangeID) })
	for _, s := range states {
		s.expire(now - int64(maxTicks))
		if s.desc.Load() == nil {
			r.drop(s)
		}
	}
}

// drop forgets a range that has no replica here, unless somebody waits for it.
func (r *Readers) drop(s *readState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.desc.Load() == nil && !s.failed.Load() && s.awaiting.Load() == 0 {
		s.mu.dropped = true
		delete(r.mu.ranges, s.rangeID)
	}
}

// state returns the published state of a range, from its rows if nobody has
// asked before. That of a range without a replica here says so and is of no
// other use.
func (r *Readers) state(rangeID uint64) (*readState, error) {
	r.mu.RLock()
	s := r.mu.ranges[rangeID]
	r.mu.RUnlock()
	if s != nil && s.desc.Load() != nil {
		return s, nil
	}
	snap := r.db.NewSnapshot()
	saved, err := load(snap, rangeID)
	err = errors.Join(err, snap.Close())
	switch {
	case errors.Is(err, ErrNoReplica):
		return r.newReadState(rangeID), nil
	case err != nil:
		if shortage.Is(err) {
			return nil, err
		}
		r.begin(rangeID, nil).fail()
		return nil, fmt.Errorf("%w: %w", ErrFailed, err)
	}
	return r.begin(rangeID, &saved), nil
}

func (r *Readers) newReadState(rangeID uint64) *readState {
	s := &readState{rangeID: rangeID, onFail: r.Failed}
	s.resolved.Store(-1)
	return s
}

// begin makes a replica known, with what its rows say unless it is known
// already. It returns its state; without rows that is one to wait at.
func (r *Readers) begin(rangeID uint64, saved *Saved) *readState {
	r.mu.Lock()
	s := r.mu.ranges[rangeID]
	if s == nil {
		s = r.newReadState(rangeID)
		r.mu.ranges[rangeID] = s
	}
	first := saved != nil && s.desc.Load() == nil
	if first {
		// Under the lock: the replica itself publishes only after this.
		s.resolved.Store(saved.Resolved)
		s.desc.Store(saved.Descriptor)
	}
	r.mu.Unlock()
	if first && s.awaiting.Load() > 0 {
		s.release(saved.Resolved, true)
	}
	return s
}

// resolves reports whether the replica has resolved rev under the epoch or a
// later one.
func (s *readState) resolves(epoch uint64, rev int64) (bool, error) {
	if s.failed.Load() {
		return false, fmt.Errorf("%w: range %d", ErrFailed, s.rangeID)
	}
	desc := s.desc.Load()
	return desc != nil && desc.Epoch >= epoch && s.resolved.Load() >= rev, nil
}

// publish makes a visible state known and lets go whoever waited for it.
func (s *readState) publish(desc *rangepb.RangeDescriptor, resolved int64) {
	if resolved < s.resolved.Load() {
		panic(fmt.Sprintf("replica: range %d: resolved falls from %d to %d (I1)", s.rangeID, s.resolved.Load(), resolved))
	}
	// The descriptor last: a reader that sees the new epoch sees the revision
	// that came with it.
	s.resolved.Store(resolved)
	newSpan := s.desc.Load() != desc
	if newSpan {
		s.desc.Store(desc)
	}
	if s.awaiting.Load() > 0 {
		s.release(resolved, newSpan)
	}
}

// failUnlessShort ends the reading of a replica that cannot be loaded. After a
// shortage another attempt may find it good.
func (s *readState) failUnlessShort(err error) {
	if !shortage.Is(err) {
		s.fail()
	}
}

// fail ends the reading of a replica that found damage.
func (s *readState) fail() {
	first := !s.failed.Swap(true)
	s.mu.Lock()
	waiters := append(s.mu.early, s.mu.waiters...)
	s.mu.early, s.mu.waiters = nil, nil
	s.awaiting.Add(int64(-len(waiters)))
	s.mu.Unlock()
	for _, w := range waiters {
		w.done(fmt.Errorf("%w: range %d", ErrFailed, s.rangeID))
	}
	if first && s.onFail != nil {
		s.onFail(s.rangeID)
	}
}

// awaiter is one read that waits.
type awaiter struct {
	epoch    uint64
	revision int64
	since    int64
	done     func(error)
}

// wait has w answered when the replica is as far. It reports false if the state
// was dropped.
func (s *readState) wait(w awaiter) bool {
	s.mu.Lock()
	if s.mu.dropped {
		s.mu.Unlock()
		return false
	}
	if s.awaiting.Load() >= maxAwaiting {
		s.mu.Unlock()
		w.done(ErrTooManyRequests)
		return true
	}
	// Announced before the state is looked at again: either this look sees a
	// publication, or the publication sees the announcement.
	s.awaiting.Add(1)
	ok, err := s.resolves(w.epoch, w.revision)
	if ok || err != nil {
		s.awaiting.Add(-1)
		s.mu.Unlock()
		w.done(err)
		return true
	}
	heap.Push(&s.mu.waiters, w)
	s.mu.Unlock()
	return true
}

func (s *readState) release(resolved int64, newSpan bool) {
	var free []awaiter
	s.mu.Lock()
	if newSpan {
		early := s.mu.early
		s.mu.early = nil
		for _, w := range early {
			heap.Push(&s.mu.waiters, w)
		}
	}
	desc := s.desc.Load()
	for len(s.mu.waiters) > 0 && s.mu.waiters[0].revision <= resolved {
		w := heap.Pop(&s.mu.waiters).(awaiter)
		if desc == nil || desc.Epoch < w.epoch {
			s.mu.early = append(s.mu.early, w)
			continue
		}
		free = append(free, w)
	}
	s.awaiting.Add(int64(-len(free)))
	s.mu.Unlock()
	for _, w := range free {
		w.done(nil)
	}
}

func (s *readState) expire(before int64) {
	var old []awaiter
	s.mu.Lock()
	keep := func(ws []awaiter) []awaiter {
		kept := ws[:0]
		for _, w := range ws {
			if w.since < before {
				old = append(old, w)
			} else {
				kept = append(kept, w)
			}
		}
		clear(ws[len(kept):])
		return kept
	}
	s.mu.early = keep(s.mu.early)
	s.mu.waiters = keep(s.mu.waiters)
	heap.Init(&s.mu.waiters)
	s.awaiting.Add(int64(-len(old)))
	s.mu.Unlock()
	for _, w := range old {
		w.done(fmt.Errorf("%w: range %d: %d, resolved %d", ErrAwaitExpired, s.rangeID, w.revision, s.resolved.Load()))
	}
}

// awaiters is a heap, the lowest revision first.
type awaiters []awaiter

func (a awaiters) Len() int           { return len(a) }
func (a awaiters) Less(i, j int) bool { return a[i].revision < a[j].revision }
func (a awaiters) Swap(i, j int)      { a[i], a[j] = a[j], a[i] }
func (a *awaiters) Push(x any)        { *a = append(*a, x.(awaiter)) }
func (a *awaiters) Pop() any {
	last := len(*a) - 1
	w := (*a)[last]
	(*a)[last] = awaiter{}
	*a = (*a)[:last]
	return w
}
