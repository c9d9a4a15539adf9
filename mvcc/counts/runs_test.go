package counts

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

func key(i int) []byte { return fmt.Appendf(nil, "/registry/pods/%08d", i) }

func TestHistoryAgreesWithAList(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		var h history
		type entry struct{ rev, delta int64 }
		var list []entry
		rev := int64(0)
		for range rng.IntN(300) {
			rev += rng.Int64N(3)
			if rev == 0 {
				rev = 1
			}
			d := int64(1 - 2*rng.IntN(2))
			h.add(rev, d)
			list = append(list, entry{rev, d})
		}
		after := func(r int64) (n int64) {
			for _, e := range list {
				if e.rev > r {
					n += e.delta
				}
			}
			return n
		}
		decoded, rest, ok := decodeHistory(h.appendTo(nil))
		if !ok || len(rest) > 0 {
			t.Fatal("history cannot be read back")
		}
		fold := rng.Int64N(rev + 1)
		folded, _ := h.folded(fold)
		for r := range rev + 2 {
			if got, want := h.after(r), after(r); got != want {
				t.Fatalf("after %d: %d, want %d", r, got, want)
			}
			if got, want := decoded.after(r), after(r); got != want {
				t.Fatalf("read back: after %d: %d, want %d", r, got, want)
			}
			if got, want := folded.after(r), after(r); r >= fold && got != want {
				t.Fatalf("folded to %d: after %d: %d, want %d", fold, r, got, want)
			}
		}
	}
}

func TestAscendingAndDescendingKeysFillRunsWithoutALookAtTheKeys(t *testing.T) {
	const n = 10_000
	for _, order := range []string{"ascending", "descending", "after a full run"} {
		x := New(Options{RunKeys: 100})
		for i := range n {
			k := i
			switch {
			case order == "descending", order == "after a full run" && i >= 100:
				k = n - i
			}
			if order == "after a full run" && i < 100 {
				k = -i - 1 // "-…" sorts before the digits
			}
			apply(t, x, nil, int64(i+1), Change{Key: key(k), Delta: 1})
		}
		x.check(t)
		s := x.Stats()
		if order == "ascending" && (s.Runs > n/100+1 || s.PendingSplits > 0) {
			t.Errorf("%s: %+v", order, s)
		}
		if s.Runs > n/50 {
			t.Errorf("%s: %d runs", order, s.Runs)
		}
	}
}

