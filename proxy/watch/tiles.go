package watch

import (
	"bytes"
	"math"
)

// tiling holds a revision for each of some spans that tile the keyspace, and finds
// the least of those that a span touches. All of it costs O(log n).
type tiling struct{ tree[tile] }

// tile is one span, of one range.
type tile struct {
	id         uint64
	start, end []byte // end empty: to the end of the keyspace
	// complete is the revision up to which the range is complete if it keeps the
	// frontier back, and math.MaxInt64 if it does not.
	complete int64
	// least is the node of the subtree that has the least.
	least *node[tile]
	// blocked are the groups that wait for this range. The hub's tiles have some.
	blocked blockedGroups
}

func newTiling() tiling {
	return tiling{tree[tile]{
		compare: func(a, b *tile) int { return bytes.Compare(a.start, b.start) },
		refresh: func(n *node[tile]) {
			least := n
			if n.left != nil {
				least = lesser(least, n.left.item.least)
			}
			if n.right != nil {
				least = lesser(least, n.right.item.least)
			}
			if least != n.item.least {
				n.item.least = least // mostly it stays: the collector likes that
			}
		},
	}}
}

func lesser(a, b *node[tile]) *node[tile] {
	if b.item.complete < a.item.complete {
		return b
	}
	return a
}

// add adds a tile that keeps nothing back.
func (t *tiling) add(id uint64, start, end []byte) *node[tile] {
	return t.insert(tile{id: id, start: start, end: end, complete: math.MaxInt64})
}

// set gives a tile another revision.
func (t *tiling) set(n *node[tile], complete int64) {
	if n.item.complete == complete {
		return
	}
	n.item.complete = complete
	t.refreshed(n)
}

// holding returns the tile that holds key, the first one if all start after it; nil
// if there are no tiles.
func (t *tiling) holding(key []byte) *node[tile] {
	var last *node[tile]
	for n := t.root; n != nil; {
		switch {
		case bytes.Compare(n.item.start, key) <= 0:
			last, n = n, n.right
		case n.left == nil && last == nil:
			return n
		default:
			n = n.left
		}
	}
	return last
}

// least returns the tile that has the least of those that touch [start, end), which
// is not empty; nil if there are no tiles.
func (t *tiling) least(start, end []byte) *node[tile] {
	first := t.holding(start)
	if first == nil || len(first.item.end) == 0 || len(end) != 0 && bytes.Compare(end, first.item.end) <= 0 {
		return first
	}
	// The others start after it, and before end. The topmost of them has those that
	// are not below it, if any, on neither side.
	least, after := first, first.item.start
	n := t.root
	for n != nil {
		switch {
		case bytes.Compare(n.item.start, after) <= 0:
			n = n.right
			continue
		case !endsAfter(end, n.item.start):
			n = n.left
			continue
		}
		break
	}
	if n == nil {
		return least
	}
	least = lesser(least, n)
	for l := n.left; l != nil; {
		if bytes.Compare(l.item.start, after) <= 0 {
			l = l.right
			continue
		}
		least = lesser(least, l)
		if l.right != nil {
			least = lesser(least, l.right.item.least)
		}
		l = l.left
	}
	for r := n.right; r != nil; {
		if !endsAfter(end, r.item.start) {
			r = r.left
			continue
		}
		least = lesser(least, r)
		if r.left != nil {
			least = lesser(least, r.left.item.least)
		}
		r = r.right
	}
	return least
}

// complete is the least of what the tiles that touch [start, end) have, and of
// revision.
func (t *tiling) complete(start, end []byte, revision int64) int64 {
	if n := t.least(start, end); n != nil {
		return min(revision, n.item.complete)
	}
	return revision
}

// endsAfter says whether key lies before a span's end.
func endsAfter(end, key []byte) bool { return len(end) == 0 || bytes.Compare(end, key) > 0 }
