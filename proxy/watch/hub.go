package watch

import (
	"bytes"
	"slices"
	"sync"

	"github.com/hawser-kv/hawser/mvcc"
)

// Hub is the state machine that hands events to watchers: it holds the events
// that were applied on this node until they may be emitted, and sends each
// watcher what its frontier allows, in revision order, all events of a
// revision together, none twice and none left out (revisions.md R6; contract
// W1 to W18).
//
// Watchers whose spans touch the same ranges form a group; a group has one
// frontier, and one position: the revision up to which everything has been
// dispatched to its synced watchers. Watchers that are behind their groups share
// reads of history, which the driver carries out (NextTask, TaskDone).
//
// A Hub does no I/O, starts no goroutine and reads no clock; its driver calls
// it under one lock (see Service). Only its Frontier has a lock of its own.
type Hub struct {
	frontier *Frontier
	limits   Limits
	inbox    inbox
	buffer   buffer
	groups   map[groupKey]*group
	// order has the groups in the order of their making, for determinism.
	order []*group
	// layout is the frontier's that the groups were made for, starts the
	// start keys of its ranges.
	layout uint64
	starts [][]byte
	// tasks are watchers that wait for a catch-up read; waits numbers them.
	tasks []*watcher
	waits int64
	// reads of history that were begun, and the rows of those that are done.
	reads, readRows int64
	// progress are the streams that wait for a progress response.
	progress []*Stream
	// touched are the streams that get something of the dispatch under way.
	touched []*Stream
	// emissions numbers what dispatches give to streams.
	emissions uint64
	watchers  int
	slow      int
	// queued is the sum of the streams' bytes.
	queued int
}

// Limits bound what the hub holds in memory. Zero means the default.
type Limits struct {
	// BufferBytes bounds the events that wait for a frontier; beyond it the
	// groups that hold them up fall back to history. Default 64 MiB.
	BufferBytes int
	// StreamBytes bounds what waits to be sent on one stream; beyond it the
	// stream's watchers fall back to history until it is drained. Default
	// 8 MiB.
	StreamBytes int
	// QueuedBytes bounds the same over all streams; beyond it a stream is full
	// with a sixteenth of StreamBytes. Default 256 MiB.
	QueuedBytes int
	// CatchUpRevisions bounds the distinct revisions of one catch-up
	// response. Default 1000, as etcd's (W10).
	CatchUpRevisions int
	// CatchUpBytes bounds the events of one catch-up response, except that
	// one revision is never cut. Default 1 MiB.
	CatchUpBytes int
	// ReadBytes bounds the same over all responses of one read of history.
	// Default 4 MiB.
	ReadBytes int
	// ReadRows bounds the rows of the revision index that one read walks,
	// except that one revision is never cut. Default 65,536.
	ReadRows int
}

func (l *Limits) ensureDefaults() {
	set := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	set(&l.BufferBytes, 64<<20)
	set(&l.StreamBytes, 8<<20)
	set(&l.QueuedBytes, 256<<20)
	set(&l.CatchUpRevisions, 1000)
	set(&l.CatchUpBytes, 1<<20)
	set(&l.ReadBytes, 4<<20)
	set(&l.ReadRows, 1<<16)
}

type groupKey struct{ first, last int }

// group is the set of watchers that depend on the same ranges.
type group struct {
	key        groupKey
	start, end []byte // the span of its ranges
	// emitted: everything at or below it has been dispatched.
	emitted int64
	// readable: history is complete up to it, and it is not above emitted. For
	// the choice of a task.
	readable int64
	// members are synced or behind; match finds the synced ones.
	members []*watcher
	match   matcher
}

// inbox takes the events that ranges have applied, from any goroutine. It is
// bounded, like the buffer: writers never wait for the hub.
type inbox struct {
	sync.Mutex
	events []mvcc.Event
	bytes  int
	// lost: events at or below it were dropped for lack of room.
	lost int64
}

// NewHub returns a hub without watchers.
func NewHub(f *Frontier, limits Limits) *Hub {
	limits.ensureDefaults()
	return &Hub{frontier: f, limits: limits, groups: make(map[groupKey]*group)}
}

