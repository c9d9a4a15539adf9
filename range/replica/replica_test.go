package replica_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/range/keys"
	"github.com/hawser-kv/hawser/range/replica"
)

// newInstantNode is a node whose sequencer answers at once, with the given
// ranges on it.
func newInstantNode(t *testing.T, descs ...*rangepb.RangeDescriptor) *node {
	link := &instantLink{next: 2}
	n := &node{tb: t, id: 1, link: link}
	link.node = n
	n.open()
	t.Cleanup(func() { n.close() })
	for _, d := range descs {
		n.bootstrap(d, 1)
	}
	return n
}

// do sends a write and returns its result, nil while there is none.
func (n *node) do(rangeID uint64, req *mvcc.Request) *rangepb.WriteAnswer {
	n.tb.Helper()
	var got *rangepb.WriteAnswer
	n.store.Post(rangeID, &replica.Write{Epoch: 1, Req: req, Done: func(_ *mvcc.Result, r rangepb.WriteAnswer) {
		if got != nil {
			n.tb.Error("answered twice")
		}
		got = &r
	}})
	n.settle()
	return got
}

func mustWrite(t *testing.T, r *rangepb.WriteAnswer) {
	t.Helper()
	if r == nil || r.Err != nil || r.NoEffect {
		t.Fatalf("write: %+v", r)
	}
}

func TestDamageOfARowStopsThisReplicaAndNoOther(t *testing.T) {
	for _, tc := range []struct {
		name string
		kind byte
	}{
		{"descriptor", keys.KindDescriptor},
		{"applied state", keys.KindApplied},
		{"hard state", keys.KindHardState},
		{"conf state", keys.KindConfState},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newInstantNode(t, descriptor(1, "", "m", 1, 1), descriptor(2, "m", "", 1, 1))
			mustWrite(t, n.do(1, put("a", "1")))
			key := keys.Group(1, tc.kind)
			row, closer, err := n.db.Get(key)
			if err != nil {
				t.Fatal(err)
			}
			row = bytes.Clone(row)
			if err := closer.Close(); err != nil {
				t.Fatal(err)
			}
			row[len(row)/2] ^= 0x20
			if err := n.db.Set(key, row, pebble.Sync); err != nil {
				t.Fatal(err)
			}
			n.store.Stop()
			if err := n.db.Close(); err != nil {
				t.Fatal(err)
			}
			n.open()

			got := n.do(1, put("a", "2"))
			if got == nil || got.Err == nil || !replica.NotApplied(got.Err) && !errors.Is(got.Err, replica.ErrFailed) {
				t.Errorf("write to the damaged range: %+v", got)
			}
			if err := n.readers.Check(rangepb.Piece{RangeID: 1, Epoch: 1, Start: []byte("a"), End: []byte("b")}); err == nil {
				t.Error("the damaged range is read")
			}
			mustWrite(t, n.do(2, put("x", "1")))
		})
	}
}

func TestDamageFoundWhileRunningIsLoudAndStopsOneRange(t *testing.T) {
	n := newInstantNode(t, descriptor(1, "", "m", 1, 1), descriptor(2, "m", "", 1, 1))
	var loud bytes.Buffer
	n.logger = warnings(&loud)
	mustWrite(t, n.do(1, put("b", "1")))
	// What the store remembers of its rows would hide the damage.
	n.store.Stop()
	if err := n.db.Close(); err != nil {
		t.Fatal(err)
	}
	n.open()
	mustWrite(t, n.do(1, put("a", "1")))

	// A newer version, of revision 100, that nobody can have written.
	lower, _ := mvcc.VersionSpan([]byte("b"), []byte("c"))
	key := append(bytes.Clone(lower), bytes.Repeat([]byte{0xff}, 12)...)
	key[len(lower)+7] ^= 100
	key = append(key, 13)
	if err := n.db.Set(key, []byte{0xee}, pebble.Sync); err != nil {
		t.Fatal(err)
	}
	waiting := make(chan error, 1)
	n.readers.Await(1, 1, 1000, func(err error) { waiting <- err })

	got := n.do(1, put("b", "1"))
	if got == nil || !errors.Is(got.Err, replica.ErrFailed) {
		t.Fatalf("write on a damaged key: %+v", got)
	}
	if err := <-waiting; !errors.Is(err, replica.ErrFailed) {
		t.Errorf("a reader who waits is told %v", err)
	}
	if got := n.do(1, put("a", "2")); got == nil || got.Err == nil {
		t.Errorf("the range goes on: %+v", got)
	}
	if err := n.readers.Check(rangepb.Piece{RangeID: 1, Epoch: 1}); !errors.Is(err, replica.ErrFailed) {
		t.Errorf("a reader is told %v", err)
	}
	if !strings.Contains(loud.String(), "replica stops") {
		t.Errorf("nothing is logged: %s", loud.String())
	}
	mustWrite(t, n.do(2, put("x", "1")))
}

