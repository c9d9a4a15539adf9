package watch

import (
	"bytes"
	"cmp"
	"container/heap"
	"math"
)

// group is the set of the watchers of one span, and the events of the span that wait
// for its frontier.
type group struct {
	start, end []byte // end empty: to the end of the keyspace
	at         int    // in hub.groups
	members    int
	synced     alike
	// parked are watchers that are behind and wait for the frontier: there is no
	// history for them before it moves. pos+1 of each is above what was complete.
	parked alike
	// floor: what was applied at or below it the group does not hold, for it was made
	// later.
	floor int64
	// waiting holds the events above floor, and above what is complete, by revision.
	waiting eventHeap
	// The group waits in blocked, at blockedAt, until what that is of has reached the
	// revision threshold; blocked is nil if it waits for nothing.
	blocked   *blockedGroups
	blockedAt int
	threshold int64
	visiting  bool
	// complete is that of the view of this version.
	complete        int64
	completeVersion uint64
}

// mostKeptWaiting bounds the room that a group keeps for events when none wait.
const mostKeptWaiting = 1024

// groupOf returns the group of a span, and makes it if there is none.
func (h *Hub) groupOf(start, end []byte) *group {
	if g, ok := h.match.get(start, end); ok {
		return g
	}
	g := &group{start: start, end: end, at: len(h.groups)}
	h.groups = append(h.groups, g)
	h.match.add(start, end, g)
	if h.buffer.n > h.lookThrough {
		g.floor = h.buffer.newest
		return g
	}
	for events := range h.buffer.between(h.complete(g)+1, math.MaxInt64) {
		for _, e := range events {
			if g.concerns(e) {
				h.hold(g, e)
			}
		}
	}
	h.block(g)
	return g
}

func (g *group) holds(key []byte) bool {
	return bytes.Compare(g.start, key) <= 0 && endsAfter(g.end, key)
}

// concerns says whether an event is of a key of the group's span.
func (g *group) concerns(e *event) bool {
	if !e.span {
		return g.holds(e.kv.Key)
	}
	return endsAfter(g.end, e.kv.Key) && (e.spanEnd == nil || bytes.Compare(g.start, e.spanEnd) < 0)
}

// join puts a watcher, which is behind, into the group of its span.
func (h *Hub) join(w *watcher) {
	w.group = h.groupOf(w.start, w.end)
	w.group.members++
}

// leave takes a watcher out of its group, and the group away with its last.
func (h *Hub) leave(w *watcher) {
	g := w.group
	switch {
	case w.synced:
		g.synced = g.synced.without(w)
	case w.parked:
		w.parked, g.parked = false, g.parked.without(w)
		h.letGo(w)
	}
	w.group = nil
	if g.members--; g.members > 0 {
		return
	}
	g.unblock()
	h.waiting -= len(g.waiting)
	g.waiting = nil
	h.match.remove(g.start, g.end)
	end := len(h.groups) - 1
	h.groups[g.at] = h.groups[end]
	h.groups[g.at].at = g.at
	h.groups[end] = nil
	h.groups = h.groups[:end]
}

// complete is up to where the span of a group is complete, as of the last step.
func (h *Hub) complete(g *group) int64 {
	if v := h.view.version + 1; g.completeVersion != v {
		g.complete, g.completeVersion = h.view.complete(g.start, g.end), v
	}
	return g.complete
}

// emitted: everything at or below it has been given to the synced watchers of a
// group. Those that are behind have more to read up to there.
func (h *Hub) emitted(g *group) int64 {
	return max(h.complete(g), h.buffer.base-1, g.floor)
}

// give hands a group an event of its span that was applied just now.
func (h *Hub) give(g *group, e *event) {
	if e.revision > g.floor {
		h.hold(g, e)
		h.visit(g)
	}
}

func (h *Hub) hold(g *group, e *event) {
	heap.Push(&g.waiting, e)
	h.waiting++
}

// visit has the step look at a group.
func (h *Hub) visit(g *group) {
	if !g.visiting {
		g.visiting = true
		h.visits = append(h.visits, g)
	}
}

// dispatch gives the synced watchers of a group what is complete, and has the group
// wait for the rest.
func (h *Hub) dispatch(g *group) {
	complete := h.complete(g)
	for len(g.waiting) > 0 && g.waiting[0].revision <= complete {
		e := heap.Pop(&g.waiting).(*event)
		h.waiting--
		if e.span {
			h.holdBack(g, e)
			continue
		}
		for _, w := range g.synced {
			if w.wants(e) {
				if len(w.batch) == 0 {
					h.touch(w)
				}
				w.batch = append(w.batch, e)
			}
		}
	}
	if len(g.waiting) == 0 && cap(g.waiting) > mostKeptWaiting {
		g.waiting = nil
	}
	if g.blocked == nil || g.threshold <= complete {
		h.unpark(g)
	}
	h.block(g)
}

