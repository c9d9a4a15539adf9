package router

import (
	"errors"
	"fmt"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// wideWorld has n ranges with a key in the middle of each.
func wideWorld(t *testing.T, n int) *world {
	var at []string
	for i := 1; i < n; i++ {
		at = append(at, fmt.Sprintf("k%03d", i))
	}
	w := newWorld(t, 1, at...)
	w.sendCut()
	for i := range n {
		w.must(put(fmt.Sprintf("k%03d-m", i), "1"))
	}
	return w
}

var deleteAll = &mvcc.Request{DeleteRange: &pb.DeleteRangeRequest{Key: []byte{0}, RangeEnd: []byte{0}}}

// A range that is split before its latch is asked for is replaced in place by
// what it was split into, however often that happens: the latches that are held
// stay, and one attempt is enough (R7, R11).
func TestSplitsAheadOfATransactionDoNotRestartIt(t *testing.T) {
	const ranges = 30
	for _, order := range []string{"cut first", "cut last"} {
		t.Run(order, func(t *testing.T) {
			w := wideWorld(t, ranges)
			o := w.start(deleteAll)
			for i := range ranges {
				// The latch of range i is on its way, those before it are held.
				ask := w.until("latch")
				w.splitNow(fmt.Sprintf("k%03d-m", i))
				w.until(fmt.Sprintf("apply r%d", i+1)).f()
				if order == "cut first" {
					w.until("cut").f()
				}
				ask.f()
				// The left and then the right part of range i.
				w.until("latch").f()
				w.until("latched").f()
				w.until("latch").f()
				w.until("latched").f()
			}
			w.run(o)
			if o.err != nil || o.res.DeleteRange.Deleted != ranges {
				t.Fatalf("%v, %v", o.res, o.err)
			}
			if s := w.router.Stats(); s.Transactions != 1 || s.TransactionRetries != 0 {
				t.Errorf("%d attempts, %d tried again", s.Transactions, s.TransactionRetries)
			}
			w.drain()
		})
	}
}

// All ranges of a transaction are woken before the first is latched: one after the
// other, a thousand that sleep would take a thousand elections' time (R7).
func TestRangesOfATransactionAreWokenSideBySide(t *testing.T) {
	const ranges = 10
	w := wideWorld(t, ranges)
	o := w.start(deleteAll)
	if len(w.woken) != ranges-1 || w.woken[1] != 0 {
		t.Errorf("woken with the first latch: %v", w.woken)
	}
	w.run(o)
	if o.err != nil {
		t.Error(o.err)
	}
}

// Splits wait for the latches of transactions on their range, so a transaction
// that is over many ranges is done at the first attempt, and every split is made,
// while one after the other is asked for (R7, R11).
func TestTransactionsAndSplitsBothGoOn(t *testing.T) {
	const ranges = 30
	for seed := range int64(20) {
		w := wideWorld(t, ranges)
		w.rnd.Seed(seed)
		splits := 0
		var split func()
		split = func() {
			key := fmt.Sprintf("k%03d-%03d", w.rnd.Intn(ranges), splits)
			w.router.startSplit([]byte(key), func(res splitResult, err error) {
				if err != nil || res.Refused {
					t.Errorf("split at %s: %v, %v", key, res, err)
				}
				if splits++; splits < 100 {
					split()
				}
			})
		}
		split()
		txns := uint64(0)
		for ; splits < 100; txns++ {
			for i := range ranges {
				w.must(put(fmt.Sprintf("k%03d-m", i), "2"))
			}
			w.tick() // a split that S refused for now is asked for again
			if res := w.must(deleteAll); res.DeleteRange.Deleted != ranges {
				t.Fatalf("seed %d: %v", seed, res)
			}
		}
		if s := w.router.Stats(); s.Transactions != txns || s.TransactionRetries != 0 {
			t.Errorf("seed %d: %d attempts, %d tried again, for %d transactions", seed, s.Transactions, s.TransactionRetries, txns)
		}
		w.drain()
	}
}

// A latch whose owner is silent holds a split up for so long only, and the writes
// that stand behind the split go on then.
func TestSplitGoesOnWithoutTheLatchInTheEnd(t *testing.T) {
	w := newWorld(t, 1)
	w.sendCut()
	silent := &placementpb.TxnID{NodeId: 2, Number: 99}
	fakeRanges{w}.Latch(1, 1, silent, []mvcc.Access{{Start: []byte("b"), End: []byte("c"), Write: true}}, func(rangepb.LatchAnswer) {})
	w.until("latched").f()
	var got splitResult
	w.router.startSplit([]byte("m"), func(res splitResult, _ error) { got = res })
	for w.now < splitPatience {
		if got != nil {
			t.Fatalf("split at %s, over a latch", w.now)
		}
		w.step()
	}
	for got == nil && w.step() {
		continue
	}
	if got.GetLeft() == nil || w.now != splitPatience {
		t.Errorf("%v at %s", got, w.now)
	}
	w.must(put("a", "1"))
	w.unlatch(1, silent.Number)
	w.drain()
}

// refusingRanges gives no latch.
type refusingRanges struct {
	fakeRanges
	kind  rangepb.ErrorKind
	asked *int
}

func (r refusingRanges) Latch(id, _ uint64, _ *placementpb.TxnID, _ []mvcc.Access, done func(rangepb.LatchAnswer)) {
	*r.asked++
	r.post("latch", func() { done(rangepb.LatchAnswer{Err: &rangepb.Error{Kind: r.kind, RangeID: id}}) })
}

// A split whose latch is refused goes on without: S, which needs no latch for it,
// finds the leader, and what S refuses for now is asked again (R11).
func TestSplitGoesOnWhenItsLatchIsRefused(t *testing.T) {
	for _, kind := range []rangepb.ErrorKind{rangepb.NotLeader, rangepb.Dropped, rangepb.Busy, rangepb.Unknown} {
		w := newWorld(t, 1)
		latches := 0
		w.router.cfg.Ranges = refusingRanges{fakeRanges{w}, kind, &latches}
		w.sendCut()
		var got splitResult
		w.router.startSplit([]byte("m"), func(res splitResult, err error) {
			if got = res; err != nil {
				t.Errorf("%s: %v", kind, err)
			}
		})
		w.closed[1] = true // no leader is registered: S refuses
		w.until("latch").f()
		w.until("split").f()
		if got != nil || latches != 1 {
			t.Fatalf("%s: answered with %v after %d latches", kind, got, latches)
		}
		w.closed[1] = false
		for got == nil && w.step() {
			continue
		}
		if string(got.GetRight().GetStart()) != "m" || latches != 2 || w.now >= splitPatience {
			t.Errorf("%s: %v at %s after %d latches", kind, got, w.now, latches)
		}
		w.drain()
	}
}

// A split of a range whose data is damaged is refused at once: nobody could apply
// it, and S, which does not know, would be asked until the client gives up.
func TestSplitOfADamagedRangeIsRefused(t *testing.T) {
	w := newWorld(t, 1)
	latches, answers := 0, 0
	w.router.cfg.Ranges = refusingRanges{fakeRanges{w}, rangepb.Corrupt, &latches}
	w.sendCut()
	w.router.startSplit([]byte("m"), func(res splitResult, err error) {
		answers++
		var re *rangepb.Error
		if res != nil || !errors.As(err, &re) || re.Kind != rangepb.Corrupt || errors.Is(err, ErrUnknownFate) {
			t.Errorf("%v, %v", res, err)
		}
	})
	w.until("latch").f()
	if answers != 1 || latches != 1 {
		t.Errorf("%d answers after %d latches", answers, latches)
	}
	w.drain()
}

// Whoever leaves a split before S was asked leaves nothing behind.
func TestLeavingASplit(t *testing.T) {
	for _, when := range []string{"latch", "latched"} {
		w := newWorld(t, 1)
		w.sendCut()
		cancel := w.router.startSplit([]byte("m"), func(splitResult, error) { t.Error("answered after it was left") })
		e := w.until(when)
		cancel()
		e.f()
		w.drain()
		if len(w.dir) != 1 {
			t.Errorf("%s: it was split", when)
		}
	}
}

// A split at a boundary that somebody else makes meanwhile is refused, and gives
// its latch back.
func TestSplitAtABoundaryGivesTheLatchBack(t *testing.T) {
	w := newWorld(t, 1)
	w.sendCut()
	var got splitResult
	w.router.startSplit([]byte("m"), func(res splitResult, _ error) { got = res })
	w.until("latched").f()
	ask := w.until("split")
	w.splitNow("m")
	ask.f()
	if got.GetReason() != placementpb.RefusalReason_REFUSAL_REASON_BOUNDARY_EXISTS {
		t.Errorf("%v", got)
	}
	w.drain()
	w.must(put("a", "1"))
}

// drain lets everything happen and checks that no latch is left.
func (w *world) drain() {
	w.t.Helper()
	for w.step() {
		continue
	}
	for id, fr := range w.ranges {
		if len(fr.latches) > 0 {
			w.t.Errorf("r%d keeps latches", id)
		}
	}
}
