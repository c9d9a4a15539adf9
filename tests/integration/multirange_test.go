package integration

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"

	"github.com/hawser-kv/hawser/proto/adminpb"
	"github.com/hawser-kv/hawser/tests/history"
	"github.com/hawser-kv/hawser/tests/testcluster"
)

// splitRun is a run in which the keyspace is split while clients act.
type splitRun struct {
	t   *testing.T
	n   *testcluster.Node
	rec *recorder
	ctx context.Context

	acting, watching sync.WaitGroup
	final            *finalRevision
	// acts counts what clients did, splitsLeft the splits still to come.
	acts, splitsLeft atomic.Int64
}

// startSplitRun starts a node of len(at)+1 ranges. The watch over everything
// runs until finish.
func startSplitRun(t *testing.T, at []string) *splitRun {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	r := &splitRun{t: t, n: testcluster.Start(t, testcluster.Options{Splits: at}), rec: &recorder{}, ctx: ctx,
		final: &finalRevision{known: make(chan struct{})}}
	r.watching.Go(func() { watchEverything(ctx, t, r.rec, r.n, r.final) })
	return r
}

// split splits at keys, one after the other, each after clients have done
// something since the one before: however fast either side is, they meet.
func (r *splitRun) split(keys []string) {
	admin := adminpb.NewAdminClient(r.n.Client().ActiveConnection())
	r.splitsLeft.Store(int64(len(keys)))
	r.acting.Go(func() {
		for _, k := range keys {
			before := r.acts.Load()
			testcluster.Wait(r.t, func() string { return "clients that do something" }, func() bool { return r.acts.Load() > before })
			if _, err := admin.SplitRange(r.ctx, &adminpb.SplitRangeRequest{At: &adminpb.SplitRangeRequest_Key{Key: []byte(k)}}, grpc.WaitForReady(true)); err != nil {
				r.t.Errorf("split at %q: %v", k, err)
			}
			r.splitsLeft.Add(-1)
		}
	})
}

// client acts at least n times, and as long as there are splits to come.
func (r *splitRun) client(id, n int, act func(c *kvClient)) {
	r.clientUntil(id, n, func() bool { return true }, act)
}

// clientUntil is client, and acts until it is enough.
func (r *splitRun) clientUntil(id, n int, enough func() bool, act func(c *kvClient)) {
	c := newKVClient(r.rec, r.n, keyspace{}, id, 3)
	r.acting.Go(func() {
		for i := 0; i < n || r.splitsLeft.Load() > 0 || !enough(); i++ {
			if r.t.Failed() {
				return
			}
			act(c)
			r.acts.Add(1)
		}
	})
}

// finish waits for the clients and checks everything that was recorded.
func (r *splitRun) finish() {
	r.acting.Wait()
	resp, err := r.n.Client().Get(r.ctx, "none")
	if err != nil {
		r.t.Fatal(err)
	}
	r.final.set(resp.Header.Revision)
	r.watching.Wait()
	r.rec.run.Revision, r.rec.run.Dense = resp.Header.Revision, true
	r.rec.check(r.t)
}

func (c *kvClient) put(ctx context.Context, key, value string) int64 {
	op := &history.Op{Put: &pb.PutRequest{Key: []byte(key), Value: []byte(value)}}
	c.do(ctx, op)
	if op.Outcome != history.OK {
		return 0
	}
	return op.Answer.(*pb.PutResponse).Header.Revision
}

// read reads [start, end) at a revision, 0 for the current one; nil if it was
// refused.
func (c *kvClient) read(ctx context.Context, r *pb.RangeRequest) *pb.RangeResponse {
	op := &history.Op{Range: r}
	c.do(ctx, op)
	if op.Outcome != history.OK {
		return nil
	}
	return op.Answer.(*pb.RangeResponse)
}

func (c *kvClient) commit(ctx context.Context, txn *pb.TxnRequest) *pb.TxnResponse {
	op := &history.Op{Txn: txn}
	c.do(ctx, op)
	if op.Outcome != history.OK {
		return nil
	}
	return op.Answer.(*pb.TxnResponse)
}

func putOp(key string, value []byte) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key), Value: value}}}
}

func getOp(key string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte(key)}}}
}

func modIs(key string, rev int64) *pb.Compare {
	return &pb.Compare{Key: []byte(key), Target: pb.Compare_MOD, TargetUnion: &pb.Compare_ModRevision{ModRevision: rev}}
}

