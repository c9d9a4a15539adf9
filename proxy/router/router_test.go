package router

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// start begins a request in a world and returns where its answer will be.
func (w *world) start(req *mvcc.Request) *op {
	o := &op{req: req}
	o.cancel = w.router.Start(req, w.exec, func(res *mvcc.Result, err error) { o.done, o.res, o.err = true, res, err })
	return o
}

// run lets events happen until the request is answered.
func (w *world) run(o *op) {
	w.t.Helper()
	for !o.done {
		if !w.step() {
			w.t.Fatalf("nothing more happens and %v is not answered", o.req)
		}
	}
}

// until lets events happen until there is one with the name, which it returns
// without letting it happen.
func (w *world) until(name string) event {
	w.t.Helper()
	for {
		for i, e := range w.events {
			if e.name == name {
				w.events = append(w.events[:i], w.events[i+1:]...)
				return e
			}
		}
		if !w.step() {
			w.t.Fatalf("no event %q comes", name)
		}
	}
}

func put(key, value string) *mvcc.Request {
	return &mvcc.Request{Put: &pb.PutRequest{Key: []byte(key), Value: []byte(value)}}
}

func get(key, end string) *mvcc.Request {
	return &mvcc.Request{Range: &pb.RangeRequest{Key: []byte(key), RangeEnd: []byte(end)}}
}

func putBoth(a, b string) *mvcc.Request {
	op := func(k string) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: put(k, "both").Put}}
	}
	return &mvcc.Request{Txn: &pb.TxnRequest{Success: []*pb.RequestOp{op(a), op(b)}}}
}

func (w *world) must(req *mvcc.Request) *mvcc.Result {
	w.t.Helper()
	o := w.start(req)
	w.run(o)
	if o.err != nil {
		w.t.Fatalf("%v: %v", req, o.err)
	}
	return o.res
}

func (w *world) splitNow(key string) {
	w.t.Helper()
	w.split([]byte(key), func(r splitResult, err error) {
		if r.Refused || err != nil {
			w.t.Fatal(r, err)
		}
	})
}

// A split between the query and the read: the replica has another epoch and a
// narrower span than what S was asked for, so the read starts again (R5, R11).
func TestSplitBetweenQueryAndRead(t *testing.T) {
	w := newWorld(t, 1)
	w.sendCut()
	w.must(put("a", "1"))
	w.must(put("x", "1"))
	o := w.start(get("a", "z"))
	evaluate := w.until("exec")
	w.splitNow("m")
	w.until("apply r1").f()
	evaluate.f()
	w.run(o)
	if o.err != nil || len(o.res.Range.Kvs) != 2 || o.res.Range.Header.Revision != 3 {
		t.Errorf("%v, %v", o.res, o.err)
	}
}

// A split that S has decided and the replica has not applied: the right range
// does not exist there yet, and the read waits for it (R11).
func TestReadOfARangeThatIsStillToBegin(t *testing.T) {
	w := newWorld(t, 1)
	w.sendCut()
	w.must(put("x", "1"))
	w.splitNow("m")
	apply := w.until("apply r1")
	w.until("cut").f()
	o := w.start(get("x", ""))
	for range 50 {
		w.step()
	}
	if o.done {
		t.Fatalf("answered before the split was applied: %v", o.res)
	}
	if w.nudged[2] == 0 {
		t.Error("a range that waits too long was not nudged (R5)")
	}
	apply.f()
	w.run(o)
	if o.err != nil || len(o.res.Range.Kvs) != 1 {
		t.Errorf("%v, %v", o.res, o.err)
	}
}

// A split in the middle of a transaction over ranges, after the first latch:
// the commit would name an old epoch, S refuses it, and it is done again with
// the new ranges. It is applied once.
func TestSplitInTheMiddleOfATransaction(t *testing.T) {
	for _, at := range []string{"b", "p"} {
		w := newWorld(t, 1, "m")
		w.sendCut()
		o := w.start(putBoth("a", "z"))
		first := w.until("latched")
		w.splitNow(at)
		first.f()
		w.run(o)
		if o.err != nil || len(w.log) != 1 || o.res.Txn.Header.Revision != 2 {
			t.Errorf("split at %s: %v, %v, %d revisions", at, o.res, o.err, len(w.log))
		}
		for w.step() {
			continue
		}
		for id, fr := range w.ranges {
			if len(fr.latches) > 0 {
				t.Errorf("split at %s: r%d keeps latches", at, id)
			}
		}
	}
}

