package sequencer

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// testDirectory has one range more than there are boundaries, ids from 1.
func testDirectory(boundaries ...string) *directory {
	d := &directory{}
	d.init()
	start := ""
	for i, end := range append(boundaries, "") {
		x := newLedger(&rangepb.RangeDescriptor{RangeId: uint64(i + 1), Start: []byte(start), End: []byte(end), Epoch: 1,
			Replicas: []*rangepb.Replica{{NodeId: 4, ReplicaId: 9}, {NodeId: 5, ReplicaId: 3}}})
		x.committed = x.desc
		x.last = int64(10 + i)
		d.insert(x)
		d.nextID = x.id + 1
		start = end
	}
	return d
}

func describeDirectory(d *directory) string {
	s := ""
	d.all(func(x *ledger) { s += describeRange(x.desc) + " " })
	return s
}

func TestSplitOfTheDirectory(t *testing.T) {
	d := testDirectory("h")
	x := d.get(1)
	y := d.split(x, []byte("c"))
	if got := describeDirectory(d); got != "r1@2[,c) r3@2[c,h) r2@1[h,) " {
		t.Fatal(got)
	}
	if y.last != x.last || y.active || y.open || y.committed != nil || d.get(3) != y || d.nextID != 4 {
		t.Fatalf("right half %+v", y)
	}
	for i, r := range y.desc.Replicas {
		if r.NodeId != x.desc.Replicas[i].NodeId || r.ReplicaId != uint64(i+1) {
			t.Errorf("replica %v beside %v", r, x.desc.Replicas[i])
		}
	}
	// What may be let out does not change before the split is committed (I6).
	if describeRange(x.committed) != "r1@1[,h)" {
		t.Fatalf("committed %s", describeRange(x.committed))
	}
	cut := &placementpb.Cut{}
	d.fill(cut)
	if len(cut.Descriptors) != 2 || cut.Descriptors[0] != x.committed || len(cut.Marks) != 2 || cut.Marks[1].RangeId != 2 || cut.Marks[1].Revision != 11 {
		t.Fatalf("first cut %v", cut)
	}
}

func TestMarksNameTheReason(t *testing.T) {
	d := testDirectory("h")
	d.split(d.get(1), []byte("c"))
	for _, c := range []struct {
		ranges []*placementpb.RangeEpoch
		reason placementpb.RefusalReason
		marks  []int64
	}{
		{[]*placementpb.RangeEpoch{{RangeId: 2, Epoch: 1}, {RangeId: 1, Epoch: 2}, {RangeId: 3, Epoch: 2}}, 0, []int64{11, 10, 10}},
		{[]*placementpb.RangeEpoch{{RangeId: 2, Epoch: 1}, {RangeId: 9, Epoch: 1}}, placementpb.RefusalReason_REFUSAL_REASON_UNKNOWN_RANGE, nil},
		{[]*placementpb.RangeEpoch{{RangeId: 1, Epoch: 1}}, placementpb.RefusalReason_REFUSAL_REASON_STALE_EPOCH, nil},
		{[]*placementpb.RangeEpoch{{RangeId: 1, Epoch: 3}}, placementpb.RefusalReason_REFUSAL_REASON_STALE_EPOCH, nil},
	} {
		marks := make([]int64, len(c.ranges))
		if reason := d.marks(c.ranges, marks); reason != c.reason || reason == 0 && !slices.Equal(marks, c.marks) {
			t.Errorf("%v: %v, marks %v", c.ranges, reason, marks)
		}
	}
}

func TestNewerDescriptorsEndWhereAnOlderRangeBegins(t *testing.T) {
	d := testDirectory("h", "q")
	d.split(d.get(1), []byte("c")) // r4
	d.split(d.get(4), []byte("e")) // r5
	describe := func(ds []*rangepb.RangeDescriptor) (s string) {
		for _, r := range ds {
			s += describeRange(r) + " "
		}
		return s
	}
	if got := describe(d.newer([]*placementpb.RangeEpoch{{RangeId: 1, Epoch: 1}, {RangeId: 3, Epoch: 1}, {RangeId: 9, Epoch: 1}})); got != "r1@2[,c) r4@3[c,e) r5@3[e,h) r2@1[h,q) " {
		t.Error(got)
	}
	if got := describe(d.newer([]*placementpb.RangeEpoch{{RangeId: 1, Epoch: 1}, {RangeId: 4, Epoch: 2}})); got != "r1@2[,c) r4@3[c,e) r5@3[e,h) " {
		t.Error(got)
	}
	if got := describe(d.newer([]*placementpb.RangeEpoch{{RangeId: 1, Epoch: 2}})); got != "" {
		t.Error(got)
	}
	for i := range 2 * maxNewer {
		d.split(d.lookup([]byte("z")), fmt.Appendf(nil, "s%03d", i))
	}
	if got := d.newer([]*placementpb.RangeEpoch{{RangeId: 3, Epoch: 1}}); len(got) != maxNewer {
		t.Errorf("%d descriptors", len(got))
	}
}

// Random splits against a plain list: lookup finds the span that holds the key,
// and the spans tile the keyspace.
func TestDirectoryAgainstAList(t *testing.T) {
	for seed := range uint64(10) {
		rng := rand.New(rand.NewPCG(seed, 2))
		d := testDirectory()
		starts := []string{""}
		for range 300 {
			key := fmt.Sprintf("%02x", rng.IntN(256))
			i, found := slices.BinarySearch(starts, key)
			if found {
				continue
			}
			d.split(d.lookup([]byte(key)), []byte(key))
			starts = slices.Insert(starts, i, key)
			probe := fmt.Sprintf("%02x5", rng.IntN(256))
			j, _ := slices.BinarySearch(starts, probe)
			x := d.lookup([]byte(probe))
			if string(x.desc.Start) != starts[j-1] || d.get(x.id) != x {
				t.Fatalf("seed %d: %q found in %s, want the range from %q", seed, probe, x, starts[j-1])
			}
		}
		if d.len() != len(starts) {
			t.Fatalf("seed %d: %d ranges, want %d", seed, d.len(), len(starts))
		}
		var end []byte
		d.all(func(x *ledger) {
			if !bytes.Equal(x.desc.Start, end) {
				t.Fatalf("seed %d: %s begins after %q", seed, x, end)
			}
			end = x.desc.End
		})
		if len(end) != 0 {
			t.Fatalf("seed %d: the last range ends at %q", seed, end)
		}
	}
}

func TestLedgersAreFoundByAnyID(t *testing.T) {
	var table ledgerTable
	ids := []uint64{1, 5, maxDense - 1, maxDense, 1 << 60}
	for _, id := range ids {
		table.put(newLedger(&rangepb.RangeDescriptor{RangeId: id}))
	}
	for _, id := range ids {
		if x := table.get(id); x == nil || x.id != id {
			t.Errorf("r%d: %v", id, x)
		}
	}
	for _, id := range []uint64{0, 2, maxDense + 1, 1<<60 + 1} {
		if x := table.get(id); x != nil {
			t.Errorf("r%d found: %v", id, x)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("an id was put twice")
		}
	}()
	table.put(newLedger(&rangepb.RangeDescriptor{RangeId: 5}))
}
