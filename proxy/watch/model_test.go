package watch

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// world is a plain model of what feeds a frontier: a sequencer that assigns
// revisions, and ranges that apply them in their own time.
type world struct {
	rng      *rand.Rand
	f        *Frontier
	h        *Hub
	revision int64
	nextID   uint64
	ranges   []*worldRange
	// history is every event ever assigned, in order.
	history []mvcc.Event
	// applied tells, for each revision, how many of its events are applied.
	compacted int64
	// gaps: revisions jump now and then, as a fail-over makes them (R2).
	gaps bool
	// undelivered cuts, in order.
	cuts []*placementpb.Cut
}

type worldRange struct {
	desc *rangepb.RangeDescriptor
	m    int64
	// inFlight are revisions assigned and not applied, with their events.
	inFlight []flight
	resolved int64
	// born: the replica exists here (a split has been applied).
	born bool
}

type flight struct {
	revision int64
	events   []mvcc.Event
	born     *worldRange // the split's right side
}

func newWorld(seed uint64, limits Limits) *world {
	w := &world{rng: rand.New(rand.NewPCG(seed, 7)), f: NewFrontier(), revision: 1, nextID: 2}
	w.h = NewHub(w.f, limits)
	w.ranges = []*worldRange{{desc: &rangepb.RangeDescriptor{RangeId: 1, Epoch: 1}, born: true}}
	w.subscribe()
	return w
}

func (w *world) subscribe() {
	c := &placementpb.Cut{Revision: w.revision, First: true, Compacted: w.compacted}
	for _, r := range w.ranges {
		c.Descriptors = append(c.Descriptors, r.desc)
		c.Marks = append(c.Marks, &placementpb.Mark{RangeId: r.desc.RangeId, Revision: r.m})
	}
	w.cuts = []*placementpb.Cut{c}
}

func (w *world) rangeOf(key []byte) *worldRange {
	for _, r := range w.ranges {
		if bytes.Compare(key, r.desc.Start) >= 0 && (len(r.desc.End) == 0 || bytes.Compare(key, r.desc.End) < 0) {
			return r
		}
	}
	panic("no range")
}

func (w *world) key() []byte { return []byte(fmt.Sprintf("k%02d", w.rng.IntN(40))) }

// write assigns a revision to a transaction over one to three keys.
func (w *world) write() {
	w.revision++
	if w.gaps && w.rng.IntN(10) == 0 {
		w.revision += 1 << w.rng.IntN(41)
	}
	marks := map[uint64]bool{}
	seen := map[string]bool{}
	for sub := range 1 + w.rng.IntN(3) {
		key := w.key()
		if seen[string(key)] {
			continue
		}
		seen[string(key)] = true
		r := w.rangeOf(key)
		e := mvcc.Event{
			Kv:       &mvccpb.KeyValue{Key: key, ModRevision: w.revision, CreateRevision: w.revision - int64(w.rng.IntN(2)), Value: []byte{byte(sub)}},
			Delete:   w.rng.IntN(4) == 0,
			Revision: w.revision, Sub: uint32(sub),
		}
		w.history = append(w.history, e)
		if !marks[r.desc.RangeId] {
			marks[r.desc.RangeId] = true
			r.m = w.revision
			r.inFlight = append(r.inFlight, flight{revision: w.revision})
		}
		fl := &r.inFlight[len(r.inFlight)-1]
		fl.events = append(fl.events, e)
	}
	w.cut(marks)
}

// cut queues the cut that tells of the ranges whose m changed.
func (w *world) cut(marks map[uint64]bool, descs ...*rangepb.RangeDescriptor) {
	c := &placementpb.Cut{Revision: w.revision, Compacted: w.compacted, Descriptors: descs}
	for _, r := range w.ranges {
		if marks[r.desc.RangeId] {
			c.Marks = append(c.Marks, &placementpb.Mark{RangeId: r.desc.RangeId, Revision: r.m})
		}
	}
	w.cuts = append(w.cuts, c)
}

