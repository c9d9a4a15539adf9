package watch

import (
	"bytes"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
)

func watcherOf(id int, start, end []byte) *watcher {
	return &watcher{id: int64(id), start: start, end: end}
}

func (w *watcher) holds(key []byte) bool {
	return bytes.Compare(w.start, key) <= 0 && (len(w.end) == 0 || bytes.Compare(key, w.end) < 0)
}

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

func (t *spanTree[T]) checked(tt *testing.T) {
	tt.Helper()
	if t.root != nil && t.root.up != nil {
		tt.Fatal("something is above the root")
	}
	nodes := t.root.checked(tt)
	for i, n := range nodes {
		last := slices.MaxFunc(n.checked(tt), func(a, b *node[spanOf[T]]) int { return compareEnds(a.item.end, b.item.end) }).item.end
		if !bytes.Equal(n.item.last, last) {
			tt.Fatalf("[%q, %q) says the greatest end of its subtree is %q, it is %q", n.item.start, n.item.end, n.item.last, last)
		}
		if i > 0 && t.compare(&nodes[i-1].item, &n.item) >= 0 {
			tt.Fatalf("[%q, %q) comes before [%q, %q)", nodes[i-1].item.start, nodes[i-1].item.end, n.item.start, n.item.end)
		}
	}
}

// mostHeight is the greatest height of an AVL tree of n nodes: one of h has at
// least F(h+2)-1.
func mostHeight(n int) int {
	h := 0
	for a, b := 1, 2; b-1 <= n; a, b = b, a+b {
		h++
	}
	return h
}

// keysOverFewLetters makes keys of up to most bytes that are often equal, neighbours,
// or prefixes of each other, at the ends of the keyspace, too.
func keysOverFewLetters(rng *rand.Rand, most int) []byte {
	key := make([]byte, rng.IntN(most+1))
	for i := range key {
		key[i] = []byte{0, 'a', 'b', 0xff}[rng.IntN(4)]
	}
	return key
}

// anySpan is one of a key, of a prefix, to the end of the keyspace, or any other.
// Many are nested, touch or are equal.
func anySpan(rng *rand.Rand, most int) (start, end []byte) {
	for {
		start = keysOverFewLetters(rng, most)
		switch rng.IntN(4) {
		case 0:
			return start, append(bytes.Clone(start), 0)
		case 1:
			if len(start) > 0 {
				return start, prefixEnd(start)
			}
		case 2:
			return start, nil
		default:
			if end = keysOverFewLetters(rng, most); bytes.Compare(start, end) < 0 {
				return start, end
			}
		}
	}
}

// TestSpanTreeFindsWhatAScanFinds adds and removes watchers of any spans and holds
// what the tree finds against a scan: all of them, once, in the order of the spans.
// A search goes into no more nodes than lie above what it finds and on one path.
func TestSpanTreeFindsWhatAScanFinds(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 11))
		tree := newSpanTree[*watcher]()
		var in []*watcher
		grow := 6 // of 10; it shrinks to nothing in the end
		for op := range 2000 {
			if op == 1200 {
				grow = 3
			}
			if len(in) == 0 || rng.IntN(10) < grow {
				start, end := anySpan(rng, 1+int(seed)%4)
				if tree.at(start, end) != nil {
					continue
				}
				w := watcherOf(op, start, end)
				in = append(in, w)
				tree.add(start, end, w)
			} else {
				i := rng.IntN(len(in))
				tree.remove(tree.at(in[i].start, in[i].end))
				in = slices.Delete(in, i, i+1)
			}
			if op%16 == 0 {
				tree.checked(t)
			}
			key := keysOverFewLetters(rng, 5)
			var got []*watcher
			nodes := tree.stab(key, func(w *watcher) { got = append(got, w) })
			if most := (len(got) + 1) * tree.root.depth(); nodes > most {
				t.Fatalf("seed %d: to find %d spans the search goes into %d nodes of a tree %d high", seed, len(got), nodes, tree.root.depth())
			}
			inOrder := slices.IsSortedFunc(got, func(a, b *watcher) int { return compareSpans(a.start, a.end, b.start, b.end) })
			if !inOrder {
				t.Fatalf("seed %d: spans that hold %q come out of order", seed, key)
			}
			checkSame(t, fmt.Sprintf("seed %d: key %q", seed, key), got, in, key)
		}
		for _, w := range in {
			tree.remove(tree.at(w.start, w.end))
		}
		if tree.root != nil {
			t.Fatalf("seed %d: something is left", seed)
		}
	}
}

// checkSame fails the test unless got are those of in that hold key, each once.
func checkSame(t *testing.T, of string, got, in []*watcher, key []byte) {
	t.Helper()
	var ids, want []int64
	for _, w := range got {
		ids = append(ids, w.id)
	}
	for _, w := range in {
		if w.holds(key) {
			want = append(want, w.id)
		}
	}
	slices.Sort(ids)
	slices.Sort(want)
	if !slices.Equal(ids, want) {
		t.Fatalf("%s: found %v, want %v", of, ids, want)
	}
}

// TestSearchAmongManySpansLooksAtFew: of 3,000 spans that are disjoint, added in
// order, which leans a tree without balance to one side, a search goes into those
// on two paths. Below one more that holds all of them it is no different.
func TestSearchAmongManySpansLooksAtFew(t *testing.T) {
	const spans = 3000
	tree := newSpanTree[*watcher]()
	key := func(i int, of string) []byte { return fmt.Appendf(nil, "k%04d/%s", i, of) }
	var in []*watcher
	for i := range spans {
		in = append(in, watcherOf(i, key(i, "b"), key(i, "d")))
		tree.add(in[i].start, in[i].end, in[i])
	}
	look := func(most int) {
		t.Helper()
		if h := tree.root.depth(); h > mostHeight(len(in)) {
			t.Fatalf("%d spans make a tree %d high", len(in), h)
		}
		for i := range spans {
			for _, of := range []string{"a", "b", "c", "d"} {
				var got []*watcher
				k := key(i, of)
				if nodes := tree.stab(k, func(w *watcher) { got = append(got, w) }); nodes > most {
					t.Fatalf("a search for %q goes into %d nodes, want %d at most", k, nodes, most)
				}
				// The scan needs to look at the neighbours only, and the last one.
				checkSame(t, string(k), got, slices.Concat(in[max(i-1, 0):min(i+2, spans)], in[spans:]), k)
			}
		}
	}
	// log2(3000) is less than 12, and a tree is at most 1.44 times as high.
	if h := mostHeight(spans); h > bits.Len(spans)*3/2 {
		t.Fatalf("mostHeight says %d", h)
	}
	look(2 * mostHeight(spans))
	in = append(in, watcherOf(spans, []byte{0}, nil))
	tree.add(in[spans].start, in[spans].end, in[spans])
	look(3 * mostHeight(spans+1))
	tree.checked(t)
}
