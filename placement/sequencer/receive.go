package sequencer

import (
	"cmp"
	"slices"

	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// node is a node with a session in this term.
type node struct {
	id      uint64
	session uint64
	// ended: the session is over, by S's word.
	ended bool
	// began: the first cut of the session is out.
	began bool
	// cut is the changeSeq of the newest cut sent.
	cut uint64
	// aborted owners of the session, and of later ones.
	aborted map[ownerID]struct{}
}

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
	n := s.newest
	if n == nil || n.id != m.NodeId {
		if n = s.nodes[m.NodeId]; n != nil {
			s.newest = n
		}
	}
	if n == nil || m.Session > n.session || m.Session == n.session && n.ended {
		s.hello(m.NodeId, m.Session)
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
		s.splitRequest(n, b.Split)
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
		if n := s.nodes[m.NodeId]; n.session == m.Session && !n.ended {
			s.judge(n, m)
		}
	}
}

// refuse answers a message that S does not judge. Registrations, aborts and
// reports cannot be refused so: leaders repeat them when they hear of the next S.
func (s *Sequencer) refuse(n *node, m *placementpb.ToSequencer, reason placementpb.RefusalReason) {
	switch b := m.Body.(type) {
	case *placementpb.ToSequencer_Grant:
		s.refuseGrant(n, b.Grant, reason)
	case *placementpb.ToSequencer_Query:
		s.refuseQuery(n, b.Query, reason, nil, 0)
	case *placementpb.ToSequencer_TxnCommit:
		s.refuseCommit(n, b.TxnCommit, reason)
	case *placementpb.ToSequencer_Deactivate:
		s.refuseDeactivate(n, b.Deactivate)
	case *placementpb.ToSequencer_Split:
		s.refuseSplit(&splitRequest{n, n.session, b.Split.Id, b.Split.Key, 0}, reason)
	case *placementpb.ToSequencer_Compact:
		s.refuseCompact(n, b.Compact, reason, 0, 0)
	}
}

// subscribe begins a session (R6). The newest session of a node wins.
func (s *Sequencer) subscribe(m *placementpb.ToSequencer) {
	n := s.node(m.NodeId)
	if m.Session <= n.session {
		return
	}
	n.session, n.began, n.cut = m.Session, false, 0
	n.ended = false
	s.sessionOver(n)
	if s.phase == serving {
		s.firstCut(n)
	} else {
		s.cutSeq = 0 // when S serves
	}
}

// sessionOver drops what belongs to sessions of the node that are over.
func (s *Sequencer) sessionOver(n *node) {
	// No owner of such a session can be committed any more: its message would
	// not be judged. In any order: each is judged by itself.
	for o := range n.aborted {
		if o.session < n.session || n.ended && o.session == n.session {
			delete(n.aborted, o)
		}
	}
	// What S says to an old session goes nowhere: the ranges that were open
	// for it are closed until they register again.
	s.directory.all(func(x *ledger) {
		if x.open && x.reg.node == n.id {
			s.close(x)
		}
	})
}

// endSession makes the node subscribe anew: messages of the session are not
// judged any more.
func (s *Sequencer) endSession(n *node, session uint64) {
	n.session, n.began, n.ended = session, false, true
	s.sessionOver(n)
	s.hello(n.id, session)
}

// node returns the node, known without a session if it was not known.
func (s *Sequencer) node(id uint64) *node {
	n := s.nodes[id]
	if n == nil {
		n = &node{id: id, aborted: map[ownerID]struct{}{}}
		s.nodes[id] = n
		i, _ := slices.BinarySearchFunc(s.nodeOrder, id, func(o *node, id uint64) int { return cmp.Compare(o.id, id) })
		s.nodeOrder = slices.Insert(s.nodeOrder, i, n)
	}
	return n
}

