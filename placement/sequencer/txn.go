package sequencer

import "github.com/hawser-kv/hawser/proto/placementpb"

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
	if _, ok := n.aborted[id]; ok {
		s.refuseCommit(n, t, placementpb.RefusalReason_REFUSAL_REASON_ABORTED)
		return
	}
	if reason := s.directory.checkCommit(t); reason != 0 {
		s.refuseCommit(n, t, reason)
		return
	}
	if len(s.held) > 0 || !s.bound.covers(1) {
		s.hold(n, raw)
		s.raise(s.bound.exhausted(1))
		return
	}
	revision, raise := s.bound.assign(1)
	s.raise(raise)
	txn := &placementpb.Transaction{Owner: t.Owner, Revision: revision}
	p := proposal{node: n, session: n.session, owner: t.Owner}
	for _, part := range t.Participants {
		if len(part.Effects) > 0 {
			txn.Participants = append(txn.Participants, part)
		}
	}
	// An abort of the owner now waits for the decision.
	s.owners[id] = struct{}{}
	barrier := s.proposals.propose(&placementpb.MetaCommand{Command: &placementpb.MetaCommand_Transaction{Transaction: txn}}, p)
	last := s.proposals.open()
	for _, part := range t.Participants {
		x := s.directory.get(part.RangeId)
		x.outbox.barrier = barrier
		last.ledgers = append(last.ledgers, x)
		to := s.sessions.get(x.reg.node)
		if len(part.Effects) == 0 {
			s.speech.unlatch(x, to, t.Owner)
			continue
		}
		x.mark(revision)
		s.changes.touch(x)
		entry := &placementpb.Decided{
			RangeId: x.id, Revision: revision,
			Entry: &placementpb.Decided_Txn{Txn: &placementpb.DecidedTxn{Owner: t.Owner, Effects: part.Effects}},
		}
		x.decided = append(x.decided, decided{entry: entry})
		last.decided = append(last.decided, entry)
		s.speech.decided(x, to, entry)
	}
}

// checkCommit says why a transaction cannot be decided, 0 if it can. Then every
// leader that gave a latch holds it (I8): it is open under the registration
// that gave it.
func (d *directory) checkCommit(t *placementpb.TxnCommit) placementpb.RefusalReason {
	writes := false
	seen := make(map[uint64]bool, len(t.Participants))
	for _, p := range t.Participants {
		x := d.get(p.RangeId)
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
		if x := s.directory.get(p.RangeId); x != nil && x.open && x.reg.term == p.Term && x.reg.session == p.Session {
			s.speech.unlatch(x, s.sessions.get(x.reg.node), t.Owner)
		}
	}
	m := s.speech.to(n)
	m.Body = &placementpb.FromSequencer_Txn{Txn: &placementpb.TxnResult{Owner: t.Owner, Refused: true, Reason: reason}}
	s.speech.reply(n, m, 0, 0)
}

// abort makes sure that the owner is never committed, unless it is proposed
// already, and answers the leader that asked with Unlatch. If the owner was
// proposed, the leader's outbox brings it the decision before this Unlatch: a
// writer's latch is then over, a reader's ends with it (R7).
func (s *Sequencer) abort(n *node, a *placementpb.TxnAbort) {
	id := owner(a.Owner)
	if _, proposed := s.owners[id]; !proposed {
		if n := s.sessions.forbid(id); n != nil {
			s.endSession(n, id.session)
		}
	}
	if a.RangeId == 0 {
		return
	}
	if x := s.directory.get(a.RangeId); x != nil && x.open && x.reg.node == n.id && x.reg.session == n.session {
		s.speech.unlatch(x, s.sessions.get(x.reg.node), a.Owner)
	}
}
