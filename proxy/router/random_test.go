package router

import (
	"errors"
	"fmt"
	"math/rand"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/mvcc"
)

// TestAnswersAreThoseOfOneRange runs random requests, several at a time, on a
// keyspace of several ranges that are split meanwhile, with dropped requests and
// lost answers, and holds every answer against one range that applied the same
// revisions one by one (R4, R5, R7, R11; I3, I5).
func TestAnswersAreThoseOfOneRange(t *testing.T) {
	const seeds = 24
	var ran, recuts, retries, tooWide atomic.Uint64
	t.Cleanup(func() {
		if ran.Load() < seeds {
			return // one seed was asked for again
		}
		if recuts.Load() == 0 || retries.Load() == 0 || tooWide.Load() < 20 {
			t.Errorf("weak runs: %d ranges replaced under latches, %d transactions begun again, %d too wide for a leader",
				recuts.Load(), retries.Load(), tooWide.Load())
		}
	})
	for seed := int64(1); seed <= seeds; seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			ran.Add(1)
			w := newWorld(t, seed, "c", "e", "g")
			if seed > 20 { // one range whose leader evaluates next to nothing
				w = newWorld(t, seed)
				w.whole = true
			}
			if seed%2 == 0 {
				w.dropWrite, w.refuseLatch, w.refuseTxn, w.loseTxn, w.loseQuery = 10, 10, 10, 5, 5
			}
			w.budget = seed % 2
			w.router.cfg.Frontier = fakeFrontier{w}
			runRandom(w, 300)
			recuts.Add(w.router.Stats().TransactionRecuts)
			tooWide.Add(uint64(w.tooWide))
			retries.Add(w.router.Stats().TransactionRetries)
		})
	}
}

// op is one request of the random run.
type op struct {
	req         *mvcc.Request
	cancel      func()
	left        bool // the caller has left
	done        bool
	res         *mvcc.Result
	err         error
	floor       int64 // highest revision acknowledged before it began
	strong      bool  // linearizable
	began, over int
}

func runRandom(w *world, n int) {
	w.sendCut()
	gen := &generator{rnd: w.rnd}
	var ops []*op
	pending, acked := 0, int64(1)
	leave := func(o *op) {
		if !o.done && !o.left && o.cancel != nil {
			o.left = true
			pending--
			o.cancel()
		}
	}
	w.interrupt = func() {
		if len(ops) > 0 && w.rnd.Intn(200) == 0 {
			leave(ops[len(ops)-1-w.rnd.Intn(min(len(ops), 8))])
		}
	}
	for clock := 0; ; clock++ {
		if len(ops) < n && pending < 8 && w.rnd.Intn(3) == 0 {
			o := &op{req: gen.request(w.next), floor: acked, began: clock}
			o.strong = !o.req.IsReadOnly() || !o.req.IsSerializable()
			if err := mvcc.CheckRequest(o.req, mvcc.Limits{}); err != nil {
				continue
			}
			ops = append(ops, o)
			pending++
			o.cancel = w.router.Start(o.req, w.exec, func(res *mvcc.Result, err error) {
				if o.done || o.left {
					w.t.Fatalf("op %v answered twice or after it was left", o.req)
				}
				o.done, o.res, o.err, o.over = true, res, err, clock
				pending--
				if err == nil {
					acked = max(acked, revisionOf(res))
				}
			})
			if w.rnd.Intn(20) == 0 {
				w.post("leave", func() { leave(o) })
			}
		}
		if !w.whole && w.rnd.Intn(40) == 0 {
			// Some splits come from elsewhere and wait for nobody.
			key := append(gen.key(), "m"[:w.rnd.Intn(2)]...)
			if w.rnd.Intn(2) == 0 {
				fakeSequencer{w}.Split(key, func(r splitResult, err error) {})
			} else {
				w.router.startSplit(key, func(r splitResult, err error) {})
			}
		}
		if !w.step() && len(ops) == n {
			break
		}
		if clock > 200_000 {
			for _, o := range ops {
				if !o.done && !o.left {
					w.t.Errorf("not answered: %v", o.req)
				}
			}
			w.t.Fatalf("no end: %d pending of %d", pending, len(ops))
		}
	}
	if pending != 0 {
		for _, o := range ops {
			if !o.done && !o.left {
				w.t.Errorf("never answered: %v", o.req)
			}
		}
	}
	for _, fr := range w.ranges {
		if len(fr.latches) != 0 || len(fr.queue) != 0 || len(fr.blocked) != 0 {
			w.t.Errorf("r%d: left behind: %d latches, %d entries, %d blocked", fr.id, len(fr.latches), len(fr.queue), len(fr.blocked))
		}
	}
	w.interrupt = nil
	check(w, ops)
}

