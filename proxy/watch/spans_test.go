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
	return &watcher{id: int64(id), start: start, end: end, single: singleKey(start, end)}
}

func (w *watcher) holds(key []byte) bool {
	return bytes.Compare(w.start, key) <= 0 && (len(w.end) == 0 || bytes.Compare(key, w.end) < 0)
}

// check fails the test unless the subtree keeps what spanNode promises, and
// returns its nodes in order.
func (n *spanNode) check(t *testing.T) (nodes []*spanNode) {
	t.Helper()
	if n == nil {
		return nil
	}
	nodes = append(n.left.check(t), n)
	nodes = append(nodes, n.right.check(t)...)
	if l, r := n.left.depth(), n.right.depth(); n.height != 1+max(l, r) || max(l, r)-min(l, r) > 1 {
		t.Fatalf("[%q, %q) says its height is %d, over subtrees of %d and %d", n.start, n.end, n.height, l, r)
	}
	last := slices.MaxFunc(nodes, func(a, b *spanNode) int { return compareEnds(a.end, b.end) }).end
	if !bytes.Equal(n.last, last) {
		t.Fatalf("[%q, %q) says the greatest end of its subtree is %q, it is %q", n.start, n.end, n.last, last)
	}
	if len(n.watchers) == 0 {
		t.Fatalf("[%q, %q) has no watcher", n.start, n.end)
	}
	for i, w := range n.watchers {
		if w.place != i || n.compare(w) != 0 {
			t.Fatalf("watcher %d of [%q, %q) is at place %d of [%q, %q) and says %d", w.id, w.start, w.end, i, n.start, n.end, w.place)
		}
	}
	return nodes
}

func (t *spanTree) checked(tt *testing.T) []*spanNode {
	tt.Helper()
	nodes := t.root.check(tt)
	for i := 1; i < len(nodes); i++ {
		a, b := nodes[i-1], nodes[i]
		if c := bytes.Compare(a.start, b.start); c > 0 || c == 0 && compareEnds(a.end, b.end) >= 0 {
			tt.Fatalf("[%q, %q) comes before [%q, %q)", a.start, a.end, b.start, b.end)
		}
	}
	return nodes
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
		var tree spanTree
		var in []*watcher
		grow := 6 // of 10; it shrinks to nothing in the end
		for op := range 2000 {
			if op == 1200 {
				grow = 3
			}
			if len(in) == 0 || rng.IntN(10) < grow {
				start, end := anySpan(rng, 1+int(seed)%4)
				w := watcherOf(op, start, end)
				in = append(in, w)
				tree.add(w)
			} else {
				i := rng.IntN(len(in))
				tree.remove(in[i])
				in = slices.Delete(in, i, i+1)
			}
			if op%16 == 0 {
				tree.checked(t)
			}
			key := keysOverFewLetters(rng, 5)
			var got []*watcher
			found := 0
			nodes := tree.stab(key, func(w *watcher) {
				if n := len(got); n == 0 || !bytes.Equal(got[n-1].start, w.start) || !bytes.Equal(got[n-1].end, w.end) {
					found++
				}
				got = append(got, w)
			})
			if most := (found + 1) * tree.root.depth(); nodes > most {
				t.Fatalf("seed %d: to find %d spans the search goes into %d nodes of a tree %d high", seed, found, nodes, tree.root.depth())
			}
			inOrder := slices.IsSortedFunc(got, func(a, b *watcher) int {
				if c := bytes.Compare(a.start, b.start); c != 0 {
					return c
				}
				return compareEnds(a.end, b.end)
			})
			if !inOrder {
				t.Fatalf("seed %d: spans that hold %q come out of order", seed, key)
			}
			checkSame(t, fmt.Sprintf("seed %d: key %q", seed, key), got, in, key)
		}
		for _, w := range in {
			tree.remove(w)
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
	var tree spanTree
	key := func(i int, of string) []byte { return fmt.Appendf(nil, "k%04d/%s", i, of) }
	var in []*watcher
	for i := range spans {
		in = append(in, watcherOf(i, key(i, "b"), key(i, "d")))
		tree.add(in[i])
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
	tree.add(in[spans])
	look(3 * mostHeight(spans+1))
	tree.checked(t)
}
