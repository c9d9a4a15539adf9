package node

import (
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-kv/hawser/mvcc"
)

// BenchmarkMeasuresOfAPut is what the metrics add to a put in its range, clocks
// included; what is measured once for each round of many puts is not in it.
func BenchmarkMeasuresOfAPut(b *testing.B) {
	m := newMeasures(prometheus.NewRegistry())
	req := &mvcc.Request{Put: &pb.PutRequest{}}
	b.ReportAllocs()
	for b.Loop() {
		began := time.Now()
		m.loads.of(300).applied(1, 100)
		m.Wrote(300, req, time.Since(began), nil)
	}
}

// BenchmarkMeasuresOfARound is what they add to a round that syncs.
func BenchmarkMeasuresOfARound(b *testing.B) {
	m := newMeasures(prometheus.NewRegistry())
	timings := m.timings()
	b.ReportAllocs()
	for b.Loop() {
		round := time.Now()
		write := time.Now()
		timings.Write(time.Since(write))
		timings.Commit(time.Since(write))
		timings.Round(time.Since(round))
	}
}
