package watch

import (
	"fmt"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// oneRange is a hub over one range that has applied the events, and their
// history.
func oneRange(limits Limits, events []mvcc.Event) (*Hub, *fakeHistory) {
	f := NewFrontier()
	h := NewHub(f, limits)
	last := events[len(events)-1].Revision
	h.Applied(events)
	f.Cut(&placementpb.Cut{Revision: last, First: true,
		Descriptors: []*rangepb.RangeDescriptor{{RangeId: 1}},
		Marks:       []*placementpb.Mark{{RangeId: 1, Revision: last}}})
	f.Resolved(1, last)
	h.Step()
	return h, &fakeHistory{events: events}
}

func putsOf(valueBytes, first, last int) (events []mvcc.Event) {
	for r := first; r <= last; r++ {
		events = append(events, mvcc.Event{Revision: int64(r), Kv: &mvccpb.KeyValue{
			Key: fmt.Appendf(nil, "k%d", r), Value: make([]byte, valueBytes), ModRevision: int64(r)}})
	}
	return events
}

// A stream whose client does not read holds no more than StreamBytes and one
// history read for a watcher that catches up, also when a newer event has gone
// through the stream before.
func TestStreamBytesBoundCatchingUpBesideNewerEvents(t *testing.T) {
	const valueBytes, revisions = 1000, 200
	limits := Limits{StreamBytes: 5 * valueBytes, CatchUpBytes: valueBytes}
	h, history := oneRange(limits, putsOf(valueBytes, 2, revisions))
	s := h.NewStream(func() {})
	s.Create(CreateRequest{Start: []byte("k"), End: []byte("l"), StartRevision: revisions, Current: revisions})
	s.Create(CreateRequest{Start: []byte("k"), End: []byte("l"), StartRevision: 2, Current: revisions})
	for {
		task, ok := h.NextTask()
		if !ok {
			break
		}
		h.TaskDone(task, task.Run(history))
	}
	held := 0
	for _, r := range s.out {
		for _, e := range eventsOf(r) {
			held += e.size
		}
	}
	if most := 8 * valueBytes; held > most {
		t.Fatalf("%d bytes of events wait for a client that does not read, want at most %d", held, most)
	}

	// It goes on when the client reads, and leaves nothing out.
	var got []int64
	for {
		for _, r := range s.Take() {
			for _, e := range eventsOf(r) {
				if r.WatchID == 1 {
					got = append(got, e.revision)
				}
			}
		}
		s.Drained()
		task, ok := h.NextTask()
		if !ok {
			break
		}
		h.TaskDone(task, task.Run(history))
	}
	if len(got) != revisions-1 || got[0] != 2 || got[len(got)-1] != revisions {
		t.Fatalf("the watcher from revision 2 got %d revisions, want %d: %v", len(got), revisions-1, got)
	}
}

// A create that comes when the call has ended leaves nothing behind: nobody
// would ever take the watcher away again.
func TestCreateOnAClosedStreamMakesNoWatcher(t *testing.T) {
	h, _ := oneRange(Limits{}, putsOf(1, 2, 3))
	s := h.NewStream(func() {})
	s.Close()
	s.Create(CreateRequest{Start: []byte("k"), Current: 3})
	s.RequestProgress(3)
	if all, behind := h.Watchers(); all != 0 || behind != 0 || len(h.groups)+h.match.n+h.waiting != 0 {
		t.Fatalf("%d watchers, %d behind, %d groups after a create on a closed stream, want none", all, behind, len(h.groups))
	}
}

// heldBy is the memory of what waits to be sent on streams.
func heldBy(streams ...*Stream) int {
	held := 0
	for _, s := range streams {
		for _, r := range s.out {
			for _, e := range eventsOf(r) {
				held += e.size
			}
		}
	}
	return held
}

// runTasks carries out all reads of history there are.
func runTasks(h *Hub, history History) {
	for {
		task, ok := h.NextTask()
		if !ok {
			return
		}
		h.TaskDone(task, task.Run(history))
	}
}

// Watchers that ask for history all at once, while their client does not read,
// share the stream's bound: their reads were wanted when it was empty.
func TestStreamBytesBoundManyWatchersThatCatchUp(t *testing.T) {
	const revisions, watchers, valueBytes = 20, 100, 1000
	limits := Limits{StreamBytes: 5 * valueBytes, CatchUpBytes: valueBytes}
	h, history := oneRange(limits, putsOf(valueBytes, 2, revisions))
	s := h.NewStream(func() {})
	for range watchers {
		s.Create(CreateRequest{Start: []byte("k"), End: []byte("l"), StartRevision: 2, Current: revisions})
	}
	runTasks(h, history)
	if held, most := heldBy(s), 8*valueBytes; held > most {
		t.Fatalf("%d bytes of events wait for a client that does not read, want at most %d", held, most)
	}
	// All get everything when it reads.
	got := map[int64]int{}
	for len(s.out) > 0 {
		for _, r := range s.Take() {
			got[r.WatchID] += r.NumEvents()
		}
		s.Drained()
		runTasks(h, history)
	}
	for id := range int64(watchers) {
		if got[id] != revisions-1 {
			t.Errorf("watcher %d got %d events, want %d", id, got[id], revisions-1)
		}
	}
}

// Many streams whose clients do not read share a bound; each has a small part of
// it at least.
func TestQueuedBytesBoundManySlowStreams(t *testing.T) {
	const revisions, streams, valueBytes = 200, 50, 1000
	limits := Limits{StreamBytes: 100 * valueBytes, QueuedBytes: 500 * valueBytes, CatchUpBytes: valueBytes}
	h, history := oneRange(limits, putsOf(valueBytes, 2, revisions))
	var all []*Stream
	for range streams {
		s := h.NewStream(func() {})
		s.Create(CreateRequest{Start: []byte("k"), End: []byte("l"), StartRevision: 2, Current: revisions})
		all = append(all, s)
	}
	runTasks(h, history)
	share := limits.StreamBytes / 16
	if held, most := heldBy(all...), limits.QueuedBytes+streams*(share+2*valueBytes); held > most {
		t.Fatalf("%d bytes of events wait for clients that do not read, want at most %d", held, most)
	}
	// One that reads goes on beside them, and so does each in its turn.
	for i, s := range all {
		got := 0
		for len(s.out) > 0 {
			for _, r := range s.Take() {
				got += r.NumEvents()
			}
			s.Drained()
			runTasks(h, history)
		}
		if got != revisions-1 {
			t.Errorf("stream %d got %d events, want %d", i, got, revisions-1)
		}
		if i%2 == 0 {
			s.Close()
		}
	}
	for _, s := range all {
		s.Close()
	}
	if h.queued != 0 {
		t.Errorf("%d bytes are counted as queued on streams that have ended", h.queued)
	}
}

// Clients may come back before the node has seen a cut: their watchers cost what
// they cost later, and get everything from their start on.
func TestWatchersBeforeTheFirstCut(t *testing.T) {
	const watchers = 1000
	f := NewFrontier()
	h := NewHub(f, Limits{})
	s := h.NewStream(func() {})
	for range watchers {
		s.Create(CreateRequest{Start: []byte("k"), End: []byte("l"), Current: 5})
	}
	h.Step()
	h.Applied(putsOf(1, 5, 6))
	f.Cut(&placementpb.Cut{Revision: 6, First: true,
		Descriptors: []*rangepb.RangeDescriptor{{RangeId: 1}},
		Marks:       []*placementpb.Mark{{RangeId: 1, Revision: 6}}})
	f.Resolved(1, 6)
	h.Step()
	runTasks(h, &fakeHistory{events: putsOf(1, 5, 6)})
	got := map[int64]int{}
	for _, r := range s.Take() {
		for _, e := range eventsOf(r) {
			if e.revision != 6 {
				t.Fatalf("watcher %d of what comes after 5 got %d", r.WatchID, e.revision)
			}
			got[r.WatchID]++
		}
	}
	if len(got) != watchers {
		t.Fatalf("%d of %d watchers got the event", len(got), watchers)
	}
}

// The header of a response promises nothing that was not sent: a client that
// resumes after it misses nothing (etcd/S2), also when the frontier moved on
// while history was read.
func TestHeaderOfHistoryIsNotAheadOfWhatWasSent(t *testing.T) {
	h, history := oneRange(Limits{}, putsOf(1, 2, 10))
	s := h.NewStream(func() {})
	s.Create(CreateRequest{Start: []byte("k"), End: []byte("l"), StartRevision: 2, Current: 10})
	task, ok := h.NextTask()
	if !ok {
		t.Fatal("no read of history is wanted")
	}
	res := task.Run(history)
	history.events = append(history.events, putsOf(1, 11, 20)...)
	h.Applied(putsOf(1, 11, 20))
	h.frontier.Cut(&placementpb.Cut{Revision: 20, Marks: []*placementpb.Mark{{RangeId: 1, Revision: 20}}})
	h.frontier.Resolved(1, 20)
	h.TaskDone(task, res)
	h.Step()
	runTasks(h, history)
	sent := int64(0)
	for _, r := range s.Take() {
		if r.NumEvents() == 0 {
			continue
		}
		sent = lastOf(r)
		if r.Revision > sent {
			t.Errorf("a header says %d when everything up to %d was sent", r.Revision, sent)
		}
	}
	if sent != 20 {
		t.Errorf("events up to %d were sent, want 20", sent)
	}
}

// A progress notification is not below the revision that the watcher was told
// when it was made.
func TestProgressIsNotBelowTheCreatedRevision(t *testing.T) {
	h, _ := oneRange(Limits{}, putsOf(1, 2, 10))
	s := h.NewStream(func() {})
	s.Create(CreateRequest{Start: []byte("k"), End: []byte("l"), Progress: true, Current: 12})
	s.Take()
	s.ProgressTick()
	if out := s.Take(); len(out) != 0 {
		t.Errorf("progress at %d after created at 12", out[0].Revision)
	}
	h.frontier.Cut(&placementpb.Cut{Revision: 12})
	h.Step()
	s.ProgressTick()
	if out := s.Take(); len(out) != 1 || out[0].Revision != 12 {
		t.Errorf("%d responses at 12, want one of progress", len(out))
	}
}

// A client that reads nothing is not sent notifications without end.
func TestProgressTicksAreBoundedByTheStream(t *testing.T) {
	limits := Limits{StreamBytes: 1000}
	h, _ := oneRange(limits, putsOf(1, 2, 10))
	s := h.NewStream(func() {})
	s.Create(CreateRequest{Start: []byte("k"), End: []byte("l"), Progress: true, Current: 10})
	for range 1000 {
		s.ProgressTick()
	}
	if most := limits.StreamBytes/responseOverhead + 2; len(s.out) > most {
		t.Errorf("%d responses wait for a client that does not read, want at most %d", len(s.out), most)
	}
	s.Take()
	s.Drained()
	s.ProgressTick()
	if out := s.Take(); len(out) != 1 {
		t.Errorf("%d notifications once it reads again, want 1", len(out))
	}
}

// What waits is counted for every watcher that gets it, whatever was queued for
// another before: here for the one that saw the first and the newest event.
func TestStreamBytesCountEventsOfEveryWatcher(t *testing.T) {
	const keys, rounds, valueBytes = 50, 20, 1000
	var events []mvcc.Event
	put := func(key string) {
		r := int64(len(events) + 2)
		events = append(events, mvcc.Event{Revision: r, Kv: &mvccpb.KeyValue{
			Key: []byte(key), Value: make([]byte, valueBytes), ModRevision: r}})
	}
	put("first")
	for range rounds {
		for k := range keys {
			put(fmt.Sprint("k", k))
		}
	}
	put("first")

	f := NewFrontier()
	limits := Limits{StreamBytes: 10 * rounds * valueBytes}
	h := NewHub(f, limits)
	f.Cut(&placementpb.Cut{Revision: 1, First: true, Descriptors: []*rangepb.RangeDescriptor{{RangeId: 1}}})
	h.Step()
	s := h.NewStream(func() {})
	s.Create(CreateRequest{Start: []byte("first"), Current: 1})
	for k := range keys {
		s.Create(CreateRequest{Start: fmt.Append(nil, "k", k), Current: 1})
	}
	h.Applied(events)
	last := events[len(events)-1].Revision
	f.Cut(&placementpb.Cut{Revision: last, Marks: []*placementpb.Mark{{RangeId: 1, Revision: last}}})
	f.Resolved(1, last)
	h.Step()
	if held, most := heldBy(s), limits.StreamBytes+2*rounds*(valueBytes+eventOverhead); held > most {
		t.Errorf("%d bytes of events wait for a client that does not read, want at most %d", held, most)
	}
}

// Watchers of the same events share them, and they count once.
func TestStreamBytesCountSharedEventsOnce(t *testing.T) {
	const watchers, valueBytes = 50, 1000
	f := NewFrontier()
	h := NewHub(f, Limits{})
	f.Cut(&placementpb.Cut{Revision: 1, First: true, Descriptors: []*rangepb.RangeDescriptor{{RangeId: 1}}})
	h.Step()
	s := h.NewStream(func() {})
	for range watchers {
		s.Create(CreateRequest{Start: []byte("k"), End: []byte("l"), Current: 1})
	}
	s.Take()
	s.Drained()
	h.Applied(putsOf(valueBytes, 2, 11))
	f.Cut(&placementpb.Cut{Revision: 11, Marks: []*placementpb.Mark{{RangeId: 1, Revision: 11}}})
	f.Resolved(1, 11)
	h.Step()
	if most := 10*(valueBytes+eventOverhead+10) + watchers*(responseOverhead+10*8); s.bytes > most {
		t.Errorf("%d bytes are counted for ten events of %d bytes and %d watchers, want at most %d", s.bytes, valueBytes, watchers, most)
	}
}

// A replica whose state comes from elsewhere while watchers are there: what they
// have not been sent comes from history.
func TestLoadedReplicaLosesNothingForWatchers(t *testing.T) {
	f := NewFrontier()
	h := NewHub(f, Limits{})
	f.Cut(&placementpb.Cut{Revision: 1, First: true, Descriptors: []*rangepb.RangeDescriptor{
		{RangeId: 1, End: []byte("m")}, {RangeId: 2, Start: []byte("m")}}})
	h.Step()
	s := h.NewStream(func() {})
	s.Create(CreateRequest{Start: []byte("k"), End: []byte("z"), Current: 1})
	history := &fakeHistory{events: putsOf(1, 2, 5)}
	h.Applied(history.events)
	f.Cut(&placementpb.Cut{Revision: 9, Marks: []*placementpb.Mark{{RangeId: 1, Revision: 5}, {RangeId: 2, Revision: 9}}})
	f.Resolved(1, 5)
	h.Step()
	h.Loaded(9)
	f.Resolved(2, 9)
	h.Step()
	runTasks(h, history)
	got := 0
	for _, r := range s.Take() {
		got += r.NumEvents()
	}
	if got != 4 {
		t.Errorf("%d events came, want 4", got)
	}
}
