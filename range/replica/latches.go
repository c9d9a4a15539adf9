package replica

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// handleLatch takes a latch in (R7). Its spans count as touched from its
// arrival on: writes that come later stay behind it.
func (l *leader) handleLatch(latch *Latch) {
	if err := l.admit(latch.Epoch); err != nil {
		latch.Refuse(err)
		return
	}
	q := newLatchRequest(latch)
	if l.requests.latches[q.owner] != nil {
		latch.Refuse(fmt.Errorf("%w: range %d: a second latch of owner %v", ErrDropped, l.rangeID, q.owner))
		return
	}
	l.enter(q)
}

// settle is a latch's turn: nothing in the queue touches its spans any more, and
// nothing will while it is here. What the log holds must be applied, so that the
// values which its owner reads are committed.
func (l *leader) settle(q *request) {
	if q.latch.Epoch != l.proposals.desc.Epoch {
		// The sequencer (S) would refuse a commit that names another epoch.
		l.requests.refuse(q, staleEpoch(l.rangeID, l.proposals.desc))
		return
	}
	q.stage = stageSettling
	q.after = l.proposals.revision
	l.settling.push(q)
}

// giveLatches gives the latches whose time has come.
func (l *leader) giveLatches() {
	// Both what they wait for grows from one to the next.
	for l.settling.len() > 0 && l.reg.latchesOpen(l.proposals.visibleSeq) {
		q := *l.settling.front()
		if q.stage == stageSettling {
			if l.state.visibleState().resolved < q.after || l.state.visibleState().desc.Epoch < q.latch.Epoch {
				// A split may raise the epoch without raising the revision.
				return
			}
			q.stage = stageLatched
			q.e = l.reg.e
			q.arrived = l.tick
			q.latch.Done(rangepb.LatchAnswer{Term: l.term, Session: l.reg.session, Epoch: l.proposals.desc.Epoch})
		}
		l.settling.pop()
	}
}

// handleUnlatch is the owner's own word: it has sent no commit and never will.
func (l *leader) handleUnlatch(u *Unlatch) {
	if q := l.requests.latches[ownerOf(u.Owner)]; q != nil && l.fault == nil {
		l.requests.refuse(q, ErrAborted)
	}
}

// handleSequencerUnlatch is S's word that the owner's latch is over without
// effects here. Only the S of the latch's epoch may say so (R7); a latch that is not
// given yet holds nothing that a commit could name, so it may go, too.
func (l *leader) handleSequencerUnlatch(e uint64, u *placementpb.Unlatch) {
	q := l.requests.latches[ownerOf(u.Owner)]
	if q == nil || q.stage == stageLatched && q.e != e {
		return
	}
	l.requests.refuse(q, ErrAborted)
}

// askAboutSilent asks S to abort the owners of latches that are held for long:
// their coordinators may be gone (R7). S answers with the decision, if there is
// one, or else Unlatch.
func (l *leader) askAboutSilent() {
	if len(l.requests.latches) == 0 || l.reg.phase != regOpen {
		return
	}
	for q := l.requests.live.first; q != nil; q = q.next {
		if q.stage != stageLatched || l.tick < q.arrived+uint64(l.limits.SilentTicks) {
			continue
		}
		q.arrived = l.tick
		l.log.Info("latch is held for long", zap.Any("owner", q.owner))
		l.reg.abort(q.latch.Owner)
	}
}
