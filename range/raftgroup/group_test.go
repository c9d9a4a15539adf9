package raftgroup

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/hawser-kv/hawser/range/keys"
	"github.com/hawser-kv/hawser/range/raftlog"
)

// A sole voter's log holds little more than what is not durably applied, however
// long it runs, and cutting it does not need a row each time.
func TestLogOfSoleVoterStaysShort(t *testing.T) {
	db := openDB(t, vfs.NewMem())
	defer db.Close()
	begin(t, db, 1, 1)
	g, j := load(t, db, 1, 1)
	settle(t, db, g)
	for i := range 1000 {
		must(t, g.Propose(fmt.Append(nil, i)))
		settle(t, db, g)
		st := g.Status()
		if held := st.LastIndex - firstIndex(g) + 1; held > 2*truncateEntries {
			t.Fatalf("%d entries held: %s", held, st)
		}
	}
	for range 3 {
		must(t, g.Propose([]byte(strings.Repeat("x", truncateBytes))))
		settle(t, db, g)
	}
	if st := g.Status(); st.LogBytes > 3*truncateBytes {
		t.Errorf("%d bytes held: %s", st.LogBytes, st)
	}
	// What is left is enough to start again.
	before, _ := g.Applied()
	g, again := load(t, db, 1, 1)
	settle(t, db, g)
	if after, _ := g.Applied(); after != before+1 || again.count != j.count+1 {
		t.Errorf("applied %d after %d, counted %d after %d", after, before, again.count, j.count)
	}
}

func firstIndex(g *Group) uint64 {
	first, _ := g.log.FirstIndex()
	return first
}

// A leader of several keeps what the slowest follower lacks: there are no
// snapshots to bring it back with.
func TestLeaderKeepsWhatFollowersLack(t *testing.T) {
	n := newNetwork(t, 1, 2, 3)
	defer n.close()
	n.elect(1)
	n.stabilize()
	leader := n.nodes[1]
	n.nodes[3].down = true
	for i := range 3 * defaultKeep {
		must(t, leader.g.Propose(fmt.Append(nil, i)))
		n.stabilize()
	}
	if first := firstIndex(leader.g); first > 3 {
		t.Errorf("first index %d while a follower has 2 entries", first)
	}
	n.nodes[3].down = false
	must(t, leader.g.Tick())
	n.stabilize()
	n.checkAll(t)
	for i := range truncateEntries {
		must(t, leader.g.Propose(fmt.Append(nil, "more", i)))
		n.stabilize()
	}
	st := leader.g.Status()
	if held := st.LastIndex - firstIndex(leader.g) + 1; held > defaultKeep+2*truncateEntries {
		t.Errorf("%d entries held with all followers up to date: %s", held, st)
	}
}

// The log is cut, and DurableApplied grows, only as far as the disk has it
// applied. Two appends are always in flight: the sync of the older one is over
// before the batch that applies what it made durable is written, and is heard of
// after it. A crash leaves a whole log.
func TestLogIsCutOnlyBelowWhatIsDurablyApplied(t *testing.T) {
	fs := vfs.NewCrashableMem()
	db := openDB(t, fs)
	begin(t, db, 1, 1)
	g, _ := load(t, db, 1, 1)
	settle(t, db, g)
	var onDisk uint64 // applied, as of the newest sync
	check := func(i int) {
		t.Helper()
		if cut := firstIndex(g) - 1; cut > onDisk || g.DurableApplied() > onDisk {
			t.Fatalf("after %d proposals: cut to %d, durably applied %d, the disk has applied %d", i, cut, g.DurableApplied(), onDisk)
		}
	}
	const proposals = 300
	cuts := 0
	for i := 2; i <= proposals; i += 2 {
		var inFlight []Work
		for range 2 {
			must(t, g.Propose(fmt.Append(nil, i)))
			inFlight = append(inFlight, written(t, db, g))
			must(t, db.LogData(nil, pebble.Sync))
			onDisk, _ = g.Applied()
		}
		before := firstIndex(g)
		for len(inFlight) > 0 {
			_, err := g.Durable(inFlight[0])
			must(t, err)
			inFlight = inFlight[1:]
			check(i)
			if len(inFlight) > 0 && !inFlight[0].NeedsSync {
				continue // it waited for the same sync: the store reports both at once
			}
			w := written(t, db, g)
			check(i)
			if w.NeedsSync {
				t.Fatalf("nothing was proposed: %s", w.describe())
			}
			if len(w.WhenDurable) > 0 {
				inFlight = append(inFlight, w)
			}
		}
		if firstIndex(g) > before {
			cuts++
		}
		if i%10 == 0 {
			crashed := openDB(t, fs.CrashClone(vfs.CrashCloneCfg{}))
			a, err := raftlog.ReadApplied(crashed, 1)
			must(t, err)
			if a.Index != onDisk {
				t.Fatalf("the test takes %d for applied on the disk, it is %d", onDisk, a.Index)
			}
			g, j := load(t, crashed, 1, 1)
			settle(t, crashed, g)
			if j.count != uint64(i+2) { // the own-term entries before and after
				t.Fatalf("after %d proposals and a crash %d entries are applied", i, j.count)
			}
			must(t, crashed.Close())
		}
	}
	if cuts < proposals/truncateEntries-1 {
		t.Errorf("the log was cut %d times", cuts)
	}
	must(t, db.Close())
}

