package node

import (
	"context"

	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/adminpb"
	"github.com/hawser-kv/hawser/range/replica"
)

// Size returns the bytes of the engine on disk, and those of them that are needed.
func (c *Core) Size() (total, inUse int64) {
	s := c.engine.Size()
	return s.Total, s.InUse
}

// LiveKeys returns the number of live keys on this node.
func (c *Core) LiveKeys() int64 {
	n, err := c.MVCC.Latest().Count(nil, nil)
	if err != nil {
		c.log.Warn("live keys", zap.Error(err))
	}
	return n
}

// LowSpace says whether puts are refused for lack of room.
func (c *Core) LowSpace() bool { return c.Store.LowSpace() }

// Defragment rewrites the engine so that what is deleted takes no room. Reads
// and writes go on meanwhile.
func (c *Core) Defragment(ctx context.Context) error { return asCorrupt(c.engine.Defragment(ctx)) }

// Leader returns the member that leads the meta group, 0 if none does.
func (c *Core) Leader() uint64 {
	if c.meta.leader.Load() == metaReplicaID {
		return c.NodeID
	}
	return 0
}

// Term returns the Raft term of the meta group.
func (c *Core) Term() uint64 { return c.meta.term.Load() }

// Indexes returns the committed and applied index of the meta group.
func (c *Core) Indexes() (committed, applied uint64) {
	return c.meta.committed.Load(), c.meta.applied.Load()
}

// Info fills in what this node knows of a range.
func (c *Core) Info(id uint64, info *adminpb.RangeInfo) {
	c.mu.Lock()
	_, info.Active = c.mu.loaded[id]
	c.mu.Unlock()
	info.Damaged = c.damage.has(id)
	if resolved, ok := c.Readers.Resolved(id); ok {
		info.Resolved = resolved
	}
	d := info.Desc
	if d == nil {
		return
	}
	end := d.End
	if len(end) == 0 {
		end = nil
	}
	live, err := c.MVCC.Latest().Count(d.Start, end)
	if err == nil {
		info.LiveKeys = live
		lower, upper := mvcc.VersionSpan(d.Start, end)
		info.ApproximateBytes, err = c.DB.EstimateDiskUsage(lower, upper)
	}
	if err != nil {
		c.log.Warn("figures of a range", zap.Uint64("range", id), zap.Error(err))
	}
}

// Raft asks a loaded replica for its Raft state; nil if it is not loaded.
func (c *Core) Raft(id uint64) *adminpb.RaftInfo {
	c.mu.Lock()
	_, loaded := c.mu.loaded[id]
	c.mu.Unlock()
	if !loaded {
		return nil
	}
	got := make(chan *adminpb.RaftInfo, 1)
	c.Store.Post(id, &replica.AskStatus{Done: func(s replica.Status, err error) {
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

// freeBytes is the room left on the disk.
func (c *Core) freeBytes() (uint64, error) {
	usage, err := c.cfg.Engine.FS.GetDiskUsage(c.engine.Dir())
	return usage.AvailBytes, err
}
