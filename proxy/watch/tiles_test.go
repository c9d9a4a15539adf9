package watch

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// checked fails the test unless the subtree of n is balanced and refers upwards as it
// should, and returns its nodes in order.
func (n *node[V]) checked(t *testing.T) (nodes []*node[V]) {
	t.Helper()
	if n == nil {
		return nil
	}
	nodes = append(n.left.checked(t), n)
	nodes = append(nodes, n.right.checked(t)...)
	if l, r := n.left.depth(), n.right.depth(); n.height != 1+max(l, r) || max(l, r)-min(l, r) > 1 {
		t.Fatalf("a node says its height is %d, over subtrees of %d and %d", n.height, l, r)
	}
	for _, c := range []*node[V]{n.left, n.right} {
		if c != nil && c.up != n {
			t.Fatal("a node does not know which is above it")
		}
	}
	return nodes
}

// A tiling against a scan: tiles are parted, joined and set at random. It stays
// balanced, and knows the least of what a span touches.
func TestTilingFindsWhatAScanFinds(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 19))
		tiles := newTiling()
		all := []*node[tile]{tiles.add(0, nil, nil)} // in key order
		for op := range 1000 {
			switch i := rng.IntN(len(all)); {
			case rng.IntN(3) == 0:
				tiles.set(all[i], rng.Int64N(50))
			case rng.IntN(3) == 0:
				tiles.set(all[i], math.MaxInt64)
			case rng.IntN(5) < 3 && op < 700:
				at := keysOverFewLetters(rng, 6)
				old := tiles.holding(at)
				if bytes.Equal(old.item.start, at) {
					continue
				}
				i = slices.Index(all, old)
				tiles.remove(old)
				all = slices.Replace(all, i, i+1, tiles.add(0, old.item.start, at), tiles.add(0, at, old.item.end))
			case i > 0:
				left, right := all[i-1], all[i]
				tiles.remove(left)
				tiles.remove(right)
				all = slices.Replace(all, i-1, i+1, tiles.add(0, left.item.start, right.item.end))
			}
			if nodes := tiles.root.checked(t); !slices.Equal(nodes, all) {
				t.Fatalf("seed %d: the tree has %d tiles in another order than the %d", seed, len(nodes), len(all))
			}
			start, end := anySpan(rng, 5)
			want := int64(1000)
			for _, n := range all {
				if endsAfter(n.item.end, start) && endsAfter(end, n.item.start) {
					want = min(want, n.item.complete)
				}
			}
			if got := tiles.complete(start, end, 1000); got != want {
				t.Fatalf("seed %d: [%q, %q) is complete up to %d, want %d", seed, start, end, got, want)
			}
		}
	}
}
