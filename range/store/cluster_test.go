package store

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/hawser-kv/hawser/range/raftlog"
)

// wire is the Transport of one of several stores in a test.
type wire struct {
	sent []*raftpb.Message
}

func (w *wire) Send(group uint64, msgs []*raftpb.Message) {
	if group != 7 {
		panic(fmt.Sprintf("messages of group %d", group))
	}
	w.sent = append(w.sent, msgs...)
}

// Three stores with a replica each: messages go through the transports, answers
// wait for the syncs of a majority, and a store that was away catches up.
func TestThreeStoresReplicate(t *testing.T) {
	rigs := make(map[uint64]*rig)
	wires := make(map[uint64]*wire)
	for id := uint64(1); id <= 3; id++ {
		db := openDB(t, vfs.NewMem())
		b := db.NewBatch()
		must(t, raftlog.Bootstrap(db, b, 7, []uint64{1, 2, 3}, nil))
		must(t, db.Apply(b, pebble.Sync))
		must(t, b.Close())
		wires[id] = new(wire)
		rigs[id] = newRig(t, db, func(c *Config) { c.Transport = wires[id] })
		rigs[id].replica = id
		rigs[id].store.Load(7)
		t.Cleanup(func() { rigs[id].store.Stop(); must(t, db.Close()) })
	}
	away := map[uint64]bool{}
	noSync := map[uint64]bool{}
	run := func() {
		for again := true; again; {
			again = false
			for id := uint64(1); id <= 3; id++ {
				worked, err := rigs[id].store.RunRound(0)
				must(t, err)
				again = again || worked
				if !noSync[id] {
					synced, err := rigs[id].store.SyncNext(0)
					must(t, err)
					again = again || synced
				}
				msgs := wires[id].sent
				wires[id].sent = nil
				for _, m := range msgs {
					if !away[id] && !away[m.GetTo()] {
						rigs[m.GetTo()].store.Post(7, m)
						again = true
					}
				}
			}
		}
	}
	run()
	must(t, rigs[1].ledgers[7].group.Campaign())
	rigs[1].store.Load(7)
	run()

	away[3] = true
	noSync[2] = true
	p := rigs[1].put(7, "a")
	run()
	if p.calls != 0 {
		t.Fatal("answered without a majority's disks")
	}
	noSync[2] = false
	run()
	if p.calls != 1 || p.err != nil {
		t.Fatalf("%d answers, %v", p.calls, p.err)
	}
	away[3] = false
	rigs[1].store.Tick()
	run()
	rigs[1].store.Tick()
	run()
	for id := uint64(1); id <= 3; id++ {
		if got := readLedger(t, rigs[id].db, 7); fmt.Sprint(got) != "[a]" {
			t.Errorf("node %d has %v", id, got)
		}
	}
}
