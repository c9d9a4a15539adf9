package node

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/cmd/config"
	"github.com/hawser-kv/hawser/placement/autocompact"
)

// AutoCompaction returns the policy that a configuration asks for, nil if none.
func (c *Core) AutoCompaction(cfg config.Config) *autocompact.Policy {
	switch {
	case cfg.AutoCompactionMode == config.Periodic && cfg.AutoCompactionWindow > 0:
		return autocompact.Periodic(cfg.AutoCompactionWindow)
	case cfg.AutoCompactionMode == config.Revision && cfg.AutoCompactionRevisions > 0:
		return autocompact.Revisions(cfg.AutoCompactionRevisions)
	}
	return nil
}

func (n *Node) autoCompact() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	policy := n.core.AutoCompaction(n.cfg.Config)
	t := time.NewTicker(policy.Interval())
	defer t.Stop()
	for {
		select {
		case <-n.stopping:
			return
		case now := <-t.C:
			rev := policy.Observe(now, n.core.Router.LocalRevision())
			if rev == 0 {
				continue
			}
			if _, err := n.core.Router.Compact(ctx, rev); err != nil {
				n.log.Warn("auto compaction", zap.Int64("revision", rev), zap.Error(err))
				continue
			}
			policy.Compacted(now, rev)
		}
	}
}