func revisionOf(res *mvcc.Result) int64 {
	switch {
	case res.Put != nil:
		return res.Put.Header.Revision
	case res.DeleteRange != nil:
		return res.DeleteRange.Header.Revision
	case res.Txn != nil:
		return res.Txn.Header.Revision
	}
	return res.Range.Header.Revision
}

// check evaluates every answered request on one range that has applied the
// revisions of the run in their order.
func check(w *world, ops []*op) {
	model := newWorld(w.t, 0)
	for rev := int64(2); rev < w.next; rev++ {
		b := model.db.NewBatch()
		if err := model.store.Apply(b, rev, w.log[rev]); err != nil {
			w.t.Fatal(err)
		}
		if err := b.Commit(pebble.NoSync); err != nil {
			w.t.Fatal(err)
		}
	}
	answered, writes, errored := 0, 0, 0
	for _, o := range ops {
		if !o.done {
			continue
		}
		if o.err != nil {
			errored++
			checkError(w, o)
			continue
		}
		answered++
		rev := revisionOf(o.res)
		if o.strong && rev < o.floor {
			w.t.Errorf("%v answered at %d, after %d had been acknowledged", o.req, rev, o.floor)
		}
		base := rev
		if len(o.res.Effects) > 0 {
			writes++
			base = rev - 1
			if rev <= o.floor {
				w.t.Errorf("%v took revision %d, after %d had been acknowledged", o.req, rev, o.floor)
			}
		}
		v, err := model.store.Snapshot(base)
		if err != nil {
			w.t.Fatal(err)
		}
		want, err := mvcc.Evaluate(v, o.req, mvcc.Env{Current: base, Compacted: -1, LeaseExists: func(int64) bool { return false }})
		v.Close()
		if err != nil {
			w.t.Errorf("%v answered at %d, one range says %v", o.req, rev, err)
			continue
		}
		if len(want.Effects) != len(o.res.Effects) {
			w.t.Errorf("%v at %d: %d effects, one range has %d", o.req, rev, len(o.res.Effects), len(want.Effects))
			continue
		}
		want.Finish(rev)
		if got, expect := response(o.res), response(want); !proto.Equal(got, expect) {
			w.t.Errorf("%v at %d:\n got %v\nwant %v", o.req, rev, got, expect)
		}
	}
	if answered < len(ops)/2 || writes < len(ops)/10 {
		w.t.Errorf("a weak run: %d of %d answered, %d writes, %d errors", answered, len(ops), writes, errored)
	}
}

func checkError(w *world, o *op) {
	for _, e := range []error{mvcc.ErrKeyNotFound, mvcc.ErrLeaseNotFound, mvcc.ErrFutureRev, mvcc.ErrCompacted} {
		if errors.Is(o.err, e) {
			return
		}
	}
	if errors.Is(o.err, ErrUnknownFate) && w.loseTxn > 0 && !o.req.IsReadOnly() {
		return
	}
	w.t.Errorf("%v failed: %v", o.req, o.err)
}

func response(r *mvcc.Result) proto.Message {
	switch {
	case r.Put != nil:
		return r.Put
	case r.DeleteRange != nil:
		return r.DeleteRange
	case r.Txn != nil:
		return r.Txn
	}
	return r.Range
}

// fakeFrontier serves what every touched range has resolved.
type fakeFrontier struct{ *world }

func (w fakeFrontier) Complete(start, end []byte) (int64, int64, bool) {
	rev := w.next - 1
	for _, d := range w.dir {
		s := mvcc.Access{Start: start, End: end}
		if !overlaps(s, spanOf(d)) {
			continue
		}
		if fr := w.ranges[d.RangeId]; fr.resolved < w.last[d.RangeId] {
			rev = min(rev, fr.resolved)
		}
	}
	return rev, w.compacted, rev > 0
}