// split cuts a random range at a random key; the right side is born when the
// left has applied everything before.
func (w *world) split() {
	key := w.key()
	x := w.rangeOf(key)
	if bytes.Equal(x.desc.Start, key) {
		return
	}
	left := &rangepb.RangeDescriptor{RangeId: x.desc.RangeId, Start: x.desc.Start, End: key, Epoch: x.desc.Epoch + 1}
	right := &rangepb.RangeDescriptor{RangeId: w.nextID, Start: key, End: x.desc.End, Epoch: left.Epoch}
	w.nextID++
	y := &worldRange{desc: right, m: x.m}
	x.desc = left
	x.inFlight = append(x.inFlight, flight{revision: x.m, born: y})
	w.ranges = append(w.ranges, y)
	sort.Slice(w.ranges, func(i, j int) bool {
		return bytes.Compare(w.ranges[i].desc.Start, w.ranges[j].desc.Start) < 0
	})
	w.cut(map[uint64]bool{left.RangeId: true, right.RangeId: true}, left, right)
}

// apply lets one range apply its next entry.
func (w *world) apply(r *worldRange) bool {
	if !r.born || len(r.inFlight) == 0 {
		return false
	}
	fl := r.inFlight[0]
	r.inFlight = r.inFlight[1:]
	r.resolved = max(r.resolved, fl.revision)
	w.h.Applied(fl.events)
	w.f.Resolved(r.desc.RangeId, r.resolved)
	if fl.born != nil {
		fl.born.born = true
		fl.born.resolved = max(fl.born.resolved, fl.revision)
		w.f.Resolved(fl.born.desc.RangeId, fl.born.resolved)
	}
	return true
}

func (w *world) deliverCut() bool {
	if len(w.cuts) == 0 {
		return false
	}
	w.f.Cut(w.cuts[0])
	w.cuts = w.cuts[1:]
	return true
}

func (w *world) step() {
	switch n := w.rng.IntN(100); {
	case n < 30:
		w.write()
	case n < 32:
		w.split()
	case n < 60:
		w.deliverCut()
	case n < 61:
		w.subscribe()
	default:
		w.apply(w.ranges[w.rng.IntN(len(w.ranges))])
	}
}

// settle delivers and applies all that is under way.
func (w *world) settle() {
	for more := true; more; {
		more = w.deliverCut()
		for _, r := range w.ranges {
			more = w.apply(r) || more
		}
	}
}

// pendingBelow returns an event of [start, end) at or below revision that is
// not applied, if there is one.
func (w *world) pendingBelow(start, end []byte, revision int64) *mvcc.Event {
	for _, r := range w.ranges {
		for _, fl := range r.inFlight {
			for i, e := range fl.events {
				if e.Revision <= revision && bytes.Compare(e.Kv.Key, start) >= 0 && (len(end) == 0 || bytes.Compare(e.Kv.Key, end) < 0) {
					return &fl.events[i]
				}
			}
		}
	}
	return nil
}