// A Work that has no sync of its own is heard of at the end of one that began
// before it was written: that says nothing about what it applied.
func TestSyncBeforeABatchDoesNotCoverWhatItApplies(t *testing.T) {
	db := openDB(t, vfs.NewMem())
	defer db.Close()
	begin(t, db, 1, 1)
	g, _ := load(t, db, 1, 1)
	settle(t, db, g)
	durable := func(w Work) {
		_, err := g.Durable(w)
		must(t, err)
	}
	must(t, g.Propose([]byte("a")))
	first := written(t, db, g)
	must(t, g.Propose([]byte("b")))
	second := written(t, db, g)
	durable(first)
	before := g.DurableApplied()
	third := written(t, db, g)
	if third.NeedsSync || !third.Applied || len(third.WhenDurable) == 0 {
		t.Fatalf("the third batch is not one that applies only and answers later: %s", third.describe())
	}
	durable(second)
	durable(third)
	if after := g.DurableApplied(); after != before {
		t.Errorf("durably applied %d, no sync since %d", after, before)
	}
	must(t, g.Propose([]byte("c")))
	fourth := written(t, db, g)
	durable(fourth)
	if after := g.DurableApplied(); after != third.appliedIndex+1 {
		t.Errorf("durably applied %d after a sync that covers all, the third batch applied %d, the fourth one more", after, third.appliedIndex)
	}
}

// A group that is loaded again by the same process finds applied what may not
// be durable: it knows only what the log was cut for.
func TestLoadedGroupTakesNothingVisibleForDurable(t *testing.T) {
	fs := vfs.NewCrashableMem()
	db := openDB(t, fs)
	defer db.Close()
	begin(t, db, 1, 1)
	g, _ := load(t, db, 1, 1)
	settle(t, db, g)
	must(t, g.Propose([]byte("a")))
	w := written(t, db, g)
	must(t, db.LogData(nil, pebble.Sync))
	_, err := g.Durable(w)
	must(t, err)
	written(t, db, g) // applies a
	g, _ = load(t, db, 1, 1)
	crashed := openDB(t, fs.CrashClone(vfs.CrashCloneCfg{}))
	defer crashed.Close()
	a, err := raftlog.ReadApplied(crashed, 1)
	must(t, err)
	if applied, _ := g.Applied(); applied <= a.Index {
		t.Fatalf("applied %d, on the disk %d: the test loses nothing", applied, a.Index)
	}
	if g.DurableApplied() > a.Index {
		t.Errorf("durably applied %d, on the disk %d", g.DurableApplied(), a.Index)
	}
}

// written does one Ready and writes its batch without a sync.
func written(t *testing.T, db *pebble.DB, g *Group) Work {
	t.Helper()
	b := db.NewBatch()
	w, err := g.Ready(b)
	must(t, err)
	must(t, db.Apply(b, pebble.NoSync))
	must(t, b.Close())
	return w
}

