package node

import (
	"context"
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.uber.org/zap/zaptest"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/proxy/watch"
	"github.com/hawser-kv/hawser/range/engine"
	"github.com/hawser-kv/hawser/range/keys"
	"github.com/hawser-kv/hawser/range/replica"
	"github.com/hawser-kv/hawser/range/store"
)

// drivenCore is a core that a test drives from one thread. Grants for which lose
// returns true are lost on their way from the sequencer, without its noticing.
type drivenCore struct {
	*Core
	t    *testing.T
	lose func(*placementpb.Grant) bool
}

func openDriven(t *testing.T) *drivenCore {
	c, err := OpenCore(CoreConfig{
		Engine: engine.Config{FS: vfs.NewCrashableMem(), Dir: "data", NewIDs: func() (uint64, uint64) { return 7, 1 }},
		Store:  store.Config{ManualSync: true, FreeBytes: func() (uint64, error) { return 1 << 40, nil }},
		Logger: zaptest.NewLogger(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	d := &drivenCore{Core: c, t: t, lose: func(*placementpb.Grant) bool { return false }}
	t.Cleanup(func() {
		c.Router.Stop()
		c.Store.Stop()
		c.Client.Stop()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	c.detach = c.Placement.Attach(c.NodeID, func(m *placementpb.FromSequencer) {
		if g := m.GetGrant(); g == nil || !d.lose(g) {
			c.Client.Deliver(m)
		}
	})
	c.Store.Load(keys.MetaGroupID)
	c.Client.Start()
	return d
}

// settle does everything that can be done without the passing of time.
func (d *drivenCore) settle() {
	d.t.Helper()
	for again := true; again; {
		worked, err := d.Store.RunRound(0)
		if err != nil {
			d.t.Fatal(err)
		}
		synced, err := d.Store.SyncNext(0)
		if err != nil {
			d.t.Fatal(err)
		}
		again = worked || synced
	}
	d.Watch.Step()
	for d.Watch.ReadHistory() {
	}
	for more := true; more; {
		var err error
		if more, err = d.Compactor.Step(); err != nil {
			d.t.Fatal(err)
		}
	}
}

// write writes a key to the first range.
func (d *drivenCore) write(key string) (rev int64) {
	d.t.Helper()
	answered := false
	d.Store.Post(1, &replica.Write{Epoch: 1, Req: &mvcc.Request{Put: &pb.PutRequest{Key: []byte(key)}}, Done: func(_ *mvcc.Result, r rangepb.WriteAnswer) {
		if r.Err != nil {
			d.t.Error(r.Err)
		}
		rev, answered = r.Revision, true
	}})
	d.settle()
	if !answered {
		d.t.Fatal("the write is not answered")
	}
	return rev
}

// take returns what a watch was sent.
func (d *drivenCore) take(w *watch.Client) []*watch.Response {
	d.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	out, err := w.Next(ctx)
	if err != nil && !errors.Is(err, context.Canceled) {
		d.t.Fatal(err)
	}
	return out
}

// TestTheFrontierNudgesARangeThatNobodyReads: a revision is assigned to a range
// and the range never hears of it. Nobody writes to it or reads it; watchers, a
// progress request and a compaction wait for the frontier, which waits for the
// range (revisions.md R6, and "liveness" in section 5).
func TestTheFrontierNudgesARangeThatNobodyReads(t *testing.T) {
	d := openDriven(t)
	d.settle()
	rev := d.write("a")

	d.lose = func(*placementpb.Grant) bool { return true }
	_, session, _ := d.Client.Session()
	reg := d.leaderTerm()
	d.Placement.Receive(&placementpb.ToSequencer{ClusterId: d.ClusterID, NodeId: d.NodeID, Session: session,
		Body: &placementpb.ToSequencer_Grant{Grant: &placementpb.GrantRequest{RangeId: 1, Epoch: 1, Term: reg, Seq: 1 << 40, Count: 1}}})
	d.lose = func(*placementpb.Grant) bool { return false }
	lost := rev + 1

	w := d.Watch.Open()
	defer w.Close()
	w.Create(watch.CreateRequest{Start: []byte("a"), StartRevision: lost, Current: lost, Compacted: -1})
	d.take(w)
	w.RequestProgress(lost)
	d.Client.Compact(lost, func(res *placementpb.CompactResult, err error) {
		if err != nil || res.Refused {
			t.Errorf("compact: %v, %v", res, err)
		}
	})
	// Time passes for the store alone.
	const many = 400 // ticks, more than an idle range stays awake
	for range many {
		d.Store.Tick()
		d.settle()
	}
	if r, _ := d.Frontier.Revision(); r != lost || d.Frontier.Complete(nil, nil) != rev || len(d.take(w)) != 0 || !d.Compactor.Waiting() {
		t.Fatalf("R = %d, complete %d, want %d and %d; compaction waits: %v", r, d.Frontier.Complete(nil, nil), lost, rev, d.Compactor.Waiting())
	}

	soon := 2 * d.Core.cfg.ElectionTicks
	for range soon {
		d.Store.Tick()
		d.Core.Tick(many)
		d.settle()
	}
	if got := d.Frontier.Complete(nil, nil); got != lost {
		t.Fatalf("complete up to %d after %d ticks, want %d: ranges %v lag", got, soon, lost, d.Frontier.Lagging())
	}
	if got := d.take(w); len(got) != 1 || got[0].Revision != lost {
		t.Errorf("the progress request is answered with %v, want %d", got, lost)
	}
	if d.Compactor.Waiting() {
		t.Error("the compaction still waits")
	}
	if next := d.write("b"); next != lost+1 {
		t.Errorf("the next write has revision %d, want %d", next, lost+1)
	}
}

// leaderTerm is the term under which the first range is registered.
func (d *drivenCore) leaderTerm() (term uint64) {
	d.Store.Post(1, &replica.AskStatus{Done: func(s replica.Status, err error) {
		if err != nil || !s.Registered {
			d.t.Errorf("status %+v, %v", s, err)
		}
		term = s.Raft.Term
	}})
	d.settle()
	return term
}