// The result of a transaction over ranges exists when S has decided it, not
// before, and need not wait until the ranges have applied it (R7). A read that
// begins then waits for them and sees it.
func TestTransactionIsAnsweredWhenDecided(t *testing.T) {
	w := newWorld(t, 1, "m")
	w.sendCut()
	o := w.start(putBoth("a", "z"))
	w.until("commit").f()
	if o.done {
		t.Fatal("answered before the decision came")
	}
	w.until("decided").f()
	w.until("exec").f()
	if !o.done || o.err != nil || w.ranges[1].resolved != 1 {
		t.Fatalf("done %v, %v; r1 has resolved %d", o.done, o.err, w.ranges[1].resolved)
	}
	res := w.must(get("a", "zz"))
	if res.Range.Count != 2 || res.Range.Header.Revision != 2 {
		t.Errorf("read after the answer: %v", res.Range)
	}
}

// The latched values are read from a replica that has resolved what the leader
// had when it gave the latch: a follower that lags would show older ones (R7).
func TestLatchedStateIsReadWhereItIsResolved(t *testing.T) {
	w := newWorld(t, 1, "m")
	w.sendCut()
	w.must(put("a", "1"))
	w.must(put("z", "1"))
	seen := &piecesSeen{fakeRanges: fakeRanges{w}}
	w.router.cfg.Ranges = seen
	w.must(putBoth("a", "z"))
	if len(seen.latched) != 2 || seen.latched[0].Resolve != 2 || seen.latched[1].Resolve != 3 {
		t.Errorf("latched state was read from %+v", seen.latched)
	}
}

// piecesSeen keeps the pieces of the last view of the newest state.
type piecesSeen struct {
	fakeRanges
	latched []rangepb.Piece
}

func (s *piecesSeen) View(rev int64, pieces []rangepb.Piece) (mvcc.OpenView, error) {
	if rev == Newest {
		s.latched = append([]rangepb.Piece(nil), pieces...)
	}
	return s.fakeRanges.View(rev, pieces)
}

// A caller that leaves while latches are held or on their way leaves none
// behind; others go on.
func TestLeavingATransactionGivesLatchesBack(t *testing.T) {
	for _, when := range []string{"latch", "latched", "exec", "commit"} {
		t.Run(when, func(t *testing.T) {
			w := newWorld(t, 3, "m")
			w.sendCut()
			o := w.start(putBoth("a", "z"))
			e := w.until(when)
			o.cancel()
			e.f()
			for w.step() {
				continue
			}
			if o.done {
				t.Error("answered after it was left")
			}
			if when != "commit" && len(w.log) != 0 {
				t.Error("it was applied, though it was left before the commit")
			}
			w.must(putBoth("a", "z"))
		})
	}
}

// wakeHook runs onWake instead of waking a range.
type wakeHook struct {
	fakeRanges
	onWake func()
}

func (h wakeHook) Wake(uint64) { h.onWake() }

// A caller may leave while another goroutine begins the next attempt: it ends
// before it began.
func TestLeavingWhileAnAttemptBegins(t *testing.T) {
	w := newWorld(t, 1, "m")
	w.refuseLatch = 100
	var o *op
	begun := 0
	w.router.cfg.Ranges = wakeHook{fakeRanges{w}, func() {
		if begun++; begun == 2 {
			o.cancel()
		}
	}}
	w.sendCut()
	o = w.start(putBoth("a", "z"))
	for begun < 2 && w.step() {
		continue
	}
	if begun < 2 {
		t.Fatal("no second attempt")
	}
	for w.step() {
		continue
	}
	if o.done {
		t.Error("answered after it was left")
	}
	w.refuseLatch = 0
	w.must(putBoth("a", "z"))
}

// sideBySide answers every wait with an error, those of one read on goroutines of
// their own, as ranges of different shards do.
type sideBySide struct {
	fakeRanges
	failed *sync.WaitGroup
}

func (r sideBySide) Await(id, _ uint64, _ int64, done func(error)) {
	r.failed.Go(func() { done(&rangepb.Error{Kind: rangepb.Unresolved, RangeID: id}) })
}

