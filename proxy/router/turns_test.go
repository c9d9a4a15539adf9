package router

import (
	"fmt"
	"slices"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// Boundaries in ascending order cut the last range again and again, each at once
// after the one before. Requests to that range are sent back once for each split
// that had begun when they came, not for each that is to come.
func TestSplitsOneAfterTheOtherLetRequestsPass(t *testing.T) {
	const splits, clients = 300, 8
	for _, kind := range []string{"put", "transaction over ranges", "get"} {
		for _, splitters := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s, %d splitters", kind, splitters), func(t *testing.T) {
				w := newWorld(t, int64(splitters), "a")
				w.whole = true
				w.sendCut()
				begun, done := 0, 0
				var split func()
				split = func() {
					if begun == splits {
						return
					}
					begun++
					w.router.startSplit(fmt.Appendf(nil, "s%04d", begun), func(res splitResult, err error) {
						if err != nil || res.Refused {
							t.Errorf("split: %v, %v", res, err)
						}
						done++
						split()
					})
				}
				// longest is the most splits that were done beside one request.
				longest, passed := 0, 0
				var request func(client int)
				request = func(client int) {
					before := done
					ended := func(err error) {
						if err != nil {
							t.Errorf("%s: %v", kind, err)
						}
						passed++
						if longest = max(longest, done-before); done < splits {
							request(client)
						}
					}
					w.ask(kind, client, passed, ended)
				}
				for range splitters {
					split()
				}
				for c := range clients {
					request(c)
				}
				for done < splits && w.step() {
					w.pass(20 * time.Microsecond)
				}
				for w.step() {
					continue
				}
				t.Logf("%d requests beside %d splits, one beside %d at most", passed, done, longest)
				if done != splits {
					t.Errorf("%d splits of %d are done", done, splits)
				}
				if most := splitters + 3; longest > most {
					t.Errorf("a request waited for %d splits, more than %d", longest, most)
				}
				w.drain()
			})
		}
	}
}

// pass lets time pass beside the events.
func (w *world) pass(d time.Duration) {
	until := w.now + d
	for slices.ContainsFunc(w.timers, func(tm *timer) bool { return !tm.dead && tm.at <= until }) {
		w.tick()
	}
	w.now = max(w.now, until)
}

// ask begins a request of a client on the last range, in "transaction over ranges" on the first one, too.
func (w *world) ask(kind string, client, n int, ended func(error)) {
	key := fmt.Sprintf("t%d", client)
	switch kind {
	case "put":
		o := &write{r: w.router, req: put(key, fmt.Sprint(n)), exec: w.exec, done: func(_ *mvcc.Result, err error) { ended(err) }}
		o.start()
	case "get":
		w.router.startRead(readPlan{spans: []mvcc.Access{{Start: []byte("t")}}, eval: func(Point, mvcc.OpenView, []rangepb.Piece) error { return nil }}, w.exec, ended)
	default:
		req := &mvcc.Request{Txn: &pb.TxnRequest{Success: []*pb.RequestOp{
			{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: fmt.Appendf(nil, "A%d", client), Value: fmt.Append(nil, n)}}},
			{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key), Value: fmt.Append(nil, n)}}},
		}}}
		o := &write{r: w.router, req: req, exec: w.exec, done: func(_ *mvcc.Result, err error) { ended(err) }}
		o.start()
	}
}

// A split waits for the turns on its range that were taken before it, and for no
// others.
func TestTurns(t *testing.T) {
	var all turns
	d := &rangepb.RangeDescriptor{Start: []byte("b"), End: []byte("d")}
	span := func(start, end string) []mvcc.Access {
		s := mvcc.Access{Start: []byte(start)}
		if end != "" {
			s.End = []byte(end)
		}
		return []mvcc.Access{s}
	}
	below, inside, above := all.take(span("a", "b")), all.take(span("c", "c\x00")), all.take(span("d", ""))
	over := all.take(append(span("a", "a\x00"), span("c", "")...))
	went := false
	all.after(d, func() { went = true })
	later := all.take(span("c", ""))
	all.end(inside)
	if went {
		t.Error("the split went before a turn that was taken before it")
	}
	all.end(over)
	if !went {
		t.Error("the split waits, but for turns that do not concern it")
	}
	last := false
	all.after(&rangepb.RangeDescriptor{Start: []byte("x")}, func() { last = true })
	all.end(above)
	all.end(later)
	if !last {
		t.Error("the last range has an end")
	}
	all.end(below)
	all.end(nil)
	if len(all.mu.taken) != 0 {
		t.Errorf("%d turns are left", len(all.mu.taken))
	}
}
