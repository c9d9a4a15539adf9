package node

import (
	"context"

	"go.uber.org/zap"
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

// freeBytes is the room left on the disk.
func (c *Core) freeBytes() (uint64, error) {
	usage, err := c.cfg.Engine.FS.GetDiskUsage(c.engine.Dir())
	return usage.AvailBytes, err
}
