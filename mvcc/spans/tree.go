// Package spans has a balanced search tree (Balanced) for any items, and one (Tree) that
// finds spans of keys among many: those that hold a key, and the latest of those that
// overlap a span.
package spans

import (
	"bytes"
	"cmp"
)

// Tree keeps a value for each of some spans of keys. A span is [start, end), end
// empty meaning the end of the keyspace. Spans that are equal are told apart by
// their place, a number that the caller gives them; a caller that keeps one value
// for a span gives them all the same.
//
// It is a Balanced of the spans in order of start, end and place. A node knows the
// greatest end, and the least and greatest place, of its subtree. With n spans, a
// change goes into O(log n) nodes, and Stab into that many for each span it finds, and
// once more. All methods return how many nodes they went into.
//
// The zero value is an empty tree. It keeps the slices it is given, which nobody may
// change. Only searches are safe for concurrent use.
type Tree[V any] struct {
	nodes Balanced[item[V]]
	// Of the change under way: its span, what it has there, and whether that is to stay;
	// or fn, if that decides.
	at   item[V]
	fn   func(v V, found bool) (edited V, keep bool)
	keep bool
}

type item[V any] struct {
	start, end []byte
	place      uint64
	value      V
	// last is the greatest end in the subtree, least and greatest are of its places.
	last            []byte
	least, greatest uint64
}

// Edit replaces the value of a span at a place by what fn makes of it. found says
// whether there is one; without keep the tree has none afterwards. fn is called once
// and must not use the tree.
func (t *Tree[V]) Edit(start, end []byte, place uint64, fn func(v V, found bool) (edited V, keep bool)) (nodes int) {
	t.fn = fn
	return t.change(item[V]{start: start, end: end, place: place})
}

// Set sets the value of a span at a place.
func (t *Tree[V]) Set(start, end []byte, place uint64, value V) (nodes int) {
	t.keep = true
	return t.change(item[V]{start: start, end: end, place: place, value: value})
}

// Delete drops the value of a span at a place, if it has one.
func (t *Tree[V]) Delete(start, end []byte, place uint64) (nodes int) {
	t.keep = false
	return t.change(item[V]{start: start, end: end, place: place})
}

func (t *Tree[V]) change(at item[V]) (nodes int) {
	if t.nodes.compare == nil {
		t.nodes = NewBalanced(compareItems[V], refreshItem[V])
	}
	t.at = at
	e := edit[item[V]]{tree: &t.nodes, at: &t.at, by: t}
	t.nodes.edit(&e)
	t.at, t.fn = item[V]{}, nil
	return e.nodes
}

// edited is the editor of the tree's nodes.
func (t *Tree[V]) edited(i *item[V], found bool) (keep bool) {
	if t.fn == nil {
		if t.keep {
			i.value = t.at.value
		}
		return t.keep
	}
	edited, keep := t.fn(i.value, found)
	if keep {
		i.value = edited
	}
	return keep
}

// Empty says whether the tree has no span.
func (t *Tree[V]) Empty() bool { return t.nodes.root == nil }

// Stab calls fn for the value of every span that holds key, in order of the spans.
func (t *Tree[V]) Stab(key []byte, fn func(V)) (nodes int) { return stab(t.nodes.root, key, fn) }

func stab[V any](n *Node[item[V]], key []byte, fn func(V)) (nodes int) {
	// It goes into a subtree only if something there ends after the key, and to the
	// right of a node only if the node does not start after it: so all nodes lie
	// above a span that holds the key, or on the one path to where a span of the
	// key alone would be.
	for n != nil && endsAfter(n.Item.last, key) {
		nodes++
		if bytes.Compare(n.Item.start, key) > 0 {
			n = n.Left
			continue
		}
		nodes += stab(n.Left, key, fn)
		if endsAfter(n.Item.end, key) {
			fn(n.Item.value)
		}
		n = n.Right
	}
	return nodes
}

// Latest returns the value with the greatest place of the spans that overlap
// [start, end) and have a place above after and below before. found is false if
// there is none.
func (t *Tree[V]) Latest(start, end []byte, after, before uint64) (value V, place uint64, found bool, nodes int) {
	s := search[V]{start: start, end: end, before: before, best: after}
	s.in(t.nodes.root)
	if s.found != nil {
		value, place, found = s.found.Item.value, s.found.Item.place, true
	}
	return value, place, found, s.nodes
}

type search[V any] struct {
	start, end   []byte
	before, best uint64
	found        *Node[item[V]]
	nodes        int
}

func (s *search[V]) in(n *Node[item[V]]) {
	for n != nil && n.Item.greatest > s.best && n.Item.least < s.before && endsAfter(n.Item.last, s.start) {
		s.nodes++
		if !endsAfter(s.end, n.Item.start) {
			n = n.Left
			continue
		}
		if s.best < n.Item.place && n.Item.place < s.before && endsAfter(n.Item.end, s.start) {
			s.found, s.best = n, n.Item.place
		}
		// Where later ones are first: what is found there rules the other out,
		// unless some of it does not overlap.
		first, second := n.Left, n.Right
		if first == nil || second != nil && second.Item.greatest > first.Item.greatest {
			first, second = second, first
		}
		s.in(first)
		n = second
	}
}

// endsAfter says whether key lies before a span's end.
func endsAfter(end, key []byte) bool { return len(end) == 0 || bytes.Compare(end, key) > 0 }

// compareEnds orders the ends of spans.
func compareEnds(a, b []byte) int {
	if len(a) == 0 || len(b) == 0 {
		return len(b) - len(a)
	}
	return bytes.Compare(a, b)
}

func compareItems[V any](a, b *item[V]) int {
	if c := bytes.Compare(a.start, b.start); c != 0 {
		return c
	}
	if c := compareEnds(a.end, b.end); c != 0 {
		return c
	}
	return cmp.Compare(a.place, b.place)
}

func refreshItem[V any](n *Node[item[V]]) {
	i := &n.Item
	last, least, greatest := i.end, i.place, i.place
	for _, c := range [...]*Node[item[V]]{n.Left, n.Right} {
		if c == nil {
			continue
		}
		if compareEnds(c.Item.last, last) > 0 {
			last = c.Item.last
		}
		least, greatest = min(least, c.Item.least), max(greatest, c.Item.greatest)
	}
	i.last, i.least, i.greatest = last, least, greatest
}
