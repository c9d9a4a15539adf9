package replica_test

import (
	"errors"
	"fmt"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/range/replica"
)

// A write that reads more than the worker has time for is refused without effect,
// and leaves nothing behind: the other ranges of the shard wait for the worker.
func TestAWriteThatReadsTooMuchIsRefused(t *testing.T) {
	link := &instantLink{next: 2}
	n := &node{tb: t, id: 1, link: link, limits: replica.Limits{MaxEvaluationRows: 10}}
	link.node = n
	n.open()
	t.Cleanup(func() { n.close() })
	n.bootstrap(descriptor(1, "", "", 1, 1), 1)
	for i := range 20 {
		mustWrite(t, n.do(1, put(fmt.Sprintf("k%02d", i), "1")))
	}
	next := link.next
	wide := func(end string, op *pb.RangeRequest) *mvcc.Request {
		op.Key, op.RangeEnd = []byte("k"), []byte(end)
		return &mvcc.Request{Txn: &pb.TxnRequest{Success: []*pb.RequestOp{
			{Request: &pb.RequestOp_RequestRange{RequestRange: op}},
			{Request: &pb.RequestOp_RequestPut{RequestPut: put("x", "1").Put}},
		}}}
	}
	res := n.do(1, wide("l", &pb.RangeRequest{}))
	if res == nil || !errors.Is(res.Err, replica.ErrTooWide) || res.NoEffect || !replica.NotApplied(res.Err) {
		t.Fatalf("a transaction over 20 keys where 10 may be read: %+v", res)
	}
	if link.next != next {
		t.Error("it took a revision")
	}
	n.store.Post(1, &replica.AskStatus{Done: func(s replica.Status, err error) {
		if s.Queued != 0 || err != nil {
			t.Errorf("%d requests are left, %v", s.Queued, err)
		}
	}})
	for _, req := range []*mvcc.Request{
		wide("k10", &pb.RangeRequest{}),
		wide("l", &pb.RangeRequest{Limit: 9}),
		wide("l", &pb.RangeRequest{CountOnly: true}),
		del("k", "l"),
	} {
		mustWrite(t, n.do(1, req))
	}
}