// A row that is damaged while the group runs stops this group, with an error
// that says so, and nothing that it staged is half of something.
func TestDamageWhileRunningStopsTheGroup(t *testing.T) {
	n := newNetwork(t, 1, 2, 3)
	defer n.close()
	n.elect(1)
	n.stabilize()
	leader := n.nodes[1]
	leader.g.keepBytes = 0 // the follower needs what is no longer in memory
	n.nodes[3].down = true
	for i := range 10 {
		must(t, leader.g.Propose(fmt.Append(nil, i)))
		n.stabilize()
	}
	must(t, leader.db.Set(keys.LogEntry(netGroup, 7), []byte("nonsense"), pebble.NoSync))
	n.nodes[3].down = false
	must(t, leader.g.Tick())
	var err error
	keep := func(e error) {
		if err == nil && e != nil {
			err = e
		}
	}
	for range 10 {
		b := leader.db.NewBatch()
		w, e := leader.g.Ready(b)
		keep(e)
		must(t, b.Close())
		n.send(w.Send)
		for _, m := range n.msgs {
			e := n.nodes[m.GetTo()].g.Step(m)
			if m.GetTo() == 1 {
				keep(e)
			}
		}
		n.msgs = nil
		for _, id := range []uint64{2, 3} {
			n.nodes[id].ready()
			n.nodes[id].sync()
		}
	}
	if !errors.Is(err, raftlog.ErrCorrupt) {
		t.Fatalf("step: %v", err)
	}
	if _, err := leader.g.Ready(leader.db.NewBatch()); !errors.Is(err, raftlog.ErrCorrupt) {
		t.Errorf("ready afterwards: %v", err)
	}
	if err := leader.g.Propose([]byte("x")); !errors.Is(err, raftlog.ErrCorrupt) || leader.g.Failed() == nil {
		t.Errorf("propose afterwards: %v, failed %v", err, leader.g.Failed())
	}
	if leader.g.HasReady() {
		t.Error("has something to do")
	}
}

// An entry that the machine cannot apply stops the group, and what was applied
// before it in the same batch is covered by the applied state.
func TestErrorOfTheMachineIsAFault(t *testing.T) {
	db := openDB(t, vfs.NewMem())
	defer db.Close()
	begin(t, db, 1, 1)
	g, j := load(t, db, 1, 1)
	settle(t, db, g)
	broken := errors.New("broken")
	j.failAt = 5
	j.fail = broken
	for _, text := range []string{"a", "b", "c"} {
		must(t, g.Propose([]byte(text)))
	}
	var err error
	for err == nil {
		b := db.NewBatch()
		var w Work
		w, err = g.Ready(b)
		must(t, db.Apply(b, pebble.Sync))
		must(t, b.Close())
		if err == nil {
			_, err = g.Durable(w)
		}
	}
	if !errors.Is(err, ErrApply) || !errors.Is(err, broken) || !errors.Is(g.Failed(), ErrApply) {
		t.Errorf("%v, failed %v", err, g.Failed())
	}
	a, err := raftlog.ReadApplied(db, 1)
	must(t, err)
	if rows := j.rows(t, db); rows != "2: 3:a 4:b" || a.Index != 4 {
		t.Errorf("rows %s, applied %d", rows, a.Index)
	}
}

func TestForeignMessagesChangeNothing(t *testing.T) {
	db := openDB(t, vfs.NewMem())
	defer db.Close()
	begin(t, db, 1, 1)
	g, _ := load(t, db, 1, 1)
	settle(t, db, g)
	before := g.Status().String()
	for _, m := range []*raftpb.Message{
		{Type: raftpb.MsgHup.Enum(), To: new(uint64(1)), From: new(uint64(1))},
		{Type: raftpb.MsgStorageAppendResp.Enum(), To: new(uint64(1)), From: new(uint64(9))},
		{Type: raftpb.MsgAppResp.Enum(), To: new(uint64(1)), From: new(uint64(9)), Term: new(uint64(2)), Index: new(uint64(99))},
		{Type: raftpb.MsgHeartbeat.Enum(), To: new(uint64(2)), From: new(uint64(3)), Term: new(uint64(9))},
		{Type: raftpb.MsgSnap.Enum(), To: new(uint64(1)), From: new(uint64(2)), Term: new(uint64(9))},
	} {
		if err := g.Step(m); err == nil {
			t.Errorf("%s from %d to %d was taken", m.GetType(), m.GetFrom(), m.GetTo())
		}
	}
	settle(t, db, g)
	if after := g.Status().String(); after != before {
		t.Errorf("%s, before %s", after, before)
	}
}

// Big entries: raft hands out what is committed in portions, and a Ready goes on
// until all is applied.
func TestBacklogIsAppliedInOneReady(t *testing.T) {
	db := openDB(t, vfs.NewMem())
	defer db.Close()
	begin(t, db, 1, 1)
	g, j := load(t, db, 1, 1)
	settle(t, db, g)
	big := strings.Repeat("x", 1<<20)
	for range 12 {
		must(t, g.Propose([]byte(big)))
	}
	b := db.NewBatch()
	w, err := g.Ready(b)
	must(t, err)
	must(t, db.Apply(b, pebble.NoSync))
	must(t, b.Close())
	_, err = g.Durable(w)
	must(t, err)
	b = db.NewBatch()
	_, err = g.Ready(b)
	must(t, err)
	must(t, b.Close())
	if j.count != 13 || !g.Quiet() {
		t.Errorf("applied %d, quiet %v", j.count, g.Quiet())
	}
}
