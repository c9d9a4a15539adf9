package node

import (
	"context"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/adminpb"
	"github.com/hawser-kv/hawser/range/keys"
	"github.com/hawser-kv/hawser/range/replica"
)

// Size returns the bytes of the engine on disk, its log included, and those of
// them that are not waiting to be deleted or rewritten.
func (c *Core) Size() (total, inUse int64) {
	m := c.DB.Metrics()
	total = int64(m.DiskSpaceUsage())
	inUse = total - int64(m.Table.ObsoleteSize) - int64(m.Table.ZombieSize) - int64(m.WAL.ObsoletePhysicalSize)
	return total, max(inUse, 0)
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
func (c *Core) Defragment(ctx context.Context) error {
	if err := c.flush(ctx); err != nil {
		return err
	}
	return asCorrupt(c.engine.Fault.Write(func() error { return c.DB.Compact(ctx, []byte{keys.NodePrefix}, []byte{0xff}, false) }))
}

// flush writes what the engine has in memory only to its tables.
func (c *Core) flush(ctx context.Context) error {
	var flushed <-chan struct{}
	err := c.engine.Fault.Write(func() (err error) {
		// A flush begins another log, and the engine ends the process when the one
		// before fails just then: a sync tells whether the disk works.
		if err := c.DB.LogData(nil, pebble.Sync); err != nil {
			return err
		}
		flushed, err = c.DB.AsyncFlush()
		return err
	})
	if err != nil {
		return err
	}
	select {
	case <-flushed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

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

// freeBytes is the room left: on the disk, and under the quota. reserve is what
// the store keeps free.
func (c *Core) freeBytes(quota int64, reserve uint64) (uint64, error) {
	usage, err := c.cfg.Engine.FS.GetDiskUsage(c.engine.Dir())
	if err != nil {
		return 0, err
	}
	free := usage.AvailBytes
	if quota > 0 {
		_, inUse := c.Size()
		free = min(free, quotaRoom(quota, inUse, reserve))
	}
	return free, nil
}

// quotaRoom says how far a store of a size is below a quota, in the terms of a
// disk of which reserve bytes are kept free: below reserve when the quota is
// exceeded, and above it by a quarter, where the store is no longer low, when a
// sixteenth of the quota is free.
func quotaRoom(quota, size int64, reserve uint64) uint64 {
	part := float64(quota-size) / float64(quota)
	return uint64(max(float64(reserve)*(1+4*part), 0))
}
