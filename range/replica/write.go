package replica

import (
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// handleWrite takes a write in: it gets its place behind what conflicts with it.
func (r *Replica) handleWrite(w *Write) {
	if err := r.admit(w.Epoch); err != nil {
		w.Refuse(err)
		return
	}
	if r.lowSpace && addsData(w.Req) {
		w.Refuse(ErrNoSpace)
		return
	}
	q := newWriteRequest(w)
	if r.live.bytes+q.bytes > r.limits.MaxQueuedBytes && r.live.count > 0 {
		w.Refuse(ErrTooManyRequests)
		return
	}
	r.enter(q)
}

// admit says why a request cannot be taken in.
func (r *Replica) admit(epoch uint64) error {
	if r.failed != nil {
		return r.failed
	}
	if r.live.count >= r.limits.MaxQueued {
		return ErrTooManyRequests
	}
	if desc := r.logDescriptor(); epoch < desc.Epoch {
		return r.staleEpoch(desc)
	}
	if !r.group.IsLeader() {
		if leader := r.group.Leader(); leader != 0 {
			return r.notLeader(leader)
		}
	}
	return nil
}

// logDescriptor is the descriptor as the log leaves it, as far as is known.
func (r *Replica) logDescriptor() *rangepb.RangeDescriptor {
	if r.lead.serving {
		return r.lead.logDesc
	}
	return r.applier.staged.desc
}

func (r *Replica) enter(q *request) {
	r.need()
	r.lead.idleTicks = 0
	q.arrived = r.tick
	r.live.push(q)
	if r.conflicts.enter(&q.ticket) {
		r.free.push(q)
	}
}

// refuse answers a request that was not proposed, and lets go what waits for it.
// One that was proposed may be applied, or be about to: a refusal would have it
// sent again.
func (r *Replica) refuse(q *request, err error) {
	if q.stage == stageProposed {
		panic(fmt.Sprintf("replica: range %d: a write is refused that was proposed: %v", r.cfg.RangeID, err))
	}
	if q.latch == nil {
		r.finish(q, WriteResult{Err: err})
		return
	}
	given := q.stage == stageLatched
	r.leave(q)
	if !given {
		q.latch.Done(LatchResult{Err: err})
	}
}

// finish answers a write, at whatever stage it is.
func (r *Replica) finish(q *request, res WriteResult) {
	r.leave(q)
	q.write.Done(res)
}

// leave takes a request out of everything but the queue for grants, where its
// place is kept: its grant becomes Resolve.
func (r *Replica) leave(q *request) {
	if q.stage == stageGone {
		panic(fmt.Sprintf("replica: range %d: a request is answered twice", r.cfg.RangeID))
	}
	q.stage = stageGone
	r.live.remove(q)
	if q.latch != nil {
		delete(r.latches, q.owner)
	}
	r.conflicts.leave(&q.ticket)
}

// expire gives up requests that wait for too long: their clients have left. A
// write whose grant was asked is never withdrawn (R4).
func (r *Replica) expire() {
	if r.tick < uint64(r.limits.WaitTicks) {
		return
	}
	before := r.tick - uint64(r.limits.WaitTicks)
	for q := r.live.first; q != nil; {
		next := q.next
		if q.stage <= stageSettling {
			if q.arrived >= before {
				break // those behind came later
			}
			r.refuse(q, fmt.Errorf("%w: waited %d ticks", ErrDropped, r.limits.WaitTicks))
		}
		q = next
	}
}

// evaluate evaluates free writes on the log plus the queue and asks S for
// revisions (R4).
//
// A write whose keys have an ungranted version is not free (conflicts), so every
// version it can read has a revision, and refusing one write takes no
// other along.
func (r *Replica) evaluate(round Round) {
	l := &r.lead
	if r.free.len() == 0 || !l.serving || l.reg.phase != regOpen || l.deactivating ||
		l.inflightBytes >= r.limits.MaxInflightBytes || !round.CanPropose() {
		return
	}
	view := r.overlay.Over(r.latest)
	for r.free.len() > 0 && l.inflightBytes < r.limits.MaxInflightBytes && r.failed == nil {
		q := r.free.pop()
		switch {
		case q.stage != stageWaiting:
		case q.epoch() > l.logDesc.Epoch:
			r.early = append(r.early, q)
		case !q.within(l.logDesc.Start, l.logDesc.End):
			r.refuse(q, r.staleEpoch(l.logDesc))
		case q.latch != nil:
			r.settle(q)
		default:
			r.evaluateWrite(view, q)
		}
	}
	r.ask()
}

func (r *Replica) evaluateWrite(view mvcc.View, q *request) {
	l := &r.lead
	r.budget = mvcc.Budget{Rows: int64(r.limits.MaxEvaluationRows), Bytes: int64(r.limits.MaxEvaluationBytes), Deletes: int64(r.limits.MaxDeletedKeys)}
	res, err := mvcc.Evaluate(view, q.write.Req, mvcc.Env{Budget: &r.budget})
	switch {
	case errors.Is(err, mvcc.ErrTooWide):
		r.refuse(q, ErrTooWide)
		return
	case err != nil && !mvccRefusal(err):
		r.refuse(q, ErrFailed)
		r.fail(fmt.Errorf("evaluate: %w", err))
		return
	case err != nil:
		r.finish(q, WriteResult{NoEffect: true, Err: err})
		return
	case len(res.Effects) == 0:
		r.finish(q, WriteResult{NoEffect: true})
		return
	}
	q.result = res
	q.stage = stageAsked
	q.seq = l.nextSeq
	l.nextSeq++
	l.queue.push(q)
	l.unasked++
	q.charged = q.bytes + int(mvcc.EffectsWeight(res.Effects))
	l.inflightBytes += q.charged
}

// mvccRefusals are the errors with which an evaluation answers a request, as
// opposed to faults.
var mvccRefusals = []error{
	mvcc.ErrEmptyKey, mvcc.ErrInvalidSortOption, mvcc.ErrValueProvided, mvcc.ErrLeaseProvided,
	mvcc.ErrTooManyOps, mvcc.ErrDuplicateKey, mvcc.ErrKeyNotFound, mvcc.ErrLeaseNotFound,
	mvcc.ErrCompacted, mvcc.ErrFutureRev, mvcc.ErrTooLarge,
}

func mvccRefusal(err error) bool {
	return slices.ContainsFunc(mvccRefusals, func(refusal error) bool { return errors.Is(err, refusal) })
}

// ask sends for the revisions of the writes that were evaluated since the last
// time. Writes without leases share a message; one that names leases has its
// own, because S refuses a message as a whole (R8).
func (r *Replica) ask() {
	l := &r.lead
	if l.unasked > 0 {
		l.askedIn = r.flushes
	}
	all := l.queue.all()
	for batch := all[len(all)-l.unasked:]; len(batch) > 0; {
		leases := leasesOf(batch[0])
		n := 1
		if leases == nil {
			for n < len(batch) && leasesOf(batch[n]) == nil {
				n++
			}
		}
		r.send(&placementpb.ToSequencer{Body: &placementpb.ToSequencer_Grant{Grant: &placementpb.GrantRequest{
			RangeId: r.cfg.RangeID, Epoch: l.logDesc.Epoch, Term: l.term,
			Seq: batch[0].seq, Count: uint32(n), Leases: leases,
		}}})
		batch = batch[n:]
	}
	l.unasked = 0
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
func (r *Replica) handleGrant(g *placementpb.Grant) {
	l := &r.lead
	if l.reg.phase != regOpen || g.Term != l.term {
		// What S says of a range comes in order, so the revisions of the grant are
		// not above the r0 of the registration to come, whose Resolve ends them.
		return
	}
	if g.Seq < l.reg.firstSeq {
		r.handleLateGrant(g)
		return
	}
	l.instant = l.askedIn == r.flushes
	for i := range int64(g.Count) {
		seq := g.Seq + uint64(i)
		if l.queue.len() > 0 && (*l.queue.front()).seq < seq {
			r.distrust("grants out of order", zap.Uint64("seq", seq), zap.Uint64("want", (*l.queue.front()).seq))
			return
		}
		var q *request
		if l.queue.len() > 0 && (*l.queue.front()).seq == seq {
			q = l.queue.pop()
			l.inflightBytes -= q.charged
		}
		if g.Refused {
			if q != nil && q.stage == stageAsked {
				r.refuse(q, r.refusal(g.Reason))
			}
			continue
		}
		rev := g.First + i
		if rev <= l.logRevision {
			if q != nil && q.stage == stageAsked {
				r.refuse(q, ErrDropped)
			}
			r.distrust("a granted revision does not grow (I1)", zap.Int64("granted", rev))
			return
		}
		if q == nil || q.stage != stageAsked {
			// Nobody wants it any more: it becomes Resolve in its place (R4).
			r.stage(command{kind: commandResolve, revision: rev}, proposed{})
			continue
		}
		q.stage = stageGranted
		r.stage(command{kind: commandWrite, revision: rev}, proposed{request: q})
		r.conflicts.leave(&q.ticket)
	}
	if g.Refused && g.Reason == placementpb.RefusalReason_REFUSAL_REASON_NOT_REGISTERED {
		r.log.Warn("no longer registered", zap.Stringer("state", r))
		r.dropRegistration()
		l.reg.notBefore = r.tick + 1
	}
}

// handleLateGrant takes a grant that was asked before the leader registered again
// under the same (e, T, session). S keeps requests that wait for the bound and
// answers registrations meanwhile, so its revisions may be above r0: nobody wants
// them any more, and they become Resolve (R4).
func (r *Replica) handleLateGrant(g *placementpb.Grant) {
	l := &r.lead
	last := g.First + int64(g.Count) - 1
	switch {
	case g.Refused || last <= l.reg.r0:
	case g.First <= l.logRevision:
		r.distrust("a granted revision does not grow (I1)", zap.Int64("granted", g.First))
	default:
		r.stage(command{kind: commandResolve, revision: last}, proposed{})
	}
}

// refusal is what a writer is told when S refuses its grant. No revision was
// assigned.
func (r *Replica) refusal(reason placementpb.RefusalReason) error {
	switch reason {
	case placementpb.RefusalReason_REFUSAL_REASON_LEASE_NOT_FOUND:
		return ErrLeaseNotFound
	case placementpb.RefusalReason_REFUSAL_REASON_NO_SPACE:
		return ErrNoSpace
	case placementpb.RefusalReason_REFUSAL_REASON_STALE_EPOCH:
		// The split is on its way here; the descriptor is not known yet.
		return r.staleEpoch(nil)
	}
	return fmt.Errorf("%w: %s", ErrDropped, reason)
}
