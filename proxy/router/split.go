package router

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// A split voids the latches of its range, so it waits for those that are held:
// else a transaction over many ranges, which are split all the time, would be
// refused by S again and again.
const (
	// splitPatience is how long. Writes to the range wait behind the split as long
	// as the split waits for latches.
	splitPatience = time.Second
	// maxLatchedSplits is the number of tries in which a split waits for latches;
	// one more is made at once. It is more than the range was split meanwhile.
	maxLatchedSplits = 8
)

// Split splits the range that holds key at key (R11) and returns both halves
// once it is decided. ErrBoundaryExists. No error holds the key, which may be long.
func (r *Router) Split(ctx context.Context, key []byte) (left, right *rangepb.RangeDescriptor, err error) {
	if ctx.Err() == nil {
		r.cfg.Ranges.PrepareSplit(key)
	}
	res, err := wait(ctx, r, true, func(_ Exec, done func(*placementpb.SplitResult, error)) func() {
		return r.startSplit(key, done)
	})
	if err != nil {
		return nil, nil, err
	}
	if res.Refused {
		if res.Reason == placementpb.RefusalReason_REFUSAL_REASON_BOUNDARY_EXISTS {
			return nil, nil, ErrBoundaryExists
		}
		return nil, nil, fmt.Errorf("router: split refused: %s", res.Reason)
	}
	r.learn([]*rangepb.RangeDescriptor{res.Left, res.Right})
	return res.Left, res.Right, nil
}

// StartSplit is Split for callers that do not wait: done is called once, on any
// goroutine, with S's answer as it is, unless cancel was called before.
func (r *Router) StartSplit(key []byte, done func(*placementpb.SplitResult, error)) (cancel func()) {
	r.cfg.Ranges.PrepareSplit(key)
	return r.startSplit(key, done)
}

func (r *Router) startSplit(key []byte, done func(*placementpb.SplitResult, error)) (cancel func()) {
	o := &ask[*placementpb.SplitResult]{r: r, done: done}
	o.send = func(attempt int, f func(*placementpb.SplitResult, error)) {
		s := &latchedSplit{r: r, key: key, done: f, left: &o.ended}
		s.start(attempt)
	}
	o.start()
	return o.cancel
}

// latchedSplit is one try of a split. First it waits for the requests that earlier
// splits have sent back from this range (turns). Then it takes a latch on the whole
// range, which stands behind the latches that are held and before those to come,
// and asks S while it has it:
//
//	turns ──► latching ──► asking S ──► decided: the split takes the latch away
//	  │          │            ▲   └───► refused, lost: the latch is given back
//	  └──────────┴────────────┘
//	 no leader, no room, or splitPatience is over: without the latch
//
// The owner of the latch never commits, so the latch protects nothing but this
// order: whatever becomes of it, the split is right (R11).
type latchedSplit struct {
	r    *Router
	key  []byte
	done func(*placementpb.SplitResult, error)
	// left: the caller has left. S is not asked any more.
	left *atomic.Bool

	rangeID uint64
	owner   *placementpb.TxnID
	mu      struct {
		sync.Mutex
		// asking: the latch was waited for enough.
		asking bool
	}
}

func (s *latchedSplit) start(attempt int) {
	dir := s.r.dir.Load()
	if dir == nil || attempt > maxLatchedSplits {
		s.ask()
		return
	}
	d := dir.Lookup(s.key)
	if bytes.Equal(d.Start, s.key) { // S will say that it is a boundary, unless it was merged away
		s.ask()
		return
	}
	s.rangeID, s.owner = d.RangeId, s.r.cfg.Sequencer.NewOwner()
	stop := s.r.cfg.After(splitPatience, func() {
		if s.enough() {
			s.release()
			s.ask()
		}
	})
	// What the split that made the range has sent back is known once the replica has
	// applied that split.
	s.r.cfg.Ranges.Await(d.RangeId, d.Epoch, 0, func(error) {
		s.r.turns.after(d, func() { s.latch(d, stop) })
	})
}

func (s *latchedSplit) latch(d *rangepb.RangeDescriptor, stop func()) {
	s.mu.Lock()
	late := s.mu.asking
	s.mu.Unlock()
	if late {
		return
	}
	whole := d.Span()
	span := mvcc.Access{Start: whole.Start, End: whole.End, Write: true}
	s.r.cfg.Ranges.Latch(d.RangeId, d.Epoch, s.owner, []mvcc.Access{span}, func(l rangepb.LatchAnswer) {
		if s.enough() {
			stop()
			s.latched(l.Err)
			return
		}
		// The word that gave it back may have come before the latch did.
		if l.Err == nil {
			s.r.cfg.Ranges.Unlatch(d.RangeId, s.owner)
		}
	})
}

// enough ends the waiting for the latch; true for the first that says so.
func (s *latchedSplit) enough() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := !s.mu.asking
	s.mu.asking = true
	return first
}

func (s *latchedSplit) latched(err error) {
	var re *rangepb.Error
	switch {
	case errors.As(err, &re) && re.Kind == rangepb.Stale:
		// It was split meanwhile. As if S had said so: asked again.
		s.r.learn(re.Descriptors)
		s.done(&placementpb.SplitResult{Refused: true, Reason: placementpb.RefusalReason_REFUSAL_REASON_STALE_EPOCH}, nil)
		return
	case errors.As(err, &re) && (re.Kind == rangepb.Corrupt || re.Kind == rangepb.Shortage):
		// Nobody could apply the split, or not now, and S does not know.
		s.done(nil, err)
		return
	case err != nil:
		// Not asked for again: the latches of a leader that has lost its place are void
		// (R7). A transaction that holds one all the same, of the next leader or of
		// one whose queue is full, begins again, as after splitPatience.
		s.owner = nil
	}
	s.ask()
}

func (s *latchedSplit) ask() {
	if s.left.Load() {
		s.release()
		return
	}
	s.r.cfg.Sequencer.Split(s.key, func(res *placementpb.SplitResult, err error) {
		// Decided, the split is on its way to the leader and ends the latch there.
		// Given back now, it would let a latch of the old epoch pass before.
		if err != nil || res.GetRefused() {
			s.release()
		}
		s.done(res, err)
	})
}

// release gives the latch back, or the request for it.
func (s *latchedSplit) release() {
	if s.owner != nil {
		s.r.cfg.Ranges.Unlatch(s.rangeID, s.owner)
	}
}
