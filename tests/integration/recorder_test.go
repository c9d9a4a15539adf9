package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/proto/adminpb"
	"github.com/hawser-kv/hawser/tests/history"
	"github.com/hawser-kv/hawser/tests/testcluster"
)

// recorder keeps what clients asked and were told, in one order of moments.
type recorder struct {
	clock atomic.Int64
	// asked counts requests, for what is to happen in the middle of a run.
	asked atomic.Int64
	// seen is the last revision that the watch over everything has got: what is
	// compacted lies below it.
	seen atomic.Int64
	// splits left to do.
	splits atomic.Int64

	mu  sync.Mutex
	run history.Run
}

// now is a moment; no two are the same.
func (r *recorder) now() int64 { return r.clock.Add(1) }

func (r *recorder) add(ops ...*history.Op) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.run.Ops = append(r.run.Ops, ops...)
}

// keyspace is keys k0000, k0001, ..., keysPerRange of them in a range.
type keyspace struct{ ranges, keysPerRange int }

func (k keyspace) keys() int        { return k.ranges * k.keysPerRange }
func (k keyspace) at(i int) string  { return fmt.Sprintf("k%04d", i) }
func (k keyspace) splits() []string { return k.every(k.keysPerRange) }

func (k keyspace) every(n int) []string {
	var s []string
	for i := n; i < k.keys(); i += n {
		s = append(s, k.at(i))
	}
	return s
}

// kvClient does one request after the other.
type kvClient struct {
	rec   *recorder
	id    int
	rng   *rand.Rand
	ks    keyspace
	kv    pb.KVClient
	admin adminpb.AdminClient
	seq   int
	// requests has the last mod revision seen of each key.
	requests history.Requests
	last     int64
}

func newKVClient(rec *recorder, n *testcluster.Node, ks keyspace, id int, seed uint64) *kvClient {
	client := n.Client()
	c := &kvClient{
		rec: rec, id: id, rng: rand.New(rand.NewPCG(seed, uint64(id))), ks: ks,
		kv: clientv3.RetryKVClient(client), admin: adminpb.NewAdminClient(client.ActiveConnection()), last: 1,
	}
	c.requests = history.Requests{Rand: c.rng, Key: c.key, Span: c.span, Value: c.value, Known: map[string]int64{}, MaxLimit: 8}
	return c
}

func (c *kvClient) value() []byte {
	c.seq++
	return fmt.Appendf(nil, "c%d-%d", c.id, c.seq)
}

// key prefers some, so that clients meet.
func (c *kvClient) key() []byte {
	n := c.ks.keys()
	if c.rng.IntN(2) == 0 {
		return []byte(c.ks.at(c.rng.IntN(8) * n / 8))
	}
	return []byte(c.ks.at(c.rng.IntN(n)))
}

// span is an interval of keys over a few ranges, or over all.
func (c *kvClient) span() (start, end []byte) {
	if c.rng.IntN(6) == 0 {
		return []byte("k"), []byte("l")
	}
	i := c.rng.IntN(c.ks.keys())
	return []byte(c.ks.at(i)), []byte(c.ks.at(i + 1 + c.rng.IntN(5*c.ks.keysPerRange)))
}

// act does one thing that clients do.
func (c *kvClient) act(ctx context.Context, t *testing.T) {
	switch n := c.rng.IntN(1000); {
	case n < 15 && c.rec.splits.Add(-1) >= 0:
		key := fmt.Appendf(c.key(), "%d", c.rng.IntN(10))
		_, err := c.admin.SplitRange(ctx, &adminpb.SplitRangeRequest{At: &adminpb.SplitRangeRequest_Key{Key: key}}, grpc.WaitForReady(true))
		if err != nil && t != nil {
			t.Logf("split at %q: %v", key, err) // a boundary already
		}
	case n < 30:
		if rev := c.rec.seen.Load() - 20 - c.rng.Int64N(40); rev > 1 {
			c.do(ctx, &history.Op{Compact: &pb.CompactionRequest{Revision: rev}})
		}
	case n < 330:
		c.do(ctx, &history.Op{Put: c.requests.Put()})
	case n < 600:
		op := &history.Op{Range: c.requests.Range()}
		if c.rng.IntN(3) == 0 {
			op.Range.Revision = max(1, c.last+2-c.rng.Int64N(60))
		}
		op.Range.Serializable = c.rng.IntN(5) == 0
		c.do(ctx, op)
	case n < 680:
		c.do(ctx, &history.Op{Delete: c.requests.Delete()})
	default:
		c.do(ctx, &history.Op{Txn: c.requests.Txn()})
	}
}

// do does a request and records it.
func (c *kvClient) do(ctx context.Context, op *history.Op) {
	var answer proto.Message
	var err error
	op.Client, op.Call = c.id, c.rec.now()
	switch {
	case op.Put != nil:
		answer, err = answered(c.kv.Put(ctx, op.Put))
	case op.Delete != nil:
		answer, err = answered(c.kv.DeleteRange(ctx, op.Delete))
	case op.Txn != nil:
		answer, err = answered(c.kv.Txn(ctx, op.Txn))
	case op.Compact != nil:
		answer, err = answered(c.kv.Compact(ctx, op.Compact))
	default:
		answer, err = answered(c.kv.Range(ctx, op.Range))
	}
	op.Return, op.Answer = c.rec.now(), answer
	if err != nil {
		op.Outcome, op.Err = history.Unknown, err.Error()
		for refusal, of := range map[history.Refusal]error{history.RefusedCompacted: rpctypes.ErrGRPCCompacted, history.RefusedFuture: rpctypes.ErrGRPCFutureRev} {
			if errors.Is(err, of) || rpctypes.Error(err) == rpctypes.Error(of) {
				op.Outcome, op.Refusal = history.Refused, refusal
			}
		}
		if op.Outcome == history.Unknown {
			op.Return = 1 << 62 // it may still be applied
		}
	}
	c.learn(answer)
	c.rec.asked.Add(1)
	c.rec.add(op)
}

func answered[T proto.Message](answer T, err error) (proto.Message, error) {
	if err != nil {
		return nil, err
	}
	return answer, nil
}

// learn keeps what the client needs for its next requests.
func (c *kvClient) learn(answer proto.Message) {
	if h, ok := answer.(interface{ GetHeader() *pb.ResponseHeader }); ok && h.GetHeader() != nil {
		c.last = max(c.last, h.GetHeader().Revision)
	}
	if r, ok := answer.(*pb.RangeResponse); ok {
		for _, kv := range r.Kvs {
			c.requests.Known[string(kv.Key)] = kv.ModRevision
		}
	}
}
