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
		for _, e := range r.events {
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
			for _, e := range r.events {
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
	if all, behind := h.Watchers(); all != 0 || behind != 0 || len(h.groups) != 0 {
		t.Fatalf("%d watchers, %d behind, %d groups after a create on a closed stream, want none", all, behind, len(h.groups))
	}
}
