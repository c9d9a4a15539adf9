package crash

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/proto/adminpb"
	"github.com/hawser-kv/hawser/tests/history"
)

// load is clients at work on one server over all its processes, and what they
// were told.
type load struct {
	tb   testing.TB
	to   *endpoint
	keys int
	// moment is the clock of the recorded history.
	moment atomic.Int64
	// answered counts requests with an answer.
	answered atomic.Int64
	splits   atomic.Int64

	stop    chan struct{}
	clients sync.WaitGroup
	truth   *watcher

	mu struct {
		sync.Mutex
		ops      []*history.Op
		watchers []*watcher
	}
}

// newLoad returns a load without clients. The truth, a watch over everything,
// runs from the start.
func newLoad(tb testing.TB, to *endpoint, keys int) *load {
	l := &load{tb: tb, to: to, keys: keys, stop: make(chan struct{})}
	l.truth = l.watch(watchOptions{name: "truth", start: "\x00", end: "\x00", from: 2})
	return l
}

func (l *load) keyAt(i int) []byte { return fmt.Appendf(nil, "k%03d", i%l.keys) }

func (l *load) record(op *history.Op) {
	l.mu.Lock()
	l.mu.ops = append(l.mu.ops, op)
	l.mu.Unlock()
}

// run starts n clients; halt ends them.
func (l *load) run(n int, seed uint64) {
	for i := range n {
		c := &loadClient{load: l, id: i, conn: l.to.conn(l.tb), rng: rand.New(rand.NewPCG(seed, uint64(i))), known: map[string]int64{}}
		c.kv = pb.NewKVClient(c.conn)
		l.clients.Go(c.work)
	}
}

// halt ends the clients when what they have under way has ended, which needs a
// server.
func (l *load) halt() {
	close(l.stop)
	l.clients.Wait()
}

// loadClient is a client with one request under way.
type loadClient struct {
	*load
	id, seq int
	conn    *grpc.ClientConn
	kv      pb.KVClient
	rng     *rand.Rand
	// known is the last mod revision seen of each key, for compare-and-swap.
	known map[string]int64
}

func (c *loadClient) work() {
	for {
		select {
		case <-c.stop:
			return
		default:
		}
		switch n := c.rng.IntN(1000); {
		case n < 8:
			c.split()
		case n < 16:
			c.compact()
		case n < 30:
			if ws := c.watchers(); len(ws) > 0 {
				ws[c.rng.IntN(len(ws))].askProgress()
			}
		default:
			c.do(c.request())
		}
	}
}

// value is unique, so that a revision belongs to one request, and now and then
// large, so that the engine's files change.
func (c *loadClient) value() []byte {
	c.seq++
	v := fmt.Appendf(nil, "c%d-%d", c.id, c.seq)
	switch n := c.rng.IntN(1000); {
	case n < 2:
		v = append(v, strings.Repeat(".", 128<<10)...)
	case n < 20:
		v = append(v, strings.Repeat(".", 4<<10)...)
	}
	return v
}

func (c *loadClient) key() []byte { return c.keyAt(c.rng.IntN(c.keys)) }

// span is an interval of some keys, or all of them.
func (c *loadClient) span() (start, end []byte) {
	if c.rng.IntN(8) == 0 {
		return []byte("k"), []byte("l")
	}
	i := c.rng.IntN(c.keys)
	return c.keyAt(i), append(c.keyAt(min(i+c.rng.IntN(12), c.keys-1)), 0)
}

