package watch

import (
	"bytes"
	"fmt"
	"math"
	"sort"
	"sync"

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
		// layout counts the changes of the directory.
		layout uint64
		// marks are in key order and tile the keyspace.
		marks []*mark
		byID  map[uint64]*mark
		// resolved of every replica of this node, also of ranges that the
		// directory does not name yet.
		resolved map[uint64]int64
		// pending holds the marks that have not resolved their newest m.
		pending map[uint64]*mark
		// least is the tree over marks of what the pending ones have.
		least minTree
	}
}

// mark is what the frontier knows of one range.
type mark struct {
	id         uint64
	epoch      uint64
	start, end []byte // end empty: to the end of the keyspace
	position   int    // in marks
	// m of the newest cut.
	m int64
	// The rest has a meaning while the range is pending only.
	// complete is the revision up to which the range is complete.
	complete int64
	// (oldestR, oldestM) is the oldest unsatisfied cut.
	oldestR, oldestM int64
	patience         patience // with it
}

// wait makes the newest cut, of revision r, the oldest unsatisfied one.
func (x *mark) wait(r int64) {
	x.oldestR, x.oldestM = r, x.m
	x.patience = patience{}
}

// NewFrontier returns a frontier that has seen no cut.
func NewFrontier() *Frontier {
	f := &Frontier{}
	f.mu.compacted = -1
	f.mu.byID = make(map[uint64]*mark)
	f.mu.resolved = make(map[uint64]int64)
	f.mu.pending = make(map[uint64]*mark)
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
// the cut before it, up to which every range that is not pending is complete.
func (f *Frontier) changeLayoutLocked(c *placementpb.Cut, before int64) {
	changed := make(map[uint64]bool, len(c.Descriptors))
	for _, d := range c.Descriptors {
		changed[d.RangeId] = true
	}
	gone := make(map[uint64]bool, len(c.Removed))
	for _, id := range c.Removed {
		gone[id] = true
	}
	ms := make(map[uint64]int64, len(c.Marks))
	for _, cm := range c.Marks {
		ms[cm.RangeId] = cm.Revision
	}
	var next []*mark
	pending := make(map[uint64]*mark)
	if !c.First {
		for _, x := range f.mu.marks {
			if changed[x.id] || gone[x.id] {
				continue
			}
			next = append(next, x)
			if _, ok := f.mu.pending[x.id]; ok {
				pending[x.id] = x
			}
		}
	}
	for _, d := range c.Descriptors {
		x := &mark{id: d.RangeId, epoch: d.Epoch, start: d.Start, end: d.End}
		// What the keys of the span had, they keep.
		x.complete = f.completeLocked(x.start, x.end, before)
		if prior := f.mu.byID[d.RangeId]; prior != nil && !c.First {
			x.m = prior.m
		}
		if m, ok := ms[d.RangeId]; ok {
			x.m = m
		}
		x.wait(f.mu.revision)
		next = append(next, x)
		pending[x.id] = x
	}
	sort.Slice(next, func(i, j int) bool { return bytes.Compare(next[i].start, next[j].start) < 0 })
	f.mu.marks = next
	f.mu.pending = pending
	f.mu.byID = make(map[uint64]*mark, len(next))
	f.mu.least = newMinTree(len(next))
	for i, x := range next {
		f.mu.byID[x.id] = x
		x.position = i
		if _, ok := pending[x.id]; ok {
			f.mu.least.set(i, x.complete)
		}
	}
	for _, d := range c.Descriptors {
		f.settleLocked(f.mu.byID[d.RangeId], before)
	}
	f.mu.layout++
}

// settleLocked brings x's completeness up to date after its m or its resolved
// revision moved. before is up to where x is complete if it was not pending.
func (f *Frontier) settleLocked(x *mark, before int64) {
	resolved := f.mu.resolved[x.id]
	_, pending := f.mu.pending[x.id]
	switch {
	case resolved >= x.m:
		delete(f.mu.pending, x.id)
		f.mu.least.set(x.position, math.MaxInt64)
	case !pending:
		x.complete = before
		x.wait(f.mu.revision)
		f.mu.pending[x.id] = x
		f.mu.least.set(x.position, x.complete)
	case resolved >= x.oldestM:
		if x.oldestR > x.complete {
			x.complete = x.oldestR
			f.mu.least.set(x.position, x.complete)
		}
		x.wait(f.mu.revision)
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

// completeOver is Complete of [start, end), which are the ranges first to last of
// the layout: while the directory stays the same nothing is searched.
func (f *Frontier) completeOver(layout uint64, first, last int, start, end []byte) int64 {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if layout != f.mu.layout {
		return f.completeLocked(start, end, f.mu.revision)
	}
	return min(f.mu.revision, f.mu.least.min(first, last+1))
}

// completeLocked is the minimum of what the pending ranges of a span have and
// of revision, which the others have.
func (f *Frontier) completeLocked(start, end []byte, revision int64) int64 {
	// The marks tile the keyspace: the first of the span is the one before the
	// first that starts in it.
	marks := f.mu.marks
	first := sort.Search(len(marks), func(i int) bool { return bytes.Compare(marks[i].start, start) > 0 })
	last := len(marks)
	if len(end) > 0 {
		last = sort.Search(len(marks), func(i int) bool { return bytes.Compare(marks[i].start, end) >= 0 })
	}
	return min(revision, f.mu.least.min(max(first-1, 0), last))
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

// Layout returns a number that grows whenever the directory changes.
func (f *Frontier) Layout() uint64 {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.mu.layout
}

// starts returns the start keys of the ranges, ascending, and the layout they
// belong to.
func (f *Frontier) starts() ([][]byte, uint64) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	keys := make([][]byte, len(f.mu.marks))
	for i, x := range f.mu.marks {
		keys[i] = x.start
	}
	return keys, f.mu.layout
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
	sort.Slice(ids, func(i, j int) bool { return ids[i] < ids[j] })
	return ids
}

// minTree holds a number for each of n places, and in every inner node the least
// of its two children: node i has the children 2i and 2i+1, and the leaves are
// the nodes from n on. A number that was not set is math.MaxInt64.
type minTree []int64

func newMinTree(n int) minTree {
	t := make(minTree, 2*n)
	for i := range t {
		t[i] = math.MaxInt64
	}
	return t
}

func (t minTree) set(place int, v int64) {
	i := len(t)/2 + place
	for t[i] = v; i > 1; i /= 2 {
		t[i/2] = min(t[i], t[i^1])
	}
}

// min returns the least number of the places first <= i < last.
func (t minTree) min(first, last int) int64 {
	least := int64(math.MaxInt64)
	for l, r := first+len(t)/2, last+len(t)/2; l < r; l, r = l/2, r/2 {
		if l&1 == 1 {
			least = min(least, t[l])
			l++
		}
		if r&1 == 1 {
			r--
			least = min(least, t[r])
		}
	}
	return least
}