func TestRandomKeysAreSplitIntoRunsOfTheWantedSize(t *testing.T) {
	x, m := New(Options{RunKeys: 64}), newModel()
	rng := rand.New(rand.NewPCG(3, 3))
	for i, k := range rng.Perm(5000) {
		rev := int64(i + 1)
		apply(t, x, nil, rev, Change{Key: key(k), Delta: 1})
		m.add(string(key(k)), rev, 1)
		if i%50 == 0 {
			if err := x.Maintain(m, 100); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := x.Maintain(m, 100); err != nil {
		t.Fatal(err)
	}
	x.check(t)
	for _, p := range x.mu.pages {
		for _, r := range p.runs {
			if r.count > 64 {
				t.Errorf("run %q has %d keys", r.start, r.count)
			}
		}
	}
	if s := x.Stats(); s.Runs > 5000/20 {
		t.Errorf("%d runs for 5000 keys", s.Runs)
	}
}

func TestRunsOfDeadKeysAreMergedWhenTheyAreForgotten(t *testing.T) {
	x := New(Options{RunKeys: 50})
	rev := int64(0)
	for i := range 5000 {
		rev++
		apply(t, x, nil, rev, Change{Key: key(i), Delta: 1})
	}
	before := x.Stats().Runs
	for i := range 5000 {
		if i%100 != 0 {
			rev++
			apply(t, x, nil, rev, Change{Key: key(i), Delta: -1})
		}
	}
	x.Forget(rev)
	x.check(t)
	s := x.Stats()
	if before < 100 || s.Runs > 5 || s.HistoryBytes != 0 || s.LiveKeys != 50 {
		t.Fatalf("%d runs before, then %+v", before, s)
	}
}

func TestOneBusyKeyIsNotSplit(t *testing.T) {
	x, m := New(Options{RunKeys: 16}), newModel()
	for rev := int64(1); rev < 1000; rev++ {
		d := 1 - 2*int(1-rev%2)
		apply(t, x, nil, rev, Change{Key: []byte("k"), Delta: d})
		m.add("k", rev, int64(d))
		if x.NeedsMaintenance() {
			if err := x.Maintain(m, 1); err != nil {
				t.Fatal(err)
			}
		}
	}
	x.check(t)
	if s := x.Stats(); s.Runs > 2 {
		t.Errorf("%d runs for one key", s.Runs)
	}
}

func TestSplitWaitsForTheCommitOfWhatWasApplied(t *testing.T) {
	x, m := New(Options{RunKeys: 10}), newModel()
	for i := range 10 {
		apply(t, x, nil, int64(i+1), Change{Key: key(2 * i), Delta: 1})
		m.add(string(key(2*i)), int64(i+1), 1)
	}
	// Not committed: two changes that together change no count.
	apply(t, x, nil, 11, Change{Key: key(1), Delta: 1}, Change{Key: key(18), Delta: -1})
	if err := x.Maintain(m, 1); err != nil {
		t.Fatal(err)
	}
	b := new(pebble.Batch)
	if err := x.EnsureBoundary(b, key(5), m); !errors.Is(err, ErrUnsettled) {
		t.Fatalf("boundary in a run with uncommitted changes: %v", err)
	}
	if s := x.Stats(); s.Runs != 1 {
		t.Fatalf("%d runs", s.Runs)
	}
	m.add(string(key(1)), 11, 1)
	m.add(string(key(18)), 11, -1)
	if err := x.EnsureBoundary(b, key(5), m); err != nil {
		t.Fatal(err)
	}
	x.check(t)
	for rev := range int64(12) {
		for _, i := range []int{1, 5, 6} {
			if got, want := mustCount(t, x, nil, key(i), rev, m), m.count(nil, key(i), rev); got != want {
				t.Errorf("below %d at %d: %d, want %d", i, rev, got, want)
			}
		}
	}
}

func TestMergeKeepsBoundaries(t *testing.T) {
	x, m := New(Options{}), newModel()
	b := new(pebble.Batch)
	for i := range 10 {
		if err := x.EnsureBoundary(b, key(i), m); err != nil {
			t.Fatal(err)
		}
	}
	x.Forget(1)
	if s := x.Stats(); s.Runs != 11 {
		t.Fatalf("%d runs", s.Runs)
	}
	for i := range 9 {
		if err := x.ReleaseBoundary(b, key(i)); err != nil {
			t.Fatal(err)
		}
	}
	x.Forget(2)
	x.check(t)
	if s := x.Stats(); s.Runs != 2 {
		t.Fatalf("%d runs", s.Runs)
	}
}

// A boundary inside of a run takes a look at the keys, which may have been taken
// before: then nobody waits for it while the split is applied.
func TestACutRunIsNotLookedAtForItsBoundary(t *testing.T) {
	x, m := New(Options{RunKeys: 100}), newModel()
	for i := range 50 {
		apply(t, x, nil, int64(i+1), Change{Key: key(i), Delta: 1})
		m.add(string(key(i)), int64(i+1), 1)
	}
	e := openEngine(t, vfs.NewMem())
	defer func() { _ = e.db.Close() }()
	b := e.db.NewBatch()
	defer func() { _ = b.Close() }()
	if err := x.EnsureBoundary(b, key(20), failing{}); !errors.Is(err, errScan) {
		t.Fatalf("a boundary in a whole run: %v", err)
	}
	if err := x.Cut(key(20), m); err != nil {
		t.Fatal(err)
	}
	if x.isBoundary(key(20)) {
		t.Error("a cut makes no boundary")
	}
	for range 2 { // again it has nothing to do
		if err := x.Cut(key(20), failing{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, none := range [][]byte{key(0), key(100), []byte("a")} { // no key is on one of the sides
		if err := x.Cut(none, failing{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.EnsureBoundary(b, key(20), failing{}); err != nil || !x.isBoundary(key(20)) {
		t.Fatalf("a boundary at a cut: %v", err)
	}
	x.check(t)
	if got := mustCount(t, x, key(10), key(30), 50, m); got != 20 {
		t.Errorf("count %d", got)
	}
}

func TestFailedScanChangesNothing(t *testing.T) {
	x, m := New(Options{RunKeys: 4}), newModel()
	for i := range 8 {
		k := key((i * 5) % 8)
		apply(t, x, nil, int64(i+1), Change{Key: k, Delta: 1})
		m.add(string(k), int64(i+1), 1)
	}
	if err := x.Maintain(failing{}, 1); !errors.Is(err, errScan) {
		t.Fatalf("maintain: %v", err)
	}
	if _, err := x.Count(key(1), key(3), 8, failing{}); !errors.Is(err, errScan) {
		t.Fatalf("count: %v", err)
	}
	if err := x.Maintain(m, 10); err != nil {
		t.Fatal(err)
	}
	x.check(t)
	if got := mustCount(t, x, key(1), key(3), 8, m); got != 2 {
		t.Fatalf("count: %d", got)
	}
}

func TestChangesThatCannotBeAreRefused(t *testing.T) {
	for name, f := range map[string]func(x *Index){
		"older revision in a run": func(x *Index) { _ = x.Apply(nil, 4, []Change{{Key: key(2), Delta: 1}}) },
		"more deletions than keys": func(x *Index) {
			_ = x.Apply(nil, 6, []Change{{Key: key(1), Delta: -1}, {Key: key(1), Delta: -1}})
		},
		"change of two": func(x *Index) { _ = x.Apply(nil, 6, []Change{{Key: key(1), Delta: 2}}) },
	} {
		t.Run(name, func(t *testing.T) {
			x := New(Options{})
			apply(t, x, nil, 5, Change{Key: key(1), Delta: 1})
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			f(x)
		})
	}
}

func TestCountsAndChangesOfOtherRangesMayRunTogether(t *testing.T) {
	const workers, perWorker = 4, 2000
	x := New(Options{RunKeys: 32})
	b := new(pebble.Batch)
	m := newModel() // is not written while the workers run
	for w := range workers {
		if err := x.EnsureBoundary(b, key(w*perWorker), m); err != nil {
			t.Fatal(err)
		}
	}
	e := openEngine(t, vfs.NewMem())
	defer func() { _ = e.db.Close() }()
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			batch := new(pebble.Batch)
			for i := range perWorker {
				rev := int64(1 + i*workers + w)
				if err := x.Apply(batch, rev, []Change{{Key: key(w*perWorker + i), Delta: 1}}); err != nil {
					t.Error(err)
				}
				if i%2 == 1 {
					if err := x.Apply(batch, rev, []Change{{Key: key(w*perWorker + i), Delta: -1}}); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Go(func() {
		for i := range 100 {
			if _, err := x.Count(nil, nil, int64(i), m); err != nil && !errors.Is(err, ErrForgotten) {
				t.Error(err)
			}
			x.Forget(int64(i))
			_ = x.Maintain(m, 1)
			ck := e.db.NewBatch()
			if err := x.Checkpoint(ck, 0, func() error { return ck.Commit(pebble.NoSync) }); err != nil {
				t.Error(err)
			}
			_ = ck.Close()
		}
	})
	wg.Wait()
	x.check(t)
	if got := mustCount(t, x, nil, nil, newest, m); got != workers*perWorker/2 {
		t.Fatalf("%d keys", got)
	}
}

// FuzzDecodeRun feeds decodeRun: damage is an error.
func FuzzDecodeRun(f *testing.F) {
	r := &run{asOf: 300, count: 4, minKey: []byte("a"), maxKey: []byte("b"), anchor: 7}
	r.hist.add(3, 2)
	r.hist.add(300, -1)
	f.Add([]byte("a"), r.appendTo(nil))
	f.Add([]byte(""), (&run{boundary: true}).appendTo(nil))
	f.Add([]byte("x"), []byte{1, 0, 0, 0, 0, 0, 1, 1, 1, 1})
	f.Fuzz(func(t *testing.T, start, row []byte) {
		r, err := decodeRun(start, row)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		again, err := decodeRun(start, r.appendTo(nil))
		if err != nil || again.count != r.count || !again.hist.equal(&r.hist) {
			t.Fatalf("%x: %v", row, err)
		}
	})
}

func TestDamagedCheckpointIsAnError(t *testing.T) {
	good := (&run{asOf: 5, count: 0}).appendTo(nil)
	for name, rows := range map[string]map[string][]byte{
		"newer format":         {string(runKey(nil)): append([]byte{2}, good[1:]...)},
		"first run is missing": {string(runKey([]byte("a"))): good},
		"rest of a row":        {string(runKey(nil)): append(good[:len(good):len(good)], 0)},
		"floor without runs":   {"\x06counts.floor": {1, 7}},
		"floor":                {string(runKey(nil)): good, "\x06counts.floor": {1}},
		"late revision":        {"\x06counts.late.xyz": {1}},
		"late format":          {string(lateKey(7, nil)): {2}},
		"invalid span":         {"\x06counts.invalid.\x05ab": {1}},
	} {
		t.Run(name, func(t *testing.T) {
			e := openEngine(t, vfs.NewMem())
			defer func() { _ = e.db.Close() }()
			for k, v := range rows {
				if err := e.db.Set([]byte(k), v, pebble.NoSync); err != nil {
					t.Fatal(err)
				}
			}
			if _, _, err := Load(e.db, 0, Options{}); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("load: %v", err)
			}
		})
	}
}

// big returns an index of n keys, created one by one in ascending order, and the
// bytes of memory it holds.
func big(b *testing.B, n int, forget bool) (*Index, int64) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	x := New(Options{})
	k := make([]byte, 0, 64)
	for i := range n {
		k = fmt.Appendf(k[:0], "/registry/pods/%08d", i)
		if err := x.Apply(nil, int64(i+1), []Change{{Key: k, Delta: 1}}); err != nil {
			b.Fatal(err)
		}
	}
	if forget {
		x.Forget(int64(n))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	return x, int64(after.HeapAlloc) - int64(before.HeapAlloc)
}

func BenchmarkCountOfTwoMillionKeys(b *testing.B) {
	const n = 2_000_000
	for _, c := range []struct {
		name   string
		rev    int64
		forget bool
	}{{"now", newest, false}, {"half of history ago", n / 2, false}, {"forgotten", newest, true}} {
		b.Run(c.name, func(b *testing.B) {
			x, size := big(b, n, c.forget)
			for b.Loop() {
				if _, err := x.Count(nil, nil, c.rev, failing{}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(size)/n, "heapB/key")
			b.ReportMetric(float64(x.Stats().Runs), "runs")
		})
	}
}

func BenchmarkCountOfHotKeyspace(b *testing.B) {
	// Every run changed after the revision.
	const n = 2_000_000
	x, _ := big(b, n, true)
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range 500_000 {
		if err := x.Apply(nil, int64(n+i+1), []Change{{Key: append(key(rng.IntN(n)), 'x'), Delta: 1}}); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if _, err := x.Count(nil, nil, n+100_000, failing{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkApply(b *testing.B) {
	const n = 2_000_000
	for _, order := range []string{"ascending", "random"} {
		b.Run(order, func(b *testing.B) {
			x, _ := big(b, n, true)
			rng := rand.New(rand.NewPCG(1, 1))
			list := make([][]byte, 1<<16)
			for i := range list {
				list[i] = key(rng.IntN(n))
				if order == "ascending" {
					list[i] = key(i)
				}
				list[i] = append(list[i], 'y')
			}
			changes := make([]Change, 1)
			rev, i := int64(n), 0
			for b.Loop() {
				rev++
				changes[0] = Change{Key: list[i>>1&(1<<16-1)], Delta: 1 - 2*(i&1)}
				i++
				if err := x.Apply(nil, rev, changes); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestNotedBoundaryIsMadeAfterACrash(t *testing.T) {
	e := openEngine(t, vfs.NewMem())
	defer func() { _ = e.db.Close() }()
	m := newModel()
	x := New(Options{})
	put := func(x *Index, b *pebble.Batch, k string, rev int64) {
		apply(t, x, b, rev, Change{Key: []byte(k), Delta: 1})
		if m.keys[k] == nil {
			m.add(k, rev, 1)
		}
	}
	b := e.db.NewBatch()
	put(x, b, "a", 1)
	put(x, b, "z", 2)
	e.checkpoint(t, x, 2, false) // one run, which knows nothing of the ranges to be
	if err := x.EnsureBoundary(b, []byte("m"), m); err != nil {
		t.Fatal(err)
	}
	// The left range is ahead; what the right one applied before it is lost in
	// the crash, and comes again.
	put(x, b, "b", 50)
	if err := b.Commit(pebble.NoSync); err != nil {
		t.Fatal(err)
	}
	for life := range 2 {
		loaded, from, err := Load(e.db, 0, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if life == 0 {
			if from != 3 {
				t.Fatalf("replay from %d", from)
			}
			put(loaded, nil, "b", 50)
		}
		b := e.db.NewBatch()
		if err := loaded.Recover(b, m); err != nil {
			t.Fatal(err)
		}
		if err := b.Commit(pebble.NoSync); err != nil {
			t.Fatal(err)
		}
		e.checkpoint(t, loaded, 50, false)
		x = loaded
	}
	put(x, e.db.NewBatch(), "y", 40)
	x.check(t)
	for rev, want := range map[int64]int64{39: 2, 40: 3, 49: 3, 50: 4} {
		if got := mustCount(t, x, nil, nil, rev, m); got != want {
			t.Errorf("at %d: %d, want %d", rev, got, want)
		}
	}
}
