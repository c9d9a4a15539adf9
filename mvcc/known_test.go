package mvcc

import (
	"fmt"
	"hash/maphash"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

func TestKnownKeysAreNeverDenied(t *testing.T) {
	k := newKnown(0)
	k.answers.Store(true)
	const writers, each = 4, 100_000 // beyond two growths
	name := func(w, i int) []byte { return fmt.Appendf(nil, "/registry/pods/ns-%d/%07d", w, i) }
	var running sync.WaitGroup
	for w := range writers {
		running.Go(func() {
			for i := range each {
				k.add(name(w, i))
				if i%100 == 0 && k.never(name(w, i/2)) {
					t.Errorf("key %d of %d is denied", i/2, w)
				}
			}
		})
	}
	running.Wait()
	for w := range writers {
		for i := range each {
			if k.never(name(w, i)) {
				t.Fatalf("key %d of %d is denied", i, w)
			}
		}
	}
	if n := len(*k.filters.Load()); n < 2 {
		t.Errorf("%d filters: it never grew", n)
	}
	taken := 0
	for i := range each {
		if !k.never(name(writers, i)) {
			taken++
		}
	}
	if taken > each*5/100 {
		t.Errorf("%d of %d keys that never were are not denied", taken, each)
	}
}

// The low bits of a hash choose the probes, the high ones the block: all of them
// differ, or the filter would be worth less than its size.
func TestKnownFilterSpreadsItsProbes(t *testing.T) {
	f := newKeyFilter(minKnownKeys)
	seed := maphash.MakeSeed()
	for i := range minKnownKeys {
		f.add(maphash.String(seed, fmt.Sprint(i)))
	}
	wrong := 0
	for i := range minKnownKeys {
		if f.has(maphash.String(seed, fmt.Sprint("other", i))) {
			wrong++
		}
	}
	if wrong > minKnownKeys*2/100 {
		t.Errorf("%d of %d keys are wrongly known", wrong, minKnownKeys)
	}
}

// Until the walk has seen all that was in the engine before, nothing is denied;
// then what was there before, what came meanwhile and what was deleted is known.
func TestKnownKeysOfBeforeAreWalkedOver(t *testing.T) {
	h := newHistory(t)
	for i := range 100 {
		h.put(fmt.Sprintf("k\x00%02d", i), "v")
	}
	h.do(&Request{DeleteRange: &pb.DeleteRangeRequest{Key: []byte("k\x0050")}})
	reopened, err := Open(h.s.db, Options{})
	if err != nil {
		t.Fatal(err)
	}
	h.s = reopened
	h.s.known.restart() // so small a store is walked over by Open
	walk := func() (steps int) {
		t.Helper()
		for done := false; !done; steps++ {
			if h.s.known.never([]byte("absent")) {
				t.Fatal("denied before the walk has ended")
			}
			h.put(fmt.Sprintf("new %d", steps), "v")
			var err error
			if done, err = h.s.TendKnown(7); err != nil {
				t.Fatal(err)
			}
		}
		return steps
	}
	check := func(steps int) {
		t.Helper()
		for i := range 100 {
			if h.s.known.never(fmt.Appendf(nil, "k\x00%02d", i)) {
				t.Errorf("key %d is denied", i)
			}
		}
		for i := range steps {
			if h.s.known.never(fmt.Appendf(nil, "new %d", i)) {
				t.Errorf("new key %d is denied", i)
			}
		}
		if !h.s.known.never([]byte("absent")) {
			t.Error("what never was is not denied")
		}
	}
	steps := walk()
	if steps < 100/7 {
		t.Errorf("the walk ended after %d steps", steps)
	}
	check(steps)
	if done, err := h.s.TendKnown(1); !done || err != nil {
		t.Errorf("after the walk: %t, %v", done, err)
	}

	// Data that comes in by other means: silent until walked over again.
	b := h.s.db.NewBatch()
	if err := h.s.InvalidateCounts(b, []byte("x"), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := stageVersion(b, h.rev+1, &Effect{Key: []byte("y"), Version: 1}); err != nil {
		t.Fatal(err)
	}
	if err := b.Commit(pebble.Sync); err != nil {
		t.Fatal(err)
	}
	h.rev++
	if err := h.s.RebuildCounts([]byte("x"), nil); err != nil {
		t.Fatal(err)
	}
	check(walk())
	if h.s.known.never([]byte("y")) {
		t.Error("a key that came by other means is denied")
	}
}

func BenchmarkKnown(b *testing.B) {
	k := newKnown(0) // so that there are several filters to ask
	k.answers.Store(true)
	names := make([][]byte, benchKeys)
	for i := range names {
		names[i] = benchKey(i)
		k.add(names[i])
	}
	absent := make([][]byte, 100_000)
	for i := range absent {
		absent[i] = benchKey(benchKeys + i)
	}
	b.Run("never", func(b *testing.B) {
		b.ReportAllocs()
		for i := range b.N {
			k.never(absent[i*7919%len(absent)])
		}
	})
	b.Run("add", func(b *testing.B) {
		b.ReportAllocs()
		for i := range b.N {
			k.add(names[i*7919%len(names)])
		}
	})
}
