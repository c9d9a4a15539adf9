package node

import (
	"context"
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2"

	"github.com/hawser-kv/hawser/proto/adminpb"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/range/replica"
)

// TestDamagedRangeHoldsUpACompaction: a range that is damaged before it has applied
// what was granted to it keeps the frontier back for good. Who waits for the removal
// of a compaction is told at once, also who waits already; and the range is not nudged.
func TestDamagedRangeHoldsUpACompaction(t *testing.T) {
	d := openDriven(t)
	d.settle()
	rev := d.write("a")
	if ranges, outside := d.Damaged(); len(ranges) != 0 || outside {
		t.Fatalf("damaged at first: %v, %v", ranges, outside)
	}

	d.lose = func(*placementpb.Grant) bool { return true }
	_, session, _ := d.Client.Session()
	d.Placement.Receive(&placementpb.ToSequencer{ClusterId: d.ClusterID, NodeId: d.NodeID, Session: session,
		Body: &placementpb.ToSequencer_Grant{Grant: &placementpb.GrantRequest{RangeId: 1, Epoch: 1, Term: d.leaderTerm(), Seq: 1 << 40, Count: 1}}})
	d.Client.Compact(rev+1, func(res *placementpb.CompactResult, err error) {
		if err != nil || res.Refused {
			t.Errorf("compact: %v, %v", res, err)
		}
	})
	d.settle()
	if !d.Compactor.Waiting() {
		t.Fatal("the compaction does not wait for the range: the test shows nothing")
	}
	before := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { before <- d.WaitCompacted(ctx, rev+1) }()

	d.Store.Post(1, replica.Damage{Err: pebble.ErrCorruption})
	d.settle()
	for _, err := range []error{<-before, d.WaitCompacted(ctx, rev+1)} {
		var re *rangepb.Error
		if !errors.As(err, &re) || re.Kind != rangepb.Corrupt || re.RangeID != 1 || !errors.Is(err, errHeldUp) {
			t.Errorf("waiting for the removal: %v", err)
		}
	}
	if ranges, outside := d.Damaged(); len(ranges) != 1 || ranges[0] != 1 || outside {
		t.Errorf("damaged: %v, %v", ranges, outside)
	}
	info := adminpb.RangeInfo{Desc: d.Router.Directory().ByID(1)}
	if d.Ranges.Info(1, &info); !info.Damaged || info.Active {
		t.Errorf("info: %v", &info)
	}
	loads := d.Store.Stats().Loads
	for range 100 {
		d.Core.Tick(1000)
		d.settle()
	}
	if d.MVCC.Forgotten() != 0 || d.Store.Stats().Loads != loads {
		t.Errorf("forgotten %d, loads %d after %d", d.MVCC.Forgotten(), d.Store.Stats().Loads, loads)
	}
	if got := d.Router.LocalRevision(); got != rev+1 {
		t.Errorf("the node says revision %d, want %d", got, rev+1)
	}
}
