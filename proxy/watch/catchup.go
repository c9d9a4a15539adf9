package watch

import (
	"errors"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/hawser-kv/hawser/mvcc"
)

// History reads events from the revision index of the node, which holds those of
// all its ranges; mvcc.ErrCompacted if they are not all there any more. See
// mvcc.Store.PickEvents.
type History interface {
	PickEvents(after, upTo int64, pick func(mvcc.EventRow) (want, more bool), fn func(mvcc.Event) error) error
}

// Task is one read of history for all watchers that are behind and not far from
// each other: they ride in it, each from its own position on, and its cost is
// that of the rows walked, whatever their number.
//
// It ends where the first of its watchers has enough, so that they stay together;
// those that are not reached come next. One whose stream has no room for what it
// gets stays where it was, and holds nobody back.
type Task struct {
	// After and UpTo say which revisions: After < revision <= UpTo.
	After, UpTo int64
	riders      []*watcher
	limits      Limits
}

// ride is the part of a watcher in the task it rides in. From NextTask until
// TaskDone it belongs to the task, and so do the watcher's span and pos, which stay as
// they are.
type ride struct {
	// upTo: what is newer is not complete for this watcher, or not history.
	upTo int64
	// events it gets, their distinct revisions and bytes; and behind them what is
	// packed, of the last revision of the task.
	events    []*event
	revisions int
	bytes     int
	packed    packed
}

// riding are those of one span.
type riding struct{ watchers []*watcher }

// take adds an event.
func (r *ride) take(e *event) {
	if n := len(r.events); n == 0 || r.events[n-1].revision != e.revision {
		r.revisions++
	}
	r.events = append(r.events, e)
	r.bytes += e.size
}

// TaskResult is what a Task found.
type TaskResult struct {
	// done: all events with revision <= done are in.
	done int64
	// rows of the index that were walked.
	rows int
	err  error
	// failed are the watchers that miss an event because of err.
	failed []*watcher
}

// Run carries the task out.
func (t *Task) Run(history History) TaskResult {
	match := newMatcher[*riding]()
	for _, w := range t.riders {
		r, ok := match.get(w.start, w.end)
		if !ok {
			r = &riding{}
			match.add(w.start, w.end, r)
		}
		r.watchers = append(r.watchers, w)
	}
	res := TaskResult{done: t.UpTo}
	at, bytes, enough := int64(0), 0, false
	var wanting []*watcher
	var pack packer
	res.err = history.PickEvents(t.After, t.UpTo, func(row mvcc.EventRow) (want, more bool) {
		wanting = wanting[:0]
		if row.Revision != at {
			if enough || res.rows >= t.limits.ReadRows {
				res.done = at
				return false, false
			}
			at = row.Revision
		}
		res.rows++
		match.each(row.Key, func(r *riding) {
			for _, w := range r.watchers {
				if w.pos < at && at <= w.ride.upTo && w.wantsKind(row.Delete) {
					wanting = append(wanting, w)
				}
			}
		})
		return len(wanting) > 0, true
	}, func(e mvcc.Event) error {
		var ev *event
		var place run
		for _, w := range wanting {
			// Whatever comes now is of the last revision.
			if enough && !w.prevKV {
				if place.of == nil {
					var err error
					if place, err = pack.add(&mvccpb.Event{Type: eventType(e.Delete), Kv: e.Kv}); err != nil {
						return err
					}
				}
				w.ride.packed.add(e.Revision, place)
				continue
			}
			if ev == nil {
				ev = newEvent(e)
				bytes += ev.size
			}
			w.ride.take(ev)
			bytes += eventReference
			enough = enough || w.ride.revisions >= t.limits.CatchUpRevisions || w.ride.bytes >= t.limits.CatchUpBytes
		}
		enough = enough || bytes >= t.limits.ReadBytes
		wanting = wanting[:0]
		return nil
	})
	if res.err != nil {
		res.done = max(at-1, t.After)
		if res.failed = wanting; len(wanting) == 0 {
			res.failed = t.riders // it is the index that cannot be read
		}
	}
	return res
}

// settle makes a watcher that is behind synced if it has reached its group,
// else asks for a read of history.
func (h *Hub) settle(w *watcher) {
	if w.synced || w.reading {
		return
	}
	if w.pos < h.emitted(w.group) {
		h.wantTask(w)
		return
	}
	w.synced = true
	w.min = max(w.min, w.pos+1)
	w.group.synced = w.group.synced.with(w)
	h.slow--
	if w.stream.wanted != 0 {
		h.answerProgress() // no step may come for long
	}
}

func (h *Hub) wantTask(w *watcher) {
	if w.reading || w.stream.closed || w.stream.full() {
		return // TaskDone or Drained asks again
	}
	h.waits++
	w.since = h.waits
	w.reading = true
	h.tasks = append(h.tasks, w)
}