// PickEvents makes the model a History.
func (w *world) PickEvents(after, upTo int64, pick func(mvcc.EventRow) (want, more bool), fn func(mvcc.Event) error) error {
	if after+1 < w.compacted {
		return mvcc.ErrCompacted
	}
	for _, e := range w.history {
		if e.Revision <= after || e.Revision > upTo {
			continue
		}
		switch want, more := pick(mvcc.EventRow{Key: e.Kv.Key, Revision: e.Revision, Delete: e.Delete}); {
		case !more:
			return nil
		case !want:
			continue
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	return nil
}

// TestCompleteIsNeverAheadAndNeverGoesBack drives a frontier with random
// writes, cuts, splits and applies: what it calls complete is applied
// (revisions.md I2), it never falls, and it reaches R when all has settled.
func TestCompleteIsNeverAheadAndNeverGoesBack(t *testing.T) {
	for seed := range uint64(30) {
		w := newWorld(seed, Limits{})
		w.gaps = seed%2 == 1
		type probe struct {
			start, end []byte
			last       int64
		}
		probes := []*probe{{}}
		for range 8 {
			a, b := w.key(), w.key()
			if bytes.Compare(a, b) < 0 {
				probes = append(probes, &probe{start: a, end: b})
			}
		}
		check := func() {
			for _, p := range probes {
				c := w.f.Complete(p.start, p.end)
				if want := w.f.completeByScan(p.start, p.end); c != want {
					t.Fatalf("seed %d: complete(%q, %q) = %d, a scan says %d", seed, p.start, p.end, c, want)
				}
				if c < p.last {
					t.Fatalf("seed %d: complete(%q, %q) fell from %d to %d", seed, p.start, p.end, p.last, c)
				}
				p.last = c
				if e := w.pendingBelow(p.start, p.end, c); e != nil {
					t.Fatalf("seed %d: complete(%q, %q) = %d, but %q at %d is not applied", seed, p.start, p.end, c, e.Kv.Key, e.Revision)
				}
			}
		}
		for range 1500 {
			w.step()
			check()
		}
		w.settle()
		check()
		if c := w.f.Complete(nil, nil); c != w.revision {
			t.Fatalf("seed %d: complete = %d after everything settled, want %d", seed, c, w.revision)
		}
		if lag := w.f.Lagging(); len(lag) != 0 {
			t.Fatalf("seed %d: ranges %v lag after everything settled", seed, lag)
		}
	}
}

// completeByScan is Complete, the plain way.
func (f *Frontier) completeByScan(start, end []byte) int64 {
	least := f.mu.revision
	for _, x := range f.mu.pending {
		if (len(x.end) == 0 || bytes.Compare(start, x.end) < 0) && (len(end) == 0 || bytes.Compare(x.start, end) < 0) {
			least = min(least, x.complete)
		}
	}
	return least
}

// TestHotRangeDoesNotStarve keeps eight writes of one range in flight without
// a pause: a watcher of it still advances (R6).
func TestHotRangeDoesNotStarve(t *testing.T) {
	w := newWorld(1, Limits{})
	w.deliverCut()
	const inFlight = 8
	last := w.f.Complete(nil, nil)
	for i := range 50 * inFlight {
		w.write()
		w.deliverCut()
		if i < inFlight {
			continue
		}
		w.apply(w.ranges[0])
		if i%(2*inFlight) == 0 {
			c := w.f.Complete(nil, nil)
			if c <= last {
				t.Fatalf("after %d writes the frontier is still at %d", i, c)
			}
			last = c
		}
	}
}

// TestWatchersGetExactlyTheHistory runs random watchers over random writes,
// splits, gaps in the revisions, slow streams and small buffers, with reads of
// history that others join and leave, two at once. Each gets all events of its
// span from its start on, in order, none twice, revisions whole (etcd/W10, history/W1 to
// history/W4), and progress promises what it says (etcd/W16).
func TestWatchersGetExactlyTheHistory(t *testing.T) {
	for seed := range uint64(60) {
		limits := Limits{}
		if seed%3 == 1 {
			limits = Limits{BufferBytes: 2000, StreamBytes: 1500, CatchUpRevisions: 3, CatchUpBytes: 600, ReadBytes: 2000, ReadRows: 20}
		}
		w := newWorld(seed, limits)
		w.gaps = seed%2 == 1
		if seed%4 == 1 {
			w.h.lookThrough = 3
		}
		w.deliverCut()
		run := &watchRun{t: t, seed: seed, w: w}
		for range 3 {
			run.open()
		}
		for i := range 1500 {
			w.step()
			if w.rng.IntN(3) == 0 {
				w.h.Step()
				run.checkGroups()
			}
			run.step()
			if i%500 == 250 {
				run.compact()
			}
		}
		w.settle()
		run.finish()
	}
}

type watchRun struct {
	t       *testing.T
	seed    uint64
	w       *world
	clients []*watchClient
	// reads of history that are under way.
	reads []watchRead
}

// checkGroups fails the test unless the hub sees after a step what the frontier says,
// holds no event that is complete, and will come back to each group that waits.
func (r *watchRun) checkGroups() {
	waiting := 0
	for i, g := range r.w.h.groups {
		complete := r.w.h.complete(g)
		if want := r.w.f.Complete(g.start, g.end); complete != want || g.at != i {
			r.t.Fatalf("seed %d: group %d of [%q, %q) is complete up to %d and says it is %d, want %d", r.seed, i, g.start, g.end, complete, g.at, want)
		}
		waiting += len(g.waiting)
		for _, e := range g.waiting {
			if e.revision <= complete {
				r.t.Fatalf("seed %d: an event at %d waits, %d is complete", r.seed, e.revision, complete)
			}
		}
		if len(g.waiting)+len(g.parked) > 0 && g.blocked == nil {
			r.t.Fatalf("seed %d: %d events and %d watchers wait, but nothing will wake them: %v", r.seed, len(g.waiting), len(g.parked), g)
		}
	}
	if waiting != r.w.h.waiting {
		r.t.Fatalf("seed %d: %d events are counted to wait in groups, want %d", r.seed, r.w.h.waiting, waiting)
	}
}

type watchRead struct {
	task *Task
	res  TaskResult
}

type watchClient struct {
	s        *Stream
	watchers map[int64]*watchModel
	ended    []*watchModel
	progress int64
	taken    bool
}

type watchModel struct {
	start, end       []byte
	from             int64
	noPut, noDelete  bool
	now              bool // asked for what comes after the creation
	created, stopped bool
	compacted        bool
	promised         int64
	got              []mvcc.Event
}

func (r *watchRun) open() {
	c := &watchClient{watchers: map[int64]*watchModel{}}
	c.s = r.w.h.NewStream(func() {})
	r.clients = append(r.clients, c)
}

func (r *watchRun) step() {
	w := r.w
	c := r.clients[w.rng.IntN(len(r.clients))]
	switch n := w.rng.IntN(100); {
	case n < 6:
		r.create(c)
	case n < 8:
		ids := make([]int64, 0)
		for id := range c.watchers {
			ids = append(ids, id)
		}
		if len(ids) > 0 {
			sort.Slice(ids, func(i, j int) bool { return ids[i] < ids[j] })
			id := ids[w.rng.IntN(len(ids))]
			c.s.Cancel(id, w.revision)
		}
	case n < 14:
		c.s.RequestProgress(w.revision)
	case n < 16:
		c.s.ProgressTick()
	case n < 30:
		r.take(c)
	case n < 60:
		r.read()
	case n < 61 && w.rng.IntN(3) == 0:
		c.s.Close()
		r.clients = slices.DeleteFunc(r.clients, func(x *watchClient) bool { return x == c })
		r.open()
	}
}

func (r *watchRun) create(c *watchClient) {
	w := r.w
	m := &watchModel{noPut: w.rng.IntN(8) == 0, noDelete: w.rng.IntN(8) == 0}
	req := CreateRequest{Current: w.revision, Compacted: w.compacted, NoPut: m.noPut, NoDelete: m.noDelete, PrevKV: w.rng.IntN(2) == 0, Progress: w.rng.IntN(2) == 0}
	switch w.rng.IntN(4) {
	case 0:
		req.Start = w.key()
		m.start, m.end = req.Start, append(bytes.Clone(req.Start), 0)
	case 1:
		req.Start, req.End = []byte{0}, []byte{0}
		m.start = req.Start
	case 2:
		req.Start, req.End = []byte("k1"), []byte("k2")
		m.start, m.end = req.Start, req.End
	default:
		req.Start, req.End = w.key(), w.key()
		m.start, m.end = req.Start, req.End
	}
	switch w.rng.IntN(4) {
	case 0:
		req.StartRevision = 1 + w.rng.Int64N(w.revision)
		if n := len(w.history); w.gaps && n > 0 {
			// Most revisions lie in gaps: at an event, or just beside it.
			req.StartRevision = max(w.history[w.rng.IntN(n)].Revision+w.rng.Int64N(3)-1, 1)
		}
	case 1:
		req.StartRevision = w.revision + w.rng.Int64N(10)
	}
	m.from = req.StartRevision
	if m.from == 0 {
		m.now = true
		m.from = w.revision + 1
	}
	before := c.s.nextID
	c.s.Create(req)
	if len(m.end) > 0 && bytes.Compare(m.start, m.end) >= 0 {
		return // refused
	}
	id := c.s.nextID - 1
	if c.s.nextID == before {
		r.t.Fatalf("seed %d: no id was assigned", r.seed)
	}
	m.compacted = m.from < w.compacted
	c.watchers[id] = m
}

// read begins a read of history, or ends one. Of two everything may happen
// between, and they may end in any order.
func (r *watchRun) read() {
	if len(r.reads) < 2 && r.w.rng.IntN(2) == 0 {
		if t, ok := r.w.h.NextTask(); ok {
			r.reads = append(r.reads, watchRead{t, t.Run(r.w)})
		}
		return
	}
	if n := len(r.reads); n > 0 {
		i := r.w.rng.IntN(n)
		r.w.h.TaskDone(r.reads[i].task, r.reads[i].res)
		r.reads = slices.Delete(r.reads, i, i+1)
	}
}

// compact forgets what every client has taken, as a compaction far enough
// back would.
func (r *watchRun) compact() {
	const keep = 150
	complete := r.w.f.Complete(nil, nil)
	n := sort.Search(len(r.w.history), func(i int) bool { return r.w.history[i].Revision > complete })
	if n <= keep {
		return
	}
	r.w.compacted = max(r.w.compacted, r.w.history[n-keep].Revision)
	r.w.f.Compacted(r.w.compacted)
}

// take reads the stream's queue and checks what order promises.
func (r *watchRun) take(c *watchClient) {
	if c.taken {
		c.s.Drained()
	}
	c.taken = true
	for _, resp := range c.s.Take() {
		if resp.WatchID == InvalidWatchID {
			if resp.Canceled {
				continue
			}
			if resp.Revision < c.progress {
				r.t.Fatalf("seed %d: progress fell from %d to %d", r.seed, c.progress, resp.Revision)
			}
			c.progress = resp.Revision
			for _, m := range c.watchers {
				if m.created {
					m.promised = max(m.promised, resp.Revision)
				}
			}
			continue
		}
		m := c.watchers[resp.WatchID]
		if m == nil {
			r.t.Fatalf("seed %d: response for unknown watcher %d", r.seed, resp.WatchID)
		}
		switch {
		case resp.Created:
			if m.created || len(m.got) > 0 {
				r.t.Fatalf("seed %d: created is not the first response", r.seed)
			}
			m.created = true
			if m.now {
				m.promised = resp.Revision
			}
		case resp.Canceled:
			m.stopped = true
			m.compacted = resp.CompactRevision != 0
			c.ended = append(c.ended, m)
			delete(c.watchers, resp.WatchID)
		case resp.NumEvents() == 0:
			if resp.Revision < m.promised {
				r.t.Fatalf("seed %d: progress of a watcher fell from %d to %d", r.seed, m.promised, resp.Revision)
			}
			m.promised = resp.Revision
		default:
			for _, e := range eventsOf(resp) {
				if e.revision <= m.promised {
					r.t.Fatalf("seed %d: event at %d after progress at %d", r.seed, e.revision, m.promised)
				}
				m.got = append(m.got, mvcc.Event{Kv: e.kv, Delete: e.delete, Revision: e.revision})
			}
			if n := resp.NumEvents(); n > 0 && resp.Revision < lastOf(resp) {
				r.t.Fatalf("seed %d: header %d below its event %d", r.seed, resp.Revision, lastOf(resp))
			}
		}
	}
}

func (r *watchRun) finish() {
	for _, x := range r.reads {
		r.w.h.TaskDone(x.task, x.res)
	}
	for more := true; more; {
		more = false
		r.w.h.Step()
		for {
			t, ok := r.w.h.NextTask()
			if !ok {
				break
			}
			r.w.h.TaskDone(t, t.Run(r.w))
			more = true
		}
		for _, c := range r.clients {
			if len(c.s.out) > 0 || c.s.lagged {
				more = true
			}
			r.take(c)
		}
	}
	if all, behind := r.w.h.Watchers(); behind != 0 {
		r.t.Fatalf("seed %d: %d of %d watchers are still behind", r.seed, behind, all)
	}
	for _, c := range r.clients {
		for id, m := range c.watchers {
			r.check(id, m, true)
		}
		for _, m := range c.ended {
			r.check(-1, m, false)
		}
	}
}

// check compares what a watcher got with the history; a stopped one has a
// prefix of it that ends with a whole revision.
func (r *watchRun) check(id int64, m *watchModel, whole bool) {
	var want []mvcc.Event
	for _, e := range r.w.history {
		if e.Revision < m.from || bytes.Compare(e.Kv.Key, m.start) < 0 || len(m.end) > 0 && bytes.Compare(e.Kv.Key, m.end) >= 0 {
			continue
		}
		if e.Delete && m.noDelete || !e.Delete && m.noPut {
			continue
		}
		want = append(want, e)
	}
	if !whole {
		if len(m.got) > len(want) {
			r.t.Fatalf("seed %d: a stopped watcher got %d events of %d", r.seed, len(m.got), len(want))
		}
		if n := len(m.got); n > 0 && n < len(want) && want[n].Revision == want[n-1].Revision {
			r.t.Fatalf("seed %d: revision %d was cut in two", r.seed, want[n].Revision)
		}
		want = want[:len(m.got)]
	}
	if len(m.got) != len(want) {
		r.t.Fatalf("seed %d: watcher %d of [%q, %q) from %d got %d events, want %d", r.seed, id, m.start, m.end, m.from, len(m.got), len(want))
	}
	for i := range want {
		if m.got[i].Revision != want[i].Revision || !bytes.Equal(m.got[i].Kv.Value, want[i].Kv.Value) || !bytes.Equal(m.got[i].Kv.Key, want[i].Kv.Key) {
			r.t.Fatalf("seed %d: watcher %d: event %d is %d/%v %q, want %d/%v %q", r.seed, id, i,
				m.got[i].Revision, m.got[i].Kv.Value, m.got[i].Kv.Key, want[i].Revision, want[i].Kv.Value, want[i].Kv.Key)
		}
	}
}
