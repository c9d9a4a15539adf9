package proxy

import (
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/hawser-kv/hawser/proxy/router"
)

// BenchmarkUnary measures what a request costs outside ranges and sequencer:
// gRPC on both sides, interceptors, router. 32 clients on 4 connections.
func BenchmarkUnary(b *testing.B) {
	be := newBackend(b, router.Config{}, "m")
	_, addr := startServer(b, be)
	var kvs []pb.KVClient
	for range 4 {
		kvs = append(kvs, pb.NewKVClient(dial(b, addr)))
	}
	key, value := []byte("key-0000"), make([]byte, 256)
	if _, err := kvs[0].Put(b.Context(), &pb.PutRequest{Key: key, Value: value}); err != nil {
		b.Fatal(err)
	}
	run := func(name string, do func(kv pb.KVClient) error) {
		b.Run(name, func(b *testing.B) {
			var n atomic.Int64
			b.ReportAllocs()
			b.SetParallelism(16)
			before := cpuTime(b)
			defer func() { b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op") }()
			b.RunParallel(func(p *testing.PB) {
				kv := kvs[int(n.Add(1))%len(kvs)]
				for p.Next() {
					if err := do(kv); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
	run("range", func(kv pb.KVClient) error {
		_, err := kv.Range(b.Context(), &pb.RangeRequest{Key: key})
		return err
	})
	run("put", func(kv pb.KVClient) error {
		_, err := kv.Put(b.Context(), &pb.PutRequest{Key: key, Value: value})
		return err
	})
}

// BenchmarkRouterRange is the router alone: one linearizable read of one key.
func BenchmarkRouterRange(b *testing.B) {
	be := newBackend(b, router.Config{}, "m")
	req := &pb.RangeRequest{Key: []byte("key-0000")}
	b.ReportAllocs()
	before := cpuTime(b)
	defer func() { b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op") }()
	for b.Loop() {
		if _, err := be.router.Range(b.Context(), req); err != nil {
			b.Fatal(err)
		}
	}
}

// cpuTime is the CPU time of this process so far: on a machine that others use,
// too, it says more than the clock.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
