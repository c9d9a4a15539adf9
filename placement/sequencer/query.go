package sequencer

import (
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// query answers with R and m of the ranges (R5).
func (s *Sequencer) query(n *node, q *placementpb.Query) {
	marks := make([]int64, len(q.Ranges))
	if reason := s.directory.marks(q.Ranges, marks); reason != 0 {
		var newer []*rangepb.RangeDescriptor
		if reason == placementpb.RefusalReason_REFUSAL_REASON_STALE_EPOCH {
			newer = s.directory.newer(q.Ranges)
		}
		// The descriptors may rest on an entry that is not committed (I6).
		s.speech.refuseQuery(n, q, reason, newer, s.directory.barrier)
		return
	}
	m := s.speech.to(n)
	m.Body = &placementpb.FromSequencer_Query{Query: &placementpb.QueryAnswer{
		Id: q.Id, Revision: s.bound.revision(), Compacted: s.compaction.committed, Marks: marks,
	}}
	s.speech.reply(n, m, s.speech.rounds.needed(), 0)
}

// QueryNow answers a query at once, without messages, or says that it cannot:
// S does not serve, must confirm a round, does not know the session, or refuses
// the query. Then the caller sends it with Receive. marks has the length of
// ranges and is filled in.
func (s *Sequencer) QueryNow(nodeID, session uint64, ranges []*placementpb.RangeEpoch, marks []int64) (revision, compacted int64, ok bool) {
	if s.phase != serving || !s.speech.rounds.sole {
		return 0, 0, false
	}
	if n := s.sessions.get(nodeID); n == nil || !n.in(session) {
		return 0, 0, false
	}
	if s.directory.marks(ranges, marks) != 0 {
		return 0, 0, false
	}
	return s.bound.revision(), s.compaction.committed, true
}
