package watch

import (
	"math"
	"sync"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// Hub is the state machine that hands events to watchers: it holds the events
// that were applied on this node until they may be emitted, and sends each
// watcher what its frontier allows, in revision order, all events of a
// revision together, none twice and none left out (revisions.md R6;
// etcd/W1 to etcd/W18).
//
// Watchers of the same span form a group, which holds the events of its span from
// when they were applied until the frontier of the span has reached them. Watchers
// that are behind their groups share reads of history, which the driver carries out
// (NextTask, TaskDone).
//
// The work of a step follows the events, the ranges that have moved and the groups
// that get something; neither all groups nor all ranges are looked at, and a change
// of the directory concerns no group but those that wait for the ranges it changes.
//
// A Hub does no I/O, starts no goroutine and reads no clock; its driver calls
// it under one lock (see Service). Only its Frontier has a lock of its own.
type Hub struct {
	frontier *Frontier
	limits   Limits
	inbox    inbox
	buffer   buffer
	// view is the frontier as of the last step: everything that it calls complete
	// has been given to the synced watchers.
	view view
	// match finds the groups by their spans; groups has them all, in an order that
	// depends on nothing but what was called.
	match  matcher[*group]
	groups []*group
	// visits are the groups that the step under way has to look at.
	visits []*group
	// visited is how many the last step has looked at.
	visited int
	// waiting is how many events wait in groups, one for each group.
	waiting int
	// lookThrough bounds the events that are looked through for a new group; if more
	// wait for the frontier, the group leaves them to history.
	lookThrough int
	// tasks are watchers that wait for a catch-up read; waits numbers them.
	tasks []*watcher
	waits int64
	// reads of history that were begun, and the rows of those that are done.
	reads, readRows int64
	// streams are those that are open, by number; opened counts them.
	streams map[int64]*Stream
	opened  int64
	// damaged are the spans that are not served.
	damaged []rangepb.Span
	// progress are the streams that wait for a progress response.
	progress []*Stream
	// touched are the streams that get something of the dispatch under way.
	touched []*Stream
	// emissions numbers what dispatches give to streams.
	emissions uint64
	watchers  int
	slow      int
	// heldBack counts the watchers that wait for the events of a deletion of a span.
	heldBack int
	// queued is the sum of the streams' bytes.
	queued int
	// eventsComplete is Config.EventsComplete.
	eventsComplete func(start, end []byte, after int64) int64
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
	// response. Default 1000, as etcd's (etcd/W10).
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
	return &Hub{
		frontier: f, limits: limits, view: newView(), match: newMatcher[*group](), lookThrough: 4096, streams: make(map[int64]*Stream),
		eventsComplete: func(_, _ []byte, _ int64) int64 { return math.MaxInt64 },
	}
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

// drain moves what was applied into the buffer and into the groups that want it.
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
		e := newEvent(events[i])
		switch {
		case !h.buffer.add(e):
		case e.span: // rare
			for _, g := range h.groups {
				if g.concerns(e) {
					h.give(g, e)
				}
			}
		default:
			h.match.each(e.kv.Key, func(g *group) { h.give(g, e) })
		}
	}
}

// Watchers returns the number of watchers, and of those that are behind.
func (h *Hub) Watchers() (all, behind int) { return h.watchers, h.slow }

// AwaitsHistory says whether a watcher waits for HistoryGrew.
func (h *Hub) AwaitsHistory() bool { return h.heldBack > 0 }

// Buffered returns the number of bytes held for watchers: of events, and of the
// places they have in groups.
func (h *Hub) Buffered() int { return h.buffer.bytes + eventReference*h.waiting }

// Step emits everything that the frontier allows.
func (h *Hub) Step() {
	// The frontier first, the events then: what it says is complete has been
	// put into the inbox before. What is shed meanwhile is measured by what was
	// dispatched: by the view as it was.
	news := h.frontier.takeNews()
	h.drain()
	h.view.learn(news, h.visit)
	for _, g := range h.visits {
		g.visiting = false
		h.dispatch(g)
	}
	h.visited = len(h.visits)
	clear(h.visits)
	h.visits = h.visits[:0]
	h.eachTouched(h.emit)
	h.buffer.trim(h.view.complete(nil, nil) + 1)
	if h.Buffered() > h.limits.BufferBytes {
		h.shed(h.buffer.half())
	}
	h.answerProgress()
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

// emit sends a watcher the batch of a dispatch.
func (h *Hub) emit(w *watcher) {
	events := w.batch
	w.batch = nil
	last := events[len(events)-1].revision
	r := &Response{WatchID: w.id, Revision: last, Fragment: w.fragment, prevKV: w.prevKV, events: events}
	if !w.stream.push(r, false) {
		// The stream's reader is slow: the watcher falls behind and costs
		// nothing until the queue is drained.
		if pos := events[0].revision - 1; w.synced {
			h.fallBehind(w, pos)
		} else { // a deletion of a span came in the same dispatch
			w.pos = max(pos, w.min-1)
		}
		return
	}
	w.sent = true
}

// HistoryGrew says that the events of a deletion of a span are in the revision index
// now: watchers that wait for them go on.
func (h *Hub) HistoryGrew() {
	for _, g := range h.groups {
		h.unpark(g)
	}
}

// fallBehind makes a synced watcher one that reads history after pos.
func (h *Hub) fallBehind(w *watcher, pos int64) {
	w.group.synced = w.group.synced.without(w)
	w.synced = false
	w.pos = max(pos, w.min-1)
	h.slow++
	h.wantTask(w)
}

// shed drops what the buffer holds below base; groups that had not emitted it
// fall back to history.
func (h *Hub) shed(base int64) {
	for _, g := range h.groups {
		emitted := h.emitted(g)
		if emitted+1 >= base {
			continue
		}
		for n := len(g.synced); n > 0; n = len(g.synced) {
			h.fallBehind(g.synced[n-1], emitted)
		}
		h.forget(g, base)
	}
	h.buffer.trim(base)
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
