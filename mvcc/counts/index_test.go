package counts

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hawser-kv/hawser/mvcc/keys"
)

func TestCountIsExactAtEveryReadableRevision(t *testing.T) {
	for seed := range uint64(15) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { newHistoryTest(t, seed).run(400) })
	}
}

// historyTest drives an index and a model of a node with some ranges, whose
// revisions come in order within a range, but not over all of them, and whose
// process dies now and then.
type historyTest struct {
	t   *testing.T
	rng *rand.Rand

	opts      Options
	x         *Index
	m         *model
	e         *engine
	batch     *pebble.Batch // not yet committed
	applied   []event       // all there ever was, in the order it was applied
	rev       int64
	granted   map[string][]event // per range: what has a revision and is not applied
	bounds    []string           // where ranges begin
	keys      int
	forgotten int64
	rowsFrom  int64 // event rows below are gone
	crashes   int
}

type event struct {
	key   string
	rev   int64
	delta int64
}

func newHistoryTest(t *testing.T, seed uint64) *historyTest {
	h := &historyTest{t: t, rng: rand.New(rand.NewPCG(seed, 1)), m: newModel(), bounds: []string{""}}
	h.opts.RunKeys = 4 + h.rng.IntN(12)
	h.keys = []int{20, 200, 1000}[h.rng.IntN(3)]
	h.granted = map[string][]event{}
	h.x = New(h.opts)
	h.e = openEngine(t, vfs.NewCrashableMem())
	h.batch = h.e.db.NewBatch()
	t.Cleanup(func() {
		_ = h.batch.Close()
		_ = h.e.db.Close()
	})
	return h
}

func (h *historyTest) run(steps int) {
	for range steps {
		switch n := h.rng.IntN(100); {
		case n < 50:
			h.write()
		case n < 62:
			h.applyRange(h.bounds[h.rng.IntN(len(h.bounds))])
		case n < 70:
			h.commit(h.rng.IntN(3) == 0)
		case n < 76:
			h.maintain()
		case n < 79:
			h.boundary()
		case n < 80:
			h.release()
		case n < 83:
			h.e.checkpoint(h.t, h.x, h.newestApplied(), h.rng.IntN(2) == 0)
		case n < 85:
			h.forget()
		case n < 86:
			h.replace()
		case n < 88:
			h.crash()
		default:
			h.count(h.rng.IntN(4) > 0)
		}
		h.x.check(h.t)
	}
	h.settle()
	h.maintain()
	for range 50 {
		h.count(true)
	}
	for rev := h.forgotten; rev <= h.rev; rev++ {
		h.compare(nil, nil, rev)
	}
}

func (h *historyTest) key() string { return fmt.Sprintf("k%04d", h.rng.IntN(h.keys)) }

func (h *historyTest) rangeOf(key string) string {
	i, ok := slices.BinarySearch(h.bounds, key)
	if !ok {
		i--
	}
	return h.bounds[i]
}

func (h *historyTest) spanOf(r string) (start, end []byte) {
	if i := slices.Index(h.bounds, r); i+1 < len(h.bounds) {
		end = []byte(h.bounds[i+1])
	}
	return []byte(r), end
}

func (h *historyTest) newestApplied() int64 {
	var rev int64
	for _, e := range h.applied {
		rev = max(rev, e.rev)
	}
	return rev
}

// write gives one revision to changes in one or more ranges; they are applied
// there at once or later.
func (h *historyTest) write() {
	h.rev++
	changes := map[string][]event{}
	n := 1 + h.rng.IntN(3)
	if h.rng.IntN(10) == 0 {
		n = 30
	}
	base, step := h.rng.IntN(h.keys), 1-2*h.rng.IntN(2)
	near := h.rng.IntN(2) == 0
	for i := range n {
		key := h.key()
		if near {
			key = fmt.Sprintf("k%04d", (base+i*step+h.keys)%h.keys)
		}
		r := h.rangeOf(key)
		live := h.m.live(key)
		for _, e := range slices.Concat(h.granted[r], changes[r]) {
			if e.key == key {
				live = e.delta > 0
			}
		}
		delta := int64(1)
		if live {
			delta = -1
		}
		changes[r] = append(changes[r], event{key, h.rev, delta})
	}
	for _, r := range h.bounds {
		if list := changes[r]; list != nil {
			h.granted[r] = append(h.granted[r], list...)
			if h.rng.IntN(5) > 0 {
				h.applyRange(r)
			}
		}
	}
}

func eventRow(e event, i int) []byte {
	k := binary.BigEndian.AppendUint64([]byte{keys.EventPrefix}, uint64(e.rev))
	k = binary.BigEndian.AppendUint32(k, uint32(i))
	return append(k, e.key...)
}

