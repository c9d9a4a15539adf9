package integration

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hawser-kv/hawser/tests/history"
	"github.com/hawser-kv/hawser/tests/testcluster"
)

// checkLimit bounds porcupine's search: the histories here take it seconds.
const checkLimit = 5 * time.Minute

// workload is a run of many clients.
type workload struct {
	ks                keyspace
	clients, requests int // requests of each client
	watchers          int // goroutines that open streams
	splits            int
	// faults are done one after the other, at even distances in requests.
	faults []func(rec *recorder, n *testcluster.Node)
}

// TestConcurrentHistories: many clients on many ranges, while these are split,
// see one etcd: the KV history is checked by porcupine and against the watch
// over everything, and every watch for history/W1 to history/W9.
func TestConcurrentHistories(t *testing.T) {
	t.Run("while nothing fails", func(t *testing.T) {
		w := workload{ks: keyspace{ranges: 64, keysPerRange: 3}, clients: 16, requests: 500, watchers: 8, splits: 40}
		rec := w.run(t)
		rec.run.Dense = true
		for _, o := range rec.run.Ops {
			if o.Outcome == history.Unknown {
				t.Errorf("an error though nothing failed: %v", o)
			}
		}
		rec.check(t)
	})
	// A clean stop leaves no gap (R2).
	t.Run("over clean restarts", func(t *testing.T) {
		restart := func(_ *recorder, n *testcluster.Node) {
			n.Close()
			n.Restart()
		}
		w := workload{ks: keyspace{ranges: 16, keysPerRange: 4}, clients: 16, requests: 200, watchers: 4, splits: 20,
			faults: []func(*recorder, *testcluster.Node){restart, restart, restart}}
		rec := w.run(t)
		rec.run.Dense = true
		rec.check(t)
	})
	t.Run("over kills", func(t *testing.T) {
		kill := func(rec *recorder, n *testcluster.Node) {
			crash := history.Crash{Down: rec.now()}
			n.Kill()
			n.Restart()
			crash.Up = rec.now()
			rec.run.Crashes = append(rec.run.Crashes, crash)
		}
		w := workload{ks: keyspace{ranges: 16, keysPerRange: 4}, clients: 16, requests: 200, watchers: 4, splits: 20,
			faults: []func(*recorder, *testcluster.Node){kill, kill, kill}}
		w.run(t).check(t)
	})
}

func (w *workload) run(t *testing.T) *recorder {
	n := testcluster.Start(t, testcluster.Options{Splits: w.ks.splits()})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	seed := rand.Uint64() // of what is asked; not of what happens at the same time
	t.Logf("seed %d", seed)
	rec := &recorder{}
	rec.splits.Store(int64(w.splits))

	final := &finalRevision{known: make(chan struct{})}
	var watching sync.WaitGroup
	watching.Go(func() { watchEverything(ctx, t, rec, n, final) })
	for i := range w.watchers {
		watching.Go(func() {
			watchRandomly(ctx, t, rec, n, w.ks, "watch"+string(rune('A'+i)), seed+uint64(i), len(w.faults) > 0, final.known, final.get)
		})
	}
	var asking sync.WaitGroup
	for i := range w.clients {
		c := newKVClient(rec, n, w.ks, i, seed)
		asking.Go(func() {
			for range w.requests {
				c.act(ctx, t)
			}
		})
	}
	all := int64(w.clients * w.requests)
	for i, fault := range w.faults {
		at := all * int64(i+1) / int64(len(w.faults)+1) * 8 / 10 // what is no request does not count
		testcluster.Wait(t, func() string { return "requests before a fault" }, func() bool { return rec.asked.Load() >= at })
		fault(rec, n)
	}
	asking.Wait()

	resp, err := n.Client().Get(ctx, "none")
	if err != nil {
		t.Fatal(err)
	}
	final.set(resp.Header.Revision)
	watching.Wait()
	rec.run.Revision = resp.Header.Revision
	return rec
}

// check checks the whole run.
func (r *recorder) check(t *testing.T) {
	t.Helper()
	events, refused, unknown := 0, 0, 0
	for _, w := range r.run.Watches {
		for _, resp := range w.Responses {
			events += len(resp.Events)
		}
	}
	for _, o := range r.run.Ops {
		switch o.Outcome {
		case history.Refused:
			refused++
		case history.Unknown:
			unknown++
		}
	}
	t.Logf("%d requests, %d refused, %d unknown, revision %d, %d watches with %d events",
		len(r.run.Ops), refused, unknown, r.run.Revision, len(r.run.Watches), events)
	for _, err := range history.Check(&r.run) {
		t.Error(err)
	}
	if err := history.Linearizable(&r.run, checkLimit); err != nil {
		t.Error(err)
	}
}

// finalRevision is the revision at the end of a run, once it is known.
type finalRevision struct {
	known chan struct{}
	rev   int64
}

func (f *finalRevision) set(rev int64) {
	f.rev = rev
	close(f.known)
}

// get waits for it.
func (f *finalRevision) get() int64 {
	<-f.known
	return f.rev
}

// watchEverything records the watch over everything, with clientv3, which
// resumes it when it breaks.
func watchEverything(ctx context.Context, t *testing.T, rec *recorder, n *testcluster.Node, final *finalRevision) {
	c := n.Client()
	ch := c.Watch(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithRev(1), clientv3.WithProgressNotify())
	known := final.known
	last := int64(-1)
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		select {
		case <-known:
			known, last = nil, final.get()
			if rec.seen.Load() >= last {
				return
			}
		case <-again.C:
			// A request is lost with the stream it was sent on.
			if err := c.RequestProgress(ctx); err != nil {
				t.Errorf("ask for progress: %v", err)
				return
			}
		case resp, ok := <-ch:
			if !ok || resp.Err() != nil {
				t.Errorf("the watch over everything ended after revision %d: %v", rec.seen.Load(), resp.Err())
				return
			}
			rec.run.Truth = append(rec.run.Truth, recordEvents(mvccEvents(resp.Events))...)
			rev := resp.Header.Revision
			if n := len(resp.Events); n > 0 {
				rev = resp.Events[n-1].Kv.ModRevision
			}
			rec.seen.Store(max(rev, rec.seen.Load()))
			if last >= 0 && rev >= last {
				return
			}
		}
	}
}

func mvccEvents(events []*clientv3.Event) []*mvccpb.Event {
	out := make([]*mvccpb.Event, len(events))
	for i, e := range events {
		out[i] = (*mvccpb.Event)(e)
	}
	return out
}
