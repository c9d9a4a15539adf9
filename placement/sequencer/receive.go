package sequencer

import "github.com/hawser-kv/hawser/proto/placementpb"

// Receive judges one message of a node, in the order in which they arrive. It
// keeps the message.
//
// A message without its own session of this term is not judged; the node is
// told with a message without a body that it must subscribe anew.
func (s *Sequencer) Receive(m *placementpb.ToSequencer) {
	if s.phase == idle || m.NodeId == 0 || m.ClusterId != s.clusterID && s.clusterID != 0 {
		return
	}
	if _, ok := m.Body.(*placementpb.ToSequencer_Subscribe); ok {
		s.subscribe(m)
		return
	}
	n := s.sessions.speaker(m.NodeId)
	if n == nil || m.Session > n.session || m.Session == n.session && n.ended {
		s.speech.hello(m.NodeId, m.Session)
		return
	}
	if m.Session < n.session {
		return
	}
	s.judge(n, m)
}

// judge judges a message, or keeps or refuses it because S does not serve.
func (s *Sequencer) judge(n *node, m *placementpb.ToSequencer) {
	switch s.phase {
	case starting:
		s.hold(n, m)
	case handingOver, handedOver:
		switch m.Body.(type) {
		case *placementpb.ToSequencer_Register, *placementpb.ToSequencer_TxnAbort, *placementpb.ToSequencer_Report:
			// No refusal fits; should S stay, it judges them then.
			s.hold(n, m)
		default:
			s.refuse(n, m, placementpb.RefusalReason_REFUSAL_REASON_NOT_SERVING)
		}
	default:
		s.judgeServing(n, m)
	}
}

// judgeServing applies the rule for the message.
func (s *Sequencer) judgeServing(n *node, m *placementpb.ToSequencer) {
	switch b := m.Body.(type) {
	case *placementpb.ToSequencer_Grant:
		s.grant(n, m, b.Grant)
	case *placementpb.ToSequencer_Query:
		s.query(n, b.Query)
	case *placementpb.ToSequencer_Register:
		s.register(n, b.Register)
	case *placementpb.ToSequencer_TxnCommit:
		s.commit(n, m, b.TxnCommit)
	case *placementpb.ToSequencer_TxnAbort:
		s.abort(n, b.TxnAbort)
	case *placementpb.ToSequencer_Report:
		s.report(b.Report)
	case *placementpb.ToSequencer_Deactivate:
		s.deactivate(n, b.Deactivate)
	case *placementpb.ToSequencer_Split:
		s.askSplit(n, b.Split)
	case *placementpb.ToSequencer_Compact:
		s.compact(n, b.Compact)
	}
}

// hold keeps a message until S serves or the bound is raised.
func (s *Sequencer) hold(n *node, m *placementpb.ToSequencer) {
	if len(s.held) >= s.cfg.MaxHeld {
		switch m.Body.(type) {
		case *placementpb.ToSequencer_Query, *placementpb.ToSequencer_TxnCommit, *placementpb.ToSequencer_Split, *placementpb.ToSequencer_Compact:
			s.refuse(n, m, placementpb.RefusalReason_REFUSAL_REASON_NOT_SERVING)
		default:
			// Answers about a range keep the order of its requests (R4), so one
			// cannot be refused while others wait.
			s.endSession(n, n.session)
		}
		return
	}
	s.held = append(s.held, m)
}

// release judges what was held, as if it arrived now. What still has to wait is
// held again, in its order.
func (s *Sequencer) release() {
	held := s.held
	s.held = nil
	for _, m := range held {
		if n := s.sessions.get(m.NodeId); n.in(m.Session) {
			s.judge(n, m)
		}
	}
}

// refuse answers a message that S does not judge. Registrations, aborts and
// reports cannot be refused so: leaders repeat them when they hear of the next S.
func (s *Sequencer) refuse(n *node, m *placementpb.ToSequencer, reason placementpb.RefusalReason) {
	switch b := m.Body.(type) {
	case *placementpb.ToSequencer_Grant:
		s.speech.refuseGrant(s.directory.get(b.Grant.RangeId), n, b.Grant, reason)
	case *placementpb.ToSequencer_Query:
		s.speech.refuseQuery(n, b.Query, reason, nil, 0)
	case *placementpb.ToSequencer_TxnCommit:
		s.refuseCommit(n, b.TxnCommit, reason)
	case *placementpb.ToSequencer_Deactivate:
		s.speech.deactivated(s.directory.get(b.Deactivate.RangeId), n, b.Deactivate, true)
	case *placementpb.ToSequencer_Split:
		s.speech.refuseSplit(&splitRequest{n, n.session, b.Split.Id, b.Split.Key, 0}, reason, s.directory.barrier)
	case *placementpb.ToSequencer_Compact:
		s.speech.refuseCompact(n, b.Compact, reason, s.bound.revision(), 0, 0)
	}
}

// subscribe begins a session (R6). The newest session of a node wins.
func (s *Sequencer) subscribe(m *placementpb.ToSequencer) {
	n, newer := s.sessions.begin(m.NodeId, m.Session)
	if !newer {
		return
	}
	s.closeRanges(n)
	if s.phase == serving {
		s.firstCut(n)
	} else {
		s.changes.sent = 0 // when S serves
	}
}

// endSession makes the node subscribe anew: messages of the session are not
// judged any more.
func (s *Sequencer) endSession(n *node, session uint64) {
	s.sessions.end(n, session)
	s.closeRanges(n)
	s.speech.hello(n.id, session)
}

// closeRanges closes what was open for a session of the node that is over: what
// S says to it goes nowhere. The ranges stay active until they register again.
func (s *Sequencer) closeRanges(n *node) {
	s.directory.all(func(x *ledger) {
		if x.open && x.reg.node == n.id {
			x.open = false
			s.wakes.add(x)
		}
	})
}

// Hello returns the message that tells a node to subscribe, nil when S does not
// lead or there is no cluster yet. The driver sends it to every node it can
// reach once S leads, and once the cluster is bootstrapped.
func (s *Sequencer) Hello() *placementpb.FromSequencer {
	if s.phase == idle || s.clusterID == 0 {
		return nil
	}
	return &placementpb.FromSequencer{ClusterId: s.clusterID, Epoch: s.epoch}
}
