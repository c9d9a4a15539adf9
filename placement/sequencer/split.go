package sequencer

import (
	"bytes"
	"slices"

	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// splitRequest is a split that someone asked for.
type splitRequest struct {
	node    *node
	session uint64
	id      uint64
	key     []byte
	ticks   int // waited
}

// splitRequest judges a request to split the range that holds the key (R11).
// The split goes through the outbox of the range, so the range must be open:
// a sleeping one is made active and woken, and the request waits.
func (s *Sequencer) splitRequest(n *node, q *placementpb.SplitRequest) {
	r := &splitRequest{node: n, session: n.session, id: q.Id, key: q.Key}
	x := s.directory.lookup(q.Key)
	if bytes.Equal(x.desc.Start, q.Key) {
		s.refuseSplit(r, placementpb.RefusalReason_REFUSAL_REASON_BOUNDARY_EXISTS)
		return
	}
	if x.open {
		s.split(x, r)
		return
	}
	x.splits = append(x.splits, r)
	if !x.listedSplits {
		x.listedSplits = true
		s.splitting = append(s.splitting, x)
	}
	s.maybeOpen(x)
}

// split decides a split of an open range: from now on the range has the new
// epoch, so that no grant and no transaction of the old one is accepted, and
// the leader learns of the new one with the decided entry.
func (s *Sequencer) split(x *ledger, r *splitRequest) {
	if r.node.session != r.session {
		return // who asked is gone
	}
	old := x.desc
	switch y := s.directory.lookup(r.key); {
	case bytes.Equal(y.desc.Start, r.key):
		s.refuseSplit(r, placementpb.RefusalReason_REFUSAL_REASON_BOUNDARY_EXISTS)
		return
	case y != x:
		// Split meanwhile, elsewhere: who asks again comes to y.
		s.refuseSplit(r, placementpb.RefusalReason_REFUSAL_REASON_BUSY)
		return
	}
	for _, d := range x.decided {
		if _, ok := d.entry.Entry.(*placementpb.Decided_Split); ok && !d.reporting {
			s.refuseSplit(r, placementpb.RefusalReason_REFUSAL_REASON_BUSY)
			return
		}
	}
	left := &rangepb.RangeDescriptor{
		RangeId: x.id, Start: old.Start, End: r.key, Epoch: old.Epoch + 1,
		Replicas: old.Replicas, ReplicaSetVersion: old.ReplicaSetVersion,
	}
	right := &rangepb.RangeDescriptor{
		RangeId: s.nextRangeID, Start: r.key, End: old.End, Epoch: old.Epoch + 1,
		ReplicaSetVersion: 0,
	}
	for i, rep := range old.Replicas {
		right.Replicas = append(right.Replicas, &rangepb.Replica{NodeId: rep.NodeId, ReplicaId: uint64(i + 1)})
	}
	s.nextRangeID++
	x.desc = left
	y := newLedger(right)
	y.last = x.last // s
	s.directory.insert(y)
	s.ledgers.put(y)

	entry := &placementpb.Decided{
		RangeId: x.id, Revision: x.last,
		Entry: &placementpb.Decided_Split{Split: &placementpb.DecidedSplit{Key: r.key, Left: left, Right: right}},
	}
	x.decided = append(x.decided, decided{entry: entry})
	s.propose(&placementpb.MetaCommand{Command: &placementpb.MetaCommand_Split{
		Split: &placementpb.Split{Left: left, Right: right, Revision: x.last}}},
		proposal{ledgers: []*ledger{x, y}, decided: []*placementpb.Decided{entry}, node: r.node, session: r.session, request: r.id})
	x.barrier, y.barrier = s.proposed, s.proposed
	s.directoryBarrier = s.proposed

	to := s.nodes[x.reg.node]
	m := s.to(to)
	m.Body = &placementpb.FromSequencer_Decided{Decided: entry}
	s.say(x, to, m, 0)
}

func (s *Sequencer) refuseSplit(r *splitRequest, reason placementpb.RefusalReason) {
	m := s.to(r.node)
	m.Session = r.session
	m.Body = &placementpb.FromSequencer_Split{Split: &placementpb.SplitResult{Id: r.id, Refused: true, Reason: reason}}
	// BOUNDARY_EXISTS may rest on a split that is only proposed (I6).
	s.reply(r.node, m, 0, s.directoryBarrier)
}

// tickSplits refuses splits that waited too long for a leader.
func (s *Sequencer) tickSplits() {
	s.splitting = slices.DeleteFunc(s.splitting, func(x *ledger) bool {
		x.splits = slices.DeleteFunc(x.splits, func(r *splitRequest) bool {
			if r.ticks++; r.ticks < s.cfg.SplitTicks {
				return false
			}
			s.refuseSplit(r, placementpb.RefusalReason_REFUSAL_REASON_BUSY)
			return true
		})
		x.listedSplits = len(x.splits) > 0
		return !x.listedSplits
	})
}

// compact raises the compacted revision (etcd/C1). "Compacted" and "future"
// are decided here only, so a refusal must come from an S that still leads.
func (s *Sequencer) compact(n *node, c *placementpb.CompactRequest) {
	switch {
	case c.Revision <= s.committedCompacted:
		s.refuseCompact(n, c, placementpb.RefusalReason_REFUSAL_REASON_COMPACTED, s.roundNeeded(), 0)
	case c.Revision <= s.compacted:
		// It rests on a compaction that is only proposed (I6).
		s.refuseCompact(n, c, placementpb.RefusalReason_REFUSAL_REASON_COMPACTED, s.roundNeeded(), s.compactBarrier)
	case c.Revision > s.next-1:
		s.refuseCompact(n, c, placementpb.RefusalReason_REFUSAL_REASON_FUTURE_REVISION, s.roundNeeded(), 0)
	default:
		s.compacted = c.Revision
		s.propose(&placementpb.MetaCommand{Command: &placementpb.MetaCommand_Compact{
			Compact: &placementpb.Compact{Revision: c.Revision}}},
			proposal{node: n, session: n.session, request: c.Id})
		s.compactBarrier = s.proposed
	}
}

func (s *Sequencer) refuseCompact(n *node, c *placementpb.CompactRequest, reason placementpb.RefusalReason, round, barrier uint64) {
	m := s.to(n)
	m.Body = &placementpb.FromSequencer_Compact{Compact: &placementpb.CompactResult{
		Id: c.Id, Refused: true, Reason: reason, Revision: s.next - 1}}
	s.reply(n, m, round, barrier)
}
