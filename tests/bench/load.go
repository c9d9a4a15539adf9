package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
)

// namespaces is the number of namespaces that keys are spread over; ranges end at namespaces.
const namespaces = 1000

const keyPrefix = "/registry/pods/"

// keyOf is the i-th key: neighbours in i are in different namespaces.
func keyOf(i int) []byte {
	return fmt.Appendf(make([]byte, 0, 40), keyPrefix+"ns-%04d/pod-%09d", i%namespaces, i)
}

func namespacePrefix(n int) []byte { return fmt.Appendf(nil, keyPrefix+"ns-%04d/", n) }

// prefixEnd is the end of the span of all keys.
func prefixEnd() []byte {
	end := []byte(keyPrefix)
	end[len(end)-1]++
	return end
}

// values are random bytes, so that no server gains from compression, made before the clock runs.
type values [][]byte

func newValues(size int) values {
	const distinct = 1024
	random := rand.NewChaCha8([32]byte{1})
	v := make(values, distinct)
	for i := range v {
		v[i] = make([]byte, size)
		_, _ = random.Read(v[i]) // never fails
	}
	return v
}

func (v values) of(i int) []byte { return v[i%len(v)] }

// pool is the connections of the load, shared by all clients. It speaks plain gRPC: a client library's own work would
// be measured with the server's, as both share the machine.
type pool []*grpc.ClientConn

func dial(address string, n int) (pool, error) {
	var p pool
	for range n {
		conn, err := grpc.NewClient("passthrough:///"+address,
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)),
			grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
			grpc.WithInitialWindowSize(1<<20), grpc.WithInitialConnWindowSize(4<<20),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 2 * time.Millisecond, Multiplier: 1.1, MaxDelay: 20 * time.Millisecond}, MinConnectTimeout: 5 * time.Second}))
		if err != nil {
			p.close()
			return nil, err
		}
		p = append(p, conn)
	}
	return p, nil
}

func (p pool) close() {
	for _, c := range p {
		c.Close()
	}
}

// kv returns the service on the connection of client i.
func (p pool) kv(i int) pb.KVClient { return pb.NewKVClient(p[i%len(p)]) }

// operation is one request, or one sequence of requests, of a client; i counts the operations of the whole load.
type operation func(ctx context.Context, kv pb.KVClient, i int) error

// measured is the outcome of a load.
type measured struct {
	latencies []time.Duration // sorted
	elapsed   time.Duration
}

func (m *measured) percentile(p float64) time.Duration {
	if len(m.latencies) == 0 {
		return 0
	}
	return m.latencies[min(int(p*float64(len(m.latencies))), len(m.latencies)-1)]
}

// closedLoop has clients do total operations, each its next when the last is answered, until ctx or limit ends it.
// The first error ends it.
func closedLoop(ctx context.Context, p pool, clients, total int, limit time.Duration, op operation) (*measured, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var running sync.WaitGroup
	begin := time.Now()
	deadline := begin.Add(limit)
	perClient := make([][]time.Duration, clients)
	for c := range clients {
		running.Go(func() {
			kv := p.kv(c)
			samples := make([]time.Duration, 0, min(2*total/clients+16, 1<<16))
			defer func() { perClient[c] = samples }()
			for ctx.Err() == nil {
				i := int(next.Add(1) - 1)
				if i >= total {
					return
				}
				start := time.Now()
				if start.After(deadline) {
					return
				}
				if err := op(ctx, kv, i); err != nil {
					cancel(fmt.Errorf("operation %d: %w", i, err))
					return
				}
				samples = append(samples, time.Since(start))
			}
		})
	}
	running.Wait()
	m := &measured{elapsed: time.Since(begin), latencies: slices.Concat(perClient...)}
	slices.Sort(m.latencies)
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if len(m.latencies) == 0 {
		return nil, fmt.Errorf("no operation within %s", limit)
	}
	return m, nil
}

// openLoop starts operations at a fixed rate per second until stop is closed, with at most clients under way. A
// latency counts from when the operation was due, so that a stall shows in all that wait.
func openLoop(ctx context.Context, p pool, clients, rate int, stop <-chan struct{}, op operation) (*measured, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var running sync.WaitGroup
	begin := time.Now()
	perClient := make([][]time.Duration, clients)
	for c := range clients {
		running.Go(func() {
			kv := p.kv(c)
			for {
				i := next.Add(1) - 1
				due := begin.Add(time.Duration(i) * time.Second / time.Duration(rate))
				timer := time.NewTimer(time.Until(due))
				select {
				case <-timer.C:
				case <-stop:
					timer.Stop()
					return
				case <-ctx.Done():
					return
				}
				if err := op(ctx, kv, int(i)); err != nil {
					cancel(fmt.Errorf("operation %d: %w", i, err))
					return
				}
				perClient[c] = append(perClient[c], time.Since(due))
			}
		})
	}
	running.Wait()
	m := &measured{elapsed: time.Since(begin), latencies: slices.Concat(perClient...)}
	slices.Sort(m.latencies)
	return m, context.Cause(ctx)
}
