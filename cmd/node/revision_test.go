package node

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/range/engine"
	"github.com/hawser-kv/hawser/range/store"
)

// TestRevisionsOfACoreThatHasJustOpened: before S has said anything the node names
// no revision below what its store has and has compacted, in headers and in the
// metrics alike.
func TestRevisionsOfACoreThatHasJustOpened(t *testing.T) {
	d := openDriven(t)
	d.settle()
	for _, k := range []string{"a", "b", "c"} {
		d.write(k)
	}
	last := d.write("a")
	d.Client.Compact(last-1, func(res *placementpb.CompactResult, err error) {
		if err != nil || res.Refused {
			t.Errorf("compact: %v, %v", res, err)
		}
	})
	d.settle()
	if d.Compactor.Waiting() || d.MVCC.Forgotten() != last-1 {
		t.Fatalf("forgotten %d, want %d", d.MVCC.Forgotten(), last-1)
	}
	if err := d.DB.Flush(); err != nil {
		t.Fatal(err)
	}

	disk := d.cfg.Engine.FS.(*vfs.MemFS).CrashClone(vfs.CrashCloneCfg{})
	c, err := OpenCore(CoreConfig{
		Engine: engine.Config{FS: disk, Dir: "data", NewIDs: func() (uint64, uint64) { return 7, 1 }}, MVCC: mvcc.Options{},
		Store: store.Config{ManualSync: true, FreeBytes: func() (uint64, error) { return 1 << 40, nil }},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		c.Store.Stop()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	if rev, _ := c.Frontier.Revision(); rev != 0 {
		t.Fatalf("a cut at %d has come: the test shows nothing", rev)
	}
	if got := c.Router.LocalRevision(); got != last {
		t.Errorf("the node says revision %d, the store has %d", got, last)
	}
	if got := c.Stats().Compacted; got != last-1 {
		t.Errorf("the node says compacted %d, the store has %d", got, last-1)
	}
}