func TestAFullDiskRefusesPutsAndLetsDeletesPass(t *testing.T) {
	n := newInstantNode(t, descriptor(1, "", "", 1, 1))
	mustWrite(t, n.do(1, put("a", "1")))
	n.free = 0
	if err := n.store.PollSpace(); err != nil {
		t.Fatal(err)
	}
	n.store.Load(1)
	n.settle()
	for _, req := range []*mvcc.Request{put("b", "1"), cas("b", "", "1")} {
		if got := n.do(1, req); got == nil || !errors.Is(got.Err, replica.ErrNoSpace) || !replica.NotApplied(got.Err) {
			t.Errorf("put with a full disk: %+v", got)
		}
	}
	mustWrite(t, n.do(1, del("a", "")))
	n.free = plenty
	if err := n.store.PollSpace(); err != nil {
		t.Fatal(err)
	}
	n.store.Load(1)
	n.settle()
	mustWrite(t, n.do(1, put("b", "1")))
}

func TestCloseSaysWhatMayBeAppliedAndWhatIsNot(t *testing.T) {
	n := newInstantNode(t, descriptor(1, "", "", 1, 1))
	n.store.Load(1)
	n.settle()
	var proposed, waiting rangepb.WriteAnswer
	n.store.Post(1, &replica.Write{Epoch: 1, Req: put("a", "1"), Done: func(_ *mvcc.Result, r rangepb.WriteAnswer) { proposed = r }})
	n.run()
	r := n.loaded[1]
	r.Handle(&replica.Write{Epoch: 1, Req: put("b", "1"), Done: func(_ *mvcc.Result, r rangepb.WriteAnswer) { waiting = r }})
	var latched rangepb.LatchAnswer
	r.Handle(&replica.Latch{Epoch: 1, Owner: owner(1), Spans: spans([]string{"a:w"}), Done: func(r rangepb.LatchAnswer) { latched = r }})
	r.Close(errDied)
	if !errors.Is(latched.Err, errDied) {
		t.Errorf("a latch that waits: %v", latched.Err)
	}
	if !errors.Is(proposed.Err, replica.ErrUnknownFate) || replica.NotApplied(proposed.Err) {
		t.Errorf("proposed: %v", proposed.Err)
	}
	if !errors.Is(waiting.Err, errDied) || !replica.NotApplied(waiting.Err) {
		t.Errorf("waiting: %v", waiting.Err)
	}
}

// TestACommitThatFailsLeavesTheFateUnknown: the effects are staged and their batch
// is not committed. The log has them, so the next process applies them.
func TestACommitThatFailsLeavesTheFateUnknown(t *testing.T) {
	n := newInstantNode(t, descriptor(1, "", "", 1, 1))
	mustWrite(t, n.do(1, put("a", "0")))
	var got []rangepb.WriteAnswer
	n.store.Post(1, &replica.Write{Epoch: 1, Req: put("a", "1"), Done: func(_ *mvcc.Result, r rangepb.WriteAnswer) { got = append(got, r) }})
	n.run()
	n.sync()                // of the log
	n.dieAt = n.commits + 1 // of the effects
	if _, err := n.store.RunRound(0); !errors.Is(err, errDied) {
		t.Fatalf("the round of the failed commit: %v", err)
	}
	if len(got) != 1 || !errors.Is(got[0].Err, replica.ErrUnknownFate) {
		t.Fatalf("answers: %+v, want one that says that the fate is unknown", got)
	}
	n.crash(vfs.CrashCloneCfg{})
	n.store.Load(1)
	n.settle()
	if kv := n.keyValue("a"); kv == nil || string(kv.Value) != "1" {
		t.Errorf("a is %v after the restart, want 1", kv)
	}
}