// unpark has the watchers of a group that wait for it ask for history again.
func (h *Hub) unpark(g *group) {
	for _, w := range g.parked {
		w.parked = false
		h.letGo(w)
		h.tasks = append(h.tasks, w)
	}
	clear(g.parked)
	g.parked = g.parked[:0]
}

// holdBack has the watchers of a group that want the events of a deletion of a span
// read them from history, when they are there, and what comes after them.
func (h *Hub) holdBack(g *group, e *event) {
	for n := len(g.synced); n > 0; n-- {
		if w := g.synced[n-1]; w.wants(e) {
			h.fallBehind(w, e.revision-1)
		}
	}
}

// forget drops what a group holds below a revision.
func (h *Hub) forget(g *group, below int64) {
	h.waiting -= len(g.waiting)
	kept := g.waiting[:0]
	for _, e := range g.waiting {
		if e.revision >= below {
			kept = append(kept, e)
		}
	}
	clear(g.waiting[len(kept):])
	g.waiting = kept
	heap.Init(&g.waiting)
	h.waiting += len(kept)
	h.block(g)
}

// park has a watcher that is behind wait until its group is complete further.
func (h *Hub) park(w *watcher) {
	w.parked = true
	w.group.parked = w.group.parked.with(w)
	h.block(w.group)
}

// letGo says that a watcher is parked no longer.
func (h *Hub) letGo(w *watcher) {
	if w.heldBack {
		w.heldBack = false
		h.heldBack--
	}
}

// block has a group wait for what keeps its next event, or its parked watchers, back.
func (h *Hub) block(g *group) {
	threshold := int64(math.MaxInt64)
	if len(g.waiting) > 0 {
		threshold = g.waiting[0].revision
	}
	if len(g.parked) > 0 {
		threshold = min(threshold, h.complete(g)+1)
	}
	g.unblock()
	if threshold == math.MaxInt64 {
		return
	}
	g.threshold = threshold
	g.blocked = &h.view.ahead
	if h.view.revision >= threshold {
		g.blocked = &h.view.tiles.least(g.start, g.end).Item.blocked
	}
	heap.Push(g.blocked, g)
}

func (g *group) unblock() {
	if g.blocked != nil {
		heap.Remove(g.blocked, g.blockedAt)
		g.blocked = nil
	}
}

// blockedGroups are groups that wait for the same, a heap by their thresholds.
type blockedGroups []*group

// release calls fn for every group that waits for no more than revision.
func (b *blockedGroups) release(revision int64, fn func(*group)) {
	for len(*b) > 0 && (*b)[0].threshold <= revision {
		g := (*b)[0]
		g.unblock()
		fn(g)
	}
}

func (b *blockedGroups) releaseAll(fn func(*group)) { b.release(math.MaxInt64, fn) }

// Len, Less, Swap, Push and Pop make it a heap.
func (b blockedGroups) Len() int           { return len(b) }
func (b blockedGroups) Less(i, j int) bool { return b[i].threshold < b[j].threshold }
func (b blockedGroups) Swap(i, j int) {
	b[i], b[j] = b[j], b[i]
	b[i].blockedAt, b[j].blockedAt = i, j
}

// Push is for the heap.
func (b *blockedGroups) Push(x any) {
	g := x.(*group)
	g.blockedAt = len(*b)
	*b = append(*b, g)
}

// Pop is for the heap.
func (b *blockedGroups) Pop() any {
	end := len(*b) - 1
	g := (*b)[end]
	(*b)[end] = nil
	*b = (*b)[:end]
	return g
}

// eventHeap has the events in order of revision, and of their place in it.
type eventHeap []*event

// Len, Less, Swap, Push and Pop make it a heap.
func (e eventHeap) Len() int { return len(e) }
func (e eventHeap) Less(i, j int) bool {
	if e[i].revision == e[j].revision && e[i].span != e[j].span {
		return e[i].span
	}
	return cmp.Or(cmp.Compare(e[i].revision, e[j].revision), cmp.Compare(e[i].sub, e[j].sub)) < 0
}
func (e eventHeap) Swap(i, j int) { e[i], e[j] = e[j], e[i] }

// Push is for the heap.
func (e *eventHeap) Push(x any) { *e = append(*e, x.(*event)) }

// Pop is for the heap.
func (e *eventHeap) Pop() any {
	end := len(*e) - 1
	last := (*e)[end]
	(*e)[end] = nil
	*e = (*e)[:end]
	return last
}
