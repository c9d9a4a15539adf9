package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hawser-kv/hawser/cmd/node"
	"github.com/hawser-kv/hawser/tests/testcluster"
)

// refused is an error of etcd's table, by code and text.
func refused(t *testing.T, what string, err, want error) {
	t.Helper()
	if status.Code(err) != status.Code(want) || rpctypes.ErrorDesc(err) != rpctypes.ErrorDesc(want) {
		t.Errorf("%s: got %v, want %v", what, err, want)
	}
}

// TestRequestsTooLargeCostNothing: what is above the limit of a request is
// refused as by etcd (etcd/X7), what is far above it is not even read, and many of
// them at a time cost no memory.
func TestRequestsTooLargeCostNothing(t *testing.T) {
	p := testcluster.StartProcess(t, testcluster.ProcessOptions{Splits: []string{"m"}})
	conn := p.Client().ActiveConnection()
	kv := pb.NewKVClient(conn)
	ctx := t.Context()
	put := func(size int) error {
		_, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("k"), Value: bytes.Repeat([]byte("x"), size)}, grpc.MaxCallSendMsgSize(64*mib))
		return err
	}
	if err := put(1536*kib - 512); err != nil {
		t.Errorf("a put just below the limit: %v", err)
	}
	before := p.Report()
	refused(t, "a put just above the limit", put(1536*kib), rpctypes.ErrGRPCRequestTooLarge)
	half := bytes.Repeat([]byte("x"), 800*kib)
	_, err := kv.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{putOp("a", half), putOp("z", half)}})
	refused(t, "a transaction of two puts in two ranges that are too large together", err, rpctypes.ErrGRPCRequestTooLarge)
	_, err = kv.DeleteRange(ctx, &pb.DeleteRangeRequest{Key: half, RangeEnd: half})
	refused(t, "a delete with large keys", err, rpctypes.ErrGRPCRequestTooLarge)

	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 12 {
				if err := put(8 * mib); status.Code(err) != codes.ResourceExhausted {
					t.Errorf("a put of 8 MiB: %v", err)
				}
			}
		})
	}
	all.Wait()
	after := p.Report()
	t.Log(before, "->", after)
	atMost(t, "growth of the heap at its peak, while 768 MiB were refused", after.PeakLive-before.Heap, 64*mib)
	comesDownTo(t, p, "what refused requests leave", before, 8*mib)
	if got, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte("k")}); err != nil || len(got.Kvs) != 1 || got.Header.Revision != 2 {
		t.Errorf("the first put: %v, %v", got, err)
	}
}

// TestTooManyOperationsAreRefused: 128 operations are the most that a
// transaction may have, one less inside another, as in etcd (etcd/T1).
func TestTooManyOperationsAreRefused(t *testing.T) {
	p := testcluster.StartProcess(t, testcluster.ProcessOptions{Splits: []string{"k050", "k1"}})
	kv := pb.NewKVClient(p.Client().ActiveConnection())
	puts := func(n int) []*pb.RequestOp {
		var ops []*pb.RequestOp
		for i := range n {
			ops = append(ops, putOp(fmt.Sprintf("k%03d", i), nil))
		}
		return ops
	}
	nested := func(inner *pb.TxnRequest) []*pb.RequestOp {
		return []*pb.RequestOp{{Request: &pb.RequestOp_RequestTxn{RequestTxn: inner}}}
	}
	compares := make([]*pb.Compare, 129)
	for i := range compares {
		compares[i] = modIs("none", 0)
	}
	before := p.Report()
	for _, c := range []struct {
		name string
		txn  *pb.TxnRequest
		want error
	}{
		{"128 puts over three ranges", &pb.TxnRequest{Success: puts(128)}, nil},
		{"129 puts", &pb.TxnRequest{Success: puts(129)}, rpctypes.ErrGRPCTooManyOps},
		{"129 puts in the branch not taken", &pb.TxnRequest{Failure: puts(129)}, rpctypes.ErrGRPCTooManyOps},
		{"129 compares", &pb.TxnRequest{Compare: compares}, rpctypes.ErrGRPCTooManyOps},
		{"127 puts inside one", &pb.TxnRequest{Success: nested(&pb.TxnRequest{Success: puts(127)})}, nil},
		{"128 puts inside one", &pb.TxnRequest{Success: nested(&pb.TxnRequest{Success: puts(128)})}, rpctypes.ErrGRPCTooManyOps},
		{"60,000 puts", &pb.TxnRequest{Success: puts(60_000)}, rpctypes.ErrGRPCTooManyOps},
	} {
		for range 5 {
			if _, err := kv.Txn(t.Context(), c.txn); c.want == nil && err != nil {
				t.Errorf("%s: %v", c.name, err)
			} else if c.want != nil {
				refused(t, c.name, err, c.want)
			}
		}
	}
	after := p.Report()
	t.Log(before, "->", after)
	atMost(t, "growth of the heap at its peak", after.PeakLive-before.Heap, 64*mib)
	comesDownTo(t, p, "what refused requests leave", before, 8*mib)
}

// startStalling starts a node whose disk can be made to stand still.
func startStalling(t *testing.T, tune func(*node.CoreConfig)) (*testcluster.Node, *testcluster.Gate) {
	g := testcluster.NewGate()
	n := testcluster.Start(t, testcluster.Options{Splits: []string{"b", "c", "d"}, FS: g.FS(vfs.Default), Tune: tune})
	t.Cleanup(g.Open) // before the node is closed
	return n, g
}

