package watch

import (
	"fmt"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// manyRanges is a hub over ranges that begin at "", "r00001", "r00002" and so on and
// have ids from 1 on, all complete up to revision 1.
func manyRanges(ranges int, limits Limits) *Hub {
	f := NewFrontier()
	h := NewHub(f, limits)
	first := &placementpb.Cut{Revision: 1, First: true}
	for i := range ranges {
		first.Descriptors = append(first.Descriptors, &rangepb.RangeDescriptor{RangeId: uint64(i + 1), Start: startOf(i), End: startOf((i + 1) % ranges)})
	}
	f.Cut(first)
	h.Step()
	return h
}

func startOf(i int) []byte {
	if i == 0 {
		return nil
	}
	return fmt.Appendf(nil, "r%05d", i)
}

// put writes a key of a range: cut and event come, and if done the range has resolved
// it.
func (h *Hub) put(i int, revision int64, done bool) {
	h.frontier.Cut(&placementpb.Cut{Revision: revision, Marks: []*placementpb.Mark{{RangeId: uint64(i + 1), Revision: revision}}})
	if !done {
		return
	}
	key := append(fmt.Appendf(nil, "r%05d", i), '/')
	h.Applied([]mvcc.Event{{Revision: revision, Kv: &mvccpb.KeyValue{Key: key, ModRevision: revision}}})
	h.frontier.Resolved(uint64(i+1), revision)
}

// The groups that a step looks at are those that get something, however many there
// are, and however many wait for a range that stays behind.
func TestStepLooksAtGroupsThatGetSomething(t *testing.T) {
	const ranges = 200
	h := manyRanges(ranges, Limits{})
	s := h.NewStream(func() {})
	for i := range ranges {
		// Each from its range to the end: all of them wait for the last range.
		s.Create(CreateRequest{Start: append(fmt.Appendf(nil, "r%05d", i), '/'), End: []byte{0}, Current: 1})
	}
	looked := 0
	step := func() {
		h.Step()
		looked += h.visited
	}
	h.put(ranges-1, 2, false)
	h.put(0, 3, true)
	step()
	if looked != 1 {
		t.Fatalf("an event that one group wants has the step look at %d", looked)
	}
	// While the last range stays behind, others move; nobody can be given anything.
	looked = 0
	for i := range 100 {
		h.put(0, int64(4+i), true)
		step()
	}
	if looked != 100 {
		t.Errorf("100 events that one group wants have the steps look at groups %d times", looked)
	}
	looked = 0
	for i := range 100 {
		h.frontier.Cut(&placementpb.Cut{Revision: int64(104 + i)})
		step()
	}
	if looked != 0 {
		t.Errorf("100 cuts without events have the steps look at groups %d times", looked)
	}
	s.Take()
	h.Applied([]mvcc.Event{{Revision: 2, Kv: &mvccpb.KeyValue{Key: []byte("r00199/"), ModRevision: 2}}})
	h.frontier.Resolved(ranges, 2)
	h.Step()
	got := map[int64]int{}
	for _, r := range s.Take() {
		got[r.WatchID] += r.NumEvents()
	}
	if len(got) != ranges || got[0] != 102 || got[1] != 1 {
		t.Errorf("%d of %d watchers got something, the first %d events and the second %d; want 102 and 1", len(got), ranges, got[0], got[1])
	}
}

// A split has the step look at the groups that wait for the range that is split, and
// at no others.
func TestSplitConcernsThoseThatWait(t *testing.T) {
	const ranges = 200
	h := manyRanges(ranges, Limits{})
	s := h.NewStream(func() {})
	for i := range ranges {
		s.Create(CreateRequest{Start: append(fmt.Appendf(nil, "r%05d", i), '/'), Current: 1})
	}
	s.Create(CreateRequest{Start: []byte{0}, End: []byte{0}, Current: 1})
	h.put(5, 2, false)
	h.put(7, 3, true)
	h.Step()
	split := func(i int, id uint64) {
		at := append(startOf(i), '5')
		h.frontier.Cut(&placementpb.Cut{Revision: 3, Descriptors: []*rangepb.RangeDescriptor{
			{RangeId: uint64(i + 1), Start: startOf(i), End: at}, {RangeId: id, Start: at, End: startOf(i + 1)}}})
		h.Step()
	}
	split(6, ranges+1)
	if h.visited != 0 {
		t.Errorf("a split of a range that nobody waits for has the step look at %d groups", h.visited)
	}
	split(5, ranges+2) // the watcher of everything waits for it
	if h.visited != 1 {
		t.Errorf("a split of a range that one group waits for has the step look at %d", h.visited)
	}
	s.Take()
	h.frontier.Resolved(6, 2)
	h.frontier.Resolved(ranges+1, 3)
	h.frontier.Resolved(ranges+2, 2)
	h.Step()
	if out := s.Take(); len(out) != 1 || out[0].Revision != 3 {
		t.Errorf("the watcher of everything got %s, want the event at 3", show(out))
	}
}

// A hub that is not driven while the directory changes takes what it is now, and the
// frontier does not remember every change for it.
func TestFrontierRemembersNoMoreThanTheDirectory(t *testing.T) {
	h := manyRanges(4, Limits{})
	s := h.NewStream(func() {})
	s.Create(CreateRequest{Start: []byte("r"), End: []byte("s"), Current: 1})
	h.put(3, 2, false)
	id := uint64(10)
	for range 5000 {
		whole := &rangepb.RangeDescriptor{RangeId: 2, Start: startOf(1), End: startOf(2)}
		h.frontier.Cut(&placementpb.Cut{Revision: 2, Descriptors: []*rangepb.RangeDescriptor{
			{RangeId: 2, Start: whole.Start, End: []byte("r00001/")}, {RangeId: id, Start: []byte("r00001/"), End: whole.End}}})
		h.frontier.Cut(&placementpb.Cut{Revision: 2, Descriptors: []*rangepb.RangeDescriptor{whole}, Removed: []uint64{id}})
		id++
	}
	if n := len(h.frontier.mu.news.layout) + len(h.frontier.mu.news.moved); n > 2000 {
		t.Errorf("after 10,000 changes of a directory of 4 ranges %d are remembered", n)
	}
	h.Step()
	for i := range 4 {
		start, end := startOf(i), startOf((i+1)%4)
		if got, want := h.view.complete(start, end), h.frontier.Complete(start, end); got != want {
			t.Errorf("the hub has range %d complete up to %d, the frontier up to %d", i, got, want)
		}
	}
	if h.view.complete(nil, nil) != 1 {
		t.Errorf("complete up to %d, want 1", h.view.complete(nil, nil))
	}
}

// What the buffer has shed no group holds any more: memory is bounded also when
// many groups wait for one range.
func TestGroupsHoldNoMoreThanTheBuffer(t *testing.T) {
	const ranges, limit = 50, 20_000
	h := manyRanges(ranges, Limits{BufferBytes: limit})
	s := h.NewStream(func() {})
	for i := range ranges - 1 {
		s.Create(CreateRequest{Start: append(fmt.Appendf(nil, "r%05d", i), '/'), End: []byte{0}, Current: 1})
	}
	h.put(ranges-1, 2, false)
	for revision := int64(3); revision < 1000; revision++ {
		h.put(ranges-2, revision, true)
		h.Step()
		held := 0
		for _, g := range h.groups {
			held += len(g.waiting)
		}
		if held != h.waiting || held > h.buffer.n*len(h.groups) || h.Buffered() > limit {
			t.Fatalf("at %d: %d events in the buffer, %d in %d groups and %d counted, %d bytes; want at most %d bytes",
				revision, h.buffer.n, held, len(h.groups), h.waiting, h.Buffered(), limit)
		}
	}
}