// hello tells a node that S of this epoch does not know its session.
func (s *Sequencer) hello(nodeID, session uint64) {
	s.ready = append(s.ready, Envelope{nodeID, &placementpb.FromSequencer{
		ClusterId: s.clusterID, Epoch: s.epoch, Session: session,
	}})
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

// to returns an empty message to the node's session.
func (s *Sequencer) to(n *node) *placementpb.FromSequencer {
	return &placementpb.FromSequencer{ClusterId: s.clusterID, Epoch: s.epoch, Session: n.session}
}

func (s *Sequencer) query(n *node, q *placementpb.Query) {
	marks := make([]int64, len(q.Ranges))
	if reason := s.marks(q.Ranges, marks); reason != 0 {
		var newer []*rangepb.RangeDescriptor
		if reason == placementpb.RefusalReason_REFUSAL_REASON_STALE_EPOCH {
			newer = s.newerDescriptors(q.Ranges)
		}
		// The descriptors may rest on an entry that is not committed (I6).
		s.refuseQuery(n, q, reason, newer, s.directoryBarrier)
		return
	}
	m := s.to(n)
	m.Body = &placementpb.FromSequencer_Query{Query: &placementpb.QueryAnswer{
		Id: q.Id, Revision: s.next - 1, Compacted: s.committedCompacted, Marks: marks,
	}}
	s.reply(n, m, s.roundNeeded(), 0)
}

// marks fills in m of the ranges, or says why not.
func (s *Sequencer) marks(ranges []*placementpb.RangeEpoch, marks []int64) placementpb.RefusalReason {
	for i, r := range ranges {
		x := s.ledgers.get(r.RangeId)
		if x == nil {
			return placementpb.RefusalReason_REFUSAL_REASON_UNKNOWN_RANGE
		}
		if x.desc.Epoch != r.Epoch {
			return placementpb.RefusalReason_REFUSAL_REASON_STALE_EPOCH
		}
		marks[i] = x.last
	}
	return 0
}

// QueryNow answers a query at once, without messages, or says that it cannot:
// S does not serve, must confirm a round, does not know the session, or refuses
// the query. Then the caller sends it with Receive. marks has the length of
// ranges and is filled in.
func (s *Sequencer) QueryNow(nodeID, session uint64, ranges []*placementpb.RangeEpoch, marks []int64) (revision, compacted int64, ok bool) {
	if s.phase != serving || !s.sole {
		return 0, 0, false
	}
	if n := s.nodes[nodeID]; n == nil || n.session != session || n.ended {
		return 0, 0, false
	}
	if s.marks(ranges, marks) != 0 {
		return 0, 0, false
	}
	return s.next - 1, s.committedCompacted, true
}

// maxNewer bounds the descriptors that a refused query returns for one range;
// they are a hint, the directory itself comes with cuts.
const maxNewer = 64

// newerDescriptors returns, for each named range with another epoch, its
// descriptor and those of the ranges to its right that may have been split off
// it since: they have higher ids.
func (s *Sequencer) newerDescriptors(ranges []*placementpb.RangeEpoch) []*rangepb.RangeDescriptor {
	named := make(map[uint64]bool, len(ranges))
	for _, r := range ranges {
		named[r.RangeId] = true
	}
	var newer []*rangepb.RangeDescriptor
	for _, r := range ranges {
		x := s.ledgers.get(r.RangeId)
		if x == nil || x.desc.Epoch == r.Epoch {
			continue
		}
		of := 0
		s.directory.from(x, func(y *ledger) bool {
			if y != x && (y.id < x.id || named[y.id]) {
				return false
			}
			newer = append(newer, y.desc)
			of++
			return of < maxNewer
		})
	}
	return newer
}

func (s *Sequencer) refuseQuery(n *node, q *placementpb.Query, reason placementpb.RefusalReason, newer []*rangepb.RangeDescriptor, barrier uint64) {
	m := s.to(n)
	m.Body = &placementpb.FromSequencer_Query{Query: &placementpb.QueryAnswer{
		Id: q.Id, Refused: true, Reason: reason, Descriptors: newer,
	}}
	s.reply(n, m, 0, barrier)
}
