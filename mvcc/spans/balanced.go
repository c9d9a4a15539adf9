package spans

import "errors"

// Balanced is a balanced search tree (AVL). Adding and removing go into O(log n)
// nodes. What an item knows of its subtree is brought up to date from the leaves
// upwards, in every node whose subtree has changed. Only searches are safe for
// concurrent use.
type Balanced[V any] struct {
	root    *Node[V]
	compare func(a, b *V) int
	refresh func(n *Node[V])
}

// Node stays where it is in memory for as long as its item is in the tree. Searches
// follow Left and Right, which only the tree changes.
type Node[V any] struct {
	Item V
	// height is the length of the longest path down; those of Left and Right differ
	// by one at most.
	height          int
	Left, Right, up *Node[V]
}

// NewBalanced returns an empty tree in the order of compare. refresh says what an
// item knows of its subtree, given that those below it do.
func NewBalanced[V any](compare func(a, b *V) int, refresh func(n *Node[V])) Balanced[V] {
	return Balanced[V]{compare: compare, refresh: refresh}
}

// Root returns the topmost node, nil if the tree is empty.
func (t *Balanced[V]) Root() *Node[V] { return t.root }

// Insert adds an item; the tree has none that is equal to it.
func (t *Balanced[V]) Insert(item V) *Node[V] {
	n := &Node[V]{Item: item}
	t.edit(&edit[V]{tree: t, at: &n.Item, fresh: n})
	return n
}

// Remove takes a node of the tree out.
func (t *Balanced[V]) Remove(n *Node[V]) {
	t.edit(&edit[V]{tree: t, at: &n.Item})
}

// Refreshed tells that an item has changed: what those above know of it is wrong.
func (t *Balanced[V]) Refreshed(n *Node[V]) {
	for ; n != nil; n = n.up {
		t.refresh(n)
	}
}

// Each calls fn for every item, in order.
func (t *Balanced[V]) Each(fn func(*V)) { t.root.each(fn) }

func (n *Node[V]) each(fn func(*V)) {
	if n != nil {
		n.Left.each(fn)
		fn(&n.Item)
		n.Right.each(fn)
	}
}

// Check returns an error unless the tree is balanced, in order, and each node knows
// which is above it. It goes into all nodes: it is for tests.
func (t *Balanced[V]) Check() error {
	if t.root != nil && t.root.up != nil {
		return errors.New("spans: something is above the root")
	}
	var last *V
	err := t.root.check()
	t.Each(func(v *V) {
		if last != nil && t.compare(last, v) >= 0 {
			err = errors.Join(err, errors.New("spans: items are not in order"))
		}
		last = v
	})
	return err
}

func (n *Node[V]) check() error {
	if n == nil {
		return nil
	}
	if l, r := n.Left.depth(), n.Right.depth(); n.height != 1+max(l, r) || max(l, r)-min(l, r) > 1 {
		return errors.New("spans: a node is out of balance")
	}
	for _, c := range []*Node[V]{n.Left, n.Right} {
		if c != nil && c.up != n {
			return errors.New("spans: a node does not know which is above it")
		}
	}
	return errors.Join(n.Left.check(), n.Right.check())
}

// editor says what becomes of an item.
type editor[V any] interface {
	// edited is called once with the item that is equal to the one that is looked for, or
	// with that itself if there is none. It may change what compare does not look at, and
	// nothing that those above know, and says whether the tree is to have it.
	edited(item *V, found bool) (keep bool)
}

// edit is one change of a tree: what by says of the item that is equal to at, if there
// is by; else fresh is inserted; or the item is removed if there is none of the two.
type edit[V any] struct {
	tree  *Balanced[V]
	at    *V
	by    editor[V]
	fresh *Node[V]
	nodes int
}

func (t *Balanced[V]) edit(e *edit[V]) {
	t.root = e.in(t.root)
	if t.root != nil {
		t.root.up = nil
	}
}

// in returns the subtree n after the edit.
func (e *edit[V]) in(n *Node[V]) *Node[V] {
	t := e.tree
	if n == nil {
		switch {
		case e.by == nil && e.fresh == nil:
			panic("spans: an item is not in the tree")
		case e.by == nil:
			n = e.fresh
		case e.by.edited(e.at, false):
			n = &Node[V]{Item: *e.at}
		default:
			return nil
		}
		t.update(n)
		return n
	}
	e.nodes++
	switch c := t.compare(e.at, &n.Item); {
	case c < 0:
		n.Left = e.in(n.Left)
	case c > 0:
		n.Right = e.in(n.Right)
	default:
		if e.fresh != nil {
			panic("spans: an item is in the tree already")
		}
		if e.by != nil && e.by.edited(&n.Item, true) {
			return n
		}
		if n.Right == nil {
			return n.Left
		}
		next, rest := e.withoutFirst(n.Right)
		next.Left, next.Right = n.Left, rest
		n = next
	}
	return t.balanced(n)
}

// withoutFirst takes the first node out of a subtree.
func (e *edit[V]) withoutFirst(n *Node[V]) (first, rest *Node[V]) {
	e.nodes++
	if n.Left == nil {
		return n, n.Right
	}
	first, n.Left = e.withoutFirst(n.Left)
	return first, e.tree.balanced(n)
}

// balanced returns the subtree of n, whose children are in balance, after one of
// them has grown or shrunk by one.
func (t *Balanced[V]) balanced(n *Node[V]) *Node[V] {
	switch d := n.Left.depth() - n.Right.depth(); {
	case d > 1:
		if n.Left.Left.depth() < n.Left.Right.depth() {
			n.Left = t.rotatedLeft(n.Left)
		}
		return t.rotatedRight(n)
	case d < -1:
		if n.Right.Right.depth() < n.Right.Left.depth() {
			n.Right = t.rotatedRight(n.Right)
		}
		return t.rotatedLeft(n)
	}
	t.update(n)
	return n
}

func (t *Balanced[V]) rotatedLeft(n *Node[V]) *Node[V] {
	top := n.Right
	n.Right, top.Left = top.Left, n
	t.update(n)
	t.update(top)
	return top
}

func (t *Balanced[V]) rotatedRight(n *Node[V]) *Node[V] {
	top := n.Left
	n.Left, top.Right = top.Right, n
	t.update(n)
	t.update(top)
	return top
}

// update brings what n knows of its subtree up to date.
func (t *Balanced[V]) update(n *Node[V]) {
	n.height = 1 + max(n.Left.depth(), n.Right.depth())
	if n.Left != nil {
		n.Left.up = n
	}
	if n.Right != nil {
		n.Right.up = n
	}
	t.refresh(n)
}

func (n *Node[V]) depth() int {
	if n == nil {
		return 0
	}
	return n.height
}