// NextTask returns the next read of history to carry out, if there is one.
//
// By turns it begins with the watcher that is farthest behind, so that it comes
// to where others are and they go on as one, and with the one that has waited
// longest, so that none waits for long whatever others come behind it.
func (h *Hub) NextTask() (*Task, bool) {
	if len(h.tasks) == 0 {
		return nil, false
	}
	var first *watcher
	farthest := h.reads%2 == 0
	h.sift(func(w *watcher) bool {
		switch {
		case w.group == nil || w.stream.closed:
			return false
		case w.stream.full():
			// Others of its stream have filled it meanwhile.
			w.reading = false // Drained asks again
			return false
		case w.pos >= h.emitted(w.group):
			// It waited in the queue and its group came back to it.
			w.reading = false
			h.settle(w)
			return false
		}
		// A group's position is ahead of the frontier after a shed: history is
		// complete up to the frontier.
		w.ride = ride{upTo: h.complete(w.group)}
		if !w.noDelete {
			w.ride.upTo = min(w.ride.upTo, h.eventsComplete(w.start, w.end, w.pos))
		}
		if w.pos >= w.ride.upTo {
			h.park(w)
			if w.ride.upTo < h.complete(w.group) {
				w.heldBack = true
				h.heldBack++
			}
			return false
		}
		switch {
		case first == nil || farthest && w.pos < first.pos || !farthest && w.since < first.since:
			first = w
		}
		return true
	})
	if first == nil {
		return nil, false // all wait for the frontier
	}
	h.reads++
	t := &Task{After: first.pos, limits: h.limits}
	h.sift(func(w *watcher) bool {
		// Those far ahead would not be reached, and could ride elsewhere.
		if w.pos < t.After || w.pos-t.After > int64(h.limits.ReadRows) || w.pos >= w.ride.upTo {
			return true
		}
		t.riders = append(t.riders, w)
		t.UpTo = max(t.UpTo, w.ride.upTo)
		return false
	})
	return t, true
}

// sift keeps those of the waiting watchers for which keep is true.
func (h *Hub) sift(keep func(*watcher) bool) {
	kept := h.tasks[:0]
	for _, w := range h.tasks {
		if keep(w) {
			kept = append(kept, w)
		}
	}
	clear(h.tasks[len(kept):])
	h.tasks = kept
}

// TaskDone takes what a task found. A fault of the engine ends the streams of the
// watchers that it concerns with that error.
func (h *Hub) TaskDone(t *Task, res TaskResult) {
	h.readRows += int64(res.rows)
	gone := func(w *watcher) bool { return w.group == nil || w.stream.closed }
	var here []*watcher
	for _, w := range t.riders {
		w.reading = false
		if !gone(w) {
			here = append(here, w)
		}
	}
	if errors.Is(res.err, mvcc.ErrCompacted) {
		h.compactedUnder(t.After, here)
		return
	}
	for _, w := range res.failed {
		if !gone(w) {
			w.stream.fail(res.err)
		}
	}
	var unreached []*watcher
	for _, w := range here {
		switch {
		case w.stream.err != nil:
		case min(res.done, w.ride.upTo) <= w.pos:
			unreached = append(unreached, w)
		default:
			h.touch(w)
		}
	}
	h.eachTouched(func(w *watcher) { h.advance(w, res.done) })
	h.waitAgain(unreached)
}

// advance sends a watcher what a task has found for it up to the revision done.
func (h *Hub) advance(w *watcher, done int64) {
	r := w.ride
	w.ride = ride{}
	done = min(done, r.upTo)
	events := r.events
	for n := len(events); n > 0 && events[n-1].revision > done; n-- {
		events = events[:n-1] // a fault came in the middle of the revision
	}
	if r.packed.revision > done {
		r.packed = packed{} // so it did here
	}
	if len(events)+r.packed.n > 0 {
		// header.revision of catching up is the current one (etcd/W10) as of the
		// read: what is newer has not been looked for.
		resp := &Response{WatchID: w.id, Revision: r.upTo, Fragment: w.fragment, prevKV: w.prevKV, events: events, packed: r.packed}
		if !w.stream.push(resp, false) {
			return // Drained asks again
		}
		w.sent = true
	}
	w.pos = done
	h.settle(w)
}

// waitAgain has watchers that a task did not reach wait on: since they did before.
func (h *Hub) waitAgain(ws []*watcher) {
	for _, w := range ws {
		w.ride, w.reading = ride{}, true
	}
	h.tasks = append(h.tasks, ws...)
}

// compactedUnder cancels those of the watchers whose history is forgotten: what
// follows the revision after is.
func (h *Hub) compactedUnder(after int64, ws []*watcher) {
	_, compacted := h.frontier.Revision()
	var others []*watcher
	for _, w := range ws {
		if w.pos == after || w.pos+1 < compacted {
			h.cancelCompacted(w, compacted)
		} else {
			others = append(others, w)
		}
	}
	h.waitAgain(others)
}

func (h *Hub) cancelCompacted(w *watcher, compacted int64) {
	w.stream.push(&Response{WatchID: w.id, Canceled: true, CompactRevision: compacted}, true)
	w.stream.compacted[w.id] = true
	h.drop(w)
}
