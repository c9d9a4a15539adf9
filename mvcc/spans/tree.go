// Package spans finds spans of keys among many: those that hold a key, and the
// latest of those that overlap a span.
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
// It is a balanced tree (AVL) of the spans in order of start, end and place. A node
// knows the greatest end, and the least and greatest place, of its subtree. With n
// spans, a change goes into O(log n) nodes, and Stab into that many for each span it
// finds, and once more. All methods return how many nodes they went into.
//
// The zero value is an empty tree. It keeps the slices it is given, which nobody may
// change. Only searches are safe for concurrent use.
type Tree[V any] struct{ root *node[V] }

type node[V any] struct {
	start, end []byte
	place      uint64
	value      V
	// last is the greatest end in the subtree, least and greatest are of its
	// places; height is the length of its longest path. The heights of left and
	// right differ by one at most.
	last            []byte
	least, greatest uint64
	height          int
	left, right     *node[V]
}

// Edit replaces the value of a span at a place by what fn makes of it. found says
// whether there is one; without keep the tree has none afterwards. fn is called once
// and must not use the tree.
func (t *Tree[V]) Edit(start, end []byte, place uint64, fn func(v V, found bool) (edited V, keep bool)) (nodes int) {
	e := edit[V]{start: start, end: end, place: place, fn: fn}
	t.root = e.in(t.root)
	return e.nodes
}

// Set sets the value of a span at a place.
func (t *Tree[V]) Set(start, end []byte, place uint64, value V) (nodes int) {
	return t.Edit(start, end, place, func(V, bool) (V, bool) { return value, true })
}

// Delete drops the value of a span at a place, if it has one.
func (t *Tree[V]) Delete(start, end []byte, place uint64) (nodes int) {
	return t.Edit(start, end, place, func(v V, _ bool) (V, bool) { return v, false })
}

// Empty says whether the tree has no span.
func (t *Tree[V]) Empty() bool { return t.root == nil }

// Stab calls fn for the value of every span that holds key, in order of the spans.
func (t *Tree[V]) Stab(key []byte, fn func(V)) (nodes int) { return t.root.stab(key, fn) }

func (n *node[V]) stab(key []byte, fn func(V)) (nodes int) {
	// It goes into a subtree only if something there ends after the key, and to the
	// right of a node only if the node does not start after it: so all nodes lie
	// above a span that holds the key, or on the one path to where a span of the
	// key alone would be.
	for n != nil && endsAfter(n.last, key) {
		nodes++
		if bytes.Compare(n.start, key) > 0 {
			n = n.left
			continue
		}
		nodes += n.left.stab(key, fn)
		if endsAfter(n.end, key) {
			fn(n.value)
		}
		n = n.right
	}
	return nodes
}

// Latest returns the value with the greatest place of the spans that overlap
// [start, end) and have a place above after and below before. found is false if
// there is none.
func (t *Tree[V]) Latest(start, end []byte, after, before uint64) (value V, place uint64, found bool, nodes int) {
	s := search[V]{start: start, end: end, before: before, best: after}
	s.in(t.root)
	if s.found != nil {
		value, place, found = s.found.value, s.found.place, true
	}
	return value, place, found, s.nodes
}

type search[V any] struct {
	start, end   []byte
	before, best uint64
	found        *node[V]
	nodes        int
}

func (s *search[V]) in(n *node[V]) {
	for n != nil && n.greatest > s.best && n.least < s.before && endsAfter(n.last, s.start) {
		s.nodes++
		if !endsAfter(s.end, n.start) {
			n = n.left
			continue
		}
		if s.best < n.place && n.place < s.before && endsAfter(n.end, s.start) {
			s.found, s.best = n, n.place
		}
		// Where later ones are first: what is found there rules the other out,
		// unless some of it does not overlap.
		first, second := n.left, n.right
		if first == nil || second != nil && second.greatest > first.greatest {
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

type edit[V any] struct {
	start, end []byte
	place      uint64
	fn         func(V, bool) (V, bool)
	nodes      int
}

func (e *edit[V]) compare(n *node[V]) int {
	if c := bytes.Compare(e.start, n.start); c != 0 {
		return c
	}
	if c := compareEnds(e.end, n.end); c != 0 {
		return c
	}
	return cmp.Compare(e.place, n.place)
}

// in returns the subtree n after the edit.
func (e *edit[V]) in(n *node[V]) *node[V] {
	if n == nil {
		var none V
		value, keep := e.fn(none, false)
		if !keep {
			return nil
		}
		n = &node[V]{start: e.start, end: e.end, place: e.place, value: value}
		n.update()
		return n
	}
	e.nodes++
	switch c := e.compare(n); {
	case c < 0:
		n.left = e.in(n.left)
	case c > 0:
		n.right = e.in(n.right)
	default:
		value, keep := e.fn(n.value, true)
		if keep {
			n.value = value
			return n
		}
		if n.right == nil {
			return n.left
		}
		next, rest := n.right.withoutFirst(&e.nodes)
		next.left, next.right = n.left, rest
		n = next
	}
	return n.balanced()
}

// withoutFirst takes the first node out of a subtree, and counts the nodes it goes
// into.
func (n *node[V]) withoutFirst(nodes *int) (first, rest *node[V]) {
	*nodes++
	if n.left == nil {
		return n, n.right
	}
	first, n.left = n.left.withoutFirst(nodes)
	return first, n.balanced()
}

// balanced returns the subtree of n, whose children are in balance, after one of
// them has grown or shrunk by one.
func (n *node[V]) balanced() *node[V] {
	switch d := n.left.depth() - n.right.depth(); {
	case d > 1:
		if n.left.left.depth() < n.left.right.depth() {
			n.left = n.left.rotatedLeft()
		}
		return n.rotatedRight()
	case d < -1:
		if n.right.right.depth() < n.right.left.depth() {
			n.right = n.right.rotatedRight()
		}
		return n.rotatedLeft()
	}
	n.update()
	return n
}

func (n *node[V]) rotatedLeft() *node[V] {
	top := n.right
	n.right, top.left = top.left, n
	n.update()
	top.update()
	return top
}

func (n *node[V]) rotatedRight() *node[V] {
	top := n.left
	n.left, top.right = top.right, n
	n.update()
	top.update()
	return top
}

// update brings what n knows of its subtree up to date.
func (n *node[V]) update() {
	n.height = 1 + max(n.left.depth(), n.right.depth())
	n.last, n.least, n.greatest = n.end, n.place, n.place
	n.include(n.left)
	n.include(n.right)
}

func (n *node[V]) include(c *node[V]) {
	if c == nil {
		return
	}
	if compareEnds(c.last, n.last) > 0 {
		n.last = c.last
	}
	n.least, n.greatest = min(n.least, c.least), max(n.greatest, c.greatest)
}

func (n *node[V]) depth() int {
	if n == nil {
		return 0
	}
	return n.height
}