func TestAwaitIsAnsweredAtOnceOnlyWhenResolved(t *testing.T) {
	n := newInstantNode(t, descriptor(1, "", "", 3, 1))
	answers := map[string]error{}
	await := func(name string, rangeID, epoch uint64, rev int64) {
		n.readers.Await(rangeID, epoch, rev, func(err error) {
			if _, twice := answers[name]; twice {
				t.Errorf("%s is answered twice", name)
			}
			answers[name] = err
		})
	}
	await("resolved", 1, 3, 1)
	await("older epoch", 1, 1, 1)
	await("later revision", 1, 3, 2)
	await("later epoch", 1, 4, 1)
	await("unknown range", 7, 1, 1)
	for name, want := range map[string]bool{"resolved": true, "older epoch": true, "later revision": false, "later epoch": false, "unknown range": false} {
		if err, got := answers[name]; got != want || err != nil {
			t.Errorf("%s: answered %v (%v)", name, got, err)
		}
	}
	n.readers.Tick(3)
	if len(answers) != 2 {
		t.Errorf("expired too early: %v", answers)
	}
	for range 4 {
		n.readers.Tick(3)
	}
	for _, name := range []string{"later revision", "later epoch", "unknown range"} {
		if err := answers[name]; !errors.Is(err, replica.ErrAwaitExpired) {
			t.Errorf("%s: %v, want %v", name, err, replica.ErrAwaitExpired)
		}
	}
}

func TestReadersAreSafeBesideAWriter(t *testing.T) {
	n := newInstantNode(t, descriptor(1, "", "", 1, 1))
	n.store.Load(1)
	n.settle()
	const writes = 300
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for rev := int64(2); rev < writes; rev += 7 {
				resolved := make(chan error, 1)
				n.readers.Await(1, 1, rev, func(err error) { resolved <- err })
				if err := <-resolved; err != nil {
					t.Error(err)
					return
				}
				v, err := n.readers.View(rev, rangepb.Piece{RangeID: 1, Epoch: 1, Start: []byte("k"), End: []byte("l"), Resolve: rev})
				if err != nil {
					t.Error(err)
					return
				}
				kv, err := v.Get([]byte("k"))
				if err != nil || kv == nil || kv.ModRevision != rev {
					t.Errorf("at %d: %v, %v", rev, kv, err)
				}
				if err := v.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range writes {
		mustWrite(t, n.do(1, put("k", fmt.Sprint(i))))
	}
	wg.Wait()
}

func TestListFindsTheReplicasOfAnEngine(t *testing.T) {
	n := newInstantNode(t, descriptor(1, "", "m", 1, 1), descriptor(300, "m", "", 1, 1))
	b := n.db.NewBatch()
	if ok, err := replica.Stage(n.db, b, 1, descriptor(5, "a", "b", 1, 2), 1); ok || err != nil || !b.Empty() {
		t.Errorf("a replica of another node is begun: %v, %v", ok, err)
	}
	if _, err := replica.Stage(n.db, b, 1, descriptor(300, "m", "", 1, 1), 9); err == nil {
		t.Error("a replica is begun over one that is there")
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	ids, err := replica.List(n.db)
	if err != nil || len(ids) != 2 || ids[0] != 1 || ids[1] != 300 {
		t.Errorf("%v, %v", ids, err)
	}
	if _, err := replica.Load(n.db, 2); !errors.Is(err, replica.ErrNoReplica) {
		t.Errorf("load of nothing: %v", err)
	}
}
