package watch

import (
	"slices"
	"testing"

	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// TestNudgesAreSpreadAndEachRangeHasItsTurn: all ranges of a large node are late
// at once, and stay so. No tick nudges more than some, each range is nudged as
// soon as there is room for it, and a range that does not answer less and less.
func TestNudgesAreSpreadAndEachRangeHasItsTurn(t *testing.T) {
	const ranges, after, ticks = 1000, 10, 3000
	f := NewFrontier()
	c := &placementpb.Cut{First: true, Revision: 5}
	for id := uint64(1); id <= ranges; id++ {
		d := &rangepb.RangeDescriptor{RangeId: id, Start: []byte{byte(id >> 8), byte(id)}, End: []byte{byte((id + 1) >> 8), byte(id + 1)}}
		c.Descriptors = append(c.Descriptors, d)
		c.Marks = append(c.Marks, &placementpb.Mark{RangeId: id, Revision: 5})
	}
	c.Descriptors[0].Start, c.Descriptors[ranges-1].End = nil, nil
	f.Cut(c)
	nudged := make(map[uint64][]int)
	for tick := 1; tick <= ticks; tick++ {
		ids := f.Tick(after)
		if len(ids) > maxNudges || !slices.IsSorted(ids) {
			t.Fatalf("tick %d: %d nudges: %v", tick, len(ids), ids)
		}
		for _, id := range ids {
			nudged[id] = append(nudged[id], tick)
		}
	}
	const room = ranges/maxNudges + 1 // ticks in which everybody has a turn
	for id := uint64(1); id <= ranges; id++ {
		at := nudged[id]
		if len(at) == 0 || at[0] < after || at[0] > after+room {
			t.Fatalf("range %d is nudged at %v", id, at)
		}
		for i := 1; i < len(at); i++ {
			want := after << min(i, maxPatience)
			if d := at[i] - at[i-1]; d < want || d > want+room {
				t.Fatalf("range %d is nudged at %v: %d ticks after the one before, want %d and up to %d more", id, at, d, want, room)
			}
		}
	}
}