// Pieces of a read that fail side by side begin one next try (for the race
// detector).
func TestPiecesThatFailSideBySideBeginOneTry(t *testing.T) {
	w := newWorld(t, 1, "c", "e", "g", "i")
	w.sendCut()
	var failed sync.WaitGroup
	var mu sync.Mutex // of the world's timers
	w.router.cfg.After = func(d time.Duration, f func()) func() {
		mu.Lock()
		defer mu.Unlock()
		stop := w.after(d, f)
		return func() { mu.Lock(); defer mu.Unlock(); stop() }
	}
	w.router.cfg.Ranges = sideBySide{fakeRanges{w}, &failed}
	o := w.start(&mvcc.Request{Range: &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}}})
	for tries := uint64(1); tries <= 20; tries++ {
		for w.router.Stats().ReadRetries < tries && w.step() {
			failed.Wait()
		}
		if n := w.router.Stats().ReadRetries; n != tries {
			t.Fatalf("%d tries begun again, want %d", n, tries)
		}
	}
	o.cancel()
}

// What changes nothing is answered as a read at R: it takes no revision, and
// waits for what is in flight on the range (R4).
func TestWriteWithoutEffectIsAnsweredAsARead(t *testing.T) {
	w := newWorld(t, 1, "m")
	w.sendCut()
	w.must(put("a", "1"))
	del := w.must(&mvcc.Request{DeleteRange: &pb.DeleteRangeRequest{Key: []byte("b"), RangeEnd: []byte("c")}})
	if del.DeleteRange.Header.Revision != 2 || w.next != 3 {
		t.Errorf("a delete of nothing: %v, next revision %d", del.DeleteRange, w.next)
	}
	del = w.must(&mvcc.Request{DeleteRange: &pb.DeleteRangeRequest{Key: []byte("b"), RangeEnd: []byte{0}}})
	if del.DeleteRange.Header.Revision != 2 || w.next != 3 {
		t.Errorf("a delete of nothing over ranges: %v, next revision %d", del.DeleteRange, w.next)
	}
	o := w.start(&mvcc.Request{Put: &pb.PutRequest{Key: []byte("none"), IgnoreValue: true}})
	w.run(o)
	if !errors.Is(o.err, mvcc.ErrKeyNotFound) {
		t.Errorf("ignore_value on a missing key: %v", o.err)
	}
}

// A write that changed nothing where it was evaluated, but would at R, is a
// write again.
func TestWriteThatWouldChangeSomethingAtRIsAWriteAgain(t *testing.T) {
	w := newWorld(t, 1)
	w.sendCut()
	o := w.start(&mvcc.Request{DeleteRange: &pb.DeleteRangeRequest{Key: []byte("a")}})
	noEffect := w.until("no effect")
	w.must(put("a", "1"))
	noEffect.f()
	w.run(o)
	if o.err != nil || o.res.DeleteRange.Deleted != 1 || o.res.DeleteRange.Header.Revision != 3 {
		t.Errorf("%v, %v", o.res, o.err)
	}
}

// A write in one range that its leader finds too wide is evaluated here, under a
// latch, and decided by S; the next that is not goes to the leader again.
func TestWriteThatIsTooWideForTheLeader(t *testing.T) {
	w := newWorld(t, 1, "m")
	w.budget = 2
	w.sendCut()
	for _, k := range []string{"a", "b", "c"} {
		w.must(put(k, "1"))
	}
	list := &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: get("a", "d").Range}}
	req := putBoth("a", "b")
	req.Txn.Success = append(req.Txn.Success, list)
	res := w.must(req)
	if kvs := res.Txn.Responses[2].GetResponseRange().GetKvs(); len(kvs) != 3 || string(kvs[0].Value) != "both" || kvs[0].ModRevision != 5 {
		t.Errorf("the transaction saw %v", kvs)
	}
	if s := w.router.Stats(); w.tooWide != 1 || s.Transactions != 1 || len(w.log) != 4 {
		t.Errorf("%d refused, %d transactions, %d revisions", w.tooWide, s.Transactions, len(w.log))
	}
	w.must(putBoth("a", "b"))
	if s := w.router.Stats(); s.Transactions != 1 {
		t.Error("a small transaction was latched")
	}
	w.drain()
}

