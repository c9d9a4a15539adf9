package sequencer

import (
	"bytes"

	"github.com/hawser-kv/hawser/proto/placementpb"
)

// askSplit judges a request to split the range that holds the key (R11).
// The split goes through the outbox of the range, so the range must be open:
// a sleeping one is made active and woken, and the request waits.
func (s *Sequencer) askSplit(n *node, q *placementpb.SplitRequest) {
	r := &splitRequest{node: n, session: n.session, id: q.Id, key: q.Key}
	x := s.directory.lookup(q.Key)
	if bytes.Equal(x.desc.Start, q.Key) {
		s.speech.refuseSplit(r, placementpb.RefusalReason_REFUSAL_REASON_BOUNDARY_EXISTS, s.directory.barrier)
		return
	}
	if x.open {
		s.split(x, r)
		return
	}
	s.splitting.add(x, r)
	s.maybeOpen(x)
}

// split decides a split of an open range: from now on the range has the new
// epoch, so that no grant and no transaction of the old one is accepted, and
// the leader learns of the new one with the decided entry.
func (s *Sequencer) split(x *ledger, r *splitRequest) {
	if r.node.session != r.session {
		return // who asked is gone
	}
	switch y := s.directory.lookup(r.key); {
	case bytes.Equal(y.desc.Start, r.key):
		s.speech.refuseSplit(r, placementpb.RefusalReason_REFUSAL_REASON_BOUNDARY_EXISTS, s.directory.barrier)
		return
	case y != x:
		// Split meanwhile, elsewhere: who asks again comes to y.
		s.speech.refuseSplit(r, placementpb.RefusalReason_REFUSAL_REASON_BUSY, s.directory.barrier)
		return
	}
	for _, d := range x.decided {
		if _, ok := d.entry.Entry.(*placementpb.Decided_Split); ok && !d.reporting {
			s.speech.refuseSplit(r, placementpb.RefusalReason_REFUSAL_REASON_BUSY, s.directory.barrier)
			return
		}
	}
	y := s.directory.split(x, r.key)
	left, right := x.desc, y.desc
	entry := &placementpb.Decided{
		RangeId: x.id, Revision: x.last,
		Entry: &placementpb.Decided_Split{Split: &placementpb.DecidedSplit{Key: r.key, Left: left, Right: right}},
	}
	x.decided = append(x.decided, decided{entry: entry})
	barrier := s.proposals.propose(&placementpb.MetaCommand{Command: &placementpb.MetaCommand_Split{
		Split: &placementpb.Split{Left: left, Right: right, Revision: x.last}}},
		proposal{ledgers: []*ledger{x, y}, decided: []*placementpb.Decided{entry}, node: r.node, session: r.session, request: r.id})
	x.outbox.barrier, y.outbox.barrier = barrier, barrier
	s.directory.barrier = barrier

	s.speech.decided(x, s.sessions.get(x.reg.node), entry)
}
