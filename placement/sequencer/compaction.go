package sequencer

import "github.com/hawser-kv/hawser/proto/placementpb"

// compaction is the compacted revision, as proposed and as committed (R9).
//
// Always committed <= proposed <= R. S judges by the one and tells nodes of the
// other, but in a refusal that waits for the barrier.
type compaction struct {
	proposed, committed int64
	// barrier is the number of the newest proposal that compacts.
	barrier uint64
}

// judge says why a compaction at the revision is refused while R is newest, 0 if
// it is not; and the barrier on which the refusal rests (I6).
func (c *compaction) judge(revision, newest int64) (reason placementpb.RefusalReason, barrier uint64) {
	switch {
	case revision <= c.committed:
		return placementpb.RefusalReason_REFUSAL_REASON_COMPACTED, 0
	case revision <= c.proposed:
		return placementpb.RefusalReason_REFUSAL_REASON_COMPACTED, c.barrier
	case revision > newest:
		return placementpb.RefusalReason_REFUSAL_REASON_FUTURE_REVISION, 0
	}
	return 0, 0
}

// compact raises the compacted revision (etcd/C1). "Compacted" and "future"
// are decided here only, so a refusal must come from an S that still leads.
func (s *Sequencer) compact(n *node, c *placementpb.CompactRequest) {
	if reason, barrier := s.compaction.judge(c.Revision, s.bound.revision()); reason != 0 {
		s.speech.refuseCompact(n, c, reason, s.bound.revision(), s.speech.rounds.needed(), barrier)
		return
	}
	s.compaction.proposed = c.Revision
	s.compaction.barrier = s.proposals.propose(&placementpb.MetaCommand{Command: &placementpb.MetaCommand_Compact{
		Compact: &placementpb.Compact{Revision: c.Revision}}},
		proposal{node: n, session: n.session, request: c.Id})
}
