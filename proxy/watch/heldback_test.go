package watch

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
)

// taken returns what each watcher of a stream has got since the last call, as
// revision and key of its events.
func taken(s *Stream) map[int64][]string {
	got := map[int64][]string{}
	for _, r := range s.Take() {
		for _, e := range eventsOf(r) {
			got[r.WatchID] = append(got[r.WatchID], fmt.Sprintf("%d %s", e.revision, e.kv.Key))
		}
	}
	s.Drained()
	return got
}

// Watchers that want the events of a deletion of a span get nothing of its revision, and
// nothing after it, before history has all of them; then everything, in order. Others do
// not notice.
func TestADeletionOfASpanHoldsItsWatchersBack(t *testing.T) {
	h, history := oneRange(Limits{}, putsOf(1, 2, 2))
	complete := int64(math.MaxInt64)
	h.eventsComplete = func(start, end []byte, after int64) int64 {
		if after < 3 && string(start) < "m" { // the span is [a, m)
			return complete
		}
		return math.MaxInt64
	}
	s := h.NewStream(func() {})
	const all, other, puts, late = 0, 1, 2, 3
	s.Create(CreateRequest{Start: []byte{0}, End: []byte{0}, Current: 2})
	s.Create(CreateRequest{Start: []byte("x"), End: []byte("z"), Current: 2})
	s.Create(CreateRequest{Start: []byte("a"), End: []byte("z"), NoDelete: true, Current: 2})
	runTasks(h, history)
	taken(s)

	// Revision 3 deletes [a, m) and puts x, 4 puts b.
	complete = 2
	put := func(revision int64, sub uint32, key string) mvcc.Event {
		return mvcc.Event{Revision: revision, Sub: sub, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: revision, CreateRevision: revision}}
	}
	h.Applied([]mvcc.Event{
		{Revision: 3, Delete: true, Span: true, SpanEnd: []byte("m"), Kv: &mvccpb.KeyValue{Key: []byte("a"), ModRevision: 3}},
		put(3, 2, "x"), put(4, 0, "b"),
	})
	h.frontier.Cut(&placementpb.Cut{Revision: 4, Marks: []*placementpb.Mark{{RangeId: 1, Revision: 4}}})
	h.frontier.Resolved(1, 4)
	h.Step()
	history.events = append(history.events, put(3, 2, "x"), put(4, 0, "b"))
	runTasks(h, history)
	got := taken(s)
	if len(got[all]) != 0 || !slices.Equal(got[other], []string{"3 x"}) || !slices.Equal(got[puts], []string{"3 x", "4 b"}) {
		t.Errorf("while the deletion is pending the watchers got %v", got)
	}
	if !h.AwaitsHistory() {
		t.Error("nobody is said to wait for the events")
	}
	// One that comes now waits, too, and may leave.
	s.Create(CreateRequest{Start: []byte("a"), End: []byte("c"), StartRevision: 3, Current: 4})
	s.Create(CreateRequest{Start: []byte("b"), StartRevision: 3, Current: 4})
	runTasks(h, history)
	s.Cancel(late+1, 4)
	s.RequestProgress(4)
	h.Step()
	if got := taken(s); len(got) != 0 || s.wanted != 4 || h.heldBack != 2 {
		t.Errorf("before history has the events there came %v; progress is wanted up to %d; %d wait, want 2", got, s.wanted, h.heldBack)
	}

	// A part of the events does not help; all of them do.
	del := func(sub uint32, key string) mvcc.Event {
		return mvcc.Event{Revision: 3, Sub: sub, Delete: true, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: 3}}
	}
	before := len(history.events) - 2
	history.events = slices.Insert(history.events, before, del(0, "a"))
	h.HistoryGrew()
	runTasks(h, history)
	if got := taken(s); len(got) != 0 || h.heldBack != 2 {
		t.Errorf("when history has a part of the events there came %v, and %d wait", got, h.heldBack)
	}
	history.events = slices.Insert(history.events, before+1, del(1, "b"))
	complete = math.MaxInt64
	h.HistoryGrew()
	runTasks(h, history)
	h.Step()
	got = taken(s)
	if !slices.Equal(got[all], []string{"3 a", "3 b", "3 x", "4 b"}) || !slices.Equal(got[late], []string{"3 a", "3 b", "4 b"}) || len(got) != 2 {
		t.Errorf("when history has the events the watchers got %v", got)
	}
	if _, behind := h.Watchers(); h.AwaitsHistory() || behind != 0 || s.wanted != 0 {
		t.Errorf("%d wait for events that are there, %d are behind, progress is wanted up to %d", h.heldBack, behind, s.wanted)
	}
}
