package host

import (
	"math"
	"testing"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// TestAReplicaGetsWhatTheNodeIsToldToGive: a limit that got lost on the way would be the
// default without anybody's noticing.
func TestAReplicaGetsWhatTheNodeIsToldToGive(t *testing.T) {
	h := newHost(t)
	h.cfg.NodeID, h.cfg.ElectionTicks, h.cfg.Limits.IdleTicks = 3, 17, 23
	c := h.replicaConfig(5)
	if c.RangeID != 5 || c.NodeID != 3 || c.ElectionTicks != 17 || c.Limits.IdleTicks != 23 {
		t.Errorf("range %d on node %d, %d ticks to an election, %d to sleep", c.RangeID, c.NodeID, c.ElectionTicks, c.Limits.IdleTicks)
	}
}

// A range that is not here is stale to whoever reads it, before the engine is looked at,
// and nothing is noted as damaged.
func TestARangeThatIsNotHereIsNotServed(t *testing.T) {
	h := newHost(t)
	pieces := []rangepb.Piece{{RangeID: 9, Epoch: 1}}
	_, viewErr := h.View(math.MaxInt64, pieces)
	_, halfErr := h.HalfKey(pieces[0])
	for _, err := range []error{viewErr, halfErr, h.HashVersions(1, 0, pieces, &mvcc.Hasher{})} {
		re, ok := err.(*rangepb.Error)
		if !ok || re.Kind != rangepb.Unresolved || re.RangeID != 9 {
			t.Errorf("read of a range that is not here: %v", err)
		}
	}
	if ids, _ := h.Damaged.List(); len(ids) != 0 {
		t.Errorf("damaged: %v", ids)
	}
	if ids := h.Loaded(); len(ids) != 0 {
		t.Errorf("loaded: %v", ids)
	}
}

// A damaged range is noted once, told once to who knows it, and wakes who waits for
// another.
func TestDamagedRangesAreToldOnce(t *testing.T) {
	h := newHost(t)
	calls := 0
	h.cfg.Failed = func() { calls++ }
	_, changed := h.Damaged.List()
	h.failed(8)
	select {
	case <-changed:
	default:
		t.Error("who waits is not woken")
	}
	h.failed(2)
	h.failed(8)
	if ids, _ := h.Damaged.List(); len(ids) != 2 || ids[0] != 2 || ids[1] != 8 || !h.Damaged.Has(8) || h.Damaged.Has(3) {
		t.Errorf("damaged: %v", ids)
	}
	if calls != 3 {
		t.Errorf("%d calls", calls)
	}
	only := func(want uint64) func(uint64) bool { return func(id uint64) bool { return id == want } }
	if got := h.Damaged.Take(only(2)); len(got) != 1 || got[0] != 2 {
		t.Errorf("told of %v, want 2", got)
	}
	if got := h.Damaged.Take(only(2)); len(got) != 0 {
		t.Errorf("told again of %v", got)
	}
	if got := h.Damaged.Take(only(8)); len(got) != 1 || got[0] != 8 {
		t.Errorf("told of %v, want 8", got)
	}
}
