package watch

import (
	"bytes"
	"errors"
	"maps"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/hawser-kv/hawser/mvcc"
)

// Texts of the reasons with which a watcher is refused, as clients match them.
const (
	reasonEmptyRange  = "mvcc: watcher range is empty"
	reasonDuplicateID = "mvcc: duplicate watch ID provided on the WatchStream"
	reasonNegative    = "etcdserver: mvcc: required revision has been compacted"
)

// autoWatchID asks the server to choose the id.
const autoWatchID = 0

// InvalidWatchID is the watch id of responses that are not for one watcher:
// refusals and the progress of the whole stream.
const InvalidWatchID = -1

// Stream is one client's Watch call: its watchers and the queue of what is to
// be sent. All methods are called under the driver's lock.
type Stream struct {
	hub      *Hub
	number   int64 // in hub.streams
	watchers map[int64]*watcher
	// compacted are the ids of watchers that were cancelled because of a
	// compaction: taken until the client cancels them, as in etcd.
	compacted map[int64]bool
	nextID    int64
	// out waits to be taken by the sender; wake tells it.
	out  []*Response
	wake func()
	// bytes of out. An event that a dispatch or a read of history gives to
	// several watchers of the stream is shared by them and counts once.
	bytes int
	// touched are the watchers that get something of what is under way.
	touched []*watcher
	// lagged: some watcher fell behind because the queue was full.
	lagged bool
	// wanted is the revision a progress request waits for; 0: none does.
	wanted int64
	// slowest is a watcher that the progress request waits for, if one is known.
	slowest *watcher
	closed  bool
	err     error
}

// NewStream opens a stream. wake is called, under the driver's lock, when
// there is something to take; it must not block.
func (h *Hub) NewStream(wake func()) *Stream {
	h.opened++
	s := &Stream{hub: h, number: h.opened, watchers: make(map[int64]*watcher), compacted: make(map[int64]bool), wake: wake}
	h.streams[s.number] = s
	return s
}

// Close ends the stream and all its watchers.
func (s *Stream) Close() {
	if s.closed {
		return
	}
	s.closed = true
	delete(s.hub.streams, s.number)
	for _, id := range slices.Sorted(maps.Keys(s.watchers)) {
		s.hub.drop(s.watchers[id])
	}
	s.out = nil
	s.setBytes(0)
}

// setBytes says how much of out there is.
func (s *Stream) setBytes(n int) {
	s.hub.queued += n - s.bytes
	s.bytes = n
}

// fail ends the stream with an error for its client.
func (s *Stream) fail(err error) {
	if s.err == nil {
		s.err = err
	}
	s.wake()
}

// Err is the fault that ended the stream, if one did.
func (s *Stream) Err() error { return s.err }

// CreateRequest is what a client asked for.
type CreateRequest struct {
	// Start and End as in etcd's message: End empty is one key, "\x00" is
	// everything from Start on; an empty Start is "\x00".
	Start, End                 []byte
	StartRevision              int64
	WatchID                    int64
	PrevKV, Fragment, Progress bool
	NoPut, NoDelete            bool
	// Current is a linearizable current revision, Compacted the compacted one
	// seen with it.
	Current, Compacted int64
}

// Create makes a watcher, or queues the refusal (etcd/W2 to etcd/W9). The request may have
// been on its way when the call ended: a closed stream gets no watcher.
func (s *Stream) Create(r CreateRequest) {
	if s.closed {
		return
	}
	if r.StartRevision < 0 {
		s.refuse(r.Current, reasonNegative)
		return
	}
	start, end := r.Start, r.End
	if len(start) == 0 {
		start = []byte{0}
	}
	switch {
	case len(end) == 0:
		end = append(bytes.Clone(start), 0)
	case bytes.Equal(end, []byte{0}):
		end = nil
	case bytes.Compare(start, end) >= 0:
		s.refuse(r.Current, reasonEmptyRange)
		return
	}
	if s.hub.isDamaged(start, end) {
		s.refuse(r.Current, reasonDamaged)
		return
	}
	id := r.WatchID
	switch {
	case id == autoWatchID:
		for s.used(s.nextID) {
			s.nextID++
		}
		id = s.nextID
		s.nextID++
	case s.used(id):
		s.refuse(r.Current, reasonDuplicateID)
		return
	}
	w := &watcher{
		id: id, stream: s, start: start, end: end,
		prevKV: r.PrevKV, fragment: r.Fragment, progress: r.Progress,
		noPut: r.NoPut, noDelete: r.NoDelete,
		asked: r.StartRevision, min: r.StartRevision,
	}
	if w.min == 0 {
		w.min = r.Current + 1
	}
	s.push(&Response{WatchID: id, Revision: r.Current, Created: true}, true)
	if w.min < r.Compacted {
		s.compacted[id] = true
		s.push(&Response{WatchID: id, Canceled: true, CompactRevision: r.Compacted}, true)
		return
	}
	s.watchers[id] = w
	w.pos = w.min - 1
	s.hub.watchers++
	s.hub.slow++
	s.hub.join(w)
	s.hub.settle(w)
}

func (s *Stream) used(id int64) bool { return s.watchers[id] != nil || s.compacted[id] }

func (s *Stream) refuse(current int64, reason string) {
	s.push(&Response{WatchID: InvalidWatchID, Revision: current, Created: true, Canceled: true, Reason: reason}, true)
}

