package sequencer

import (
	"cmp"
	"slices"

	"github.com/hawser-kv/hawser/proto/placementpb"
)

// changes are the ledgers in the order of their last change, newest first, so
// that a cut costs what changed since the node's last one, however many nodes
// subscribe, and noting a change O(1).
//
// Changes are numbered from 1. Each ledger that was noted is in the list once,
// and the numbers fall along it.
type changes struct {
	newest uint64 // number
	root   change
	// sent: no node's newest cut lacks a change up to this one.
	sent uint64
	// now: the next Ready brings every node's cut up to date.
	now bool
}

// change is the last change of a ledger.
type change struct {
	prev, next *change
	ledger     *ledger
	number     uint64 // of m or descriptor
	described  uint64 // of the descriptor
}

func (c *changes) init() { c.root.prev, c.root.next = &c.root, &c.root }

// touch notes that m of the range changed.
func (c *changes) touch(x *ledger) {
	c.newest++
	x.change.number = c.newest
	c.toFront(&x.change)
}

// describe notes that the committed descriptor of the range changed.
func (c *changes) describe(x *ledger) {
	c.touch(x)
	x.change.described = x.change.number
}

// elsewhere notes that something changed that is in every cut.
func (c *changes) elsewhere() { c.newest++ }

func (c *changes) toFront(e *change) {
	if e.prev == &c.root {
		return
	}
	if e.prev != nil {
		e.prev.next, e.next.prev = e.next, e.prev
	}
	e.prev, e.next = &c.root, c.root.next
	e.prev.next, e.next.prev = e, e
}

// fill puts into the cut what changed after the number: marks of the ranges, and
// committed descriptors in the order in which they changed.
func (c *changes) fill(cut *placementpb.Cut, after uint64) {
	var described []*ledger
	for e := c.root.next; e != &c.root && e.number > after; e = e.next {
		x := e.ledger
		if x.committed == nil {
			continue
		}
		cut.Marks = append(cut.Marks, &placementpb.Mark{RangeId: x.id, Revision: x.last})
		if e.described > after {
			described = append(described, x)
		}
	}
	slices.SortFunc(described, func(a, b *ledger) int { return cmp.Compare(a.change.described, b.change.described) })
	for _, x := range described {
		cut.Descriptors = append(cut.Descriptors, x.committed)
	}
}
