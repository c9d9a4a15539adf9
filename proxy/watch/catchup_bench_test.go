//go:build unix

package watch

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// BenchmarkCatchUp has watchers read 100,000 revisions of 1,000 keys from the
// first on, out of a store in memory: watchers of single keys, watchers of
// prefixes of ten keys, and both. It reports the CPU time of the process, as
// whoever shares the machine does not count.
func BenchmarkCatchUp(b *testing.B) {
	const revisions, prefixes, keysOfEach, streams = 100_000, 100, 10, 10
	key := func(i int) []byte {
		return fmt.Appendf(nil, "/registry/pods/ns-%03d/pod-%d", i/keysOfEach, i%keysOfEach)
	}
	store := catchUpStore(b, revisions, prefixes*keysOfEach, key)
	for _, ranges := range []int{1, 64} {
		for _, of := range []struct{ single, prefix int }{{1, 0}, {1000, 0}, {10_000, 0}, {0, 100}, {1000, 100}} {
			b.Run(fmt.Sprintf("ranges=%d/keys=%d/prefixes=%d", ranges, of.single, of.prefix), func(b *testing.B) {
				first := &placementpb.Cut{Revision: revisions + 1, First: true}
				for i := range ranges {
					d := &rangepb.RangeDescriptor{RangeId: uint64(i + 1)}
					if i > 0 {
						d.Start = key(i * prefixes * keysOfEach / ranges)
					}
					if i < ranges-1 {
						d.End = key((i + 1) * prefixes * keysOfEach / ranges)
					}
					first.Descriptors = append(first.Descriptors, d)
				}
				want := of.single*revisions/(prefixes*keysOfEach) + of.prefix*revisions/prefixes
				start := cpuTime(b)
				for b.Loop() {
					f := NewFrontier()
					h := NewHub(f, Limits{})
					h.Loaded(revisions + 1)
					f.Cut(first)
					h.Step()
					var open []*Stream
					for range streams {
						open = append(open, h.NewStream(func() {}))
					}
					for i := range of.single {
						open[i%streams].Create(CreateRequest{Start: key(i % (prefixes * keysOfEach)), StartRevision: 2, Current: revisions + 1})
					}
					for i := range of.prefix {
						prefix := fmt.Appendf(nil, "/registry/pods/ns-%03d/", i)
						open[i%streams].Create(CreateRequest{Start: prefix, End: prefixEnd(prefix), StartRevision: 2, Current: revisions + 1})
					}
					got := 0
					for {
						task, ok := h.NextTask()
						if !ok {
							break
						}
						h.TaskDone(task, task.Run(store))
						for _, s := range open {
							for _, r := range s.Take() {
								got += r.NumEvents()
							}
							s.Drained()
						}
					}
					if got != want {
						b.Fatalf("%d events, want %d", got, want)
					}
				}
				b.ReportMetric((cpuTime(b)-start)/float64(b.N), "cpu-ms/op")
			})
		}
	}
}

// catchUpStore has written to keys in any order, each as often as any other.
func catchUpStore(b *testing.B, revisions, keys int, key func(int) []byte) *mvcc.Store {
	opts := mvcc.EngineOptions(vfs.NewMem())
	opts.CacheSize = 256 << 20
	opts.Logger = benchLogger{b}
	db, err := pebble.Open("db", opts)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = db.Close() })
	store, err := mvcc.Open(db, mvcc.Options{})
	if err != nil {
		b.Fatal(err)
	}
	order := make([]int, revisions)
	for i := range order {
		order[i] = i % keys
	}
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	created, versions := make([]int64, keys), make([]int64, keys)
	batch := db.NewBatch()
	for n, i := range order {
		rev := int64(n) + 2
		versions[i]++
		if err := store.Apply(batch, rev, []mvcc.Effect{{Key: key(i), Value: make([]byte, 256), Version: versions[i], CreateRevision: created[i]}}); err != nil {
			b.Fatal(err)
		}
		if created[i] == 0 {
			created[i] = rev
		}
		if batch.Count() > 1000 || n == len(order)-1 {
			if err := batch.Commit(pebble.NoSync); err != nil {
				b.Fatal(err)
			}
			batch = db.NewBatch()
		}
	}
	if err := db.Compact(b.Context(), []byte{0}, []byte{0xff}, false); err != nil {
		b.Fatal(err)
	}
	return store
}

// benchLogger has nothing of the engine's in the figures but what ends them.
type benchLogger struct{ *testing.B }

func (benchLogger) Infof(string, ...any)        {}
func (l benchLogger) Errorf(f string, a ...any) { l.B.Errorf(f, a...) }

// cpuTime is the CPU time of the process, in milliseconds.
func cpuTime(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e6
}