// Cancel ends a watcher at its client's wish; an unknown id is ignored (etcd/W8).
// current is the current revision for the header.
func (s *Stream) Cancel(id, current int64) {
	switch w := s.watchers[id]; {
	case w != nil:
		s.hub.drop(w)
	case s.compacted[id]:
		delete(s.compacted, id)
	default:
		return
	}
	s.push(&Response{WatchID: id, Revision: current, Canceled: true}, true)
}

// RequestProgress asks for a response that promises that everything at or
// below current has been sent (etcd/W16). It is answered when all watchers of the
// stream have got there. A stream without watchers, with one that was asked to
// start in the future, or with one that a compaction ended and its client has
// not cancelled, gets no answer, as from etcd.
func (s *Stream) RequestProgress(current int64) {
	if len(s.watchers) == 0 || len(s.compacted) > 0 {
		return
	}
	for _, w := range s.watchers {
		if w.asked > current {
			return
		}
	}
	if s.wanted == 0 {
		s.hub.progress = append(s.hub.progress, s)
	}
	s.wanted = max(s.wanted, current)
	s.hub.answerProgress()
}

// answerProgress answers the progress requests whose time has come.
func (h *Hub) answerProgress() {
	waiting := h.progress[:0]
	for _, s := range h.progress {
		if s.closed {
			continue
		}
		if revision, ok := s.reached(); ok {
			s.wanted = 0
			s.push(&Response{WatchID: InvalidWatchID, Revision: revision}, true)
			continue
		}
		waiting = append(waiting, s)
	}
	h.progress = waiting
}

// reached returns the revision that all watchers of the stream have reached,
// if it is as far as the progress request wants. The watcher that it has found not
// to be there it asks first the next time.
func (s *Stream) reached() (int64, bool) {
	if w := s.slowest; w != nil && w.group != nil && !w.reached(s.wanted) {
		return 0, false
	}
	s.slowest = nil
	revision := int64(-1)
	for _, w := range s.watchers {
		if !w.reached(s.wanted) {
			s.slowest = w
			return 0, false
		}
		if emitted := s.hub.emitted(w.group); revision < 0 || emitted < revision {
			revision = emitted
		}
	}
	return max(revision, s.wanted), true
}

// reached says whether a watcher was sent everything at or below a revision.
func (w *watcher) reached(revision int64) bool {
	return w.synced && w.stream.hub.emitted(w.group) >= revision
}

// ProgressTick sends a progress notification to each synced watcher that
// asked for them and was sent nothing since the tick before (etcd/W15). It promises no
// less than what the watcher was told before. While the client reads too slowly
// there is none.
func (s *Stream) ProgressTick() {
	for _, id := range slices.Sorted(maps.Keys(s.watchers)) {
		w := s.watchers[id]
		if !w.progress {
			continue
		}
		if !w.sent && w.reached(max(w.asked, w.min-1)) {
			s.push(&Response{WatchID: id, Revision: s.hub.emitted(w.group)}, false)
		}
		w.sent = false
	}
}

// responseOverhead is the memory of a queued response beside its events,
// eventReference what each of them costs there, in bytes.
const (
	responseOverhead = 128
	eventReference   = 8
)

// push queues a response. Unless forced it refuses when the queue is full.
func (s *Stream) push(r *Response, force bool) bool {
	if s.closed {
		return true
	}
	if !force && s.full() {
		s.lagged = true
		return false
	}
	r.bytes = responseOverhead + eventReference*len(r.events)
	for _, e := range r.events {
		if e.counted != s.hub.emissions {
			r.bytes += e.size
			e.counted = s.hub.emissions
		}
	}
	r.bytes += runBytes * len(r.packed.runs)
	for _, p := range r.packed.runs {
		if p.of.counted != s.hub.emissions {
			r.bytes += cap(p.of.b)
			p.of.counted = s.hub.emissions
		}
	}
	s.setBytes(s.bytes + r.bytes)
	s.out = append(s.out, r)
	s.wake()
	return true
}

func (s *Stream) full() bool {
	most := s.hub.limits.StreamBytes
	if s.hub.queued > s.hub.limits.QueuedBytes {
		most /= 16
	}
	if s.bytes > most {
		s.lagged = true
		return true
	}
	return false
}

// Take hands the queue over to the sender.
func (s *Stream) Take() []*Response {
	out := s.out
	s.out = nil
	return out
}

// Drained tells that what was taken has been sent: watchers that fell behind
// for lack of room go on.
func (s *Stream) Drained() {
	if s.closed {
		return
	}
	n := 0
	for _, r := range s.out {
		n += r.bytes
	}
	s.setBytes(n)
	if !s.lagged || s.full() {
		return
	}
	s.lagged = false
	for _, id := range slices.Sorted(maps.Keys(s.watchers)) {
		s.hub.settle(s.watchers[id])
	}
}

// ReadPrevious makes a PreviousReader of a read at a revision: a version that
// has been compacted is absent, not an error (etcd/W12).
func ReadPrevious(read PreviousReader) PreviousReader {
	return func(key []byte, revision int64) (*mvccpb.KeyValue, error) {
		kv, err := read(key, revision)
		if errors.Is(err, mvcc.ErrCompacted) {
			return nil, nil
		}
		return kv, err
	}
}
