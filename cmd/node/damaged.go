package node

import (
	"context"
	"errors"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/proto/rangepb"
)

// damage is what this process has found damaged: it shows in the CORRUPT alarm, in
// health, metrics and the list of ranges. Each range that is not damaged goes on. It
// lasts until the end of the process; the next one finds it again, at the latest when
// the damaged data is read.
type damage struct {
	mu struct {
		sync.Mutex
		// ranges are those whose replica here is not served any more, ascending.
		ranges []uint64
		// untold are those of them whose watchers do not know: the directory has not
		// come yet.
		untold []uint64
		// outside: what is damaged belongs to no single range.
		outside bool
		// changed is closed, and replaced, when a range is added.
		changed chan struct{}
	}
}

func newDamage() *damage {
	d := &damage{}
	d.mu.changed = make(chan struct{})
	return d
}

// add notes a damaged range.
func (d *damage) add(id uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	at, found := slices.BinarySearch(d.mu.ranges, id)
	if found {
		return
	}
	d.mu.ranges = slices.Insert(d.mu.ranges, at, id)
	d.mu.untold = append(d.mu.untold, id)
	close(d.mu.changed)
	d.mu.changed = make(chan struct{})
}

// has reports whether a range is damaged.
func (d *damage) has(id uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, found := slices.BinarySearch(d.mu.ranges, id)
	return found
}

// list returns the damaged ranges, ascending, and a channel that is closed when
// there is another.
func (d *damage) list() (ids []uint64, changed <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.mu.ranges), d.mu.changed
}

// take returns those of the untold ranges that known accepts, once.
func (d *damage) take(known func(id uint64) bool) (ids []uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.untold = slices.DeleteFunc(d.mu.untold, func(id uint64) bool {
		if !known(id) {
			return false
		}
		ids = append(ids, id)
		return true
	})
	return ids
}

// Damaged returns the ranges whose replica on this node is damaged and not served,
// ascending, and whether there is damage that belongs to no single range.
func (c *Core) Damaged() (ranges []uint64, outside bool) {
	d := c.damage
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.mu.ranges), d.mu.outside
}

// rangeFailed takes what the replicas' reading side says of a damaged range.
func (c *Core) rangeFailed(id uint64) {
	c.damage.add(id)
	c.tellWatchers()
}

// damagedOutside notes damage that belongs to no single range.
func (c *Core) damagedOutside(what string, err error) {
	c.damage.mu.Lock()
	c.damage.mu.outside = true
	c.damage.mu.Unlock()
	c.log.Error("damage", zap.String("what", what), zap.Error(err))
}

// tellWatchers ends the watchers of the damaged ranges, once the directory says
// which keys these have.
func (c *Core) tellWatchers() {
	if c.Router == nil || c.Router.Directory() == nil {
		return // takeCut tells
	}
	dir := c.Router.Directory()
	for _, id := range c.damage.take(func(id uint64) bool { return dir.ByID(id) != nil }) {
		desc := dir.ByID(id)
		c.Watch.Damaged(desc.Start, desc.End)
	}
}

// errHeldUp: what a compaction makes garbage is not removed while a damaged range
// has not applied what came before it.
var errHeldUp = errors.New("the damaged range holds up the removal of what is compacted")

// heldUp returns the error of a damaged range that keeps the frontier back, nil if
// none does.
func (c *Core) heldUp(damaged []uint64) error {
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
		damaged, changed := c.damage.list()
		if err := c.heldUp(damaged); err != nil {
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
