package router

import (
	"errors"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/hawser-kv/hawser/mvcc"
)

// Deletions of spans are bounded: beyond, a request waits until some are written out,
// or is refused; whoever deletes few keys does not notice, and what was cancelled or
// refused does not count.
func TestPendingSpansAreBounded(t *testing.T) {
	w := newWorld(t, 1, "m")
	w.sendCut()
	cfg := &w.router.cfg
	cfg.SpanKeys, cfg.PendingSpans, cfg.MaxPendingSpans = 2, w.store.PendingSpans, 3
	deletion := func() *op {
		for _, k := range []string{"a", "b", "x", "y"} {
			w.must(put(k, "1"))
		}
		return w.start(&mvcc.Request{DeleteRange: &pb.DeleteRangeRequest{Key: []byte("a"), RangeEnd: []byte("z")}})
	}
	drain := func() {
		for len(w.events) > 0 {
			w.step()
		}
	}
	for i := range 2 { // the second finds two, which is room
		o := deletion()
		w.run(o)
		if o.err != nil || o.res.DeleteRange.Deleted != 4 {
			t.Fatalf("deletion %d: %v, %v", i, o.res, o.err)
		}
		drain()
	}
	if n := w.store.PendingSpans(); n != 4 {
		t.Fatalf("%d deletions of spans are pending, want those of two requests over two ranges", n)
	}

	before := w.now
	o := deletion()
	w.run(o)
	if !errors.Is(o.err, ErrTooManyRequests) {
		t.Errorf("a deletion beside 4 pending ones: %v, %v", o.res, o.err)
	}
	if waited := w.now - before; waited < cfg.RequestTimeout/2 || waited > cfg.RequestTimeout {
		t.Errorf("refused after %s, want half of %s", waited, cfg.RequestTimeout)
	}
	if n := len(w.must(get("a", "z")).Range.Kvs); n != 4 {
		t.Errorf("%d keys are left after a deletion that was refused, want 4", n)
	}

	left := deletion()
	for range 100 {
		w.step()
	}
	left.cancel()
	few := w.start(&mvcc.Request{DeleteRange: &pb.DeleteRangeRequest{Key: []byte("b"), RangeEnd: []byte("y")}})
	w.run(few)
	if few.err != nil || few.res.DeleteRange.Deleted != 2 {
		t.Errorf("a deletion of few keys: %v, %v", few.res, few.err)
	}

	waits := deletion()
	for range 200 {
		w.step()
	}
	if waits.done {
		t.Fatalf("answered while 4 are pending: %v, %v", waits.res, waits.err)
	}
	for done := false; !done; {
		did, err := w.store.MaterialiseStep(10)
		if err != nil {
			t.Fatal(err)
		}
		done = did.Done
	}
	w.run(waits)
	if waits.err != nil || waits.res.DeleteRange.Deleted != 4 {
		t.Errorf("after they were written out: %v, %v", waits.res, waits.err)
	}
	drain()
	if n := w.router.spansUnderWay.Load(); n != 0 {
		t.Errorf("%d deletions count as under way when nothing is", n)
	}

	// One that is cancelled when it has been evaluated.
	gone := deletion()
	w.until("exec").f()
	gone.cancel()
	for w.step() {
		continue
	}
	if n := w.router.spansUnderWay.Load(); n != 0 {
		t.Errorf("%d deletions count as under way after a client has left", n)
	}
}
