package watch

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/mvcc"
)

// eventsOf returns the events of a response, packed or not.
func eventsOf(r *Response) []*event {
	events := slices.Clone(r.events)
	more, err := r.packed.unpack()
	if err != nil {
		panic(err)
	}
	for _, e := range more {
		events = append(events, newEvent(mvcc.Event{Kv: e.Kv, Delete: e.Type == mvccpb.Event_DELETE, Revision: r.packed.revision}))
	}
	return events
}

func lastOf(r *Response) int64 {
	events := eventsOf(r)
	return events[len(events)-1].revision
}

// deletesOf returns the events of a revision that deletes so many keys.
func deletesOf(revision int64, n int) []mvcc.Event {
	var events []mvcc.Event
	for i := range n {
		events = append(events, mvcc.Event{Revision: revision, Sub: uint32(i), Delete: true,
			Kv: &mvccpb.KeyValue{Key: fmt.Appendf(nil, "k%09d", i), ModRevision: revision}})
	}
	return events
}

// The events of one large revision take little more memory than on the wire, however
// many watchers read them together; each of them gets all of its span, in order.
func TestALargeRevisionIsHeldAsItIsSent(t *testing.T) {
	const n, watchers = 100_000, 40
	h, history := oneRange(Limits{CatchUpBytes: 10_000, StreamBytes: 1 << 30}, deletesOf(3, n))
	wire := 0
	for _, e := range history.events {
		wire += proto.Size(&pb.WatchResponse{Events: []*mvccpb.Event{{Type: mvccpb.Event_DELETE, Kv: e.Kv}}})
	}
	s := h.NewStream(func() {})
	want := map[int64]int{}
	for i := range watchers {
		from := i / 2 * 1000 // two of each span
		s.Create(CreateRequest{Start: fmt.Appendf(nil, "k%09d", from), End: []byte("l"), StartRevision: 2, Current: 3})
		want[s.nextID-1] = n - from
	}
	s.Create(CreateRequest{Start: []byte("k"), End: []byte("l"), StartRevision: 2, NoDelete: true, Current: 3})
	want[s.nextID-1] = 0
	runTasks(h, history)
	chunks, held := map[*chunk]bool{}, 0
	for _, r := range s.out {
		for _, e := range r.events {
			held += e.size
		}
		held += runBytes * cap(r.packed.runs)
		for _, p := range r.packed.runs {
			if !chunks[p.of] {
				chunks[p.of] = true
				held += cap(p.of.b)
			}
		}
	}
	if most := wire + wire/2; held > most {
		t.Errorf("%d watchers hold %d bytes for %d on the wire, want at most %d", watchers, held, wire, most)
	}
	if s.bytes < len(chunks)*chunkBytes || s.bytes > 2*held {
		t.Errorf("%d bytes are counted for the stream, which holds %d", s.bytes, held)
	}
	got := map[int64]int{}
	for _, r := range s.Take() {
		if r.Created {
			continue
		}
		events := eventsOf(r)
		for i, e := range events {
			if e.revision != 3 || !e.delete || e.kv.ModRevision != 3 || i > 0 && bytes.Compare(events[i-1].kv.Key, e.kv.Key) >= 0 {
				t.Fatalf("watcher %d: event %d is %v of %q", r.WatchID, i, e.delete, e.kv.Key)
			}
		}
		if len(events) != want[r.WatchID] || got[r.WatchID] != 0 {
			t.Errorf("watcher %d got a response of %d events after %d, want all %d in one", r.WatchID, len(events), got[r.WatchID], want[r.WatchID])
		}
		got[r.WatchID] += len(events)
	}
	if len(got) != watchers {
		t.Errorf("%d watchers got something, want %d", len(got), watchers)
	}
}

// What is encoded decodes to the response as it is made of messages, events of all
// kinds and sizes, and is given up piece by piece.
func TestEncodedIsWatchResponse(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var events []mvcc.Event
	for i := range 500 {
		e := mvcc.Event{Revision: 2, Sub: uint32(i), Delete: rnd.IntN(3) == 0, Kv: &mvccpb.KeyValue{Key: fmt.Appendf(nil, "k%d", i), ModRevision: 2}}
		if !e.Delete {
			e.Kv.Value = make([]byte, rnd.IntN(1<<rnd.IntN(18)))
			e.Kv.CreateRevision, e.Kv.Version, e.Kv.Lease = int64(1+rnd.IntN(2)), 1, rnd.Int64N(3)
		}
		events = append(events, e)
	}
	h, history := oneRange(Limits{CatchUpBytes: 1000, StreamBytes: 1 << 30}, events)
	s := h.NewStream(func() {})
	s.Create(CreateRequest{Start: []byte("k"), End: []byte("l"), StartRevision: 2, Current: 2})
	runTasks(h, history)
	out := s.Take()
	r := out[len(out)-1]
	if !r.Packed() || len(r.events) == 0 || r.NumEvents() != len(events) {
		t.Fatalf("%d events, %d of them packed; want %d and some of both", r.NumEvents(), r.packed.n, len(events))
	}
	want, err := r.WatchResponse(nil)
	if err != nil {
		t.Fatal(err)
	}
	wire, err := proto.Marshal(&pb.WatchResponse{Header: want.Header, WatchId: want.WatchId})
	if err != nil {
		t.Fatal(err)
	}
	for b, err := range r.Encoded(nil) {
		if err != nil {
			t.Fatal(err)
		}
		wire = append(wire, b...)
	}
	var got pb.WatchResponse
	if err := proto.Unmarshal(wire, &got); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(want, &got) {
		t.Error("the encoded response is another one than that of messages")
	}
	if n := r.NumEvents(); n != 0 {
		t.Errorf("%d events are held that were given away", n)
	}
}
