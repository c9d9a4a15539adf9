package sequencer

import (
	"github.com/hawser-kv/hawser/proto/placementpb"
)

// grantMessage is a Grant with its wrappings, allocated grantsAtOnce at a time:
// a grant lives for one trip to its range, so few of them keep the rest alive.
type grantMessage struct {
	message placementpb.FromSequencer
	body    placementpb.FromSequencer_Grant
	grant   placementpb.Grant
}

const grantsAtOnce = 16

func (s *Sequencer) grantMessage(n *node, g *placementpb.GrantRequest) (*placementpb.FromSequencer, *placementpb.Grant) {
	if len(s.grants) == 0 {
		s.grants = make([]grantMessage, grantsAtOnce)
	}
	m := &s.grants[0]
	s.grants = s.grants[1:]
	m.message.ClusterId, m.message.Epoch, m.message.Session = s.clusterID, s.epoch, n.session
	m.message.Body = &m.body
	m.body.Grant = &m.grant
	m.grant.RangeId, m.grant.Term, m.grant.Seq, m.grant.Count = g.RangeId, g.Term, g.Seq, g.Count
	return &m.message, &m.grant
}

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
		s.exhausted(count)
		return
	}
	x := s.ledgers.get(g.RangeId)
	switch {
	case x == nil:
		s.refuseGrant(n, g, placementpb.RefusalReason_REFUSAL_REASON_UNKNOWN_RANGE)
		return
	case !x.openFor(n, n.session, g.Term):
		s.refuseGrant(n, g, placementpb.RefusalReason_REFUSAL_REASON_NOT_REGISTERED)
		return
	case x.desc.Epoch != g.Epoch:
		s.refuseGrant(n, g, placementpb.RefusalReason_REFUSAL_REASON_STALE_EPOCH)
		return
	case len(g.Leases) > 0:
		// No lease exists yet: this release grants none (R8).
		s.refuseGrant(n, g, placementpb.RefusalReason_REFUSAL_REASON_LEASE_NOT_FOUND)
		return
	}
	if s.next-1+count > s.committedBound {
		s.hold(n, raw)
		s.exhausted(count)
		return
	}
	m, grant := s.grantMessage(n, g)
	grant.First = s.assign(count)
	s.mark(x, s.next-1)
	s.say(x, n, m, s.roundNeeded())
}

func (s *Sequencer) refuseGrant(n *node, g *placementpb.GrantRequest, reason placementpb.RefusalReason) {
	m, grant := s.grantMessage(n, g)
	grant.Refused, grant.Reason = true, reason
	if x := s.ledgers.get(g.RangeId); x != nil {
		s.say(x, n, m, 0)
	} else {
		s.reply(n, m, 0, 0)
	}
}

// assign takes the next count revisions, which must be within the committed
// bound, and returns the first (R2).
func (s *Sequencer) assign(count int64) int64 {
	first := s.next
	s.next += count
	s.granted += count
	if s.next-1 > s.committedBound {
		panic("sequencer: assigned beyond the bound")
	}
	// Raise ahead of need: when half a step is left.
	if s.proposedBound == s.committedBound && s.committedBound-(s.next-1) < (s.step+1)/2 {
		if s.granted > 4*s.step {
			// A burst within one tick: a few raises, not one every half step.
			s.step = min(2*s.step, s.cfg.MaxBoundStep)
		}
		s.raiseBound(1)
	}
	return first
}

// mark notes the last revision assigned to the range.
func (s *Sequencer) mark(x *ledger, revision int64) {
	if revision < x.last {
		panic("sequencer: m of " + x.String() + " would fall")
	}
	x.last = revision
	s.touch(x)
}

// exhausted makes room for count revisions: the bound was not far enough ahead.
func (s *Sequencer) exhausted(count int64) {
	if s.proposedBound == s.committedBound {
		s.step = min(s.step*4, s.cfg.MaxBoundStep)
	}
	if s.proposedBound < s.next-1+count {
		s.raiseBound(count)
	}
}

// raiseBound proposes to raise the bound to a step, and at least count, above
// what is assigned.
func (s *Sequencer) raiseBound(count int64) {
	bound := s.next - 1 + max(s.step, count)
	if bound <= s.proposedBound {
		bound = s.proposedBound + 1
	}
	s.proposedBound = bound
	s.propose(&placementpb.MetaCommand{Command: &placementpb.MetaCommand_RaiseBound{
		RaiseBound: &placementpb.RaiseBound{Bound: bound}}}, proposal{})
}
