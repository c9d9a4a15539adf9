package simulation

import (
	"context"
	"errors"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proxy/router"
	"github.com/hawser-kv/hawser/proxy/watch"
	"github.com/hawser-kv/hawser/tests/history"
)

const keyCount = 24

func keyAt(i int) []byte { return fmt.Appendf(nil, "k%02d", i) }

// simClient is a client with one request in flight and a few watches. The first
// client's first watch is the truth.
type simClient struct {
	w   *world
	id  int
	seq int
	op  *history.Op
	// leave gives the request up.
	leave   func()
	started int // step in which op began
	// requests has the last mod revision seen of each key.
	requests history.Requests
	watches  []*simWatch
	stale    []staleRead // planted
}

func newClient(w *world, id int) *simClient {
	c := &simClient{w: w, id: id}
	c.requests = history.Requests{Rand: w.rng, Key: c.key, Span: c.span, Value: c.value, Known: map[string]int64{}, MaxLimit: 4}
	if id == 0 {
		c.watches = append(c.watches, &simWatch{c: c, truth: true, Watch: &history.Watch{
			Name: "truth", Start: "\x00", End: "\x00", From: 2}, next: 2})
	}
	return c
}

// act does one thing that clients do.
func (c *simClient) act() {
	w := c.w
	switch n := w.rng.IntN(100); {
	case n < 25:
		c.take()
	case n < 29:
		c.watch()
	case n < 31 && len(c.watches) > 0:
		c.watches[w.rng.IntN(len(c.watches))].progress()
	case n < 32 && w.stats.Splits < 40:
		c.split()
	case n < 33:
		c.compact()
	case c.op == nil:
		c.request()
	case w.stats.Steps-c.started > 3000 && n < 40:
		c.leave()
		c.end(history.Unknown, nil, errors.New("the client left"))
	}
}

func (c *simClient) value() []byte {
	c.seq++
	return fmt.Appendf(nil, "c%d-%d", c.id, c.seq)
}

func (c *simClient) key() []byte { return keyAt(c.w.rng.IntN(keyCount)) }

// span is an interval of some keys, or all of them.
func (c *simClient) span() (start, end []byte) {
	rng := c.w.rng
	if rng.IntN(4) == 0 {
		return []byte("k"), []byte("l")
	}
	i := rng.IntN(keyCount)
	return keyAt(i), keyAt(i + 1 + rng.IntN(6))
}

// request begins a random request.
func (c *simClient) request() {
	rng := c.w.rng
	op := &history.Op{Client: c.id}
	switch n := rng.IntN(100); {
	case n < 35:
		op.Put = c.requests.Put()
	case n < 60:
		op.Range = c.requests.Range()
		if rng.IntN(4) == 0 && c.w.stats.Steps > 100 {
			op.Range.Revision = max(1, c.lastRevision()-rng.Int64N(20))
		}
		op.Range.Serializable = rng.IntN(5) == 0
	case n < 68:
		op.Delete = c.requests.Delete()
	default:
		op.Txn = c.requests.Txn()
	}
	c.begin(op)
}

func (c *simClient) begin(op *history.Op) {
	w := c.w
	op.Call = w.tick()
	c.op, c.started = op, w.stats.Steps
	life := w.node.life
	req := &mvcc.Request{Put: op.Put, DeleteRange: op.Delete, Txn: op.Txn, Range: op.Range}
	if err := mvcc.CheckRequest(req, mvcc.Limits{MaxTxnOps: 128}); err != nil {
		w.fail = fmt.Errorf("%v: %w", op, err)
		return
	}
	c.leave = func() {}
	leave := w.node.core.Router.Start(req, func(f func()) { f() }, func(res *mvcc.Result, err error) {
		if life != w.node.life || c.op != op {
			return
		}
		c.answered(res, err)
	})
	if c.op == op {
		c.leave = leave
	}
}

