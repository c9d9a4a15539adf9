package watch

import (
	"bytes"
	"math"

	"github.com/hawser-kv/hawser/mvcc/spans"
)

// tiling holds a revision for each of some spans that tile the keyspace, and finds
// the least of those that a span touches. All of it costs O(log n).
type tiling struct{ tiles spans.Balanced[tile] }

// tile is one span, of one range.
type tile struct {
	id         uint64
	start, end []byte // end empty: to the end of the keyspace
	// complete is the revision up to which the range is complete if it keeps the
	// frontier back, and math.MaxInt64 if it does not.
	complete int64
	// least is the node of the subtree that has the least.
	least *spans.Node[tile]
	// blocked are the groups that wait for this range. The hub's tiles have some.
	blocked blockedGroups
}

func newTiling() tiling {
	return tiling{spans.NewBalanced(
		func(a, b *tile) int { return bytes.Compare(a.start, b.start) },
		func(n *spans.Node[tile]) {
			least := n
			if n.Left != nil {
				least = lesser(least, n.Left.Item.least)
			}
			if n.Right != nil {
				least = lesser(least, n.Right.Item.least)
			}
			if least != n.Item.least {
				n.Item.least = least // mostly it stays: the collector likes that
			}
		},
	)}
}

func lesser(a, b *spans.Node[tile]) *spans.Node[tile] {
	if b.Item.complete < a.Item.complete {
		return b
	}
	return a
}

// add adds a tile that keeps nothing back.
func (t *tiling) add(id uint64, start, end []byte) *spans.Node[tile] {
	return t.tiles.Insert(tile{id: id, start: start, end: end, complete: math.MaxInt64})
}

// set gives a tile another revision.
func (t *tiling) set(n *spans.Node[tile], complete int64) {
	if n.Item.complete == complete {
		return
	}
	n.Item.complete = complete
	t.tiles.Refreshed(n)
}

// holding returns the tile that holds key, the first one if all start after it; nil
// if there are no tiles.
func (t *tiling) holding(key []byte) *spans.Node[tile] {
	var last *spans.Node[tile]
	for n := t.tiles.Root(); n != nil; {
		switch {
		case bytes.Compare(n.Item.start, key) <= 0:
			last, n = n, n.Right
		case n.Left == nil && last == nil:
			return n
		default:
			n = n.Left
		}
	}
	return last
}

// least returns the tile that has the least of those that touch [start, end), which
// is not empty; nil if there are no tiles.
func (t *tiling) least(start, end []byte) *spans.Node[tile] {
	first := t.holding(start)
	if first == nil || len(first.Item.end) == 0 || len(end) != 0 && bytes.Compare(end, first.Item.end) <= 0 {
		return first
	}
	// The others start after it, and before end. The topmost of them has those that
	// are not below it, if any, on neither side.
	least, after := first, first.Item.start
	n := t.tiles.Root()
	for n != nil {
		switch {
		case bytes.Compare(n.Item.start, after) <= 0:
			n = n.Right
			continue
		case !endsAfter(end, n.Item.start):
			n = n.Left
			continue
		}
		break
	}
	if n == nil {
		return least
	}
	least = lesser(least, n)
	for l := n.Left; l != nil; {
		if bytes.Compare(l.Item.start, after) <= 0 {
			l = l.Right
			continue
		}
		least = lesser(least, l)
		if l.Right != nil {
			least = lesser(least, l.Right.Item.least)
		}
		l = l.Left
	}
	for r := n.Right; r != nil; {
		if !endsAfter(end, r.Item.start) {
			r = r.Left
			continue
		}
		least = lesser(least, r)
		if r.Left != nil {
			least = lesser(least, r.Left.Item.least)
		}
		r = r.Right
	}
	return least
}

// complete is the least of what the tiles that touch [start, end) have, and of
// revision.
func (t *tiling) complete(start, end []byte, revision int64) int64 {
	if n := t.least(start, end); n != nil {
		return min(revision, n.Item.complete)
	}
	return revision
}

// endsAfter says whether key lies before a span's end.
func endsAfter(end, key []byte) bool { return len(end) == 0 || bytes.Compare(end, key) > 0 }
