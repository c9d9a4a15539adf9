package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// work is one row of the table: a load that every target gets.
type work struct {
	name string
	// about is what the table calls it.
	about string
	run   func(ctx context.Context, b *bench, s *server, p pool) (*result, error)
}

// works are run in this order on one server that starts empty; what put stored is what the others use.
var works = []work{
	{"put", "put of new keys", putWork},
	{"put1", "put, one client", putOneWork},
	{"get", "get", getWork(false)},
	{"sget", "serializable get", getWork(true)},
	{"cas", "get, then txn on its revision", casWork},
	{"watch", "events of puts to watchers", watchWork},
}

func putWork(ctx context.Context, b *bench, s *server, p pool) (*result, error) {
	return b.measure(s, func() (*measured, error) {
		// Without the limit of a work: the others need every key.
		return closedLoop(ctx, p, b.Clients, b.Keys, b.TotalLimit, func(ctx context.Context, kv pb.KVClient, i int) error {
			_, err := kv.Put(ctx, &pb.PutRequest{Key: keyOf(i), Value: b.values.of(i)})
			return err
		})
	})
}

func putOneWork(ctx context.Context, b *bench, s *server, p pool) (*result, error) {
	return b.measure(s, func() (*measured, error) {
		return closedLoop(ctx, p, 1, b.OneOps, b.WorkLimit, func(ctx context.Context, kv pb.KVClient, i int) error {
			_, err := kv.Put(ctx, &pb.PutRequest{Key: keyOf(rand.IntN(b.Keys)), Value: b.values.of(i)})
			return err
		})
	})
}

func getWork(serializable bool) func(context.Context, *bench, *server, pool) (*result, error) {
	return func(ctx context.Context, b *bench, s *server, p pool) (*result, error) {
		return b.measure(s, func() (*measured, error) {
			return closedLoop(ctx, p, b.Clients, b.Ops, b.WorkLimit, func(ctx context.Context, kv pb.KVClient, _ int) error {
				r, err := kv.Range(ctx, &pb.RangeRequest{Key: keyOf(rand.IntN(b.Keys)), Serializable: serializable})
				if err == nil && len(r.Kvs) != 1 {
					err = fmt.Errorf("%d keys instead of one", len(r.Kvs))
				}
				return err
			})
		})
	}
}

func casWork(ctx context.Context, b *bench, s *server, p pool) (*result, error) {
	var failed atomic.Int64
	r, err := b.measure(s, func() (*measured, error) {
		return closedLoop(ctx, p, b.Clients, b.Ops/2, b.WorkLimit, func(ctx context.Context, kv pb.KVClient, i int) error {
			key := keyOf(rand.IntN(b.Keys))
			got, err := kv.Range(ctx, &pb.RangeRequest{Key: key})
			if err != nil {
				return err
			}
			if len(got.Kvs) != 1 {
				return fmt.Errorf("%d keys instead of one", len(got.Kvs))
			}
			answer, err := kv.Txn(ctx, &pb.TxnRequest{
				Compare: []*pb.Compare{{
					Key: key, Target: pb.Compare_MOD, Result: pb.Compare_EQUAL,
					TargetUnion: &pb.Compare_ModRevision{ModRevision: got.Kvs[0].ModRevision},
				}},
				Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{
					RequestPut: &pb.PutRequest{Key: key, Value: b.values.of(i)},
				}}},
				Failure: []*pb.RequestOp{{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: key}}}},
			})
			if err == nil && !answer.Succeeded {
				failed.Add(1)
			}
			return err
		})
	})
	if err == nil {
		r.Extra = map[string]float64{"lost races": float64(failed.Load())}
	}
	return r, err
}