func (c *simClient) answered(res *mvcc.Result, err error) {
	if err != nil {
		outcome := history.Unknown
		for _, e := range []error{mvcc.ErrCompacted, mvcc.ErrFutureRev, mvcc.ErrKeyNotFound, router.ErrNoSpace, router.ErrTooManyRequests} {
			if errors.Is(err, e) {
				outcome = history.Refused
			}
		}
		c.end(outcome, nil, err)
		return
	}
	var answer proto.Message
	switch op := c.op; {
	case op.Put != nil:
		answer = res.Put
	case op.Delete != nil:
		answer = res.DeleteRange
	case op.Txn != nil:
		answer = res.Txn
	default:
		answer = res.Range
		for _, kv := range res.Range.Kvs {
			c.requests.Known[string(kv.Key)] = kv.ModRevision
		}
	}
	// The server may share memory between answers.
	c.end(history.OK, c.corruptAnswer(proto.Clone(answer)), nil)
}

// end records the request in flight.
func (c *simClient) end(outcome history.Outcome, answer proto.Message, err error) {
	w, op := c.w, c.op
	c.op = nil
	op.Return, op.Outcome, op.Answer = w.tick(), outcome, answer
	if err != nil {
		op.Err = err.Error()
	}
	switch outcome {
	case history.OK:
		w.stats.Answered++
	case history.Refused:
		w.stats.Refused++
	default:
		w.stats.Unknown++
		// It may still be applied, at any time.
		op.Return = 1 << 62
	}
	w.note("client %d %d %v", c.id, outcome, answer)
	w.run.Ops = append(w.run.Ops, op)
}

// serverGone ends what was under way when the node crashed.
func (c *simClient) serverGone() {
	if c.op != nil {
		c.end(history.Unknown, nil, errors.New("the server crashed"))
	}
	for _, wt := range c.watches {
		wt.conn = nil
	}
}

func (c *simClient) split() {
	w := c.w
	w.stats.Splits++
	w.node.core.Router.StartSplit(c.key(), func(*placementpb.SplitResult, error) {})
}

// compact forgets what the truth has seen, but for the last few revisions.
func (c *simClient) compact() {
	w := c.w
	rev := c.lastRevision() - 10 - w.rng.Int64N(20)
	if rev > 1 {
		w.stats.Compactions++
		w.node.core.Router.StartCompact(rev, func(*placementpb.CompactResult, error) {})
	}
}

// lastRevision is the last that the truth has got.
func (c *simClient) lastRevision() int64 { return c.w.clients[0].watches[0].next - 1 }

// simWatch is one watcher on a stream of its own, resumed after crashes.
type simWatch struct {
	*history.Watch
	c     *simClient
	truth bool
	// next is the first revision still wanted.
	next int64
	conn *watch.Client
	life int
	// promised is the highest progress of the connection.
	promised int64
	over     bool
	// Planted bugs' memory.
	future bool
	before *pb.WatchResponse
}

// watch opens a watch, or looks after the ones there are.
func (c *simClient) watch() {
	w := c.w
	if len(c.watches) >= 4 {
		return
	}
	wt := &simWatch{c: c, Watch: &history.Watch{Name: fmt.Sprintf("client %d watch %d", c.id, len(c.watches))}}
	wt.PrevKV = w.rng.IntN(2) == 0
	wt.NoPut, wt.NoDelete = w.rng.IntN(8) == 0, w.rng.IntN(8) == 0
	if w.rng.IntN(2) == 0 {
		wt.Start = string(c.key())
	} else {
		start, end := c.span()
		wt.Start, wt.End = string(start), string(end)
	}
	switch w.rng.IntN(3) {
	case 0:
		wt.next = max(1, c.lastRevision()-w.rng.Int64N(15))
	case 1:
		wt.next = c.lastRevision() + 1 + w.rng.Int64N(15)
		wt.future = true
	}
	c.watches = append(c.watches, wt)
	wt.connect()
}

// current is S's current revision, 0 if it does not say at once.
func (w *world) currentNow() (revision, compacted int64) {
	w.node.core.Client.Query(nil, func(a *placementpb.QueryAnswer, err error) {
		if err == nil && !a.Refused {
			revision, compacted = a.Revision, a.Compacted
		}
	})
	return revision, compacted
}

// current waits for S's current revision.
func (w *world) current() (int64, error) {
	for range 10_000 {
		if rev, _ := w.currentNow(); rev > 0 {
			return rev, nil
		}
		if err := w.round(); err != nil {
			return 0, err
		}
		if _, err := w.node.core.Store.SyncNext(w.worker()); err != nil {
			return 0, err
		}
	}
	return 0, errors.New("the sequencer does not answer")
}

