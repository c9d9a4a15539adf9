package spans

import (
	"bytes"
	"cmp"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
)

// span is what the tests keep, and the scan that the tree is held against.
type span struct {
	start, end []byte
	place      uint64
	value      int
}

func (s *span) String() string {
	return fmt.Sprintf("[%q, %q)@%d=%d", s.start, s.end, s.place, s.value)
}

func (s *span) holds(key []byte) bool {
	return bytes.Compare(s.start, key) <= 0 && (len(s.end) == 0 || bytes.Compare(key, s.end) < 0)
}

func (s *span) overlaps(start, end []byte) bool {
	return (len(end) == 0 || bytes.Compare(s.start, end) < 0) && (len(s.end) == 0 || bytes.Compare(start, s.end) < 0)
}

func compareSpans(a, b *span) int {
	return cmp.Or(bytes.Compare(a.start, b.start), compareEnds(a.end, b.end), cmp.Compare(a.place, b.place))
}

// check fails the test unless the subtree keeps what item promises, and returns its
// nodes in order.
func check[V any](t *testing.T, n *Node[item[V]]) (nodes []*Node[item[V]]) {
	t.Helper()
	if n == nil {
		return nil
	}
	nodes = append(check(t, n.Left), n)
	nodes = append(nodes, check(t, n.Right)...)
	if l, r := n.Left.depth(), n.Right.depth(); n.height != 1+max(l, r) || max(l, r)-min(l, r) > 1 {
		t.Fatalf("[%q, %q) says its height is %d, over subtrees of %d and %d", n.Item.start, n.Item.end, n.height, l, r)
	}
	last := slices.MaxFunc(nodes, func(a, b *Node[item[V]]) int { return compareEnds(a.Item.end, b.Item.end) }).Item.end
	if !bytes.Equal(n.Item.last, last) {
		t.Fatalf("[%q, %q) says the greatest end of its subtree is %q, it is %q", n.Item.start, n.Item.end, n.Item.last, last)
	}
	byPlace := func(a, b *Node[item[V]]) int { return cmp.Compare(a.Item.place, b.Item.place) }
	least, greatest := slices.MinFunc(nodes, byPlace).Item.place, slices.MaxFunc(nodes, byPlace).Item.place
	if n.Item.least != least || n.Item.greatest != greatest {
		t.Fatalf("[%q, %q) says the places of its subtree are %d to %d, they are %d to %d", n.Item.start, n.Item.end, n.Item.least, n.Item.greatest, least, greatest)
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

// keyOverFewLetters makes keys of up to most bytes that are often equal, neighbours,
// or prefixes of each other, at the ends of the keyspace, too.
func keyOverFewLetters(rng *rand.Rand, most int) []byte {
	key := make([]byte, rng.IntN(most+1))
	for i := range key {
		key[i] = []byte{0, 'a', 'b', 0xff}[rng.IntN(4)]
	}
	return key
}

// anySpan is one of a key, to the end of the keyspace, or any other. Many are
// nested, touch or are equal.
func anySpan(rng *rand.Rand, most int) (start, end []byte) {
	for {
		start = keyOverFewLetters(rng, most)
		switch rng.IntN(4) {
		case 0:
			return start, append(bytes.Clone(start), 0)
		case 1:
			return start, nil
		default:
			if end = keyOverFewLetters(rng, most); bytes.Compare(start, end) < 0 {
				return start, end
			}
		}
	}
}

// TestTreeFindsWhatAScanFinds edits a tree of any spans and holds what it finds
// against a scan. A search for a key goes into no more nodes than lie above what it
// finds and on one path.
func TestTreeFindsWhatAScanFinds(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 11))
		var tree Tree[int]
		var in []*span
		grow := 6 // of 10; it shrinks to nothing in the end
		most := 1 + int(seed)%4
		for op := range 2000 {
			if op == 1200 {
				grow = 3
			}
			if len(in) == 0 || rng.IntN(10) < grow {
				s := &span{place: uint64(rng.IntN(1 + int(seed)*50)), value: op}
				s.start, s.end = anySpan(rng, most)
				at := slices.IndexFunc(in, func(o *span) bool { return compareSpans(o, s) == 0 })
				tree.Edit(s.start, s.end, s.place, func(v int, found bool) (int, bool) {
					if found != (at >= 0) || found && v != in[at].value {
						t.Fatalf("seed %d: %v: found %d, %v", seed, s, v, found)
					}
					return s.value, true
				})
				if at >= 0 {
					in[at] = s
				} else {
					in = append(in, s)
				}
			} else {
				i := rng.IntN(len(in))
				tree.Delete(in[i].start, in[i].end, in[i].place)
				in = slices.Delete(in, i, i+1)
			}
			if op%16 == 0 {
				checkNodes(t, &tree, in)
			}
			checkStab(t, &tree, in, keyOverFewLetters(rng, 5))
			start, end := anySpan(rng, most)
			after := uint64(rng.IntN(500))
			checkLatest(t, &tree, in, start, end, after, after+uint64(rng.IntN(1500)))
		}
		tree.Delete([]byte("no such"), nil, 0)
		for _, s := range in {
			tree.Delete(s.start, s.end, s.place)
		}
		if !tree.Empty() {
			t.Fatalf("seed %d: something is left", seed)
		}
	}
}

