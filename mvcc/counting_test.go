package mvcc

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hawser-kv/hawser/mvcc/counts"
)

func TestHistoryOfKeysFollowsCreationsAndDeletions(t *testing.T) {
	for seed := range uint64(5) {
		h := newCompactionTest(t, seed)
		for range 400 {
			h.write()
		}
		for _, after := range []int64{0, 1, 50, 200, h.rev - 1, h.rev} {
			type change struct {
				rev   int64
				delta int
			}
			got := map[string][]change{}
			var order []string
			err := keyScanner{h.s}.History([]byte("k05"), []byte("k30"), after, func(key []byte, rev int64, delta int) error {
				if got[string(key)] == nil {
					order = append(order, string(key))
				}
				got[string(key)] = append(got[string(key)], change{rev, delta})
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.IsSorted(order) {
				t.Fatalf("keys in the order %q", order)
			}
			for key, list := range h.versions {
				if key < "k05" || key >= "k30" {
					continue
				}
				var want []change
				if at(list, after) != nil {
					want = append(want, change{after, +1})
				}
				live := false
				for _, v := range list {
					if was := live; was != (v.kv != nil) {
						live = !was
						if v.rev > after {
							want = append(want, change{v.rev, map[bool]int{true: +1, false: -1}[live]})
						}
					}
				}
				slices.Reverse(want)
				if !slices.Equal(got[key], want) {
					t.Fatalf("history of %q after %d: %v, want %v", key, after, got[key], want)
				}
			}
		}
	}
}

// applied applies effects as one revision and commits.
func applied(t testing.TB, s *Store, rev int64, effs ...Effect) {
	t.Helper()
	b := s.db.NewBatch()
	if err := s.Apply(b, rev, effs); err != nil {
		t.Fatal(err)
	}
	if err := b.Commit(pebble.NoSync); err != nil {
		t.Fatal(err)
	}
}

func liveKeys(t testing.TB, s *Store, start, end []byte) int64 {
	t.Helper()
	n, err := s.Latest().Count(start, end)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// replayFrom returns where a start would begin to replay.
func replayFrom(t testing.TB, s *Store) int64 {
	t.Helper()
	_, from, err := counts.Load(s.db, s.Forgotten(), counts.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return from
}

func TestReplayAtAStartIsBounded(t *testing.T) {
	fs := vfs.NewMem()
	db, s := openStore(t, fs, Options{})
	const perRevision, revisions = 100, 3 * minCheckpointEvents / 100
	// Few creations, so the events themselves have to count.
	effs := make([]Effect, perRevision)
	for rev := int64(2); rev < revisions; rev++ {
		for i := range effs {
			effs[i] = Effect{Key: fmt.Appendf(nil, "k%03d", i), Sub: uint32(i), Version: rev - 1}
			if rev > 2 {
				effs[i].CreateRevision = 2
			}
		}
		applied(t, s, rev, effs...)
	}
	if left := (revisions - replayFrom(t, s)) * perRevision; left > minCheckpointEvents+2*checkEvery {
		t.Errorf("%d events would be replayed", left)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if from := replayFrom(t, s); from != revisions {
		t.Errorf("after a clean end a replay begins at %d, the newest revision is %d", from, revisions-1)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db, s = openStore(t, fs, Options{})
	if n := liveKeys(t, s, nil, nil); n != perRevision {
		t.Errorf("%d keys", n)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestRunsAreSplitAsKeysCome(t *testing.T) {
	s := newStore(t)
	rng := rand.New(rand.NewPCG(1, 1))
	const n = 20_000
	for i, k := range rng.Perm(n) {
		applied(t, s, int64(i+2), Effect{Key: benchKey(k), Version: 1})
	}
	st := s.counts.Stats()
	if st.LiveKeys != n || st.PendingSplits > 2 || st.Runs < n/counts.DefaultRunKeys {
		t.Errorf("%+v", st)
	}
	for range 20 {
		start, end := benchKey(rng.IntN(n)), benchKey(rng.IntN(n))
		want := int64(0)
		for i := range n {
			if k := string(benchKey(i)); k >= string(start) && k < string(end) {
				want++
			}
		}
		if got := liveKeys(t, s, start, end); got != want {
			t.Fatalf("[%s, %s): %d, want %d", start, end, got, want)
		}
	}
}

func TestReplacedSpanIsCountedAnew(t *testing.T) {
	for _, crash := range []bool{false, true} {
		t.Run(fmt.Sprintf("crash=%t", crash), func(t *testing.T) {
			fs := vfs.NewCrashableMem()
			db, s := openStore(t, fs, Options{})
			boundary := []byte("m")
			b := db.NewBatch()
			if err := s.EnsureBoundary(b, boundary); err != nil {
				t.Fatal(err)
			}
			if err := b.Commit(pebble.NoSync); err != nil {
				t.Fatal(err)
			}
			for i := range 10 {
				applied(t, s, int64(i+2), Effect{Key: fmt.Append(nil, "a", i), Version: 1}, Effect{Key: fmt.Append(nil, "z", i), Sub: 1, Version: 1})
			}
			if err := s.Close(); err != nil { // for the checkpoint
				t.Fatal(err)
			}

			b = db.NewBatch()
			if err := s.InvalidateCounts(b, boundary, nil); err != nil {
				t.Fatal(err)
			}
			if err := b.Commit(pebble.Sync); err != nil {
				t.Fatal(err)
			}
			// The new data: one key.
			b = db.NewBatch()
			lower, upper := VersionSpan(boundary, nil)
			if err := b.DeleteRange(lower, upper, nil); err != nil {
				t.Fatal(err)
			}
			if _, err := stageVersion(b, 12, &Effect{Key: []byte("y"), Version: 1}); err != nil {
				t.Fatal(err)
			}
			if err := b.Commit(pebble.Sync); err != nil {
				t.Fatal(err)
			}
			if got := liveKeys(t, s, nil, nil); got != 11 {
				t.Errorf("%d keys while the span is replaced", got)
			}
			if crash {
				fs = fs.CrashClone(vfs.CrashCloneCfg{})
				if err := db.Close(); err != nil {
					t.Fatal(err)
				}
				db, s = openStore(t, fs, Options{})
			} else if err := s.RebuildCounts(boundary, nil); err != nil {
				t.Fatal(err)
			}
			if a, z := liveKeys(t, s, nil, boundary), liveKeys(t, s, boundary, nil); a != 10 || z != 1 {
				t.Errorf("%d and %d keys", a, z)
			}
			applied(t, s, 13, Effect{Key: []byte("y"), Tombstone: true})
			if got := liveKeys(t, s, nil, nil); got != 10 {
				t.Errorf("%d keys", got)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// fullSizeStore is a store on an engine as a node has it, in memory.
func fullSizeStore(b *testing.B) *Store {
	opts := EngineOptions(vfs.NewMem())
	opts.Logger = quietLogger{b}
	db, err := pebble.Open("db", opts)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = db.Close() })
	s, err := Open(db, Options{})
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// BenchmarkHistoryOfHotKeys looks at a run whose keys have very many versions.
func BenchmarkHistoryOfHotKeys(b *testing.B) {
	s := fullSizeStore(b)
	const n, versions = 100, 1000
	for v := range int64(versions) {
		batch := s.db.NewBatch()
		for i := range n {
			e := Effect{Key: benchKey(i), Version: v + 1, CreateRevision: int64(2 + i)}
			if err := s.Apply(batch, 2+v*n+int64(i), []Effect{e}); err != nil {
				b.Fatal(err)
			}
		}
		if err := batch.Commit(pebble.NoSync); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.db.Flush(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := (keyScanner{s}).History(nil, nil, 1, func([]byte, int64, int) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/key")
}