// request is a random request.
func (c *loadClient) request() *history.Op {
	op := &history.Op{Client: c.id}
	switch n := c.rng.IntN(100); {
	case n < 40:
		op.Put = &pb.PutRequest{Key: c.key(), Value: c.value(), PrevKv: c.rng.IntN(3) == 0}
	case n < 55:
		op.Range = c.rangeRequest()
		if at := c.truth.position(); c.rng.IntN(4) == 0 {
			op.Range.Revision = max(1, at-c.rng.Int64N(40))
		}
		op.Range.Serializable = c.rng.IntN(5) == 0
	case n < 63:
		op.Delete = &pb.DeleteRangeRequest{Key: c.key(), PrevKv: c.rng.IntN(2) == 0}
		if c.rng.IntN(4) == 0 {
			op.Delete.Key, op.Delete.RangeEnd = c.span()
		}
	default:
		op.Txn = c.txn()
	}
	return op
}

func (c *loadClient) rangeRequest() *pb.RangeRequest {
	r := &pb.RangeRequest{Key: c.key()}
	if c.rng.IntN(2) == 0 {
		r.Key, r.RangeEnd = c.span()
		r.Limit = c.rng.Int64N(4)
		r.CountOnly = c.rng.IntN(4) == 0
		r.KeysOnly = c.rng.IntN(4) == 0
	}
	return r
}

// txn compares some keys and writes others, in one range or in several.
func (c *loadClient) txn() *pb.TxnRequest {
	t := &pb.TxnRequest{}
	for range 1 + c.rng.IntN(2) {
		key := c.key()
		t.Compare = append(t.Compare, &pb.Compare{Key: key, Result: pb.Compare_EQUAL, Target: pb.Compare_MOD,
			TargetUnion: &pb.Compare_ModRevision{ModRevision: c.known[string(key)]}})
	}
	used := map[string]bool{}
	for range 1 + c.rng.IntN(4) {
		key := c.key()
		if used[string(key)] {
			continue
		}
		used[string(key)] = true
		op := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: key, Value: c.value(), PrevKv: c.rng.IntN(3) == 0}}}
		if c.rng.IntN(5) == 0 {
			op.Request = &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: key, PrevKv: c.rng.IntN(2) == 0}}
		}
		t.Success = append(t.Success, op)
	}
	t.Success = append(t.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: c.rangeRequest()}})
	for _, cmp := range t.Compare {
		t.Failure = append(t.Failure, &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: cmp.Key}}})
	}
	return t
}

// do sends a request, once a server is there, and records what came of it.
func (c *loadClient) do(op *history.Op) {
	ctx, cancel := context.WithTimeout(context.Background(), tooLong)
	defer cancel()
	op.Call = c.moment.Add(1)
	answer, err := c.send(ctx, op)
	op.Return = c.moment.Add(1)
	switch {
	case err == nil:
		op.Answer = answer
		c.learn(answer)
		c.answered.Add(1)
	case mayBeApplied(err):
		op.Outcome, op.Err = history.Unknown, err.Error()
		op.Return = 1 << 62 // it may be applied at any time until the server's next end
	default:
		op.Outcome, op.Err = history.Refused, err.Error()
	}
	c.record(op)
}

func (c *loadClient) send(ctx context.Context, op *history.Op) (proto.Message, error) {
	wait := grpc.WaitForReady(true)
	switch {
	case op.Put != nil:
		return c.kv.Put(ctx, op.Put, wait)
	case op.Range != nil:
		return c.kv.Range(ctx, op.Range, wait)
	case op.Delete != nil:
		return c.kv.DeleteRange(ctx, op.Delete, wait)
	}
	return c.kv.Txn(ctx, op.Txn, wait)
}

// mayBeApplied says whether a request that ended with err may have been applied.
// What is sent is valid, so only a revision can be refused.
func mayBeApplied(err error) bool { return status.Code(err) != codes.OutOfRange }

// learn remembers mod revisions for compare-and-swap.
func (c *loadClient) learn(answer proto.Message) {
	read := func(r *pb.RangeResponse) {
		for _, kv := range r.GetKvs() {
			c.known[string(kv.Key)] = kv.ModRevision
		}
	}
	switch a := answer.(type) {
	case *pb.RangeResponse:
		read(a)
	case *pb.TxnResponse:
		for _, r := range a.Responses {
			read(r.GetResponseRange())
		}
	}
}