// An explicit revision inside a transaction counts only in the branch that is
// taken, and is judged by S (etcd/T6).
func TestExplicitRevisionsInTransactions(t *testing.T) {
	op := func(rev int64) []*pb.RequestOp {
		return []*pb.RequestOp{
			{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte("a"), Revision: rev}}},
			{Request: &pb.RequestOp_RequestPut{RequestPut: put("b", "x").Put}},
		}
	}
	exists := []*pb.Compare{{Key: []byte("a"), Result: pb.Compare_GREATER, Target: pb.Compare_VERSION, TargetUnion: &pb.Compare_Version{}}}
	for _, c := range []struct {
		compacted  int64
		then, els  int64
		want       error
		noEffectOK bool
	}{
		{then: 2, compacted: -1},
		{then: 3, compacted: -1},
		{then: 4, compacted: -1, want: mvcc.ErrFutureRev},
		{then: 99, compacted: -1, want: mvcc.ErrFutureRev},
		{then: 2, els: 99, compacted: -1},
		{then: -1, compacted: -1},
		{then: -2, compacted: -1, want: mvcc.ErrCompacted},
		{then: -1, compacted: 0, want: mvcc.ErrCompacted},
		{then: -1, compacted: 2, want: mvcc.ErrCompacted},
		{then: 2, compacted: 3, want: mvcc.ErrCompacted},
		{then: 2, compacted: 2},
		{then: 0, els: 1, compacted: 3},
	} {
		w := newWorld(t, 1, "m")
		w.sendCut()
		w.must(put("a", "1"))
		w.must(put("a", "2"))
		w.compacted = c.compacted
		o := w.start(&mvcc.Request{Txn: &pb.TxnRequest{Compare: exists, Success: op(c.then), Failure: op(c.els)}})
		w.run(o)
		if !errors.Is(o.err, c.want) || (c.want == nil) != (o.err == nil) {
			t.Errorf("%+v: %v", c, o.err)
		}
		if applied := len(w.log) == 3; applied != (c.want == nil) {
			t.Errorf("%+v: applied: %v", c, applied)
		}
	}
}

// While S is silent a serializable read is served from what is complete here,
// even if that is older than what was answered; with S it is not older (R5).
func TestSerializableReads(t *testing.T) {
	w := newWorld(t, 1, "m")
	w.router.cfg.Frontier = lagging{w}
	w.sendCut()
	w.must(put("a", "1"))
	w.must(put("a", "2"))
	read := get("a", "")
	read.Range.Serializable = true
	if res := w.must(read); res.Range.Header.Revision != 3 {
		t.Errorf("with S: read at %d after 3 was answered", res.Range.Header.Revision)
	}
	w.silent = true
	res := w.must(read)
	if res.Range.Header.Revision != 2 || string(res.Range.Kvs[0].Value) != "1" {
		t.Errorf("without S: %v", res.Range)
	}
	if w.now != serializableWait {
		t.Errorf("it waited %s for S, not %s", w.now, serializableWait)
	}
	future := get("a", "")
	future.Range.Serializable, future.Range.Revision = true, 3
	o := w.start(future)
	w.run(o)
	if !errors.Is(o.err, mvcc.ErrFutureRev) {
		t.Errorf("a revision that is not complete here: %v", o.err)
	}
}

// lagging is a frontier that always stands at revision 2.
type lagging struct{ *world }

func (lagging) Complete(_, _ []byte) (int64, int64, bool) { return 2, 0, true }

// silentFrontier is a frontier that has seen what it is set to.
type silentFrontier struct{ revision, compacted, complete int64 }

func (f *silentFrontier) Revision() (int64, int64) { return f.revision, f.compacted }
func (f *silentFrontier) Complete(_, _ []byte) (int64, int64, bool) {
	return f.complete, f.compacted, f.complete > 0
}

