package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/hawser-kv/hawser/proto/adminpb"
)

// Puts beside the splits: as many a second, by so many clients at most, to keys that all of them lie above the boundaries.
const (
	splitPutRate    = 500
	splitPutClients = 64
	// splitClients ask for splits one by one, each its next when the last is done.
	splitClients = 4
)

// splitOrders are the ways in which the boundaries are asked for.
var splitOrders = []struct {
	name string
	// clients that ask one by one; 0: one command with a file of keys.
	clients int
	arrange func(keys [][]byte)
}{
	{"file", 0, func([][]byte) {}},
	{"ascending", 1, func([][]byte) {}},
	{"descending", 1, func(keys [][]byte) { slices.Reverse(keys) }},
	{"random", splitClients, func(keys [][]byte) {
		random := rand.New(rand.NewPCG(1, 2))
		random.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	}},
	{"ascending, 4 clients", splitClients, func([][]byte) {}},
}

// runSplits splits one range many times in each order, on a fresh server each, with puts beside it to the range that
// the ascending order cuts every time. Operations and latencies of the result are those of the puts.
func (b *bench) runSplits(ctx context.Context, t target) error {
	for _, order := range splitOrders {
		if err := b.onFresh(ctx, t, func(ctx context.Context, s *server) (*server, error) {
			b.current.work = splitName + ": " + order.name
			keys := make([][]byte, b.Splits)
			for i := range keys {
				keys[i] = fmt.Appendf(nil, "/s/%06d", i)
			}
			order.arrange(keys)
			return s, b.measureSplits(ctx, s, keys, order.clients)
		}); err != nil {
			return fmt.Errorf("%s: %w", order.name, err)
		}
	}
	return nil
}

func (b *bench) measureSplits(ctx context.Context, s *server, keys [][]byte, clients int) error {
	p, err := dial(s.address, b.Conns)
	if err != nil {
		return err
	}
	defer p.close()
	var failed atomic.Int64
	put := func(ctx context.Context, kv pb.KVClient, i int) error {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if _, err := kv.Put(ctx, &pb.PutRequest{Key: fmt.Appendf(nil, "/t/%04d", i%1000), Value: b.values.of(i)}); err != nil {
			failed.Add(1)
		}
		return ctx.Err()
	}
	var took time.Duration
	split := make(chan error, 1)
	r, err := b.measure(s, func() (*measured, error) {
		stop := make(chan struct{})
		go func() {
			defer close(stop)
			begin := time.Now()
			if clients == 0 {
				split <- s.splitByFile(ctx, keys)
			} else {
				split <- splitOneByOne(ctx, p, keys, clients)
			}
			took = time.Since(begin)
		}()
		return openLoop(ctx, p, splitPutClients, splitPutRate, stop, put)
	})
	if err != nil {
		return err
	}
	if err := <-split; err != nil {
		return err
	}
	r.Extra = map[string]float64{"seconds of splits": took.Seconds(), "splits/s": float64(len(keys)) / took.Seconds(), "failed puts": float64(failed.Load())}
	b.add(r)
	return nil
}

// splitByFile splits with one command.
func (s *server) splitByFile(ctx context.Context, keys [][]byte) error {
	cmd := exec.CommandContext(ctx, s.target.binary, "range", "split", "--endpoints", s.address, "--keys-file", "-", "-o", "json",
		"--command-timeout", "60s")
	cmd.Stdin = bytes.NewReader(append(bytes.Join(keys, []byte{'\n'}), '\n'))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("split at %d keys: %w\n%s", len(keys), err, out[max(0, len(out)-2048):])
	}
	return nil
}

// splitOneByOne has clients ask for one split after the other.
func splitOneByOne(ctx context.Context, p pool, keys [][]byte, clients int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var running sync.WaitGroup
	for c := range clients {
		running.Go(func() {
			admin := adminpb.NewAdminClient(p[c%len(p)])
			for ctx.Err() == nil {
				i := int(next.Add(1) - 1)
				if i >= len(keys) {
					return
				}
				if _, err := admin.SplitRange(ctx, &adminpb.SplitRangeRequest{At: &adminpb.SplitRangeRequest_Key{Key: keys[i]}}); err != nil {
					cancel(fmt.Errorf("split at %s: %w", keys[i], err))
					return
				}
			}
		})
	}
	running.Wait()
	return context.Cause(ctx)
}