// maxSplits bounds the ranges: a thousand kills would otherwise make thousands.
const maxSplits = 60

// split cuts a range at some key. What becomes of it the server tells nobody
// but the router: clients must not notice.
func (c *loadClient) split() {
	if c.splits.Add(1) > maxSplits {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), tooLong)
	defer cancel()
	_, err := adminpb.NewAdminClient(c.conn).SplitRange(ctx, &adminpb.SplitRangeRequest{
		At: &adminpb.SplitRangeRequest_Key{Key: c.key()}}, grpc.WaitForReady(true))
	switch status.Code(err) {
	case codes.OK, codes.AlreadyExists, codes.Unavailable, codes.FailedPrecondition, codes.Aborted:
	default:
		c.tb.Errorf("split: %v", err)
	}
}

// compact forgets what the truth has got, but for the last revisions. A watcher
// that knows of less may be cancelled by it.
func (c *loadClient) compact() {
	rev := c.truth.position() - 50 - c.rng.Int64N(100)
	if rev <= 1 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), tooLong)
	defer cancel()
	_, err := c.kv.Compact(ctx, &pb.CompactionRequest{Revision: rev, Physical: c.rng.IntN(4) == 0}, grpc.WaitForReady(true))
	switch status.Code(err) {
	case codes.OK, codes.OutOfRange, codes.Unavailable:
	default:
		c.tb.Errorf("compact at %d: %v", rev, err)
	}
}

// history returns everything that was seen, for history.Check.
func (l *load) history(revision int64) *history.Run {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := &history.Run{Ops: l.mu.ops, Revision: revision}
	for _, w := range l.mu.watchers {
		w.mu.Lock()
		if w == l.truth {
			for _, resp := range w.watch.Responses {
				r.Truth = append(r.Truth, resp.Events...)
			}
		}
		if w.watch.From > 0 {
			w.watch.Finished, w.watch.UpTo = !w.over, revision
			r.Watches = append(r.Watches, w.watch)
		}
		w.mu.Unlock()
	}
	return r
}

// outcomes counts the recorded requests.
func (l *load) outcomes() (ok, refused, unknown int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, op := range l.mu.ops {
		switch op.Outcome {
		case history.OK:
			ok++
		case history.Refused:
			refused++
		default:
			unknown++
		}
	}
	return ok, refused, unknown
}

// current asks a server for the current revision.
func current(ctx context.Context, conn *grpc.ClientConn) (int64, error) {
	resp, err := pb.NewKVClient(conn).Range(ctx, &pb.RangeRequest{Key: []byte("none")}, grpc.WaitForReady(true))
	if err != nil {
		return 0, err
	}
	return resp.Header.Revision, nil
}

// finish ends the load on a server that runs: it waits until every watcher has
// got everything, and checks and returns what was seen. dense: revisions must
// not have a gap.
func (l *load) finish(dense bool) *history.Run {
	l.tb.Helper()
	l.halt()
	// Everything once more: what was acknowledged is there.
	last := &loadClient{load: l, id: -1, conn: l.to.conn(l.tb), known: map[string]int64{}}
	last.kv = pb.NewKVClient(last.conn)
	last.do(&history.Op{Client: -1, Range: &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}}})
	revision, err := current(within(l.tb), last.conn)
	if err != nil {
		l.tb.Fatalf("current revision: %v", err)
	}
	for _, w := range l.watchers() {
		await(l.tb, fmt.Sprintf("watch %s to reach %d", w.watch.Name, revision), func() bool {
			return l.tb.Failed() || w.reached(revision)
		})
	}
	l.endWatches()
	run := l.history(revision)
	run.Dense = dense
	if err := errors.Join(history.Check(run)...); err != nil {
		l.tb.Errorf("what clients saw is no history:\n%v", err)
	}
	return run
}
