package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// compactClients is enough to keep up the rate of puts with a stall of a tenth of a second.
const compactClients = 256

// runCompact measures the latency of puts at a fixed rate, before and while many revisions are compacted, as Kubernetes
// does it: nobody waits for the removal, of which both servers log the end. Operations and latencies of the result are
// those while compacting.
func (b *bench) runCompact(ctx context.Context, s *server) (*server, error) {
	b.current.work = compactName
	p, err := dial(s.address, b.Conns)
	if err != nil {
		return s, err
	}
	defer p.close()
	// Every key several times: most revisions are superseded.
	keys := max(b.CompactRevisions/10, 1)
	put := func(ctx context.Context, kv pb.KVClient, i int) error {
		_, err := kv.Put(ctx, &pb.PutRequest{Key: keyOf(i % keys), Value: b.values.of(i)})
		return err
	}
	filled, err := closedLoop(ctx, p, b.Clients, b.CompactRevisions, b.TotalLimit, put)
	if err != nil {
		return s, err
	}
	putRandom := func(ctx context.Context, kv pb.KVClient, _ int) error { return put(ctx, kv, rand.IntN(keys)) }

	// Without: as long as it takes for a thousand samples above p99 at the default rate.
	quiet := make(chan struct{})
	timer := time.AfterFunc(min(50*time.Second, b.WorkLimit/2), func() { close(quiet) })
	defer timer.Stop()
	without, err := openLoop(ctx, p, compactClients, b.CompactRate, quiet, putRandom)
	if err != nil {
		return s, err
	}

	current, err := p.kv(0).Range(ctx, &pb.RangeRequest{Key: keyOf(0)})
	if err != nil {
		return s, err
	}
	var took time.Duration
	compacted := make(chan error, 1)
	r, err := b.measure(s, func() (*measured, error) {
		stop := make(chan struct{})
		go func() {
			defer close(stop)
			begin := time.Now()
			_, err := p.kv(0).Compact(ctx, &pb.CompactionRequest{Revision: current.Header.Revision})
			if err == nil {
				err = s.awaitLog(ctx, "finished scheduled compaction")
			}
			took = time.Since(begin)
			compacted <- err
		}()
		return openLoop(ctx, p, compactClients, b.CompactRate, stop, putRandom)
	})
	if err != nil {
		return s, err
	}
	if err := <-compacted; err != nil {
		return s, fmt.Errorf("compact at %d: %w", current.Header.Revision, err)
	}
	r.Extra = map[string]float64{
		"fill puts/s":             float64(len(filled.latencies)) / filled.elapsed.Seconds(),
		"p50 ms without":          millis(without.percentile(0.5)),
		"p99 ms without":          millis(without.percentile(0.99)),
		"seconds of compaction":   took.Seconds(),
		"puts/s while compacting": r.perSecond(),
	}
	r.Extra["p99 with / without"] = r.P99Millis / r.Extra["p99 ms without"]
	b.add(r)
	return s, nil
}
