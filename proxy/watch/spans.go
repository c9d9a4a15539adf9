package watch

import "bytes"

// spanTree finds those of some watchers whose spans hold a key, whatever the spans.
//
// It is a balanced tree (AVL) of the spans in order of start, then of end. A node
// knows the greatest end in its subtree. A search goes into a subtree only if that
// is after the key, and to the right of a node only if the node does not start
// after the key: so all nodes that it goes into lie above a span that holds the
// key, or on the one path to where a span of the key alone would be. With n spans,
// however many watchers each has, adding and removing cost O(log n), a search that
// for each span it finds, and once more.
//
// The zero value is an empty tree.
type spanTree struct{ root *spanNode }

// spanNode is a span [start, end), end empty: to the end of the keyspace.
type spanNode struct {
	start, end []byte
	watchers   alike // there is one at least
	// last is the greatest end in the subtree, height the length of its longest
	// path; the heights of left and right differ by one at most.
	last        []byte
	height      int
	left, right *spanNode
}

// add adds a watcher, which must not be in the tree.
func (t *spanTree) add(w *watcher) { t.root = t.root.with(w) }

// remove removes a watcher, which must be in the tree.
func (t *spanTree) remove(w *watcher) { t.root = t.root.without(w) }

// stab calls fn for every watcher whose span holds key, in order of the spans. It
// returns how many nodes it has gone into.
func (t *spanTree) stab(key []byte, fn func(*watcher)) (nodes int) { return t.root.stab(key, fn) }

func (n *spanNode) stab(key []byte, fn func(*watcher)) (nodes int) {
	for n != nil && endsAfter(n.last, key) {
		nodes++
		if bytes.Compare(n.start, key) > 0 {
			n = n.left
			continue
		}
		nodes += n.left.stab(key, fn)
		if endsAfter(n.end, key) {
			for _, w := range n.watchers {
				fn(w)
			}
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

// compare orders a watcher's span against the node's.
func (n *spanNode) compare(w *watcher) int {
	if c := bytes.Compare(w.start, n.start); c != 0 {
		return c
	}
	return compareEnds(w.end, n.end)
}

func (n *spanNode) with(w *watcher) *spanNode {
	if n == nil {
		n = &spanNode{start: w.start, end: w.end}
	}
	switch c := n.compare(w); {
	case c < 0:
		n.left = n.left.with(w)
	case c > 0:
		n.right = n.right.with(w)
	default:
		n.watchers = n.watchers.with(w)
	}
	return n.balanced()
}

func (n *spanNode) without(w *watcher) *spanNode {
	switch c := n.compare(w); {
	case c < 0:
		n.left = n.left.without(w)
	case c > 0:
		n.right = n.right.without(w)
	default:
		if n.watchers = n.watchers.without(w); len(n.watchers) > 0 {
			return n
		}
		if n.right == nil {
			return n.left
		}
		next, rest := n.right.withoutFirst()
		next.left, next.right = n.left, rest
		n = next
	}
	return n.balanced()
}

// withoutFirst takes the first node out of a subtree.
func (n *spanNode) withoutFirst() (first, rest *spanNode) {
	if n.left == nil {
		return n, n.right
	}
	first, n.left = n.left.withoutFirst()
	return first, n.balanced()
}

// balanced returns the subtree of n, whose children are in balance, after one of
// them has grown or shrunk by one.
func (n *spanNode) balanced() *spanNode {
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

func (n *spanNode) rotatedLeft() *spanNode {
	top := n.right
	n.right, top.left = top.left, n
	n.update()
	top.update()
	return top
}

func (n *spanNode) rotatedRight() *spanNode {
	top := n.left
	n.left, top.right = top.right, n
	n.update()
	top.update()
	return top
}

// update brings what n knows of its subtree up to date.
func (n *spanNode) update() {
	n.height = 1 + max(n.left.depth(), n.right.depth())
	n.last = n.end
	for _, c := range []*spanNode{n.left, n.right} {
		if c != nil && compareEnds(c.last, n.last) > 0 {
			n.last = c.last
		}
	}
}

func (n *spanNode) depth() int {
	if n == nil {
		return 0
	}
	return n.height
}
