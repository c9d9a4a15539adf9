package watch

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/hawser-kv/hawser/mvcc"
)

// countTaken takes what streams have to send and adds up the events of their
// watchers, by stream and watch id.
func countTaken(got map[*Stream]map[int64]int, streams ...*Stream) {
	for _, s := range streams {
		for _, r := range s.Take() {
			if got[s] == nil {
				got[s] = map[int64]int{}
			}
			got[s][r.WatchID] += r.NumEvents()
		}
		s.Drained()
	}
}

// Thousands of watchers that begin anywhere in the past cost little more rows of
// the index than one that begins at the first revision, in whatever order they
// come.
func TestWatchersThatAreBehindShareReads(t *testing.T) {
	const last, watchers, streams = 20_001, 2000, 10
	h, history := oneRange(Limits{BufferBytes: 1000, ReadRows: 500}, putsOf(1, 2, last))
	var open []*Stream
	for range streams {
		open = append(open, h.NewStream(func() {}))
	}
	want := map[*Stream]map[int64]int{}
	for _, i := range rand.New(rand.NewPCG(1, 1)).Perm(watchers) {
		s, from := open[i%streams], int64(2+i*(last-2)/watchers)
		r := CreateRequest{Start: fmt.Appendf(nil, "k%d", from+1), StartRevision: from, Current: last}
		events := 1
		if i%100 == 0 {
			r.Start, r.End = []byte("k"), []byte("l")
			events = last - int(from) + 1
		}
		s.Create(r)
		if want[s] == nil {
			want[s] = map[int64]int{}
		}
		want[s][s.nextID-1] = events
	}
	got := map[*Stream]map[int64]int{}
	for {
		task, ok := h.NextTask()
		if !ok {
			break
		}
		h.TaskDone(task, task.Run(history))
		countTaken(got, open...)
	}
	for i, s := range open {
		for id, n := range want[s] {
			if got[s][id] != n {
				t.Errorf("watcher %d of stream %d got %d events, want %d", id, i, got[s][id], n)
			}
		}
	}
	if _, behind := h.Watchers(); behind != 0 {
		t.Errorf("%d watchers are still behind", behind)
	}
	if most := int64(3 * last); h.readRows > most {
		t.Errorf("%d reads walked %d rows of the index for %d watchers, want at most %d", h.reads, h.readRows, watchers, most)
	}
}

// Watchers that keep coming from far behind do not keep one that is ahead of
// them from going on.
func TestWatchersThatKeepComingStarveNobody(t *testing.T) {
	const last, from, rows = 300, 150, 10
	h, history := oneRange(Limits{BufferBytes: 1000, ReadRows: rows}, putsOf(1, 2, last))
	ahead := h.NewStream(func() {})
	ahead.Create(CreateRequest{Start: []byte("k"), End: []byte("l"), StartRevision: from, Current: last})
	others := h.NewStream(func() {})
	// It waits for each group of watchers between two of its reads, at most.
	const groups = last / rows
	for n := 0; !ahead.watchers[0].synced; n++ {
		if n > 2*groups*groups {
			t.Fatalf("after %d reads the watcher is at %d of %d", n, ahead.watchers[0].pos, last)
		}
		others.Create(CreateRequest{Start: []byte("other"), StartRevision: 2, Current: last})
		task, ok := h.NextTask()
		if !ok {
			t.Fatal("no read of history is wanted")
		}
		h.TaskDone(task, task.Run(history))
		others.Take()
		others.Drained()
	}
}

// A client that does not read leaves the reads that its watchers share with
// others: these get everything, and what it did not take is not read again and
// again.
func TestSlowStreamLeavesTheOthers(t *testing.T) {
	const last, valueBytes = 2001, 100
	h, history := oneRange(Limits{BufferBytes: 1000, StreamBytes: 20_000, ReadBytes: 10_000}, putsOf(valueBytes, 2, last))
	slow, fast := h.NewStream(func() {}), h.NewStream(func() {})
	for _, s := range []*Stream{slow, fast} {
		s.Create(CreateRequest{Start: []byte("k"), End: []byte("l"), StartRevision: 2, Current: last})
	}
	got := map[*Stream]map[int64]int{}
	for {
		task, ok := h.NextTask()
		if !ok {
			break
		}
		h.TaskDone(task, task.Run(history))
		countTaken(got, fast)
	}
	if got[fast][0] != last-1 {
		t.Errorf("beside a slow stream a watcher got %d events, want %d", got[fast][0], last-1)
	}
	if most := int64(2 * last); h.readRows > most {
		t.Errorf("%d rows were walked, want at most %d", h.readRows, most)
	}
	for len(slow.out) > 0 {
		countTaken(got, slow)
		runTasks(h, history)
	}
	if got[slow][0] != last-1 {
		t.Errorf("the slow stream's watcher got %d events once it reads, want %d", got[slow][0], last-1)
	}
}