// Revision is what S would say.
func (w *world) Revision() (int64, int64) { return w.next - 1, w.compacted }

// generator makes requests over a dozen keys.
type generator struct{ rnd *rand.Rand }

func (g *generator) key() []byte { return []byte{byte('a' + g.rnd.Intn(9))} }

func (g *generator) bool(percent int) bool { return g.rnd.Intn(100) < percent }

// span returns key and range_end: one key, an interval, all from a key on, or an
// empty interval.
func (g *generator) span() (key, end []byte) {
	key = g.key()
	switch g.rnd.Intn(6) {
	case 0, 1, 2:
		return key, nil
	case 3:
		return key, []byte{0}
	default:
		return key, g.key()
	}
}

func (g *generator) revision(next int64) int64 {
	if g.bool(70) {
		return 0
	}
	return g.rnd.Int63n(next+3) - 2
}

func (g *generator) rng(next int64) *pb.RangeRequest {
	r := &pb.RangeRequest{Limit: int64(max(0, g.rnd.Intn(8)-3)), Revision: g.revision(next), Serializable: g.bool(20)}
	r.Key, r.RangeEnd = g.span()
	r.CountOnly, r.KeysOnly = g.bool(15), g.bool(15)
	if g.bool(20) {
		r.SortOrder = pb.RangeRequest_SortOrder(g.rnd.Intn(3))
		r.SortTarget = pb.RangeRequest_SortTarget(g.rnd.Intn(5))
	}
	if g.bool(15) {
		r.MinModRevision = g.rnd.Int63n(next)
	}
	return r
}

func (g *generator) put() *pb.PutRequest {
	r := &pb.PutRequest{Key: g.key(), PrevKv: g.bool(30)}
	switch g.rnd.Intn(8) {
	case 0:
		r.IgnoreValue = true
	case 1:
		r.IgnoreLease = true
		fallthrough
	default:
		r.Value = []byte(fmt.Sprint("v", g.rnd.Intn(100)))
	}
	return r
}

func (g *generator) delete() *pb.DeleteRangeRequest {
	r := &pb.DeleteRangeRequest{PrevKv: g.bool(30)}
	r.Key, r.RangeEnd = g.span()
	return r
}

func (g *generator) compare() *pb.Compare {
	c := &pb.Compare{Result: pb.Compare_CompareResult(g.rnd.Intn(4))}
	c.Key = g.key()
	if g.bool(30) {
		c.Key, c.RangeEnd = g.span()
	}
	n := g.rnd.Int63n(4)
	switch g.rnd.Intn(3) {
	case 0:
		c.Target, c.TargetUnion = pb.Compare_VERSION, &pb.Compare_Version{Version: n}
	case 1:
		c.Target, c.TargetUnion = pb.Compare_CREATE, &pb.Compare_CreateRevision{CreateRevision: n * 10}
	default:
		c.Target, c.TargetUnion = pb.Compare_VALUE, &pb.Compare_Value{Value: []byte("v5")}
	}
	return c
}

func (g *generator) txn(next int64, depth int, readOnly bool) *pb.TxnRequest {
	t := &pb.TxnRequest{}
	for range g.rnd.Intn(3) {
		t.Compare = append(t.Compare, g.compare())
	}
	ops := func() (out []*pb.RequestOp) {
		for range g.rnd.Intn(4) {
			kind := g.rnd.Intn(4)
			if readOnly {
				kind = 0
			}
			switch kind {
			case 0:
				out = append(out, &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: g.rng(next)}})
			case 1:
				out = append(out, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: g.put()}})
			case 2:
				out = append(out, &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: g.delete()}})
			default:
				if depth > 0 {
					out = append(out, &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: g.txn(next, depth-1, false)}})
				}
			}
		}
		return out
	}
	t.Success, t.Failure = ops(), ops()
	return t
}

func (g *generator) request(next int64) *mvcc.Request {
	switch g.rnd.Intn(10) {
	case 0, 1:
		return &mvcc.Request{Put: g.put()}
	case 2:
		return &mvcc.Request{DeleteRange: g.delete()}
	case 3, 4, 5:
		return &mvcc.Request{Range: g.rng(next)}
	case 6:
		return &mvcc.Request{Txn: g.txn(next, 0, true)}
	default:
		return &mvcc.Request{Txn: g.txn(next, 2, false)}
	}
}
