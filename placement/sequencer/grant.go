package sequencer

import "github.com/hawser-kv/hawser/proto/placementpb"

// grant assigns revisions to the writes of an open range (R1, R4).
func (s *Sequencer) grant(n *node, raw *placementpb.ToSequencer, g *placementpb.GrantRequest) {
	if g.Count == 0 {
		return
	}
	count := int64(g.Count)
	if len(s.held) > 0 {
		// Behind what is held: the grants of a range are answered in the order in
		// which they were asked (R4), also with a refusal. A registration is
		// answered at once; what is held may then be granted above its r0, and its
		// leader makes that Resolve.
		s.hold(n, raw)
		s.raise(s.bound.exhausted(count))
		return
	}
	x := s.directory.get(g.RangeId)
	switch {
	case x == nil:
		s.speech.refuseGrant(x, n, g, placementpb.RefusalReason_REFUSAL_REASON_UNKNOWN_RANGE)
		return
	case !x.openFor(n, n.session, g.Term):
		s.speech.refuseGrant(x, n, g, placementpb.RefusalReason_REFUSAL_REASON_NOT_REGISTERED)
		return
	case x.desc.Epoch != g.Epoch:
		s.speech.refuseGrant(x, n, g, placementpb.RefusalReason_REFUSAL_REASON_STALE_EPOCH)
		return
	case len(g.Leases) > 0:
		// No lease exists yet: this release grants none (R8).
		s.speech.refuseGrant(x, n, g, placementpb.RefusalReason_REFUSAL_REASON_LEASE_NOT_FOUND)
		return
	}
	if !s.bound.covers(count) {
		s.hold(n, raw)
		s.raise(s.bound.exhausted(count))
		return
	}
	m, grant := s.speech.grantMessage(n, g)
	first, raise := s.bound.assign(count)
	grant.First = first
	s.raise(raise)
	x.mark(s.bound.revision())
	s.changes.touch(x)
	s.speech.say(&x.outbox, n, m, s.speech.rounds.needed())
}

// raise proposes to raise the bound, if there is one to propose.
func (s *Sequencer) raise(bound int64) {
	if bound != 0 {
		s.proposals.propose(&placementpb.MetaCommand{Command: &placementpb.MetaCommand_RaiseBound{
			RaiseBound: &placementpb.RaiseBound{Bound: bound}}}, proposal{})
	}
}
