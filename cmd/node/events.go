package node

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/range/replica"
)

// takeCut takes what the sequencer says of a revision (R6).
func (c *Core) takeCut(cut *placementpb.Cut) {
	if err := c.Router.Cut(cut); err != nil {
		// S would have to be wrong: serving on would break the order of
		// revisions, so the node stops loudly.
		panic(fmt.Sprintf("node: cut at revision %d: %v", cut.Revision, err))
	}
	c.Watch.Cut(cut)
	c.tellWatchers()
	c.Compactor.Request(cut.Compacted)
	if c.Compactor.Waiting() {
		c.Compactor.Kick()
	}
}

// Tick passes one tick, the heartbeat interval, to what the store does not drive:
// reads that have waited for more than awaitTicks are given up, and ranges that
// keep the frontier back are nudged.
func (c *Core) Tick(awaitTicks int) {
	c.Ranges.Readers.Tick(awaitTicks)
	for _, id := range c.Frontier.Tick(c.cfg.ElectionTicks) {
		if c.Ranges.Damaged.Has(id) {
			continue // nothing would come of it
		}
		c.log.Info("the frontier waits for a range: nudged", zap.Uint64("range", id))
		c.Store.Post(id, replica.Nudge{})
	}
}

// Applied is the replicas' event sink.
func (c *Core) Applied(rangeID uint64, resolved int64, events []mvcc.Event) {
	if c.measures != nil && len(events) > 0 {
		bytes := 0
		for i := range events {
			bytes += len(events[i].Kv.Key) + len(events[i].Kv.Value)
		}
		c.measures.loads.of(rangeID).applied(len(events), bytes)
	}
	c.Watch.Applied(rangeID, resolved, events)
	c.Materialiser.Kick()
	if c.Compactor.Waiting() {
		c.Compactor.Kick()
	}
}
