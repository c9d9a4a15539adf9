package replica

import (
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/proto/placementpb"
)

// grantQueue holds the evaluated writes of a leadership that wait for a revision, in the
// order of their seqs; all but the last unasked of them are asked for.
type grantQueue struct {
	queue   fifo[*request]
	unasked int
	nextSeq uint64
	// charged is the size of what the writes do, of all of them.
	charged int
	// instant: the sequencer answered the last question for grants before the next
	// Flush. askedIn is the Flush of that question.
	instant bool
	askedIn uint64
}

// push adds a write whose effects weigh so much.
func (g *grantQueue) push(q *request, effects int) {
	q.stage = stageAsked
	q.seq = g.nextSeq
	g.nextSeq++
	g.queue.push(q)
	g.unasked++
	q.charged = q.bytes + effects
	g.charged += q.charged
}

// pop removes the first write.
func (g *grantQueue) pop() *request {
	q := g.queue.pop()
	g.charged -= q.charged
	return q
}

// take removes the write with a seq if it is the first. ok is false if the first has a
// lower seq, for which no grant has come. The write is nil if it is not in the queue.
func (g *grantQueue) take(seq uint64) (q *request, ok bool) {
	if g.queue.len() == 0 {
		return nil, true
	}
	switch first := (*g.queue.front()).seq; {
	case first < seq:
		return nil, false
	case first > seq:
		return nil, true
	}
	return g.pop(), true
}

// ask calls send for the writes that came since the last time. Those without leases share
// a message; one that names leases has its own, because the sequencer refuses a message as a
// whole (R8).
func (g *grantQueue) ask(flush uint64, send func(seq uint64, count int, leases []int64)) {
	if g.unasked > 0 {
		g.askedIn = flush
	}
	all := g.queue.all()
	for batch := all[len(all)-g.unasked:]; len(batch) > 0; {
		leases := leasesOf(batch[0])
		n := 1
		if leases == nil {
			for n < len(batch) && leasesOf(batch[n]) == nil {
				n++
			}
		}
		send(batch[0].seq, n, leases)
		batch = batch[n:]
	}
	g.unasked = 0
}

// leasesOf returns the leases that a write attaches keys to, each once.
func leasesOf(q *request) (ids []int64) {
	for i := range q.result.Effects {
		if id := q.result.Effects[i].Lease; id != 0 && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// handleGrant gives revisions to the first writes of the queue.
func (l *leader) handleGrant(g *placementpb.Grant) {
	if l.reg.phase != regOpen || g.Term != l.term {
		// What the sequencer says of a range comes in order, so the revisions of the grant
		// are not above the r0 of the registration to come, whose Resolve ends them.
		return
	}
	if g.Seq < l.reg.firstSeq {
		l.handleLateGrant(g)
		return
	}
	l.grants.instant = l.grants.askedIn == l.flushes
	for i := range int64(g.Count) {
		seq := g.Seq + uint64(i)
		q, ok := l.grants.take(seq)
		if !ok {
			l.distrust("grants out of order", zap.Uint64("seq", seq), zap.Uint64("want", (*l.grants.queue.front()).seq))
			return
		}
		if g.Refused {
			if q != nil && q.stage == stageAsked {
				l.requests.refuse(q, grantRefusal(l.rangeID, g.Reason))
			}
			continue
		}
		rev := g.First + i
		if rev <= l.proposals.revision {
			if q != nil && q.stage == stageAsked {
				l.requests.refuse(q, ErrDropped)
			}
			l.distrust("a granted revision does not grow (I1)", zap.Int64("granted", rev))
			return
		}
		if q == nil || q.stage != stageAsked {
			// Nobody wants it any more: it becomes Resolve in its place (R4).
			l.proposals.stage(command{kind: commandResolve, revision: rev}, proposed{})
			continue
		}
		q.stage = stageGranted
		l.proposals.stage(command{kind: commandWrite, revision: rev}, proposed{request: q})
		l.requests.conflicts.leave(&q.ticket)
	}
	if g.Refused && g.Reason == placementpb.RefusalReason_REFUSAL_REASON_NOT_REGISTERED {
		l.log.Warn("no longer registered", zap.Stringer("state", l))
		l.dropRegistration()
		l.reg.notBefore = l.tick + 1
	}
}

// handleLateGrant takes a grant that was asked before the leader registered again
// under the same (e, T, session). The sequencer keeps requests that wait for the bound and
// answers registrations meanwhile, so its revisions may be above r0: nobody wants
// them any more, and they become Resolve (R4).
func (l *leader) handleLateGrant(g *placementpb.Grant) {
	last := g.First + int64(g.Count) - 1
	switch {
	case g.Refused || last <= l.reg.r0:
	case g.First <= l.proposals.revision:
		l.distrust("a granted revision does not grow (I1)", zap.Int64("granted", g.First))
	default:
		l.proposals.stage(command{kind: commandResolve, revision: last}, proposed{})
	}
}

// grantRefusal is what a writer is told when the sequencer refuses its grant. No
// revision was assigned.
func grantRefusal(rangeID uint64, reason placementpb.RefusalReason) error {
	switch reason {
	case placementpb.RefusalReason_REFUSAL_REASON_LEASE_NOT_FOUND:
		return ErrLeaseNotFound
	case placementpb.RefusalReason_REFUSAL_REASON_NO_SPACE:
		return ErrNoSpace
	case placementpb.RefusalReason_REFUSAL_REASON_STALE_EPOCH:
		// The split is on its way here; the descriptor is not known yet.
		return staleEpoch(rangeID, nil)
	}
	return fmt.Errorf("%w: %s", ErrDropped, reason)
}
