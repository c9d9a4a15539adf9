package watch

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hawser-kv/hawser/mvcc/spans"
)

// nodesOf returns the nodes of a subtree in order.
func nodesOf(n *spans.Node[tile]) (nodes []*spans.Node[tile]) {
	if n == nil {
		return nil
	}
	return append(append(nodesOf(n.Left), n), nodesOf(n.Right)...)
}

// A tiling against a scan: tiles are parted, joined and set at random. It stays
// balanced, and knows the least of what a span touches.
func TestTilingFindsWhatAScanFinds(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 19))
		tiles := newTiling()
		all := []*spans.Node[tile]{tiles.add(0, nil, nil)} // in key order
		for op := range 1000 {
			switch i := rng.IntN(len(all)); {
			case rng.IntN(3) == 0:
				tiles.set(all[i], rng.Int64N(50))
			case rng.IntN(3) == 0:
				tiles.set(all[i], math.MaxInt64)
			case rng.IntN(5) < 3 && op < 700:
				at := keysOverFewLetters(rng, 6)
				old := tiles.holding(at)
				if bytes.Equal(old.Item.start, at) {
					continue
				}
				i = slices.Index(all, old)
				tiles.tiles.Remove(old)
				all = slices.Replace(all, i, i+1, tiles.add(0, old.Item.start, at), tiles.add(0, at, old.Item.end))
			case i > 0:
				left, right := all[i-1], all[i]
				tiles.tiles.Remove(left)
				tiles.tiles.Remove(right)
				all = slices.Replace(all, i-1, i+1, tiles.add(0, left.Item.start, right.Item.end))
			}
			if err := tiles.tiles.Check(); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if nodes := nodesOf(tiles.tiles.Root()); !slices.Equal(nodes, all) {
				t.Fatalf("seed %d: the tree has %d tiles in another order than the %d", seed, len(nodes), len(all))
			}
			start, end := anySpan(rng, 5)
			want := int64(1000)
			for _, n := range all {
				if endsAfter(n.Item.end, start) && endsAfter(end, n.Item.start) {
					want = min(want, n.Item.complete)
				}
			}
			if got := tiles.complete(start, end, 1000); got != want {
				t.Fatalf("seed %d: [%q, %q) is complete up to %d, want %d", seed, start, end, got, want)
			}
		}
	}
}
