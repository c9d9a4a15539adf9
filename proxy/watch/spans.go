package watch

import (
	"bytes"
	"cmp"
)

// spanTree finds those of some spans that hold a key, each with what belongs to it.
//
// The spans are in order of start, then of end, and a node knows the greatest end
// in its subtree. A search goes into a subtree only if that is after the key, and to
// the right of a node only if the node does not start after the key: so all nodes
// that it goes into lie above a span that holds the key, or on the one path to where
// a span of the key alone would be. With n spans, adding and removing cost O(log n),
// a search that for each span it finds, and once more.
type spanTree[T any] struct{ tree[spanOf[T]] }

// spanOf is a span [start, end), end empty: to the end of the keyspace.
type spanOf[T any] struct {
	start, end []byte
	of         T
	// last is the greatest end in the subtree.
	last []byte
}

func newSpanTree[T any]() spanTree[T] {
	return spanTree[T]{tree[spanOf[T]]{
		compare: func(a, b *spanOf[T]) int { return compareSpans(a.start, a.end, b.start, b.end) },
		refresh: func(n *node[spanOf[T]]) {
			n.item.last = n.item.end
			for _, c := range []*node[spanOf[T]]{n.left, n.right} {
				if c != nil && compareEnds(c.item.last, n.item.last) > 0 {
					n.item.last = c.item.last
				}
			}
		},
	}}
}

// add adds a span that the tree does not have.
func (t *spanTree[T]) add(start, end []byte, of T) {
	t.insert(spanOf[T]{start: start, end: end, of: of})
}

// at returns the node of a span, nil if the tree does not have it.
func (t *spanTree[T]) at(start, end []byte) *node[spanOf[T]] {
	return t.find(func(s *spanOf[T]) int { return compareSpans(start, end, s.start, s.end) })
}

// stab calls fn for what belongs to every span that holds key, in order of the
// spans. It returns how many nodes it has gone into.
func (t *spanTree[T]) stab(key []byte, fn func(T)) (nodes int) { return stab(t.root, key, fn) }

func stab[T any](n *node[spanOf[T]], key []byte, fn func(T)) (nodes int) {
	for n != nil && endsAfter(n.item.last, key) {
		nodes++
		if bytes.Compare(n.item.start, key) > 0 {
			n = n.left
			continue
		}
		nodes += stab(n.left, key, fn)
		if endsAfter(n.item.end, key) {
			fn(n.item.of)
		}
		n = n.right
	}
	return nodes
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

func compareSpans(aStart, aEnd, bStart, bEnd []byte) int {
	return cmp.Or(bytes.Compare(aStart, bStart), compareEnds(aEnd, bEnd))
}
