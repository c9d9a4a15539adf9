package watch

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/hawser-kv/hawser/mvcc/spans"
	"github.com/hawser-kv/hawser/proto/placementpb"
)

// Frontier knows of every range up to which revision it is complete on this
// node: no change at or below that revision is still to come (revisions.md R6).
//
// It is fed with the cuts of one subscription, each saying "the newest
// revision is R and range X is complete up to it once it has resolved m(X)",
// and with the resolved revisions of the node's replicas. A range that has
// resolved its newest m is complete up to the newest R. For one that has not,
// the oldest unsatisfied cut is kept and all newer ones are merged into one:
// a range that is always being written to still advances, to the R of that
// oldest cut, and starves nobody.
//
// Completeness belongs to keys, not to range ids: a range that comes out of a
// split starts with what its keys had, and nothing ever goes back, also not
// over a new subscription.
//
// A Frontier is safe for concurrent use. It never blocks and does no I/O.
type Frontier struct {
	mu struct {
		sync.RWMutex
		// revision is the R of the newest cut; 0 before the first.
		revision int64
		// compacted revision, -1 while nothing was compacted.
		compacted int64
		byID      map[uint64]*mark
		// resolved of every replica of this node, also of ranges that the
		// directory does not name yet.
		resolved map[uint64]int64
		// pending holds the marks that have not resolved their newest m.
		pending map[uint64]*mark
		// tiles has what the pending ones have.
		tiles tiling
		// news is what the hub was not told yet.
		news frontierNews
	}
}

// mark is what the frontier knows of one range.
type mark struct {
	id         uint64
	epoch      uint64
	start, end []byte // end empty: to the end of the keyspace
	tile       *spans.Node[tile]
	told       bool // it is among the news
	// m of the newest cut.
	m int64
	// The rest has a meaning while the range is pending only.
	// complete is the revision up to which the range is complete.
	complete int64
	// (oldestR, oldestM) is the oldest unsatisfied cut.
	oldestR, oldestM int64
	patience         patience // with it
}

// NewFrontier returns a frontier that has seen no cut.
func NewFrontier() *Frontier {
	f := &Frontier{}
	f.mu.compacted = -1
	f.mu.byID = make(map[uint64]*mark)
	f.mu.resolved = make(map[uint64]int64)
	f.mu.pending = make(map[uint64]*mark)
	f.mu.tiles = newTiling()
	return f
}

// Cut takes the next cut of the subscription. Cuts must come in S's order; a
// cut with First begins a new subscription and names every range. The caller
// drops cuts of older sessions and epochs before.
func (f *Frontier) Cut(c *placementpb.Cut) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.mu.revision
	if c.Revision < before {
		// A new S starts above everything that was handed out (R2), and a
		// node never turns back to an older one.
		panic(fmt.Sprintf("watch: cut at revision %d after one at %d", c.Revision, before))
	}
	f.mu.revision = c.Revision
	if c.Compacted > f.mu.compacted {
		f.mu.compacted = c.Compacted
	}
	if c.First || len(c.Descriptors) > 0 || len(c.Removed) > 0 {
		f.changeLayoutLocked(c, before)
	}
	for _, cm := range c.Marks {
		x, ok := f.mu.byID[cm.RangeId]
		if !ok {
			continue // removed in the same cut
		}
		if cm.Revision > x.m || c.First {
			x.m = cm.Revision
		}
		f.settleLocked(x, before)
	}
}

