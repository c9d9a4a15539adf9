package sequencer

import (
	"github.com/hawser-kv/hawser/proto/placementpb"
)

// ownerID is a placementpb.TxnID as a map key.
type ownerID struct {
	node, session, number uint64
}

func owner(id *placementpb.TxnID) ownerID {
	return ownerID{id.GetNodeId(), id.GetSession(), id.GetNumber()}
}

// commit decides a transaction over ranges (R7).
func (s *Sequencer) commit(n *node, raw *placementpb.ToSequencer, t *placementpb.TxnCommit) {
	id := owner(t.Owner)
	if id.node != n.id || id.session != n.session {
		// The node's own owners only: then the end of a session is the end of
		// its owners, and an abort need not be remembered longer.
		s.refuseCommit(n, t, placementpb.RefusalReason_REFUSAL_REASON_ABORTED)
		return
	}
	if _, ok := s.owners[id]; ok {
		return // proposed already; nothing is ever proposed twice (R0)
	}
	if reason := s.checkCommit(n, t, id); reason != 0 {
		s.refuseCommit(n, t, reason)
		return
	}
	if len(s.held) > 0 || s.next > s.committedBound {
		s.hold(n, raw)
		s.exhausted(1)
		return
	}
	revision := s.assign(1)
	txn := &placementpb.Transaction{Owner: t.Owner, Revision: revision}
	p := proposal{node: n, session: n.session, owner: t.Owner}
	for _, part := range t.Participants {
		if len(part.Effects) > 0 {
			txn.Participants = append(txn.Participants, part)
		}
	}
	// An abort of the owner now waits for the decision.
	s.owners[id] = s.proposed + 1
	s.propose(&placementpb.MetaCommand{Command: &placementpb.MetaCommand_Transaction{Transaction: txn}}, p)
	last := &s.proposals[len(s.proposals)-1]
	for _, part := range t.Participants {
		x := s.ledgers.get(part.RangeId)
		x.barrier = s.proposed
		last.ledgers = append(last.ledgers, x)
		to := s.nodes[x.reg.node]
		m := s.to(to)
		if len(part.Effects) == 0 {
			m.Body = &placementpb.FromSequencer_Unlatch{Unlatch: &placementpb.Unlatch{RangeId: x.id, Owner: t.Owner}}
			s.say(x, to, m, 0)
			continue
		}
		s.mark(x, revision)
		entry := &placementpb.Decided{
			RangeId: x.id, Revision: revision,
			Entry: &placementpb.Decided_Txn{Txn: &placementpb.DecidedTxn{Owner: t.Owner, Effects: part.Effects}},
		}
		x.decided = append(x.decided, decided{entry: entry})
		last.decided = append(last.decided, entry)
		m.Body = &placementpb.FromSequencer_Decided{Decided: entry}
		s.say(x, to, m, 0)
	}
}

// checkCommit says why a transaction cannot be decided, 0 if it can. Then every
// leader that gave a latch holds it (I8): it is open under the registration
// that gave it.
func (s *Sequencer) checkCommit(n *node, t *placementpb.TxnCommit, id ownerID) placementpb.RefusalReason {
	if _, ok := n.aborted[id]; ok {
		return placementpb.RefusalReason_REFUSAL_REASON_ABORTED
	}
	writes := false
	seen := make(map[uint64]bool, len(t.Participants))
	for _, p := range t.Participants {
		x := s.ledgers.get(p.RangeId)
		switch {
		case x == nil:
			return placementpb.RefusalReason_REFUSAL_REASON_UNKNOWN_RANGE
		case x.desc.Epoch != p.Epoch:
			return placementpb.RefusalReason_REFUSAL_REASON_STALE_EPOCH
		case !x.open || x.reg.term != p.Term || x.reg.session != p.Session:
			return placementpb.RefusalReason_REFUSAL_REASON_NOT_REGISTERED
		case seen[p.RangeId]:
			return placementpb.RefusalReason_REFUSAL_REASON_INVALID
		}
		seen[p.RangeId] = true
		writes = writes || len(p.Effects) > 0
	}
	if len(t.Leases) > 0 {
		// No lease exists yet: this release grants none (R8).
		return placementpb.RefusalReason_REFUSAL_REASON_LEASE_NOT_FOUND
	}
	if !writes {
		return placementpb.RefusalReason_REFUSAL_REASON_INVALID
	}
	return 0
}

// refuseCommit refuses a transaction and lets go its latches.
func (s *Sequencer) refuseCommit(n *node, t *placementpb.TxnCommit, reason placementpb.RefusalReason) {
	for _, p := range t.Participants {
		if x := s.ledgers.get(p.RangeId); x != nil && x.open && x.reg.term == p.Term && x.reg.session == p.Session {
			s.unlatch(x, t.Owner)
		}
	}
	m := s.to(n)
	m.Body = &placementpb.FromSequencer_Txn{Txn: &placementpb.TxnResult{Owner: t.Owner, Refused: true, Reason: reason}}
	s.reply(n, m, 0, 0)
}

// unlatch tells the range's leader that the owner's latch is over.
func (s *Sequencer) unlatch(x *ledger, owner *placementpb.TxnID) {
	n := s.nodes[x.reg.node]
	m := s.to(n)
	m.Body = &placementpb.FromSequencer_Unlatch{Unlatch: &placementpb.Unlatch{RangeId: x.id, Owner: owner}}
	s.say(x, n, m, 0)
}

// abort makes sure that the owner is never committed, unless it is proposed
// already, and answers the leader that asked with Unlatch. If the owner was
// proposed, the leader's outbox brings it the decision before this Unlatch: a
// writer's latch is then over, a reader's ends with it (R7).
func (s *Sequencer) abort(n *node, a *placementpb.TxnAbort) {
	id := owner(a.Owner)
	if _, proposed := s.owners[id]; !proposed {
		s.forbid(id)
	}
	if a.RangeId == 0 {
		return
	}
	if x := s.ledgers.get(a.RangeId); x != nil && x.open && x.reg.node == n.id && x.reg.session == n.session {
		s.unlatch(x, a.Owner)
	}
}

// forbid remembers an aborted owner as long as its session can still commit.
func (s *Sequencer) forbid(id ownerID) {
	if id.node == 0 {
		return
	}
	// The node may have no session in this term yet.
	c := s.node(id.node)
	if id.session < c.session || id.session == c.session && c.ended {
		return
	}
	if len(c.aborted) >= s.cfg.MaxAborted {
		// End the session instead: that forbids all its owners.
		s.endSession(c, id.session)
		return
	}
	c.aborted[id] = struct{}{}
}
