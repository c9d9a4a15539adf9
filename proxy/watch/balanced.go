package watch

// tree is a balanced search tree (AVL), ordered by compare: adding and removing
// cost O(log n). refresh brings what an item knows of its subtree up to date; it
// is called from the leaves upwards, for every node whose subtree has changed.
type tree[V any] struct {
	root    *node[V]
	compare func(a, b *V) int
	refresh func(n *node[V])
}

// node stays where it is in memory for as long as its item is in the tree.
type node[V any] struct {
	item V
	// height is the length of the longest path down; those of left and right
	// differ by one at most.
	height          int
	left, right, up *node[V]
}

// insert adds an item; the tree has none that is equal to it.
func (t *tree[V]) insert(item V) *node[V] {
	n := &node[V]{item: item}
	t.setRoot(t.with(t.root, n))
	return n
}

// remove takes a node of the tree out.
func (t *tree[V]) remove(n *node[V]) { t.setRoot(t.without(t.root, n)) }

func (t *tree[V]) setRoot(n *node[V]) {
	t.root = n
	if n != nil {
		n.up = nil
	}
}

// refreshed tells that an item has changed: what those above know of it is wrong.
func (t *tree[V]) refreshed(n *node[V]) {
	for ; n != nil; n = n.up {
		t.refresh(n)
	}
}

func (t *tree[V]) with(at, n *node[V]) *node[V] {
	if at == nil {
		t.update(n)
		return n
	}
	switch c := t.compare(&n.item, &at.item); {
	case c < 0:
		at.left = t.with(at.left, n)
	case c > 0:
		at.right = t.with(at.right, n)
	default:
		panic("watch: an item is in the tree already")
	}
	return t.balanced(at)
}

func (t *tree[V]) without(at, n *node[V]) *node[V] {
	if at == nil {
		panic("watch: an item is not in the tree")
	}
	switch c := t.compare(&n.item, &at.item); {
	case c < 0:
		at.left = t.without(at.left, n)
	case c > 0:
		at.right = t.without(at.right, n)
	case at.right == nil:
		return at.left
	default:
		next, rest := t.withoutFirst(at.right)
		next.left, next.right = at.left, rest
		at = next
	}
	return t.balanced(at)
}

// withoutFirst takes the first node out of a subtree.
func (t *tree[V]) withoutFirst(at *node[V]) (first, rest *node[V]) {
	if at.left == nil {
		return at, at.right
	}
	first, at.left = t.withoutFirst(at.left)
	return first, t.balanced(at)
}

// balanced returns the subtree of n, whose children are in balance, after one of
// them has grown or shrunk by one.
func (t *tree[V]) balanced(n *node[V]) *node[V] {
	switch d := n.left.depth() - n.right.depth(); {
	case d > 1:
		if n.left.left.depth() < n.left.right.depth() {
			n.left = t.rotatedLeft(n.left)
		}
		return t.rotatedRight(n)
	case d < -1:
		if n.right.right.depth() < n.right.left.depth() {
			n.right = t.rotatedRight(n.right)
		}
		return t.rotatedLeft(n)
	}
	t.update(n)
	return n
}

func (t *tree[V]) rotatedLeft(n *node[V]) *node[V] {
	top := n.right
	n.right, top.left = top.left, n
	t.update(n)
	t.update(top)
	return top
}

func (t *tree[V]) rotatedRight(n *node[V]) *node[V] {
	top := n.left
	n.left, top.right = top.right, n
	t.update(n)
	t.update(top)
	return top
}

// update brings what n knows of its subtree up to date.
func (t *tree[V]) update(n *node[V]) {
	n.height = 1 + max(n.left.depth(), n.right.depth())
	if n.left != nil {
		n.left.up = n
	}
	if n.right != nil {
		n.right.up = n
	}
	t.refresh(n)
}

func (n *node[V]) depth() int {
	if n == nil {
		return 0
	}
	return n.height
}

// each calls fn for every item, in order.
func (t *tree[V]) each(fn func(*V)) { t.root.each(fn) }

func (n *node[V]) each(fn func(*V)) {
	if n != nil {
		n.left.each(fn)
		fn(&n.item)
		n.right.each(fn)
	}
}
