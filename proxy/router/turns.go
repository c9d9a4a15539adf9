package router

import (
	"errors"
	"sync"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/proxy/txn"
)

// turns keeps splits from starving the requests that they send back.
//
// A split refuses the requests that wait at its range, and they come again with
// the newer directory. The next split of the same keys may come sooner: one that
// is asked for as soon as the last is done always does. So a request that was
// sent back takes a turn until it is done, and a split that begins waits for the
// turns that are taken then on the keys of its range. It does not wait for later
// ones, so splits are not starved either; and a request is sent back once for each
// split that had begun, not for each that will.
//
// It orders the requests and splits of one router only.
type turns struct {
	mu struct {
		sync.Mutex
		taken map[*turn]struct{}
	}
}

// turn is that of one request.
type turn struct {
	spans []mvcc.Access
	// before are the splits that wait for it.
	before []*splitTurn
}

// splitTurn is a split that waits for turns.
type splitTurn struct {
	left int // how many
	f    func()
}

// take begins a turn for a request on the spans. It must be ended.
func (t *turns) take(spans []mvcc.Access) *turn {
	x := &turn{spans: spans}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.taken == nil {
		t.mu.taken = make(map[*turn]struct{})
	}
	t.mu.taken[x] = struct{}{}
	return x
}

// end ends a turn, nil for none, and lets splits go on that waited for it alone.
func (t *turns) end(x *turn) {
	if x == nil {
		return
	}
	var free []func()
	t.mu.Lock()
	delete(t.mu.taken, x)
	for _, s := range x.before {
		if s.left--; s.left == 0 {
			free = append(free, s.f)
		}
	}
	x.before = nil
	t.mu.Unlock()
	for _, f := range free {
		f()
	}
}

// after calls f when all turns are ended that are taken now on keys of the range:
// at once if there is none.
func (t *turns) after(d *rangepb.RangeDescriptor, f func()) {
	s := &splitTurn{f: f}
	t.mu.Lock()
	for x := range t.mu.taken {
		if x.touches(d) {
			x.before = append(x.before, s)
			s.left++
		}
	}
	wait := s.left > 0
	t.mu.Unlock()
	if !wait {
		f()
	}
}

func (x *turn) touches(d *rangepb.RangeDescriptor) bool {
	for _, s := range x.spans {
		if d.Span().Overlaps(keysOf(s)) {
			return true
		}
	}
	return false
}

// isSentBack reports whether err says that a range is not the one named: a split
// came before the request.
func isSentBack(err error) bool {
	var re *rangepb.Error
	if errors.As(err, &re) && re.Kind == rangepb.Stale {
		return true
	}
	reason, ok := txn.IsRefusal(err)
	return ok && reason == placementpb.RefusalReason_REFUSAL_REASON_STALE_EPOCH
}
