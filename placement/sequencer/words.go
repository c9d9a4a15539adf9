package sequencer

import (
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// This file has the words of S: which message says what, and in which waiting
// room of speech it goes. What is about a range's leader goes through the
// range's outbox, all else does not.

// to returns an empty message to the node's session.
func (p *speech) to(n *node) *placementpb.FromSequencer {
	return &placementpb.FromSequencer{ClusterId: p.clusterID, Epoch: p.epoch, Session: n.session}
}

// hello tells a node that S of this epoch does not know its session.
func (p *speech) hello(nodeID, session uint64) {
	p.ready = append(p.ready, Envelope{nodeID, &placementpb.FromSequencer{
		ClusterId: p.clusterID, Epoch: p.epoch, Session: session,
	}})
}

// about says something to a leader of a range, or of one that S does not know.
func (p *speech) about(x *ledger, n *node, m *placementpb.FromSequencer) {
	if x != nil {
		p.say(&x.outbox, n, m, 0)
	} else {
		p.reply(n, m, 0, 0)
	}
}

// grantMessage is a Grant with its wrappings, allocated grantsAtOnce at a time:
// a grant lives for one trip to its range, so few of them keep the rest alive.
type grantMessage struct {
	message placementpb.FromSequencer
	body    placementpb.FromSequencer_Grant
	grant   placementpb.Grant
}

const grantsAtOnce = 16

func (p *speech) grantMessage(n *node, g *placementpb.GrantRequest) (*placementpb.FromSequencer, *placementpb.Grant) {
	if len(p.grants) == 0 {
		p.grants = make([]grantMessage, grantsAtOnce)
	}
	m := &p.grants[0]
	p.grants = p.grants[1:]
	m.message.ClusterId, m.message.Epoch, m.message.Session = p.clusterID, p.epoch, n.session
	m.message.Body = &m.body
	m.body.Grant = &m.grant
	m.grant.RangeId, m.grant.Term, m.grant.Seq, m.grant.Count = g.RangeId, g.Term, g.Seq, g.Count
	return &m.message, &m.grant
}

func (p *speech) refuseGrant(x *ledger, n *node, g *placementpb.GrantRequest, reason placementpb.RefusalReason) {
	m, grant := p.grantMessage(n, g)
	grant.Refused, grant.Reason = true, reason
	p.about(x, n, m)
}

func (p *speech) refuseQuery(n *node, q *placementpb.Query, reason placementpb.RefusalReason, newer []*rangepb.RangeDescriptor, barrier uint64) {
	m := p.to(n)
	m.Body = &placementpb.FromSequencer_Query{Query: &placementpb.QueryAnswer{
		Id: q.Id, Refused: true, Reason: reason, Descriptors: newer,
	}}
	p.reply(n, m, 0, barrier)
}

// registered answers a registration of the session, which may be over.
func (p *speech) registered(x *ledger, n *node, session uint64, r *placementpb.Registered) {
	m := p.to(n)
	m.Session = session
	m.Body = &placementpb.FromSequencer_Registered{Registered: r}
	p.about(x, n, m)
}

// refuseRegister refuses a registration of the range, nil if S knows none.
func (p *speech) refuseRegister(x *ledger, n *node, r *placementpb.Register, reason string) {
	answer := &placementpb.Registered{RangeId: r.RangeId, Term: r.Term, Refused: true, Reason: reason}
	if x != nil {
		answer.Epoch = x.desc.Epoch
	}
	p.registered(x, n, n.session, answer)
}

func (p *speech) decided(x *ledger, n *node, d *placementpb.Decided) {
	m := p.to(n)
	m.Body = &placementpb.FromSequencer_Decided{Decided: d}
	p.say(&x.outbox, n, m, 0)
}

// unlatch tells the range's leader that the owner's latch is over.
func (p *speech) unlatch(x *ledger, n *node, owner *placementpb.TxnID) {
	m := p.to(n)
	m.Body = &placementpb.FromSequencer_Unlatch{Unlatch: &placementpb.Unlatch{RangeId: x.id, Owner: owner}}
	p.say(&x.outbox, n, m, 0)
}

func (p *speech) deactivated(x *ledger, n *node, d *placementpb.Deactivate, refused bool) {
	m := p.to(n)
	m.Body = &placementpb.FromSequencer_Deactivated{Deactivated: &placementpb.Deactivated{
		RangeId: d.RangeId, Term: d.Term, Refused: refused}}
	p.about(x, n, m)
}

// wake asks a node to load a range.
func (p *speech) wake(n *node, x *ledger) {
	m := p.to(n)
	m.Body = &placementpb.FromSequencer_Wake{Wake: &placementpb.Wake{RangeId: x.id}}
	p.emit(n, m)
}

// wakeAll asks the nodes of all replicas that have a session to load the range.
// Nodes without one are told when their session begins.
func (p *speech) wakeAll(t *sessions, x *ledger) {
	if x.committed == nil {
		return
	}
	for _, r := range x.committed.Replicas {
		if n := t.get(r.NodeId); n != nil && n.began {
			p.wake(n, x)
		}
	}
}

// refuseSplit refuses with a barrier, for BOUNDARY_EXISTS may rest on a split
// that is only proposed (I6).
func (p *speech) refuseSplit(r *splitRequest, reason placementpb.RefusalReason, barrier uint64) {
	m := p.to(r.node)
	m.Session = r.session
	m.Body = &placementpb.FromSequencer_Split{Split: &placementpb.SplitResult{Id: r.id, Refused: true, Reason: reason}}
	p.reply(r.node, m, 0, barrier)
}

// refuseCompact refuses a compaction while R is newest.
func (p *speech) refuseCompact(n *node, c *placementpb.CompactRequest, reason placementpb.RefusalReason, newest int64, round, barrier uint64) {
	m := p.to(n)
	m.Body = &placementpb.FromSequencer_Compact{Compact: &placementpb.CompactResult{
		Id: c.Id, Refused: true, Reason: reason, Revision: newest}}
	p.reply(n, m, round, barrier)
}

func (p *speech) cut(n *node, c *placementpb.Cut) {
	m := p.to(n)
	m.Body = &placementpb.FromSequencer_Cut{Cut: c}
	p.emit(n, m)
}