// TestDeadlinesLeaveNothingBehind: while the disk stands still, requests of
// every kind end at their deadlines, and with them everything that the server
// held for them; when it moves again, so does everything else.
func TestDeadlinesLeaveNothingBehind(t *testing.T) {
	n, g := startStalling(t, nil)
	client := n.Client()
	kv := pb.NewKVClient(client.ActiveConnection())
	ctx := context.Background()
	if _, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("a")}); err != nil {
		t.Fatal(err)
	}
	goroutines := runtime.NumGoroutine()

	g.Shut()
	var all sync.WaitGroup
	ask := func(what string, f func(ctx context.Context) error) {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
			defer cancel()
			// The server knows the deadline, too, and may be the first to say so.
			if err := f(ctx); status.Code(err) != codes.DeadlineExceeded && !errors.Is(rpctypes.Error(err), rpctypes.ErrTimeout) {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
	value := bytes.Repeat([]byte("x"), 10*kib)
	for i := range 200 {
		key := []byte(fmt.Sprintf("%c-%d", 'a'+i%4, i))
		ask("put", func(ctx context.Context) error {
			_, err := kv.Put(ctx, &pb.PutRequest{Key: key, Value: value})
			return err
		})
		ask("transaction over ranges", func(ctx context.Context) error {
			_, err := kv.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{putOp("a-t", value), putOp("d-t", value)}})
			return err
		})
		if i > 0 {
			continue // a second at the same revision would be refused
		}
		ask("compaction", func(ctx context.Context) error {
			_, err := kv.Compact(ctx, &pb.CompactionRequest{Revision: 2})
			return err
		})
	}
	all.Wait()
	in := n.Inside().Core()
	testcluster.Wait(t, func() string { return fmt.Sprintf("an end of %d requests", in.Router.Pending()) },
		func() bool { return in.Router.Pending() == 0 })
	testcluster.Wait(t, func() string {
		return fmt.Sprintf("an end of goroutines: %d, %d before", runtime.NumGoroutine(), goroutines)
	},
		func() bool { return runtime.NumGoroutine() <= goroutines+20 })

	g.Open()
	resp, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("a-after")})
	if err != nil {
		t.Fatal(err)
	}
	// What was given up may have been applied, but whole.
	got, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, MinModRevision: 3})
	if err != nil || got.Header.Revision < resp.Header.Revision {
		t.Fatal(got, err)
	}
	at := map[string]int64{}
	for _, kv := range got.Kvs {
		at[string(kv.Key)] = kv.ModRevision
	}
	if at["a-t"] != at["d-t"] {
		t.Errorf("half a transaction: %v", at)
	}
}

// TestServerEndsRequestsItself: a request without a deadline ends with the
// server's time limit, as etcd's does (etcd/X8).
func TestServerEndsRequestsItself(t *testing.T) {
	n, g := startStalling(t, func(c *node.CoreConfig) { c.Router.RequestTimeout = 100 * time.Millisecond })
	kv := pb.NewKVClient(n.Client().ActiveConnection())
	g.Shut()
	_, err := kv.Put(t.Context(), &pb.PutRequest{Key: []byte("a")})
	refused(t, "a put", err, rpctypes.ErrGRPCTimeout)
	_, err = kv.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{putOp("a", nil), putOp("d", nil)}})
	refused(t, "a transaction over ranges", err, rpctypes.ErrGRPCTimeout)
	if n := n.Inside().Core().Router.Pending(); n != 0 {
		t.Errorf("%d requests are still pending", n)
	}
}

// TestTooManyRequestsAreRefused: while the disk stands still, a range holds so
// many requests and the node so many bytes, and no more; the others are refused
// at once, and those that were held are done when the disk moves again (etcd/X9).
// Large ones stop the engine, and with it the ranges' worker, when it has to
// begin a new log.
func TestTooManyRequestsAreRefused(t *testing.T) {
	const most, mostBytes = 50, 4 * mib
	n, g := startStalling(t, func(c *node.CoreConfig) { c.Limits.MaxQueued, c.Router.MaxHeldBytes = most, mostBytes })
	kv := pb.NewKVClient(n.Client().ActiveConnection())
	for _, size := range []int{10, 300 * kib} {
		t.Run(fmt.Sprintf("puts of %d bytes", size), func(t *testing.T) {
			g.Shut()
			const asked = 200
			value := strings.Repeat("x", size)
			var done, turnedAway atomic.Int64
			var all sync.WaitGroup
			for i := range asked {
				all.Go(func() {
					_, err := kv.Put(t.Context(), &pb.PutRequest{Key: fmt.Appendf(nil, "a-%d", i), Value: []byte(value)})
					switch {
					case err == nil:
						done.Add(1)
					case rpctypes.ErrorDesc(err) == rpctypes.ErrorDesc(rpctypes.ErrGRPCRequestTooManyRequests):
						turnedAway.Add(1)
					default:
						t.Errorf("put: %v", err)
					}
				})
			}
			// One round may be under way with what it took before the disk stood
			// still; a second with what it took since.
			atLeast := int64(asked - 2*min(most, mostBytes/size))
			testcluster.Wait(t, func() string { return fmt.Sprintf("%d refusals of %d", turnedAway.Load(), atLeast) },
				func() bool { return turnedAway.Load() >= atLeast })
			g.Open()
			all.Wait()
			if done.Load() == 0 || done.Load()+turnedAway.Load() != asked {
				t.Errorf("%d done, %d refused of %d", done.Load(), turnedAway.Load(), asked)
			}
		})
	}
}