// applyRange applies what was granted to a range.
func (h *historyTest) applyRange(r string) {
	list := h.granted[r]
	delete(h.granted, r)
	for len(list) > 0 {
		n := 1
		for n < len(list) && list[n].rev == list[0].rev {
			n++
		}
		var changes []Change
		for i, e := range list[:n] {
			h.m.add(e.key, e.rev, e.delta)
			if h.m.hidden[e.key] == 0 {
				h.m.hidden[e.key] = e.rev
			}
			h.applied = append(h.applied, e)
			changes = append(changes, Change{Key: []byte(e.key), Delta: int(e.delta)})
			if err := h.batch.Set(eventRow(e, i), []byte{byte(e.delta)}, nil); err != nil {
				h.t.Fatal(err)
			}
		}
		apply(h.t, h.x, h.batch, list[0].rev, changes...)
		list = list[n:]
	}
}

func (h *historyTest) commit(sync bool) {
	opts := pebble.NoSync
	if sync {
		opts = pebble.Sync
		// An empty batch would not be synced.
		if err := h.batch.LogData([]byte("sync"), nil); err != nil {
			h.t.Fatal(err)
		}
	}
	if err := h.batch.Commit(opts); err != nil {
		h.t.Fatal(err)
	}
	h.batch = h.e.db.NewBatch()
	clear(h.m.hidden)
}

// settle applies and commits all that was granted.
func (h *historyTest) settle() {
	for _, r := range h.bounds {
		h.applyRange(r)
	}
	h.commit(false)
}

func (h *historyTest) maintain() {
	if err := h.x.Maintain(h.m, 1+h.rng.IntN(3)); err != nil {
		h.t.Fatal(err)
	}
	if h.rng.IntN(3) == 0 {
		if err := h.x.Cut([]byte(h.key()), h.m); err != nil {
			h.t.Fatal(err)
		}
	}
}