func (wt *simWatch) connect() {
	w := wt.c.w
	if wt.over || wt.conn != nil && wt.life == w.node.life {
		return
	}
	rev, compacted := w.currentNow()
	if rev == 0 {
		return
	}
	if wt.next == 0 {
		wt.next = rev + 1
	}
	if wt.From == 0 {
		wt.From = wt.next
	}
	wt.conn, wt.life, wt.promised = w.node.core.Watch.Open(), w.node.life, 0
	var end []byte
	if wt.End != "" {
		end = []byte(wt.End)
	}
	wt.conn.Create(watch.CreateRequest{
		Start: []byte(wt.Start), End: end, StartRevision: wt.next,
		PrevKV: wt.PrevKV, NoPut: wt.NoPut, NoDelete: wt.NoDelete,
		Current: rev, Compacted: compacted,
	})
}

func (wt *simWatch) progress() {
	if wt.conn == nil || wt.conn.Full() {
		return
	}
	if rev, _ := wt.c.w.currentNow(); rev > 0 {
		wt.conn.RequestProgress(rev)
	}
}

// take reads what the watches of the client have been sent.
func (c *simClient) take() {
	for _, wt := range c.watches {
		wt.connect()
		wt.take()
	}
}

func (wt *simWatch) take() {
	w := wt.c.w
	if wt.conn == nil || wt.over {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	out, err := wt.conn.Next(ctx)
	if err != nil && !errors.Is(err, context.Canceled) {
		w.fail = fmt.Errorf("watch %s: %w", wt.Name, err)
		return
	}
	for _, r := range out {
		resp, err := r.WatchResponse(func(key []byte, rev int64) (*mvccpb.KeyValue, error) {
			return w.node.core.MVCC.PrevKV(key, rev+1)
		})
		if err != nil {
			w.fail = fmt.Errorf("watch %s: %w", wt.Name, err)
			return
		}
		for _, got := range wt.corruptWatch(resp) {
			wt.got(got)
		}
		if wt.over {
			return
		}
	}
}

func (wt *simWatch) got(resp *pb.WatchResponse) {
	w := wt.c.w
	switch {
	case resp.Created && resp.Canceled:
		w.fail = fmt.Errorf("watch %s refused: %s", wt.Name, resp.CancelReason)
	case resp.Created:
	case resp.Canceled:
		if wt.truth {
			w.fail = fmt.Errorf("the truth at %d was compacted at %d", wt.next, resp.CompactRevision)
			return
		}
		wt.Responses = append(wt.Responses, history.Response{Compacted: resp.CompactRevision})
		wt.over = true
		wt.conn.Close()
	case len(resp.Events) == 0:
		wt.promised = resp.Header.Revision
		wt.Responses = append(wt.Responses, history.Response{Revision: resp.Header.Revision, Progress: true})
	default:
		r := history.Response{Revision: resp.Header.Revision}
		for _, e := range resp.Events {
			ev := history.Event{Delete: e.Type == mvccpb.Event_DELETE, Kv: proto.CloneOf(e.Kv), PrevKv: e.PrevKv}
			r.Events = append(r.Events, ev)
			wt.next = max(wt.next, e.Kv.ModRevision+1)
			if wt.truth {
				w.run.Truth = append(w.run.Truth, ev)
			}
		}
		w.note("%s %d %d", wt.Name, r.Revision, len(r.Events))
		wt.Responses = append(wt.Responses, r)
	}
}

// reached says whether all watches of the client have everything up to last.
func (c *simClient) reached(last int64) bool {
	all := true
	for _, wt := range c.watches {
		if wt.over || wt.From > last || wt.next > last+1 || wt.conn != nil && wt.promised >= last {
			continue
		}
		if wt.next > last { // nothing but progress can be missing
			continue
		}
		wt.connect()
		wt.progress()
		all = false
	}
	return all
}

func (c *simClient) finish(run *history.Run, last int64) {
	for _, wt := range c.watches {
		if wt.From == 0 {
			continue // never got through
		}
		wt.Finished = !wt.over
		wt.UpTo = last
		run.Watches = append(run.Watches, wt.Watch)
	}
}
