package mvcc

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

const benchKeys = 1_000_000

func benchKey(i int) []byte { return fmt.Appendf(nil, "/registry/pods/ns-%03d/pod-%07d", i%500, i) }

// bench is a store of a million keys, a tenth of them with a second version; in
// memory, flushed and compacted but for the last tenth.
var bench struct {
	once sync.Once
	db   *pebble.DB
	s    *Store
	rev  int64
}

func benchStore(b *testing.B) *Store {
	b.Helper()
	bench.once.Do(func() {
		opts := EngineOptions(vfs.NewMem())
		opts.Logger = quietLogger{b}
		opts.CacheSize = 512 << 20
		db, err := pebble.Open("db", opts)
		if err != nil {
			b.Fatal(err)
		}
		s, err := Open(db, Options{})
		if err != nil {
			b.Fatal(err)
		}
		value := make([]byte, 256)
		rng := rand.New(rand.NewPCG(1, 1))
		for i := range value {
			value[i] = byte('a' + rng.IntN(16))
		}
		rev := int64(1)
		batch := db.NewBatch()
		put := func(i int, version int64, create int64) {
			rev++
			if err := s.Apply(batch, rev, []Effect{{Key: benchKey(i), Value: value, Version: version, CreateRevision: create}}); err != nil {
				b.Fatal(err)
			}
			if batch.Count() > 1000 {
				if err := batch.Commit(pebble.NoSync); err != nil {
					b.Fatal(err)
				}
				batch = db.NewBatch()
			}
		}
		perm := rng.Perm(benchKeys)
		for n, i := range perm {
			put(i, 1, 0)
			if n == benchKeys*9/10 {
				if err := db.Compact(b.Context(), []byte{0}, []byte{0xff}, false); err != nil {
					b.Fatal(err)
				}
			}
		}
		for n, i := range perm[:benchKeys/10] {
			put(i, 2, int64(n)+2)
		}
		if err := batch.Commit(pebble.NoSync); err != nil {
			b.Fatal(err)
		}
		for s.counts.NeedsMaintenance() {
			if err := s.counts.Maintain(keyScanner{s}, 1000); err != nil {
				b.Fatal(err)
			}
		}
		for m := db.Metrics(); m.Compact.NumInProgress+m.Flush.NumInProgress > 0 || m.Compact.EstimatedDebt > 0; m = db.Metrics() {
			runtime.Gosched()
		}
		runtime.GC()
		bench.db, bench.s, bench.rev = db, s, rev
	})
	return bench.s
}

// benchViews are the ways a leader may look at the newest state.
func benchViews(b *testing.B, run func(b *testing.B, v View)) {
	s := benchStore(b)
	b.Run("latest", func(b *testing.B) { run(b, s.Latest()) })
	b.Run("snapshot", func(b *testing.B) {
		n, err := s.Snapshot(latestRevision)
		if err != nil {
			b.Fatal(err)
		}
		defer n.Close()
		run(b, n)
	})
}

func BenchmarkGet(b *testing.B) {
	benchViews(b, func(b *testing.B, v View) {
		rng := rand.New(rand.NewPCG(2, 2))
		b.ReportAllocs()
		for b.Loop() {
			kv, err := v.Get(benchKey(rng.IntN(benchKeys)))
			if err != nil || kv == nil {
				b.Fatal(kv, err)
			}
		}
	})
}