// Applied takes the events that a range has applied, in revision order. It
// must be called before the frontier is told of the resolved revision that
// covers them. It is the one method that needs not be called under the
// driver's lock.
func (h *Hub) Applied(events []mvcc.Event) {
	in := &h.inbox
	in.Lock()
	defer in.Unlock()
	for i := range events {
		e := &events[i]
		in.bytes += len(e.Kv.Key) + len(e.Kv.Value) + eventOverhead
	}
	in.events = append(in.events, events...)
	if in.bytes <= h.limits.BufferBytes {
		return
	}
	for i := range in.events {
		in.lost = max(in.lost, in.events[i].Revision)
	}
	in.events, in.bytes = nil, 0
}

// Loaded tells of a replica whose state up to resolved came from the disk, or
// from a snapshot, and not through Applied: what lies at or below it is history
// for every watcher.
func (h *Hub) Loaded(resolved int64) { h.shed(resolved + 1) }

// drain moves what was applied into the buffer.
func (h *Hub) drain() {
	in := &h.inbox
	in.Lock()
	events, lost := in.events, in.lost
	in.events, in.bytes, in.lost = nil, 0, 0
	in.Unlock()
	if lost > 0 {
		h.shed(lost + 1)
	}
	for i := range events {
		h.buffer.add(newEvent(events[i]))
	}
}

// Watchers returns the number of watchers, and of those that are behind.
func (h *Hub) Watchers() (all, behind int) { return h.watchers, h.slow }

// Buffered returns the number of bytes of events held for watchers.
func (h *Hub) Buffered() int { return h.buffer.bytes }

// Step emits everything that the frontier allows.
func (h *Hub) Step() {
	if h.frontier.Layout() != h.layout {
		h.regroup()
	}
	// The frontier first, the events then: what it says is complete has been
	// put into the inbox before.
	least := h.frontier.Complete(nil, nil)
	complete := make([]int64, len(h.order))
	for i, g := range h.order {
		complete[i] = h.complete(g)
	}
	h.drain()
	for i, g := range h.order {
		if complete[i] > g.emitted {
			h.dispatch(g, complete[i])
		}
		least = min(least, g.emitted)
	}
	h.buffer.trim(least + 1)
	if h.buffer.bytes > h.limits.BufferBytes {
		h.shed(h.buffer.half())
	}
	h.answerProgress()
}

// complete is up to where the group's ranges are complete.
func (h *Hub) complete(g *group) int64 {
	return h.frontier.completeOver(h.layout, g.key.first, g.key.last, g.start, g.end)
}

// dispatch emits the events of (g.emitted, complete] to the group.
func (h *Hub) dispatch(g *group, complete int64) {
	from := g.emitted
	if g.match.n > 0 {
		for events := range h.buffer.between(from+1, complete) {
			for _, e := range events {
				if e.layout != h.layout {
					e.position, e.layout = h.position(e.kv.Key), h.layout
				}
				if e.position < g.key.first || e.position > g.key.last {
					continue
				}
				g.match.each(e.kv.Key, func(w *watcher) {
					if w.wants(e) {
						if len(w.batch) == 0 {
							h.touch(w)
						}
						w.batch = append(w.batch, e)
					}
				})
			}
		}
	}
	g.emitted = complete
	h.eachTouched(func(w *watcher) { h.emit(w, from) })
}

// eachTouched calls fn for the watchers that were touched, those of a stream
// together: it counts an event that several of them get once.
func (h *Hub) eachTouched(fn func(*watcher)) {
	for _, s := range h.touched {
		h.emissions++
		for _, w := range s.touched {
			fn(w)
		}
		clear(s.touched)
		s.touched = s.touched[:0]
	}
	clear(h.touched)
	h.touched = h.touched[:0]
}

// touch notes that a watcher gets something of the dispatch, or of the read of
// history, under way.
func (h *Hub) touch(w *watcher) {
	s := w.stream
	if len(s.touched) == 0 {
		h.touched = append(h.touched, s)
	}
	s.touched = append(s.touched, w)
}

