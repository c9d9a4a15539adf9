package node

import (
	"context"
	"errors"
	"slices"

	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/proto/rangepb"
)

// Damaged returns the ranges whose replica on this node is damaged and not served,
// ascending, and whether there is damage that belongs to no single range. It shows in
// the CORRUPT alarm, in health, metrics and the list of ranges.
func (c *Core) Damaged() (ranges []uint64, outside bool) {
	ranges, _ = c.Ranges.Damaged.List()
	return ranges, c.damagedElsewhere.Load()
}

// deletionDamaged takes what the writing out of large deletions has met, and says
// whether it was damage of one of them, which others do not wait for.
func (c *Core) deletionDamaged(err error) bool {
	ranges, ok := c.Ranges.BlockDeletion(err)
	if ok && len(ranges) == 0 {
		c.damagedOutside("a large deletion of no range", err)
	}
	return ok
}

// damagedOutside notes damage that belongs to no single range.
func (c *Core) damagedOutside(what string, err error) {
	c.damagedElsewhere.Store(true)
	c.log.Error("damage", zap.String("what", what), zap.Error(err))
}

// tellWatchers ends the watchers of the damaged ranges, once the directory says
// which keys these have.
func (c *Core) tellWatchers() {
	if c.Router == nil || c.Router.Directory() == nil {
		return // takeCut tells
	}
	dir := c.Router.Directory()
	for _, id := range c.Ranges.Damaged.Take(func(id uint64) bool { return dir.ByID(id) != nil }) {
		desc := dir.ByID(id)
		c.Watch.Damaged(desc.Start, desc.End)
	}
}

// errHeldUp: what a compaction makes garbage is not removed while a damaged range
// has not applied what came before it, or has not all events of that.
var errHeldUp = errors.New("the damaged range holds up the removal of what is compacted")

// heldUp returns the error of a damaged range that keeps the frontier back, or that has
// a large deletion which is not written out, so that the compaction of a revision does
// not come; nil if none does.
func (c *Core) heldUp(damaged []uint64, rev int64) error {
	if c.MVCC.Forgotten() < rev {
		// Those that were asked for since are done together with it.
		if err := c.Ranges.Blocked(max(rev, c.Compactor.Wanted())); err != nil {
			err.Err = errHeldUp
			return err
		}
	}
	if len(damaged) == 0 {
		return nil
	}
	lagging := c.Frontier.Lagging()
	for _, id := range damaged {
		if _, found := slices.BinarySearch(lagging, id); found {
			return &rangepb.Error{Kind: rangepb.Corrupt, RangeID: id, Err: errHeldUp}
		}
	}
	return nil
}

// WaitCompacted waits until a compaction's garbage is removed here. It fails at once
// if a damaged range prevents that.
func (c *Core) WaitCompacted(ctx context.Context, rev int64) error {
	done := make(chan error, 1)
	c.Compactor.WhenRemoved(rev, func(err error) { done <- asCorrupt(err) })
	for {
		select {
		case err := <-done:
			return err
		default:
		}
		damaged, changed := c.Ranges.Damaged.List()
		if err := c.heldUp(damaged, rev); err != nil {
			return err
		}
		select {
		case err := <-done:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}