// TestTransactionOverRangesIsAtomic: compares in one range decide on writes in
// three others, and nobody ever sees one of the writes without the others.
func TestTransactionOverRangesIsAtomic(t *testing.T) {
	r := startSplitRun(t, []string{"b", "c", "d"})
	for id := range 2 {
		r.client(id, 60, func(c *kvClient) { c.put(r.ctx, "a-guard", string(c.value())) })
	}
	won := atomic.Int64{}
	for id := 2; id < 8; id++ {
		// While the guard is written they may all lose; then one must win.
		r.clientUntil(id, 40, func() bool { return won.Load() > 0 }, func(c *kvClient) {
			got := c.read(r.ctx, &pb.RangeRequest{Key: []byte("a-guard")})
			if got == nil || len(got.Kvs) == 0 {
				return
			}
			v := c.value()
			resp := c.commit(r.ctx, &pb.TxnRequest{
				Compare: []*pb.Compare{modIs("a-guard", got.Kvs[0].ModRevision)},
				Success: []*pb.RequestOp{putOp("b-one", v), putOp("c-two", v), putOp("d-three", v)},
				Failure: []*pb.RequestOp{getOp("a-guard"), getOp("d-three")},
			})
			if resp != nil && resp.Succeeded {
				won.Add(1)
			}
		})
	}
	for id := 8; id < 12; id++ {
		r.client(id, 40, func(c *kvClient) {
			got := c.read(r.ctx, &pb.RangeRequest{Key: []byte("b"), RangeEnd: []byte("e"), Serializable: c.rng.IntN(3) == 0})
			if got == nil || len(got.Kvs) == 0 {
				return
			}
			for _, kv := range got.Kvs {
				if len(got.Kvs) != 3 || string(kv.Value) != string(got.Kvs[0].Value) || kv.ModRevision != got.Kvs[0].ModRevision {
					t.Errorf("a transaction is seen in part: %v", got)
				}
			}
		})
	}
	r.split([]string{"a-h", "b-one\x00", "c-two", "d-z", "b-a", "a-guard", "d-three", "c-u", "b-z"})
	r.finish()
}

// TestDeleteOverAllRangesIsOneRevision: what a delete of everything removes is
// exactly what was there at the revision before, and nothing is there at its
// own.
func TestDeleteOverAllRangesIsOneRevision(t *testing.T) {
	ks := keyspace{ranges: 16, keysPerRange: 4}
	r := startSplitRun(t, ks.splits())
	for id := range 8 {
		r.client(id, 60, func(c *kvClient) { c.put(r.ctx, ks.at(c.rng.IntN(ks.keys())), string(c.value())) })
	}
	deleted := atomic.Int64{}
	for id := 8; id < 10; id++ {
		r.clientUntil(id, 12, func() bool { return deleted.Load() > 0 }, func(c *kvClient) {
			op := &history.Op{Delete: &pb.DeleteRangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, PrevKv: true}}
			c.do(r.ctx, op)
			if op.Outcome != history.OK {
				return
			}
			got := op.Answer.(*pb.DeleteRangeResponse)
			deleted.Add(got.Deleted)
			if got.Deleted == 0 {
				return
			}
			rev := got.Header.Revision
			before := c.read(r.ctx, &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, Revision: rev - 1})
			after := c.read(r.ctx, &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, Revision: rev})
			if before == nil || after == nil {
				return
			}
			if before.Count != got.Deleted || len(got.PrevKvs) != int(got.Deleted) || after.Count != 0 {
				t.Errorf("%d deleted (%d with what was there) at %d, where %d were before and %d after",
					got.Deleted, len(got.PrevKvs), rev, before.Count, after.Count)
			}
		})
	}
	r.split(ks.odd())
	r.finish()
}

// odd are keys in the middle of ranges.
func (k keyspace) odd() []string {
	var s []string
	for i := k.keysPerRange / 2; i < k.keys(); i += k.keysPerRange {
		s = append(s, k.at(i))
	}
	return s
}

// TestReadOverAllRangesIsOneRevision: money that is moved between accounts in
// many ranges is never seen twice or not at all, whichever way it is read.
func TestReadOverAllRangesIsOneRevision(t *testing.T) {
	ks := keyspace{ranges: 16, keysPerRange: 2}
	const each = 100
	r := startSplitRun(t, ks.splits())
	filler := newKVClient(r.rec, r.n, ks, 99, 3)
	all := &pb.TxnRequest{}
	for i := range ks.keys() {
		all.Success = append(all.Success, putOp(ks.at(i), fmt.Appendf(nil, "%d filler-%d", each, i)))
	}
	first := filler.commit(r.ctx, all)
	if first == nil {
		t.Fatal("the accounts were not made")
	}

	moved := atomic.Int64{}
	for id := range 8 {
		r.client(id, 40, func(c *kvClient) {
			from, to := c.rng.IntN(ks.keys()), c.rng.IntN(ks.keys())
			if from == to {
				return
			}
			var kvs [2]*mvccpb.KeyValue
			for i, n := range []int{from, to} {
				got := c.read(r.ctx, &pb.RangeRequest{Key: []byte(ks.at(n))})
				if got == nil || len(got.Kvs) != 1 {
					t.Errorf("account %s: %v", ks.at(n), got)
					return
				}
				kvs[i] = got.Kvs[0]
			}
			amount := 1 + c.rng.IntN(10)
			resp := c.commit(r.ctx, &pb.TxnRequest{
				Compare: []*pb.Compare{modIs(ks.at(from), kvs[0].ModRevision), modIs(ks.at(to), kvs[1].ModRevision)},
				Success: []*pb.RequestOp{
					putOp(ks.at(from), fmt.Appendf(nil, "%d %s", balance(t, kvs[0])-amount, c.value())),
					putOp(ks.at(to), fmt.Appendf(nil, "%d %s", balance(t, kvs[1])+amount, c.value())),
				},
			})
			if resp != nil && resp.Succeeded {
				moved.Add(1)
			}
		})
	}
	for id := 8; id < 13; id++ {
		r.client(id, 40, func(c *kvClient) {
			kvs := readAccounts(r.ctx, c, first.Header.Revision)
			if kvs == nil {
				return
			}
			sum := 0
			for _, kv := range kvs {
				sum += balance(t, kv)
			}
			if len(kvs) != ks.keys() || sum != each*ks.keys() {
				t.Errorf("%d accounts with %d: %v", len(kvs), sum, kvs)
			}
		})
	}
	r.split(ks.odd())
	r.finish()
	if moved.Load() == 0 {
		t.Error("nothing was moved: nothing was tested")
	}
}