// changeLayoutLocked takes the descriptors of a cut. before is the revision of
// the cut before it, up to which every range that is not pending is complete. Its
// cost follows the ranges that the cut names.
func (f *Frontier) changeLayoutLocked(c *placementpb.Cut, before int64) {
	ms := make(map[uint64]int64, len(c.Marks))
	for _, cm := range c.Marks {
		ms[cm.RangeId] = cm.Revision
	}
	named := make([]*mark, len(c.Descriptors))
	for i, d := range c.Descriptors {
		x := &mark{id: d.RangeId, epoch: d.Epoch, start: d.Start, end: d.End}
		// What the keys of the span had, they keep.
		x.complete = f.completeLocked(x.start, x.end, before)
		if prior := f.mu.byID[x.id]; prior != nil && !c.First {
			x.m = prior.m
		}
		if m, ok := ms[x.id]; ok {
			x.m = m
		}
		named[i] = x
	}
	if c.First {
		f.mu.byID = make(map[uint64]*mark, len(named))
		f.mu.pending = make(map[uint64]*mark)
		f.mu.tiles = newTiling()
		f.mu.news.reset()
	}
	for _, d := range c.Descriptors {
		f.removeLocked(d.RangeId)
	}
	for _, id := range c.Removed {
		f.removeLocked(id)
	}
	for _, x := range named {
		x.tile = f.mu.tiles.add(x.id, x.start, x.end)
		f.mu.byID[x.id] = x
		f.mu.news.layout = append(f.mu.news.layout, layoutNews{id: x.id, start: x.start, end: x.end})
		f.waitLocked(x)
		f.settleLocked(x, before)
	}
	if len(f.mu.news.layout) > 2*len(f.mu.byID)+1024 {
		// Nobody has asked for long: the whole is less.
		f.mu.news.reset()
		f.mu.tiles.tiles.Each(func(t *tile) {
			f.mu.news.layout = append(f.mu.news.layout, layoutNews{id: t.id, start: t.start, end: t.end})
		})
		for _, x := range f.mu.byID {
			x.told = false
		}
		f.mu.news.moved = nil
		for _, x := range f.mu.pending {
			x.told = true
			f.mu.news.moved = append(f.mu.news.moved, x)
		}
		slices.SortFunc(f.mu.news.moved, func(x, y *mark) int { return cmp.Compare(x.id, y.id) })
	}
}

func (f *Frontier) removeLocked(id uint64) {
	x := f.mu.byID[id]
	if x == nil {
		return
	}
	f.mu.tiles.tiles.Remove(x.tile)
	delete(f.mu.byID, id)
	delete(f.mu.pending, id)
	f.mu.news.layout = append(f.mu.news.layout, layoutNews{id: id, gone: true})
}

// settleLocked brings x's completeness up to date after its m or its resolved
// revision moved. before is up to where x is complete if it was not pending.
func (f *Frontier) settleLocked(x *mark, before int64) {
	resolved := f.mu.resolved[x.id]
	_, pending := f.mu.pending[x.id]
	switch {
	case resolved >= x.m:
		delete(f.mu.pending, x.id)
		f.setLocked(x, math.MaxInt64)
	case !pending:
		x.complete = before
		f.waitLocked(x)
	case resolved >= x.oldestM:
		x.complete = max(x.complete, x.oldestR)
		f.waitLocked(x)
	}
}

// waitLocked makes a range pending with what it has, and the newest cut its oldest
// unsatisfied one.
func (f *Frontier) waitLocked(x *mark) {
	x.oldestR, x.oldestM = f.mu.revision, x.m
	x.patience = patience{}
	f.mu.pending[x.id] = x
	f.setLocked(x, x.complete)
}

func (f *Frontier) setLocked(x *mark, complete int64) {
	if x.tile.Item.complete == complete {
		return
	}
	f.mu.tiles.set(x.tile, complete)
	if !x.told {
		x.told = true
		f.mu.news.moved = append(f.mu.news.moved, x)
	}
}

// Resolved tells the resolved revision of this node's replica of a range. It
// reports whether some range became complete further than before.
func (f *Frontier) Resolved(id uint64, revision int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if revision <= f.mu.resolved[id] {
		return false
	}
	f.mu.resolved[id] = revision
	x, ok := f.mu.pending[id]
	if !ok {
		return false
	}
	complete := x.complete
	f.settleLocked(x, f.mu.revision)
	_, still := f.mu.pending[id]
	return !still || x.complete > complete
}

// Complete returns the largest revision up to which every range of
// [start, end) is complete; end empty means to the end of the keyspace. It is
// 0 before the first cut.
func (f *Frontier) Complete(start, end []byte) int64 {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.completeLocked(start, end, f.mu.revision)
}

// completeLocked is the minimum of what the pending ranges of a span have and
// of revision, which the others have.
func (f *Frontier) completeLocked(start, end []byte, revision int64) int64 {
	return f.mu.tiles.complete(start, end, revision)
}

// Revision returns the R of the newest cut, and the compacted revision.
func (f *Frontier) Revision() (revision, compacted int64) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.mu.revision, f.mu.compacted
}

// Compacted tells of a compaction that the node learned of before its cut.
func (f *Frontier) Compacted(revision int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if revision > f.mu.compacted {
		f.mu.compacted = revision
	}
}

// Lagging returns the ids of the ranges that keep the frontier back, in
// ascending order, for who wants to know why it stays.
func (f *Frontier) Lagging() []uint64 {
	f.mu.RLock()
	defer f.mu.RUnlock()
	ids := make([]uint64, 0, len(f.mu.pending))
	for id := range f.mu.pending {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}
