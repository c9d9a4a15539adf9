package replica

import (
	"fmt"
	"slices"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// requests are those of a replica that are not answered, and the latches given. They
// come before there is a leader, and wait for one.
type requests struct {
	rangeID uint64
	// live holds them in the order of arrival.
	live      requestList
	conflicts conflicts
	// free requests wait for nobody in front of them, in the order in which they
	// became free.
	free fifo[*request]
	// early requests name an epoch that the log has not reached.
	early []*request
	// latches are those in live, given or not.
	latches map[ownerID]*request
}

func newRequests(rangeID uint64) *requests {
	r := &requests{rangeID: rangeID, latches: make(map[ownerID]*request)}
	r.conflicts = newConflicts(func(t *ticket) { r.free.push(t.owner) })
	return r
}

// enter takes a request in: it gets its place behind what conflicts with it.
func (r *requests) enter(q *request, tick uint64) {
	q.arrived = tick
	r.live.push(q)
	if q.latch != nil {
		r.latches[q.owner] = q
	}
	if r.conflicts.enter(&q.ticket) {
		r.free.push(q)
	}
}

// refuse answers a request that was not proposed, and lets go what waits for it.
// One that was proposed may be applied, or be about to: a refusal would have it
// sent again.
func (r *requests) refuse(q *request, err error) {
	if q.stage == stageProposed {
		panic(fmt.Sprintf("replica: range %d: a write is refused that was proposed: %v", r.rangeID, err))
	}
	if q.latch == nil {
		r.finish(q, nil, rangepb.WriteAnswer{Err: err})
		return
	}
	given := q.stage == stageLatched
	r.leave(q)
	if !given {
		q.latch.Done(rangepb.LatchAnswer{Err: err})
	}
}

// finish answers a write, at whatever stage it is.
func (r *requests) finish(q *request, res *mvcc.Result, a rangepb.WriteAnswer) {
	r.leave(q)
	q.write.Done(res, a)
}

// leave takes a request out of everything but the queue for grants, where its
// place is kept: its grant becomes Resolve.
func (r *requests) leave(q *request) {
	if q.stage == stageGone {
		panic(fmt.Sprintf("replica: range %d: a request is answered twice", r.rangeID))
	}
	q.stage = stageGone
	r.live.remove(q)
	if q.latch != nil {
		delete(r.latches, q.owner)
	}
	r.conflicts.leave(&q.ticket)
}

// expire gives up requests that have waited for more than maxTicks: their clients have
// left. A write whose grant was asked is never withdrawn (R4).
func (r *requests) expire(tick, maxTicks uint64) {
	if tick < maxTicks {
		return
	}
	before := tick - maxTicks
	for q := r.live.first; q != nil; {
		next := q.next
		if q.stage <= stageSettling {
			if q.arrived >= before {
				break // those behind came later
			}
			r.refuse(q, fmt.Errorf("%w: waited %d ticks", ErrDropped, maxTicks))
		}
		q = next
	}
}

// refuseUnproposed refuses whatever is not proposed.
func (r *requests) refuseUnproposed(err error) {
	for q := r.live.first; q != nil; {
		next := q.next
		if q.stage != stageProposed {
			r.refuse(q, err)
		}
		q = next
	}
}

// close answers everything: with err, or with ErrUnknownFate what is proposed.
func (r *requests) close(err error) {
	for r.live.first != nil {
		q := r.live.first
		if q.stage == stageProposed {
			r.finish(q, nil, rangepb.WriteAnswer{Err: fmt.Errorf("%w: %w", ErrUnknownFate, err)})
			continue
		}
		r.refuse(q, err)
	}
}

// moveEarly lets requests go on that waited for a newer epoch.
func (r *requests) moveEarly() {
	early := r.early
	r.early = nil
	for _, q := range early {
		r.free.push(q)
	}
}

// forgetEarly drops early requests that are answered: they have waited for too
// long, or another replica leads. So there are no more of them than live requests.
func (r *requests) forgetEarly() {
	if len(r.early) > r.live.count {
		r.early = slices.DeleteFunc(r.early, func(q *request) bool { return q.stage == stageGone })
	}
}

// givenLatch returns the latch that an owner holds, nil if it holds none.
func (r *requests) givenLatch(owner ownerID) *request {
	if q := r.latches[owner]; q != nil && q.stage == stageLatched {
		return q
	}
	return nil
}

// voidLatches ends the latches that were given under another sequencer than that of
// epoch e; under this one they stay until it decides, refuses or aborts (R7).
func (r *requests) voidLatches(e uint64) {
	for q := r.live.first; q != nil; {
		next := q.next
		if q.stage == stageLatched && q.e != e {
			r.leave(q)
		}
		q = next
	}
}

// givenLatches counts the latches that are held.
func (r *requests) givenLatches() (n int) {
	// In any order: they are counted.
	for _, q := range r.latches {
		if q.stage == stageLatched {
			n++
		}
	}
	return n
}

// requestList is a list of requests in the order of arrival.
type requestList struct {
	first, last *request
	count       int
	bytes       int
}

func (l *requestList) push(q *request) {
	q.prev, q.next = l.last, nil
	if l.last != nil {
		l.last.next = q
	} else {
		l.first = q
	}
	l.last = q
	l.count++
	l.bytes += q.bytes
}

func (l *requestList) remove(q *request) {
	if q.prev != nil {
		q.prev.next = q.next
	} else {
		l.first = q.next
	}
	if q.next != nil {
		q.next.prev = q.prev
	} else {
		l.last = q.prev
	}
	q.prev, q.next = nil, nil
	l.count--
	l.bytes -= q.bytes
}
