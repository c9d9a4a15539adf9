package node

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/hawser-kv/hawser/placement/meta"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/range/keys"
	"github.com/hawser-kv/hawser/range/raftlog"
	"github.com/hawser-kv/hawser/range/replica"
)

// bootstrap stages, once and durably, the first replica of the meta group and
// of the range that covers everything. A crash before leaves nothing behind.
func (c *Core) bootstrap() error {
	b := c.DB.NewBatch()
	defer func() { _ = b.Close() }() // committed or given up
	if _, err := raftlog.ReadApplied(c.DB, keys.MetaGroupID); err == nil {
		return c.engine.Complete()
	} else if !errors.Is(err, raftlog.ErrNotFound) {
		return c.explain(metaPart, err)
	}
	if !c.engine.IsNew() {
		return c.explain(metaPart, fmt.Errorf("%w: no applied state", raftlog.ErrCorrupt))
	}
	if err := raftlog.Bootstrap(c.DB, b, keys.MetaGroupID, []uint64{metaReplicaID}, nil); err != nil {
		if errors.Is(err, raftlog.ErrExists) {
			err = fmt.Errorf("%w: no applied state: %w", raftlog.ErrCorrupt, err)
		}
		return c.explain(metaPart, err)
	}
	for _, d := range c.firstRanges().Ranges {
		if _, err := replica.Stage(c.DB, b, c.NodeID, d, meta.FirstRevision); err != nil {
			return err
		}
	}
	if err := b.Commit(pebble.Sync); err != nil {
		return fmt.Errorf("%s: first write: %w", c.engine.Dir(), err)
	}
	return c.engine.Complete()
}

// firstRanges is the directory of a new cluster: one range over everything.
func (c *Core) firstRanges() *placementpb.Bootstrap {
	return meta.NewBootstrap(c.ClusterID, nil, []*rangepb.Replica{{NodeId: c.NodeID, ReplicaId: 1}})
}