func balance(t *testing.T, kv *mvccpb.KeyValue) int {
	var n int
	if _, err := fmt.Sscan(string(kv.Value), &n); err != nil {
		t.Errorf("balance of %v: %v", kv, err)
	}
	return n
}

// readAccounts reads all accounts in one of the ways there are.
func readAccounts(ctx context.Context, c *kvClient, first int64) []*mvccpb.KeyValue {
	req := &pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l")}
	switch c.rng.IntN(4) {
	case 0: // in pages, at the revision of the first
		var kvs []*mvccpb.KeyValue
		req.Limit = 5
		for {
			got := c.read(ctx, req)
			if got == nil {
				return nil
			}
			kvs = append(kvs, got.Kvs...)
			if !got.More {
				return kvs
			}
			next := &pb.RangeRequest{Key: append([]byte(nil), kvs[len(kvs)-1].Key...), RangeEnd: req.RangeEnd, Limit: req.Limit, Revision: req.Revision}
			next.Key = append(next.Key, 0)
			if next.Revision == 0 {
				next.Revision = got.Header.Revision
			}
			req = next
		}
	case 1: // at an old revision
		req.Revision = first + c.rng.Int64N(max(c.last-first, 1))
	case 2: // without asking the sequencer
		req.Serializable = true
	}
	got := c.read(ctx, req)
	if got == nil || req.Serializable && got.Header.Revision < first {
		return nil
	}
	return got.Kvs
}

// TestWatchOverAllRangesFromAnOldRevision: watchers that begin at the first
// revision while writes and splits go on get every event, in order, once.
func TestWatchOverAllRangesFromAnOldRevision(t *testing.T) {
	ks := keyspace{ranges: 16, keysPerRange: 4}
	r := startSplitRun(t, ks.splits())
	for id := range 8 {
		r.client(id, 80, func(c *kvClient) {
			switch c.rng.IntN(5) {
			case 0:
				c.do(r.ctx, &history.Op{Delete: &pb.DeleteRangeRequest{Key: []byte(ks.at(c.rng.IntN(ks.keys())))}})
			case 1:
				txn := &pb.TxnRequest{}
				for _, i := range c.rng.Perm(ks.keys())[:3] {
					txn.Success = append(txn.Success, putOp(ks.at(i), c.value()))
				}
				c.commit(r.ctx, txn)
			default:
				c.put(r.ctx, ks.at(c.rng.IntN(ks.keys())), string(c.value()))
			}
		})
	}
	r.split(ks.odd())
	client := pb.NewWatchClient(r.n.Client().ActiveConnection())
	for i := range 10 {
		// Each begins when the load has got a bit further.
		before := r.acts.Load()
		testcluster.Wait(t, func() string { return "clients that do something" },
			func() bool { return r.acts.Load() >= before+10 || r.splitsLeft.Load() == 0 })
		w := &history.Watch{Name: "from the first " + strconv.Itoa(i), Start: "\x00", End: "\x00", From: 2, PrevKV: i%2 == 0}
		s, err := openWatches(r.ctx, r.rec, client, map[*history.Watch]*pb.WatchCreateRequest{w: {
			Key: []byte{0}, RangeEnd: []byte{0}, StartRevision: 2, WatchId: 1, PrevKv: w.PrevKV, Fragment: i%3 == 0}})
		if err != nil {
			t.Fatal(err)
		}
		r.watching.Go(func() {
			for {
				select {
				case <-r.final.known:
					s.finish(t, r.final.get(), false)
					return
				case resp, ok := <-s.got:
					if !ok {
						t.Errorf("watch %s broke: %v", w.Name, s.err)
						return
					}
					if err := s.record(t, resp); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	r.finish()
}
