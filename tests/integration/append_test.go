package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/hawser-kv/hawser/tests/history"
)

// appender appends to lists, each the value of a key: get, then a transaction on
// the mod revision.
type appender struct {
	*kvClient
	ctx  context.Context
	t    *testing.T
	mu   *sync.Mutex
	txns *[]*history.ListTxn
	next int
}

func (a *appender) add(txns ...*history.ListTxn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	*a.txns = append(*a.txns, txns...)
}

func (a *appender) parse(kvs []*mvccpb.KeyValue) []int {
	if len(kvs) == 0 {
		return nil
	}
	var list []int
	for _, word := range strings.Fields(string(kvs[0].Value)) {
		n, err := strconv.Atoi(word)
		if err != nil {
			a.t.Errorf("list %v: %v", kvs[0], err)
		}
		list = append(list, n)
	}
	return list
}

// record makes a transaction of a request that was just recorded.
func (a *appender) record(op *history.Op) *history.ListTxn {
	return &history.ListTxn{Client: a.id, Call: op.Call, Return: op.Return, Outcome: op.Outcome,
		Reads: map[string][]int{}, Appends: map[string]int{}}
}

// readMany reads some lists in one transaction, or in one range.
func (a *appender) readMany() {
	if a.rng.IntN(2) == 0 {
		start, end := a.span()
		op := &history.Op{Range: &pb.RangeRequest{Key: start, RangeEnd: end}}
		a.do(a.ctx, op)
		x := a.record(op)
		if op.Outcome != history.OK {
			return
		}
		for i := range a.ks.keys() {
			if k := a.ks.at(i); k >= string(start) && k < string(end) {
				x.Reads[k] = nil
			}
		}
		for _, kv := range op.Answer.(*pb.RangeResponse).Kvs {
			x.Reads[string(kv.Key)] = a.parse([]*mvccpb.KeyValue{kv})
		}
		a.add(x)
		return
	}
	txn := &pb.TxnRequest{}
	keys := a.some(2 + a.rng.IntN(3))
	for _, k := range keys {
		txn.Success = append(txn.Success, getOp(k))
	}
	op := &history.Op{Txn: txn}
	a.do(a.ctx, op)
	if op.Outcome != history.OK {
		return
	}
	x := a.record(op)
	for i, resp := range op.Answer.(*pb.TxnResponse).Responses {
		x.Reads[keys[i]] = a.parse(resp.GetResponseRange().Kvs)
	}
	a.add(x)
}

func (a *appender) some(n int) []string {
	var keys []string
	for _, i := range a.rng.Perm(a.ks.keys())[:n] {
		keys = append(keys, a.ks.at(i))
	}
	return keys
}

// append appends to some lists and reads others, all or nothing.
func (a *appender) append() {
	keys := a.some(1 + a.rng.IntN(3))
	appendTo := 1 + a.rng.IntN(len(keys))
	txn := &pb.TxnRequest{}
	reads := map[string][]int{}
	appends := map[string]int{}
	for i, k := range keys {
		op := &history.Op{Range: &pb.RangeRequest{Key: []byte(k)}}
		a.do(a.ctx, op)
		if op.Outcome != history.OK {
			return
		}
		kvs := op.Answer.(*pb.RangeResponse).Kvs
		reads[k] = a.parse(kvs)
		x := a.record(op)
		x.Reads[k] = reads[k]
		a.add(x)
		rev := int64(0)
		if len(kvs) > 0 {
			rev = kvs[0].ModRevision
		}
		txn.Compare = append(txn.Compare, modIs(k, rev))
		txn.Failure = append(txn.Failure, getOp(k))
		if i < appendTo {
			a.next++
			v := a.id*1_000_000 + a.next
			appends[k] = v
			var old []byte
			if len(kvs) > 0 {
				old = append(append(old, kvs[0].Value...), ' ')
			}
			txn.Success = append(txn.Success, putOp(k, fmt.Appendf(old, "%d", v)))
		}
	}
	op := &history.Op{Txn: txn}
	a.do(a.ctx, op)
	x := a.record(op)
	x.Appends = appends
	if op.Outcome == history.OK {
		resp := op.Answer.(*pb.TxnResponse)
		x.Reads = reads
		if !resp.Succeeded {
			// It appended nothing, and read what is there now.
			refused := a.record(op)
			refused.Outcome, refused.Appends = history.Refused, appends
			a.add(refused)
			x.Appends = map[string]int{}
			for i, r := range resp.Responses {
				x.Reads[keys[i]] = a.parse(r.GetResponseRange().Kvs)
			}
		}
	}
	a.add(x)
}

// TestAppendedListsHaveNoCycle: transactions that append to lists in 16 ranges
// and more, and read them, depend on each other and on real time without a
// cycle (strict serializability).
func TestAppendedListsHaveNoCycle(t *testing.T) {
	ks := keyspace{ranges: 16, keysPerRange: 2}
	r := startSplitRun(t, ks.splits())
	var mu sync.Mutex
	var txns []*history.ListTxn
	for id := range 12 {
		var a *appender
		r.client(id, 60, func(c *kvClient) {
			if a == nil {
				c.ks = ks
				a = &appender{kvClient: c, ctx: r.ctx, t: t, mu: &mu, txns: &txns}
			}
			if a.rng.IntN(3) == 0 {
				a.readMany()
			} else {
				a.append()
			}
		})
	}
	r.split(ks.odd())
	r.finish()

	appended := 0
	for _, x := range txns {
		if x.Outcome == history.OK {
			appended += len(x.Appends)
		}
	}
	t.Logf("%d transactions, %d values appended", len(txns), appended)
	for _, err := range history.CheckAppends(txns) {
		t.Error(err)
	}
	// And it would have been found.
	rng := rand.New(rand.NewPCG(1, 1))
	if planted := history.PlantStaleRead(txns, rng); planted == nil {
		t.Error("no read to plant a stale one in")
	} else if len(history.CheckAppends(txns)) == 0 {
		t.Errorf("a planted stale read is not found: %v", planted)
	}
}