// emit sends a watcher the batch of a dispatch that began after revision from.
func (h *Hub) emit(w *watcher, from int64) {
	events := w.batch
	w.batch = nil
	last := events[len(events)-1].revision
	r := &Response{WatchID: w.id, Revision: last, Fragment: w.fragment, prevKV: w.prevKV, events: events}
	if !w.stream.push(r, false) {
		// The stream's reader is slow: the watcher falls behind and costs
		// nothing until the queue is drained.
		h.fallBehind(w, from)
		return
	}
	w.sent = true
}

// fallBehind makes a synced watcher one that reads history after pos.
func (h *Hub) fallBehind(w *watcher, pos int64) {
	w.group.match.remove(w)
	w.synced = false
	w.pos = max(pos, w.min-1)
	h.slow++
	h.wantTask(w)
}

// shed drops what the buffer holds below base; groups that had not emitted it
// fall back to history.
func (h *Hub) shed(base int64) {
	for _, g := range h.order {
		if g.emitted+1 >= base {
			continue
		}
		for _, w := range g.members {
			if w.synced {
				h.fallBehind(w, g.emitted)
			}
		}
		g.emitted = base - 1
	}
	h.buffer.trim(base)
}

// position returns the place, in key order, of the range that holds key.
func (h *Hub) position(key []byte) int {
	i, found := slices.BinarySearchFunc(h.starts, key, bytes.Compare)
	if !found {
		i--
	}
	return max(i, 0)
}

// join puts a watcher into the group of its span, making the group if needed.
func (h *Hub) join(w *watcher) {
	first, last := h.position(w.start), len(h.starts)-1
	if len(w.end) != 0 && last >= 0 {
		i, _ := slices.BinarySearchFunc(h.starts, w.end, bytes.Compare)
		last = max(i-1, first)
	}
	k := groupKey{first, last}
	g := h.groups[k]
	if g == nil {
		g = &group{key: k, match: newMatcher()}
		if len(h.starts) > 0 {
			g.start = h.starts[first]
			if last+1 < len(h.starts) {
				g.end = h.starts[last+1]
			}
		}
		g.emitted = max(h.complete(g), h.buffer.base-1)
		h.groups[k] = g
		h.order = append(h.order, g)
	}
	w.group, w.at = g, len(g.members)
	g.members = append(g.members, w)
}

// leave takes a watcher out of its group, and the group away with its last.
func (h *Hub) leave(w *watcher) {
	g := w.group
	if w.synced {
		g.match.remove(w)
	}
	end := len(g.members) - 1
	g.members[w.at] = g.members[end]
	g.members[w.at].at = w.at
	g.members[end] = nil
	g.members = g.members[:end]
	w.group = nil
	if end > 0 {
		return
	}
	delete(h.groups, g.key)
	h.order = slices.DeleteFunc(h.order, func(x *group) bool { return x == g })
}

// regroup forms the groups anew after the directory changed. Synced watchers
// stay so: their new group starts at the lowest position of those that come
// together in it, and min keeps the others from seeing anything twice.
func (h *Hub) regroup() {
	old := h.order
	h.groups = make(map[groupKey]*group)
	h.order = nil
	h.starts, h.layout = h.frontier.starts()
	for _, g := range old {
		for _, w := range g.members {
			h.join(w)
			if !w.synced {
				continue
			}
			w.min = max(w.min, g.emitted+1)
			w.group.emitted = min(w.group.emitted, g.emitted)
			w.group.match.add(w)
		}
	}
}

// drop ends a watcher.
func (h *Hub) drop(w *watcher) {
	if !w.synced {
		h.slow--
	}
	h.leave(w)
	h.watchers--
	delete(w.stream.watchers, w.id)
}

// singleKey says whether [start, end) holds one key.
func singleKey(start, end []byte) bool {
	return len(end) == len(start)+1 && end[len(start)] == 0 && bytes.HasPrefix(end, start)
}
