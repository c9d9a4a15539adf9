package host

import (
	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/adminpb"
	"github.com/hawser-kv/hawser/range/replica"
)

// Info fills in what this node knows of a range.
func (h *Host) Info(id uint64, info *adminpb.RangeInfo) {
	info.Active = h.isLoaded(id)
	info.Damaged = h.Damaged.Has(id)
	if resolved, ok := h.Readers.Resolved(id); ok {
		info.Resolved = resolved
	}
	d := info.Desc
	if d == nil {
		return
	}
	span := d.Span()
	live, err := h.cfg.MVCC.Latest().Count(span.Start, span.End)
	if err == nil {
		info.LiveKeys = live
		lower, upper := mvcc.VersionSpan(span.Start, span.End)
		info.ApproximateBytes, err = h.cfg.DB.EstimateDiskUsage(lower, upper)
	}
	if err != nil {
		h.log.Warn("figures of a range", zap.Uint64("range", id), zap.Error(err))
	}
}

// Raft asks a loaded replica for its Raft state; nil if it is not loaded.
func (h *Host) Raft(id uint64) *adminpb.RaftInfo {
	if !h.isLoaded(id) {
		return nil
	}
	got := make(chan *adminpb.RaftInfo, 1)
	h.Store.Post(id, &replica.AskStatus{Done: func(s replica.Status, err error) {
		if err != nil {
			got <- nil
			return
		}
		got <- &adminpb.RaftInfo{
			Term: s.Raft.Term, LeaderReplicaId: s.Raft.Leader,
			CommitIndex: s.Raft.Committed, AppliedIndex: s.Raft.Applied,
			FirstIndex: s.Raft.FirstIndex, LastIndex: s.Raft.LastIndex,
			Queued: uint64(s.Queued), Latches: uint64(s.Latches),
		}
	}})
	return <-got
}