// What is said without asking S is not below what the store has, what S has said,
// what is compacted and what was answered, whatever a range keeps back; and it
// never falls.
func TestLocalRevisionIsNotBelowWhatIsKnown(t *testing.T) {
	f := &silentFrontier{compacted: -1}
	w := newWorld(t, 1)
	w.router.cfg.Frontier = f
	for _, step := range []struct {
		what string
		do   func()
		want int64
	}{
		{"nothing is known", func() {}, 1},
		{"the store has 7", func() { w.router.Saw(7) }, 7},
		{"the store has compacted 5", func() { w.router.Saw(5) }, 7},
		{"the first cut is at 9, no range is complete", func() { f.revision = 9 }, 9},
		{"a compaction at 12 came before its cut", func() { f.compacted = 12 }, 12},
		{"S has told a watch 20", func() { w.router.Saw(20) }, 20},
		{"one range stays at 3", func() { f.complete = 3 }, 20},
		{"a cut at 21", func() { f.revision = 21 }, 21},
	} {
		step.do()
		if got := w.router.LocalRevision(); got != step.want {
			t.Errorf("%s: %d, want %d", step.what, got, step.want)
		}
	}
}

// A compaction between the query and the read: S gives a newer R, or says that
// the revision asked for is compacted (R9).
func TestCompactionBetweenQueryAndRead(t *testing.T) {
	w := newWorld(t, 1)
	w.sendCut()
	w.must(put("a", "1"))
	w.must(put("a", "2"))
	forget := func(o *op) {
		e := w.until("exec")
		w.must(put("a", "3"))
		w.compacted = w.next - 1
		if err := w.store.SetForgotten(w.compacted); err != nil {
			t.Fatal(err)
		}
		e.f()
		w.run(o)
	}
	o := w.start(get("a", ""))
	forget(o)
	if o.err != nil || o.res.Range.Header.Revision != w.next-1 {
		t.Errorf("current: %v, %v", o.res, o.err)
	}
	old := get("a", "")
	old.Range.Revision = w.next - 1
	o = w.start(old)
	forget(o)
	if !errors.Is(o.err, mvcc.ErrCompacted) {
		t.Errorf("explicit: %v", o.err)
	}
}

// Before the first cut nothing is known of the ranges: requests wait.
func TestRequestsWaitForTheFirstCut(t *testing.T) {
	w := newWorld(t, 1)
	o, p := w.start(get("a", "")), w.start(put("a", "1"))
	for range 100 {
		w.step()
	}
	if o.done || p.done {
		t.Fatal("answered without a directory")
	}
	w.sendCut()
	w.run(o)
	w.run(p)
	if o.err != nil || p.err != nil {
		t.Error(o.err, p.err)
	}
}

// What S sends is checked: a directory with a hole is not taken.
func TestCutThatDoesNotTileIsNotTaken(t *testing.T) {
	w := newWorld(t, 1)
	w.sendCut()
	before := w.router.Directory()
	bad := parseDescriptors(t, "1@2:,c")
	if err := w.router.Cut(&placementpb.Cut{Revision: 1, Descriptors: bad}); err == nil {
		t.Error("no error")
	}
	if w.router.Directory() != before {
		t.Error("it was taken")
	}
}

// The waiting of a caller ends with its context, the request timeout, or the
// router, whichever comes first; a write is told as etcd tells it (etcd/X8, etcd/E2).
func TestWaitingEnds(t *testing.T) {
	w := newWorld(t, 1)
	w.silent = true
	w.sendCut()
	w.router.cfg.MaxPending = 1
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	<-late.Done()
	for _, c := range []struct {
		ctx         context.Context
		timeout     time.Duration
		read, write error
	}{
		{t.Context(), time.Millisecond, ErrTimeout, ErrTimeout},
		{canceled, time.Hour, context.Canceled, ErrCanceled},
		{late, time.Hour, context.DeadlineExceeded, ErrTimeout},
	} {
		w.router.cfg.RequestTimeout = c.timeout // only one of the ends can come
		if _, err := w.router.Range(c.ctx, get("a", "").Range); !errors.Is(err, c.read) {
			t.Errorf("read: %v, want %v", err, c.read)
		}
		if _, err := w.router.Do(c.ctx, put("a", "1")); !errors.Is(err, c.write) {
			t.Errorf("write: %v, want %v", err, c.write)
		}
	}
	w.router.pending.Add(1)
	if _, err := w.router.Range(t.Context(), get("a", "").Range); !errors.Is(err, ErrTooManyRequests) {
		t.Errorf("too many: %v (etcd/X9)", err)
	}
	w.router.pending.Add(-1)
	w.router.Stop()
	if _, err := w.router.Range(t.Context(), get("a", "").Range); !errors.Is(err, ErrStopped) {
		t.Errorf("stopped: %v", err)
	}
}
