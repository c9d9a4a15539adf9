package sequencer

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

func describeCut(c *changes, after uint64) string {
	cut := &placementpb.Cut{}
	c.fill(cut, after)
	var words []string
	for _, m := range cut.Marks {
		words = append(words, fmt.Sprintf("m(r%d)=%d", m.RangeId, m.Revision))
	}
	for _, d := range cut.Descriptors {
		words = append(words, fmt.Sprintf("r%d", d.RangeId))
	}
	return strings.Join(words, " ")
}

func testLedgers(n int) []*ledger {
	xs := make([]*ledger, n)
	for i := range xs {
		xs[i] = newLedger(&rangepb.RangeDescriptor{RangeId: uint64(i)})
		xs[i].committed = xs[i].desc
	}
	return xs
}

func TestCutHasWhatChangedSince(t *testing.T) {
	c := &changes{}
	c.init()
	xs := testLedgers(4)
	if got := describeCut(c, 0); got != "" {
		t.Fatal(got)
	}
	c.describe(xs[1]) // 1
	c.describe(xs[2]) // 2
	c.touch(xs[3])    // 3
	xs[1].last = 7
	c.touch(xs[1])    // 4
	c.elsewhere()     // 5
	c.describe(xs[3]) // 6
	for _, s := range []struct {
		after uint64
		want  string
	}{
		// Marks newest first; descriptors in the order in which they changed.
		{0, "m(r3)=0 m(r1)=7 m(r2)=0 r1 r2 r3"},
		{1, "m(r3)=0 m(r1)=7 m(r2)=0 r2 r3"},
		{2, "m(r3)=0 m(r1)=7 r3"},
		{4, "m(r3)=0 r3"},
		{6, ""},
	} {
		if got := describeCut(c, s.after); got != s.want {
			t.Errorf("after %d: %q, want %q", s.after, got, s.want)
		}
	}
	// The right half of a split that is only proposed is not let out (I6).
	xs[3].committed = nil
	if got := describeCut(c, 4); got != "" {
		t.Errorf("of a range that is not committed: %q", got)
	}
}

// Random changes against the number of each ledger's last one.
func TestChangesAgainstAMap(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 4))
	c := &changes{}
	c.init()
	xs := testLedgers(20)
	last := map[uint64]uint64{}
	for n := uint64(1); n <= 2000; n++ {
		x := xs[rng.IntN(len(xs))]
		c.touch(x)
		last[x.id] = n
		after := n - min(n, rng.Uint64N(40))
		var want []uint64
		for id, at := range last {
			if at > after {
				want = append(want, id)
			}
		}
		slices.SortFunc(want, func(a, b uint64) int { return int(last[b]) - int(last[a]) })
		cut := &placementpb.Cut{}
		c.fill(cut, after)
		var got []uint64
		for _, m := range cut.Marks {
			got = append(got, m.RangeId)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("change %d, after %d: %v, want %v", n, after, got, want)
		}
	}
}
