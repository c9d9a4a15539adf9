package replica

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/proto/placementpb"
)

// handleLatch takes a latch in (R7). Its spans count as touched from its
// arrival on: writes that come later stay behind it.
func (r *Replica) handleLatch(l *Latch) {
	if err := r.admit(l.Epoch); err != nil {
		l.Refuse(err)
		return
	}
	q := newLatchRequest(l)
	if r.latches[q.owner] != nil {
		l.Refuse(fmt.Errorf("%w: range %d: a second latch of owner %v", ErrDropped, r.cfg.RangeID, q.owner))
		return
	}
	r.latches[q.owner] = q
	r.enter(q)
}

// givenLatch returns the latch that an owner holds, nil if it holds none.
func (r *Replica) givenLatch(owner ownerID) *request {
	if q := r.latches[owner]; q != nil && q.stage == stageLatched {
		return q
	}
	return nil
}

// settle is a latch's turn: nothing in the queue touches its spans any more, and
// nothing will while it is here. What the log holds must be applied, so that the
// values which its owner reads are committed.
func (r *Replica) settle(q *request) {
	if q.latch.Epoch != r.lead.logDesc.Epoch {
		// S would refuse a commit that names another epoch.
		r.refuse(q, r.staleEpoch(r.lead.logDesc))
		return
	}
	q.stage = stageSettling
	q.after = r.lead.logRevision
	r.settling.push(q)
}

// giveLatches gives the latches whose time has come.
func (r *Replica) giveLatches() {
	l := &r.lead
	// Both what they wait for grows from one to the next.
	for r.settling.len() > 0 && l.latchesOpen() {
		q := *r.settling.front()
		if q.stage == stageSettling {
			if r.applier.visible.resolved < q.after || r.applier.visible.desc.Epoch < q.latch.Epoch {
				// A split may raise the epoch without raising the revision.
				return
			}
			q.stage = stageLatched
			q.e = l.reg.e
			q.arrived = r.tick
			q.latch.Done(LatchResult{Term: l.term, Session: l.reg.session, Epoch: l.logDesc.Epoch})
		}
		r.settling.pop()
	}
}

// handleUnlatch is the owner's own word: it has sent no commit and never will.
func (r *Replica) handleUnlatch(u *Unlatch) {
	if q := r.latches[ownerOf(u.Owner)]; q != nil && r.failed == nil {
		r.refuse(q, ErrAborted)
	}
}

// handleSequencerUnlatch is S's word that the owner's latch is over without
// effects here. Only the S of the latch's epoch may say so (R7); a latch that is not
// given yet holds nothing that a commit could name, so it may go, too.
func (r *Replica) handleSequencerUnlatch(e uint64, u *placementpb.Unlatch) {
	q := r.latches[ownerOf(u.Owner)]
	if q == nil || q.stage == stageLatched && q.e != e {
		return
	}
	r.refuse(q, ErrAborted)
}

// askAboutSilent asks S to abort the owners of latches that are held for long:
// their coordinators may be gone (R7). S answers with the decision, if there is
// one, or else Unlatch.
func (r *Replica) askAboutSilent() {
	if len(r.latches) == 0 || r.lead.reg.phase != regOpen {
		return
	}
	for q := r.live.first; q != nil; q = q.next {
		if q.stage != stageLatched || r.tick < q.arrived+uint64(r.limits.SilentTicks) {
			continue
		}
		q.arrived = r.tick
		r.log.Info("latch is held for long", zap.Any("owner", q.owner))
		r.send(&placementpb.ToSequencer{Body: &placementpb.ToSequencer_TxnAbort{TxnAbort: &placementpb.TxnAbort{
			Owner: q.latch.Owner, RangeId: r.cfg.RangeID}}})
	}
}
