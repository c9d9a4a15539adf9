package sequencer

import (
	"bytes"
	"fmt"

	"github.com/google/btree"
)

// directory is every ledger in the order of spans, which tile the keyspace. A
// split costs the logarithm of their number. The start of a range never changes.
type directory struct{ tree *btree.BTreeG[startEntry] }

// startEntry is a ledger under the start of its span.
type startEntry struct {
	start  []byte
	ledger *ledger
}

// directoryDegree makes nodes of a few cache lines.
const directoryDegree = 16

func (d *directory) init() {
	d.tree = btree.NewG(directoryDegree, func(a, b startEntry) bool { return bytes.Compare(a.start, b.start) < 0 })
}

func (d *directory) len() int { return d.tree.Len() }

// insert adds a new range.
func (d *directory) insert(x *ledger) {
	if old, ok := d.tree.ReplaceOrInsert(startEntry{x.desc.Start, x}); ok {
		panic(fmt.Sprintf("sequencer: insert %s beside %s", x, old.ledger))
	}
}

// lookup returns the range that holds the key, nil in an empty directory.
func (d *directory) lookup(key []byte) (x *ledger) {
	d.tree.DescendLessOrEqual(startEntry{start: key}, func(e startEntry) bool {
		x = e.ledger
		return false
	})
	return x
}

// from visits x and the ranges after it while f says so.
func (d *directory) from(x *ledger, f func(*ledger) bool) {
	d.tree.AscendGreaterOrEqual(startEntry{start: x.desc.Start}, func(e startEntry) bool { return f(e.ledger) })
}

// all visits every range. f must not change the directory.
func (d *directory) all(f func(*ledger)) {
	d.tree.Ascend(func(e startEntry) bool {
		f(e.ledger)
		return true
	})
}