func checkNodes(t *testing.T, tree *Tree[int], in []*span) {
	t.Helper()
	if err := tree.nodes.Check(); err != nil {
		t.Fatal(err)
	}
	nodes := check(t, tree.nodes.root)
	slices.SortFunc(in, compareSpans)
	if len(nodes) != len(in) {
		t.Fatalf("%d nodes for %d spans", len(nodes), len(in))
	}
	for i, n := range nodes {
		if got := (&span{n.Item.start, n.Item.end, n.Item.place, n.Item.value}); compareSpans(got, in[i]) != 0 || got.value != in[i].value {
			t.Fatalf("node %d is %v, want %v", i, got, in[i])
		}
	}
}

func checkStab(t *testing.T, tree *Tree[int], in []*span, key []byte) {
	t.Helper()
	var got, want []int
	nodes := tree.Stab(key, func(v int) { got = append(got, v) })
	slices.SortFunc(in, compareSpans)
	for _, s := range in {
		if s.holds(key) {
			want = append(want, s.value)
		}
	}
	if !slices.Equal(got, want) {
		t.Fatalf("key %q: found %v, want %v", key, got, want)
	}
	if most := (len(want) + 1) * tree.nodes.root.depth(); nodes > most {
		t.Fatalf("to find %d spans the search goes into %d nodes of a tree %d high", len(want), nodes, tree.nodes.root.depth())
	}
}

func checkLatest(t *testing.T, tree *Tree[int], in []*span, start, end []byte, after, before uint64) {
	t.Helper()
	var latest uint64
	var values []int // of all that have that place
	for _, s := range in {
		if s.place <= after || s.place >= before || !s.overlaps(start, end) {
			continue
		}
		if len(values) == 0 || s.place > latest {
			latest, values = s.place, nil
		}
		if s.place == latest {
			values = append(values, s.value)
		}
	}
	value, place, found, _ := tree.Latest(start, end, after, before)
	if found != (len(values) > 0) || found && (place != latest || !slices.Contains(values, value)) {
		t.Fatalf("latest that overlaps [%q, %q) in (%d, %d): found %v, %d at %d, want one of %v at %d",
			start, end, after, before, found, value, place, values, latest)
	}
}

// TestSearchAmongManySpansLooksAtFew: of spans that are disjoint, added in order,
// which leans a tree without balance to one side, a search goes into those on two
// paths. Below one more that holds all of them it is no different.
func TestSearchAmongManySpansLooksAtFew(t *testing.T) {
	const spans = 3000
	var tree Tree[int]
	key := func(i int, of string) []byte { return fmt.Appendf(nil, "k%04d/%s", i, of) }
	var in []*span
	add := func(start, end []byte) {
		s := &span{start, end, uint64(len(in) + 1), len(in)}
		in = append(in, s)
		tree.Set(s.start, s.end, s.place, s.value)
	}
	for i := range spans {
		add(key(i, "b"), key(i, "d"))
	}
	look := func(most int) {
		t.Helper()
		if h := tree.nodes.root.depth(); h > mostHeight(len(in)) {
			t.Fatalf("%d spans make a tree %d high", len(in), h)
		}
		for i := range spans {
			for _, of := range []string{"a", "b", "c", "d"} {
				// The scan needs to look at the neighbours only, and the last one.
				near := slices.Concat(in[max(i-1, 0):min(i+2, spans)], in[spans:])
				k := key(i, of)
				checkStab(t, &tree, near, k)
				if nodes := tree.Stab(k, func(int) {}); nodes > most {
					t.Fatalf("a search for %q goes into %d nodes, want %d at most", k, nodes, most)
				}
				checkLatest(t, &tree, near, k, append(bytes.Clone(k), 0), 0, spans+2)
				if _, _, _, nodes := tree.Latest(k, append(bytes.Clone(k), 0), 0, spans+2); nodes > most {
					t.Fatalf("the latest that holds %q takes %d nodes, want %d at most", k, nodes, most)
				}
			}
		}
	}
	// log2(3000) is less than 12, and a tree is at most 1.44 times as high.
	if h := mostHeight(spans); h > bits.Len(spans)*3/2 {
		t.Fatalf("mostHeight says %d", h)
	}
	look(2 * mostHeight(spans))
	add([]byte{0}, nil)
	look(3 * mostHeight(spans+1))
	checkNodes(t, &tree, in)
}

// TestLatestAmongNestedSpansIsOnOnePath: where all of 3,000 spans hold a key, which
// of them is the latest takes no scan.
func TestLatestAmongNestedSpansIsOnOnePath(t *testing.T) {
	const spans = 3000
	rng := rand.New(rand.NewPCG(1, 2))
	places := rng.Perm(spans)
	var tree Tree[int]
	for i, p := range places {
		tree.Set(fmt.Appendf(nil, "a%04d", i), fmt.Appendf(nil, "z%04d", rng.IntN(10000)), uint64(p+1), i)
	}
	for before := uint64(spans + 1); before > spans/2; before-- {
		value, place, found, nodes := tree.Latest([]byte("m"), []byte("n"), 0, before)
		if !found || place != before-1 || places[value] != int(place-1) {
			t.Fatalf("before %d: found %d of %d, %v", before, value, place, found)
		}
		if most := 2 * mostHeight(spans); nodes > most {
			t.Fatalf("the latest of %d goes into %d nodes, want %d at most", spans, nodes, most)
		}
		tree.Delete(fmt.Appendf(nil, "a%04d", value), endOf(&tree, value), place)
	}
}

// endOf looks for the end of the span with a value.
func endOf(tree *Tree[int], value int) (end []byte) {
	tree.nodes.Each(func(i *item[int]) {
		if i.value == value {
			end = i.end
		}
	})
	return end
}