func (h *historyTest) boundary() {
	key := h.key()
	if slices.Contains(h.bounds, key) || len(h.bounds) > 5 {
		return
	}
	h.applyRange(h.rangeOf(key))
	b := h.e.db.NewBatch()
	defer func() { _ = b.Close() }()
	err := h.x.EnsureBoundary(b, []byte(key), h.m)
	if errors.Is(err, ErrUnsettled) {
		if len(h.m.hidden) == 0 {
			h.t.Fatal("unsettled, though all is committed")
		}
		h.commit(false)
		err = h.x.EnsureBoundary(b, []byte(key), h.m)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	h.commit(true) // the split
	if err := b.Commit(pebble.NoSync); err != nil {
		h.t.Fatal(err)
	}
	h.bounds = append(h.bounds, key)
	slices.Sort(h.bounds)
	h.wantBoundaries()
}

func (h *historyTest) wantBoundaries() {
	h.t.Helper()
	for _, b := range h.bounds {
		if !slices.Contains(h.x.starts(), b) {
			h.t.Fatalf("no run begins at %q", b)
		}
	}
}

// release makes one range of two.
func (h *historyTest) release() {
	if i := h.rng.IntN(len(h.bounds)); i > 0 {
		h.applyRange(h.bounds[i-1])
		h.applyRange(h.bounds[i])
		if err := h.x.ReleaseBoundary(h.batch, []byte(h.bounds[i])); err != nil {
			h.t.Fatal(err)
		}
		h.commit(true)
		h.bounds = slices.Delete(h.bounds, i, i+1)
	}
}

// forget follows a compaction: all replicas have resolved its revision, and a
// checkpoint that knows of what they applied comes before the events go.
func (h *historyTest) forget() {
	h.settle()
	h.commit(true)
	h.forgotten += h.rng.Int64N(h.rev - h.forgotten + 1)
	h.x.Forget(h.forgotten)
	if h.rng.IntN(2) == 0 {
		h.e.checkpoint(h.t, h.x, h.newestApplied(), true)
		h.rowsFrom = h.forgotten
	}
	if _, err := h.x.Count(nil, nil, h.forgotten-1, h.m); !errors.Is(err, ErrForgotten) {
		h.t.Fatalf("count below the forgotten revision: %v", err)
	}
}

// replace brings a range by snapshot: what it has is another thing after it.
func (h *historyTest) replace() {
	h.settle()
	r := h.bounds[h.rng.IntN(len(h.bounds))]
	start, end := h.spanOf(r)
	if err := h.x.Invalidate(h.batch, start, end); err != nil {
		h.t.Fatal(err)
	}
	h.commit(true)
	if h.rng.IntN(3) == 0 {
		h.e.checkpoint(h.t, h.x, h.newestApplied(), false) // by somebody else
	}
	// The ingest, in one step.
	h.m.removed(start, end)
	h.applied = slices.DeleteFunc(h.applied, func(e event) bool { return h.rangeOf(e.key) == r })
	it, err := h.e.db.NewIter(&pebble.IterOptions{LowerBound: []byte{keys.EventPrefix}, UpperBound: []byte{keys.EventPrefix + 1}})
	if err != nil {
		h.t.Fatal(err)
	}
	for it.First(); it.Valid(); it.Next() {
		if h.rangeOf(string(it.Key()[13:])) == r {
			_ = h.batch.Delete(it.Key(), nil)
		}
	}
	if err := it.Close(); err != nil {
		h.t.Fatal(err)
	}
	for range h.rng.IntN(50) {
		key := h.key()
		if h.rangeOf(key) != r || len(h.m.keys[key]) > 0 {
			continue
		}
		h.rev++
		e := event{key, h.rev, 1}
		h.m.add(key, h.rev, 1)
		h.applied = append(h.applied, e)
		_ = h.batch.Set(eventRow(e, 0), []byte{1}, nil)
	}
	h.commit(true)
	h.compare(nil, nil, h.rev)
	if h.rng.IntN(3) == 0 {
		h.crash()
		return
	}
	if err := h.x.Reset(start, end, h.m); err != nil {
		h.t.Fatal(err)
	}
	h.wantBoundaries()
}

// crash loses the batch that is not committed and some or all of what is not
// synced, and opens again. What was lost is applied again, as Raft does it.
func (h *historyTest) crash() {
	h.crashes++
	_ = h.batch.Close()
	fs := h.e.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50 * h.rng.IntN(3), RNG: h.rng})
	_ = h.e.db.Close()
	h.e = openEngine(h.t, fs)
	h.batch = h.e.db.NewBatch()

	// What the engine has.
	h.m = newModel()
	survived := map[event]int{}
	var events []event
	it, err := h.e.db.NewIter(&pebble.IterOptions{LowerBound: []byte{keys.EventPrefix}, UpperBound: []byte{keys.EventPrefix + 1}})
	if err != nil {
		h.t.Fatal(err)
	}
	for it.First(); it.Valid(); it.Next() {
		e := event{string(it.Key()[13:]), int64(binary.BigEndian.Uint64(it.Key()[1:])), int64(int8(it.Value()[0]))}
		h.m.add(e.key, e.rev, e.delta)
		events = append(events, e)
		survived[e]++
	}
	if err := it.Close(); err != nil {
		h.t.Fatal(err)
	}

	x, from, err := Load(h.e.db, h.forgotten, h.opts)
	if err != nil {
		h.t.Fatal(err)
	}
	h.x = x
	for len(events) > 0 {
		var changes []Change
		rev := events[0].rev
		for len(events) > 0 && events[0].rev == rev {
			changes = append(changes, Change{Key: []byte(events[0].key), Delta: int(events[0].delta)})
			events = events[1:]
		}
		if rev >= max(from, h.rowsFrom) {
			apply(h.t, h.x, nil, rev, changes...)
		}
	}
	if err := h.x.Recover(h.batch, h.m); err != nil {
		h.t.Fatal(err)
	}
	// The notes of the newest boundaries may be lost: the ranges are told again.
	for _, r := range h.bounds {
		if err := h.x.EnsureBoundary(h.batch, []byte(r), h.m); err != nil {
			h.t.Fatal(err)
		}
	}
	h.commit(false)
	h.wantBoundaries()
	h.x.check(h.t)

	// What it lost comes again, before anything new of the range.
	applied := h.applied
	h.applied = nil
	again := map[string][]event{}
	for _, e := range applied {
		if survived[e] > 0 {
			survived[e]--
			h.applied = append(h.applied, e)
			continue
		}
		again[h.rangeOf(e.key)] = append(again[h.rangeOf(e.key)], e)
	}
	for _, r := range h.bounds {
		if len(again[r]) > 0 {
			h.granted[r] = append(again[r], h.granted[r]...)
			h.applyRange(r)
		}
	}
}

// count compares a span at a revision up to which all ranges are resolved.
func (h *historyTest) count(readable bool) {
	resolved := h.rev
	for _, list := range h.granted {
		resolved = min(resolved, list[0].rev-1)
	}
	rev := int64(newest)
	if readable && resolved >= h.forgotten {
		rev = h.forgotten + h.rng.Int64N(resolved-h.forgotten+1)
	}
	var start, end []byte
	if h.rng.IntN(4) > 0 {
		start = []byte(h.key())
	}
	if h.rng.IntN(4) > 0 {
		end = []byte(h.key())
	}
	h.compare(start, end, rev)
}

func (h *historyTest) compare(start, end []byte, rev int64) {
	h.t.Helper()
	scans := h.m.scans
	if got, want := mustCount(h.t, h.x, start, end, rev, h.m), h.m.count(start, end, rev); got != want {
		h.t.Fatalf("count of [%q, %q) at %d: %d, want %d", start, end, rev, got, want)
	}
	if len(h.x.mu.invalid) == 0 && h.m.scans > scans+2 {
		h.t.Fatalf("count of [%q, %q) at %d looked at the keys of %d runs", start, end, rev, h.m.scans-scans)
	}
}
