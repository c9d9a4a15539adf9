package store

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/range/engine"
)

// BenchmarkWrites is puts of 100 bytes by concurrent clients, each of which
// waits for its answer, over some ranges, on a real disk: the whole way through
// the store with a worker and syncs. cpu-ns/op says what a put costs, puts/entry
// and puts/sync how much travels together.
func BenchmarkWrites(b *testing.B) {
	for _, tc := range []struct{ groups, clients int }{
		{1, 1}, {1, 256}, {16, 256}, {1000, 1000},
	} {
		b.Run(fmt.Sprintf("ranges=%d/clients=%d", tc.groups, tc.clients), func(b *testing.B) {
			db, err := pebble.Open(b.TempDir(), &pebble.Options{
				FS: vfs.Default, Logger: engine.Logger(zap.NewNop()), FormatMajorVersion: pebble.FormatNewest})
			must(b, err)
			defer db.Close()
			var ids []uint64
			for id := range uint64(tc.groups) {
				ids = append(ids, id+1)
			}
			begin(b, db, ids...)
			r := newRig(b, db, func(c *Config) { c.ManualSync = false })
			r.store.Start(b.Context())
			text := strings.Repeat("x", 100)
			var wg sync.WaitGroup
			each := func(n int) {
				left := make(chan struct{}, n)
				for range n {
					left <- struct{}{}
				}
				close(left)
				for c := range tc.clients {
					wg.Go(func() {
						answer := make(chan error, 1)
						for range left {
							r.store.Post(ids[c%len(ids)], &put{text: text, done: func(p *put) { answer <- p.err }})
							if err := <-answer; err != nil {
								panic(err)
							}
						}
					})
				}
				wg.Wait()
			}
			each(2 * tc.groups) // elected
			before, cpu := r.store.Stats(), cpuTime()
			b.ReportAllocs()
			b.ResetTimer()
			each(b.N)
			b.StopTimer()
			after := r.store.Stats()
			b.ReportMetric(float64(cpuTime()-cpu)/float64(b.N), "cpu-ns/op")
			b.ReportMetric(float64(b.N)/float64(after.Syncs-before.Syncs), "puts/sync")
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "puts/s")
			r.store.Stop()
			entries := 0
			for _, l := range r.ledgers {
				entries += l.proposed
			}
			b.ReportMetric(float64(b.N+2*tc.groups)/float64(entries), "puts/entry")
		})
	}
}

func cpuTime() int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
