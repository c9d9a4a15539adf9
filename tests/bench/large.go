package main

import (
	"bytes"
	"context"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// Works of their own stores, once a run.
const (
	largeName   = "large"
	compactName = "compact"
	splitName   = "split"
)

func workNames() []string {
	var names []string
	for _, w := range works {
		names = append(names, w.name)
	}
	return append(names, largeName, compactName, splitName)
}

// largeBatch is the puts of one transaction that fills a store. All are in one namespace, so in one range.
const largeBatch = 100

// fill stores n keys by transactions of largeBatch puts. Key i of keyOf lies in namespace i%namespaces.
func (b *bench) fill(ctx context.Context, s *server, p pool, n int) (*result, error) {
	perNamespace := (n + namespaces - 1) / namespaces
	batches := (perNamespace + largeBatch - 1) / largeBatch
	const clients = 16
	r, err := b.measure(s, func() (*measured, error) {
		return closedLoop(ctx, p, clients, batches*namespaces, b.TotalLimit, func(ctx context.Context, kv pb.KVClient, i int) error {
			namespace, first := i%namespaces, i/namespaces*largeBatch
			txn := &pb.TxnRequest{}
			for pod := first; pod < min(first+largeBatch, perNamespace); pod++ {
				key := pod*namespaces + namespace
				if key >= n {
					break
				}
				txn.Success = append(txn.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{
					RequestPut: &pb.PutRequest{Key: keyOf(key), Value: b.values.of(key)},
				}})
			}
			_, err := kv.Txn(ctx, txn)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	r.scale(float64(n) / r.Operations)
	return r, nil
}

// runLarge fills a store, then starts the server again on it, and measures what a store of that size costs.
func (b *bench) runLarge(ctx context.Context, s *server) (*server, error) {
	b.current.work = largeName
	p, err := dial(s.address, b.Conns)
	if err != nil {
		return s, err
	}
	r, err := b.fill(ctx, s, p, b.LargeKeys)
	p.close()
	if err != nil {
		return s, err
	}
	filled, err := readUsage(s.pid())
	if err != nil {
		return s, err
	}
	r.Extra = map[string]float64{"resident MiB when filled": float64(filled.rssBytes) / (1 << 20)}
	dir := s.dir
	for _, end := range []string{"kill", "stop"} {
		if end == "kill" {
			s.kill()
		} else {
			s.stop()
		}
		if s, err = s.target.start(ctx, dir); err != nil {
			return nil, err
		}
		r.Extra["seconds from start to first answer, after a "+end] = s.startToAnswer.Seconds()
	}
	if p, err = dial(s.address, b.Conns); err != nil {
		return s, err
	}
	defer p.close()
	if err := b.countAll(ctx, p, r); err != nil {
		return s, err
	}
	if err := b.listAll(ctx, p, r); err != nil {
		return s, err
	}
	listed, err := readUsage(s.pid())
	if err != nil {
		return s, err
	}
	r.Extra["resident MiB after start and list"] = float64(listed.rssBytes) / (1 << 20)
	b.add(r)
	return s, nil
}

// countAll measures count_only over everything.
func (b *bench) countAll(ctx context.Context, p pool, r *result) error {
	m, err := closedLoop(ctx, p, 1, 50, b.WorkLimit/4, func(ctx context.Context, kv pb.KVClient, _ int) error {
		answer, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte(keyPrefix), RangeEnd: prefixEnd(), CountOnly: true})
		if err == nil && answer.Count != int64(b.LargeKeys) {
			err = fmt.Errorf("count %d instead of %d", answer.Count, b.LargeKeys)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("count: %w", err)
	}
	r.Extra["count_only p50 ms"] = millis(m.percentile(0.5))
	return nil
}

// listAll reads everything at one revision, page by page, as the API server of Kubernetes does, until the limit of a work.
func (b *bench) listAll(ctx context.Context, p pool, r *result) error {
	const pageRows = 500
	begin, rows := time.Now(), 0
	request := &pb.RangeRequest{Key: []byte(keyPrefix), RangeEnd: prefixEnd(), Limit: pageRows}
	for time.Since(begin) < b.WorkLimit/4 {
		page, err := p.kv(0).Range(ctx, request)
		if err != nil {
			return fmt.Errorf("list: %w", err)
		}
		rows += len(page.Kvs)
		if left := b.LargeKeys - (rows - len(page.Kvs)); page.Count != int64(left) {
			return fmt.Errorf("list: count %d instead of %d", page.Count, left)
		}
		if !page.More {
			break
		}
		request.Key = append(bytes.Clone(page.Kvs[len(page.Kvs)-1].Key), 0)
		request.Revision = page.Header.Revision
	}
	r.Extra["listed rows/s"] = float64(rows) / time.Since(begin).Seconds()
	r.Extra["listed rows"] = float64(rows)
	return nil
}