func benchmarkEvaluatePut(b *testing.B, v View, key func(i int) []byte) {
	o := NewOverlay()
	rng := rand.New(rand.NewPCG(3, 3))
	value := make([]byte, 256)
	b.ReportAllocs()
	for b.Loop() {
		r := &Request{Put: &pb.PutRequest{Key: key(rng.IntN(benchKeys)), Value: value}}
		if _, err := Evaluate(o.Over(v), r, Env{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEvaluatePut(b *testing.B) {
	for name, key := range map[string]func(int) []byte{
		"old": benchKey,
		"new": func(i int) []byte { return append(benchKey(i), 'x') },
	} {
		b.Run(name, func(b *testing.B) {
			benchViews(b, func(b *testing.B, v View) { benchmarkEvaluatePut(b, v, key) })
		})
	}
}

// BenchmarkEvaluateTxn is the update of Kubernetes: compare the mod revision,
// put, or else get.
func BenchmarkEvaluateTxn(b *testing.B) {
	benchViews(b, func(b *testing.B, v View) {
		o := NewOverlay()
		rng := rand.New(rand.NewPCG(3, 3))
		value := make([]byte, 256)
		b.ReportAllocs()
		for b.Loop() {
			key := benchKey(rng.IntN(benchKeys))
			r := &Request{Txn: &pb.TxnRequest{
				Compare: []*pb.Compare{{Key: key, Target: pb.Compare_MOD, Result: pb.Compare_GREATER, TargetUnion: &pb.Compare_ModRevision{ModRevision: 1}}},
				Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: key, Value: value}}}},
				Failure: []*pb.RequestOp{{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: key}}}},
			}}
			if _, err := Evaluate(o.Over(v), r, Env{}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func benchmarkApply(b *testing.B, version int64) {
	s := newStore(b)
	value := make([]byte, 256)
	rng := rand.New(rand.NewPCG(4, 4))
	batch := s.db.NewBatch()
	rev := int64(1)
	b.ReportAllocs()
	for b.Loop() {
		rev++
		i := int(rev)
		if version > 1 {
			i = rng.IntN(benchKeys)
		}
		eff := [1]Effect{{Key: benchKey(i), Value: value, Version: version, CreateRevision: 0}}
		if err := s.Apply(batch, rev, eff[:]); err != nil {
			b.Fatal(err)
		}
		if batch.Count() >= 200 {
			b.StopTimer() // the engine's part is not ours to measure
			batch.Reset()
			b.StartTimer()
		}
	}
}

func BenchmarkApply(b *testing.B) {
	b.Run("create", func(b *testing.B) { benchmarkApply(b, 1) })
	b.Run("update", func(b *testing.B) { benchmarkApply(b, 2) })
}

// BenchmarkApplyAnyOrder is what new keys cost that come in no order, committed
// in batches of 64, so that the runs of their counts must be cut by a look at
// the keys. An iteration is 100,000 keys.
func BenchmarkApplyAnyOrder(b *testing.B) {
	const keys = 100_000
	value := make([]byte, 256)
	for b.Loop() {
		b.StopTimer()
		s := newStore(b)
		perm := rand.New(rand.NewPCG(5, 5)).Perm(keys)
		b.StartTimer()
		batch := s.db.NewBatch()
		for n, i := range perm {
			if err := s.Apply(batch, int64(n+2), []Effect{{Key: benchKey(i), Value: value, Version: 1}}); err != nil {
				b.Fatal(err)
			}
			if batch.Count() < 64 {
				continue
			}
			if err := batch.Commit(pebble.NoSync); err != nil {
				b.Fatal(err)
			}
			batch.Reset()
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/keys, "ns/key")
}

// BenchmarkCompaction removes ten versions of each of 50,000 keys, written in no
// order, with events that name their prior and with such that do not.
func BenchmarkCompaction(b *testing.B) {
	const keys, versions = 50_000, 10
	for _, named := range []bool{true, false} {
		b.Run(fmt.Sprintf("named=%t", named), func(b *testing.B) {
			value := make([]byte, 256)
			for b.Loop() {
				b.StopTimer()
				s := fullSizeStore(b)
				rng := rand.New(rand.NewPCG(6, 6))
				batch := s.db.NewBatch()
				last := make([]int64, keys)
				rev := int64(1)
				for n := range keys * versions {
					i := n // first all keys, in order: the counts have nothing to look up
					if n >= keys {
						i = rng.IntN(keys)
					}
					rev++
					e := Effect{Key: benchKey(i), Value: value, Version: 1}
					if last[i] > 0 {
						e.Version = 2
						if named {
							e.Prior.Revision = last[i]
						}
					}
					last[i] = rev
					if err := s.Apply(batch, rev, []Effect{e}); err != nil {
						b.Fatal(err)
					}
					if batch.Count() < 1000 {
						continue
					}
					if err := batch.Commit(pebble.NoSync); err != nil {
						b.Fatal(err)
					}
					batch = s.db.NewBatch()
				}
				if err := batch.Commit(pebble.NoSync); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				compact(b, s, rev, 1000)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/keys/versions, "ns/event")
		})
	}
}

func BenchmarkScan(b *testing.B) {
	for _, keysOnly := range []bool{false, true} {
		b.Run(fmt.Sprintf("keysOnly=%t", keysOnly), func(b *testing.B) {
			benchViews(b, func(b *testing.B, v View) {
				rng := rand.New(rand.NewPCG(5, 5))
				rows := 0
				b.ReportAllocs()
				for b.Loop() {
					left := 500
					err := v.Scan(benchKey(rng.IntN(benchKeys)), nil, ScanOptions{KeysOnly: keysOnly}, func(*mvccpb.KeyValue) (bool, error) {
						rows++
						left--
						return left > 0, nil
					})
					if err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(rows)/b.Elapsed().Seconds(), "rows/s")
			})
		})
	}
}

// BenchmarkListPage is a page of a paged list, with its count.
func BenchmarkListPage(b *testing.B) {
	s := benchStore(b)
	rng := rand.New(rand.NewPCG(6, 6))
	b.ReportAllocs()
	for b.Loop() {
		n, err := s.Snapshot(bench.rev)
		if err != nil {
			b.Fatal(err)
		}
		resp, err := EvaluateRange(n, &pb.RangeRequest{Key: benchKey(rng.IntN(benchKeys)), RangeEnd: []byte{0}, Limit: 500}, nil)
		if err != nil {
			b.Fatal(err)
		}
		_ = resp
		if err := n.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
