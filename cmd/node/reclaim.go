package node

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/range/engine"
)

// reclaimInterval is how often it is looked whether much of the engine is deleted.
// The engine's estimates follow a flush by less.
const reclaimInterval = time.Second

// reclaim has the engine free what compactions of the keyspace have removed, until
// the node stops.
func (n *Node) reclaim() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-n.stopping
		cancel()
	}()
	t := time.NewTicker(reclaimInterval)
	defer t.Stop()
	r := engine.NewReclaimer()
	failing := false
	for {
		select {
		case <-n.stopping:
			return
		case <-t.C:
		}
		err := n.core.reclaimStep(ctx, r)
		if err != nil && !failing && ctx.Err() == nil && n.core.Err() == nil {
			// Nothing rests on it, and without room it cannot be: it is tried again.
			n.log.Warn("what is deleted in the engine takes room: merging its tables failed", zap.Error(err))
		}
		failing = err != nil
	}
}

// reclaimStep does what is due.
func (c *Core) reclaimStep(ctx context.Context, r *engine.Reclaimer) error {
	if removed := c.Compactor.Removed(); r.WantsFlush(removed, c.LowSpace()) {
		if err := c.engine.Flush(ctx); err != nil {
			return err
		}
		r.Flushed(removed)
	}
	size := c.engine.Size()
	if !r.WantsMerge(size) {
		return nil
	}
	began := time.Now()
	if err := c.engine.Merge(ctx, c.restBetweenPieces(ctx)); err != nil {
		return err
	}
	after := c.engine.Size()
	r.Merged(after)
	c.log.Info("merged the engine's tables for what is deleted in them", zap.Int64("total-bytes-before", size.Total),
		zap.Int64("total-bytes", after.Total), zap.Int64("in-use-bytes", after.InUse), zap.Duration("took", time.Since(began)))
	return nil
}

// restBetweenPieces returns what a merge in the background does after each piece:
// it rests twice as long as that took, so that others hardly feel it, unless room
// is short.
func (c *Core) restBetweenPieces(ctx context.Context) func() error {
	began := time.Now()
	return func() error {
		if !c.LowSpace() {
			t := time.NewTimer(2 * time.Since(began))
			defer t.Stop()
			select {
			case <-t.C:
			case <-ctx.Done():
			}
		}
		began = time.Now()
		return ctx.Err()
	}
}
