package raftgroup

import (
	"bytes"
	"fmt"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hawser-kv/hawser/range/raftlog"
)

// counter is the cheapest machine.
type counter struct{ n uint64 }

func (c *counter) Apply(*pebble.Batch, uint64, uint64, []byte) error { c.n++; return nil }
func (c *counter) AppliedState(dst []byte) []byte                    { return append(dst, "12345678"...) }

// BenchmarkSoleVoter is a proposal's whole way through a group with one voter:
// propose, append, durable, apply. Every round proposes once to each group, and
// all groups share the two batches of a round. ns/op is per proposal and group.
func BenchmarkSoleVoter(b *testing.B) {
	for _, groups := range []int{1, 1000} {
		for _, size := range []int{100, 16 << 10} {
			b.Run(fmt.Sprintf("groups=%d/bytes=%d", groups, size), func(b *testing.B) {
				db := openDB(b, vfs.NewMem())
				defer db.Close()
				var all []*Group
				for id := range uint64(groups) {
					begin(b, db, id, 1)
					l, err := raftlog.Load(db, id)
					must(b, err)
					g, err := New(Config{ID: id, ReplicaID: 1, Log: l, Machine: &counter{}})
					must(b, err)
					settle(b, db, g)
					all = append(all, g)
				}
				data := bytes.Repeat([]byte("x"), size)
				works := make([]Work, groups)
				b.ReportAllocs()
				b.ResetTimer()
				cpu := cpuTime()
				for i := 0; i < b.N; i += groups {
					batch := db.NewBatch()
					for i, g := range all {
						check(g.Propose(data))
						w, err := g.Ready(batch)
						check(err)
						works[i] = w
					}
					check(batch.Close()) // the engine is not what is measured
					batch = db.NewBatch()
					for i, g := range all {
						_, err := g.Durable(works[i])
						check(err)
						if w, err := g.Ready(batch); err != nil || !w.Applied {
							b.Fatal(w, err)
						}
					}
					check(batch.Close())
				}
				b.ReportMetric(float64(cpuTime()-cpu)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

// BenchmarkTick is what an active group without work costs per tick.
func BenchmarkTick(b *testing.B) {
	db := openDB(b, vfs.NewMem())
	defer db.Close()
	begin(b, db, 1, 1)
	g, _ := load(b, db, 1, 1)
	settle(b, db, g)
	b.ReportAllocs()
	for b.Loop() {
		check(g.Tick())
		if g.HasReady() {
			b.Fatal("work")
		}
	}
}

// check is must without t.Helper, which costs more than what is measured.
func check(err error) {
	if err != nil {
		panic(err)
	}
}

// cpuTime is the processor time the process has used, in nanoseconds: on a
// machine that others use, too, it says more than the clock.
func cpuTime() int64 {
	var u syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return u.Utime.Nano() + u.Stime.Nano()
}