// Many watchers of everything on one stream share what one read brings, and it is
// bounded for all of them together.
func TestOneReadIsBoundedForAllItsWatchers(t *testing.T) {
	const last, watchers = 2001, 1000
	limits := Limits{BufferBytes: 1000, ReadBytes: 100_000}
	h, history := oneRange(limits, putsOf(1, 2, last))
	s := h.NewStream(func() {})
	for range watchers {
		s.Create(CreateRequest{Start: []byte("k"), End: []byte("l"), StartRevision: 2, Current: last})
	}
	s.Take()
	s.Drained()
	task, ok := h.NextTask()
	if !ok {
		t.Fatal("no read of history is wanted")
	}
	h.TaskDone(task, task.Run(history))
	// One event more than what is enough.
	if most := limits.ReadBytes + watchers*(responseOverhead+eventReference) + 2*eventOverhead; s.bytes > most {
		t.Errorf("one read brings %d bytes, want at most %d", s.bytes, most)
	}
	if len(s.out) != watchers {
		t.Errorf("%d of %d watchers got something", len(s.out), watchers)
	}
}

// A read that brings more than a stream has room for fills it, and no more: what
// its watchers do not get they read again.
func TestStreamBytesBoundWhatOneReadBrings(t *testing.T) {
	const last, valueBytes = 501, 1000
	limits := Limits{BufferBytes: 1000, StreamBytes: 30_000, CatchUpBytes: 2 * valueBytes}
	h, history := oneRange(limits, putsOf(valueBytes, 2, last))
	s := h.NewStream(func() {})
	for rev := 2; rev <= last; rev++ {
		s.Create(CreateRequest{Start: fmt.Appendf(nil, "k%d", rev), StartRevision: 2, Current: last})
		s.Take()
		s.Drained()
	}
	got := map[*Stream]map[int64]int{}
	for runTasks(h, history); len(s.out) > 0; runTasks(h, history) {
		if most := limits.StreamBytes + valueBytes + eventOverhead + responseOverhead + 100; s.bytes > most {
			t.Fatalf("%d bytes wait for a client that does not read, want at most %d", s.bytes, most)
		}
		countTaken(got, s)
	}
	for id := range int64(last - 1) {
		if got[s][id] != 1 {
			t.Errorf("watcher %d got %d events, want 1", id, got[s][id])
		}
	}
}

// brokenHistory cannot read the event of a key.
type brokenHistory struct {
	fakeHistory
	key string
}

var errBroken = errors.New("broken")

func (h *brokenHistory) PickEvents(after, upTo int64, pick func(mvcc.EventRow) (want, more bool), fn func(mvcc.Event) error) error {
	return h.fakeHistory.PickEvents(after, upTo, pick, func(e mvcc.Event) error {
		if string(e.Kv.Key) == h.key {
			return errBroken
		}
		return fn(e)
	})
}

// An event that cannot be read ends the streams that want it. Others that share
// the read get theirs, and the revision in which it lies as a whole.
func TestDamageConcernsThoseWhoWantTheEvent(t *testing.T) {
	var events []mvcc.Event
	for rev := int64(2); rev <= 10; rev++ {
		for sub, key := range []string{"a", "b", "c"} {
			if key == "b" && rev != 5 {
				continue
			}
			events = append(events, mvcc.Event{Revision: rev, Sub: uint32(sub), Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: rev}})
		}
	}
	h, whole := oneRange(Limits{BufferBytes: 100}, events)
	history := &brokenHistory{*whole, "b"}
	hurt, well := h.NewStream(func() {}), h.NewStream(func() {})
	hurt.Create(CreateRequest{Start: []byte("b"), StartRevision: 2, Current: 10})
	for _, key := range []string{"a", "c"} {
		well.Create(CreateRequest{Start: []byte(key), StartRevision: 2, Current: 10})
	}
	runTasks(h, history)
	if !errors.Is(hurt.Err(), errBroken) {
		t.Errorf("the stream that wants the event has error %v", hurt.Err())
	}
	if err := well.Err(); err != nil {
		t.Errorf("a stream that does not want the event has error %v", err)
	}
	got := map[*Stream]map[int64]int{}
	countTaken(got, well)
	if got[well][0] != 9 || got[well][1] != 9 {
		t.Errorf("watchers beside it got %v events, want 9 each", got[well])
	}
}

// A compaction ends the watchers whose history it takes, and no others that share
// their read.
func TestCompactionEndsThoseBelowIt(t *testing.T) {
	const last, compacted = 100, 40
	h, whole := oneRange(Limits{BufferBytes: 1000}, putsOf(1, 2, last))
	s := h.NewStream(func() {})
	for _, from := range []int64{compacted - 1, compacted, compacted + 1, 2} {
		s.Create(CreateRequest{Start: []byte("k"), End: []byte("l"), StartRevision: from, Current: last})
	}
	h.frontier.Compacted(compacted)
	w := &world{history: whole.events, compacted: compacted}
	runTasks(h, w)
	got, canceled := map[int64]int{}, map[int64]int64{}
	for _, r := range s.Take() {
		got[r.WatchID] += r.NumEvents()
		if r.Canceled {
			canceled[r.WatchID] = r.CompactRevision
		}
	}
	if len(canceled) != 2 || canceled[0] != compacted || canceled[3] != compacted {
		t.Errorf("cancelled with compact revisions: %v, want 0 and 3 with %d", canceled, compacted)
	}
	if got[1] != last-compacted+1 || got[2] != last-compacted {
		t.Errorf("events of watchers: %v, want %d of 1 and %d of 2", got, last-compacted+1, last-compacted)
	}
}
