package sequencer

import (
	"bytes"
	"fmt"

	"github.com/google/btree"

	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// directory is every ledger, by the start of its span and by id.
//
// The spans of the descriptors judged by (ledger.desc) tile the keyspace, and
// the start of a range never changes; so do those of the committed ones, for a
// split's right half has none until its entry is applied, when left and right
// change together. A split costs the logarithm of their number.
type directory struct {
	byStart *btree.BTreeG[startEntry]
	byID    ledgerTable
	// nextID is the smallest id that no range has in the state judged by.
	nextID uint64
	// barrier is the number of the newest proposal that changes the directory.
	barrier uint64
}

// startEntry is a ledger under the start of its span.
type startEntry struct {
	start  []byte
	ledger *ledger
}

// directoryDegree makes nodes of a few cache lines.
const directoryDegree = 16

func (d *directory) init() {
	d.byStart = btree.NewG(directoryDegree, func(a, b startEntry) bool { return bytes.Compare(a.start, b.start) < 0 })
}

func (d *directory) len() int { return d.byStart.Len() }

// insert adds a range; its id and its start are new.
func (d *directory) insert(x *ledger) {
	d.byID.put(x)
	if old, ok := d.byStart.ReplaceOrInsert(startEntry{x.desc.Start, x}); ok {
		panic(fmt.Sprintf("sequencer: insert %s beside %s", x, old.ledger))
	}
}

// get returns the range with the id, nil if there is none.
func (d *directory) get(id uint64) *ledger { return d.byID.get(id) }

// lookup returns the range that holds the key, nil in an empty directory.
func (d *directory) lookup(key []byte) (x *ledger) {
	d.byStart.DescendLessOrEqual(startEntry{start: key}, func(e startEntry) bool {
		x = e.ledger
		return false
	})
	return x
}

// from visits x and the ranges after it while f says so.
func (d *directory) from(x *ledger, f func(*ledger) bool) {
	d.byStart.AscendGreaterOrEqual(startEntry{start: x.desc.Start}, func(e startEntry) bool { return f(e.ledger) })
}

// all visits every range. f must not change the directory.
func (d *directory) all(f func(*ledger)) {
	d.byStart.Ascend(func(e startEntry) bool {
		f(e.ledger)
		return true
	})
}

// split cuts the range at a key inside it, in the state judged by, and returns
// the right half, which is not active.
func (d *directory) split(x *ledger, key []byte) (right *ledger) {
	old := x.desc
	x.desc = &rangepb.RangeDescriptor{
		RangeId: x.id, Start: old.Start, End: key, Epoch: old.Epoch + 1,
		Replicas: old.Replicas, ReplicaSetVersion: old.ReplicaSetVersion,
	}
	desc := &rangepb.RangeDescriptor{
		RangeId: d.nextID, Start: key, End: old.End, Epoch: old.Epoch + 1,
		ReplicaSetVersion: 0,
	}
	for i, rep := range old.Replicas {
		desc.Replicas = append(desc.Replicas, &rangepb.Replica{NodeId: rep.NodeId, ReplicaId: uint64(i + 1)})
	}
	d.nextID++
	right = newLedger(desc)
	right.last = x.last // s
	d.insert(right)
	return right
}

// marks fills in m of the ranges, or says why not.
func (d *directory) marks(ranges []*placementpb.RangeEpoch, marks []int64) placementpb.RefusalReason {
	for i, r := range ranges {
		x := d.get(r.RangeId)
		if x == nil {
			return placementpb.RefusalReason_REFUSAL_REASON_UNKNOWN_RANGE
		}
		if x.desc.Epoch != r.Epoch {
			return placementpb.RefusalReason_REFUSAL_REASON_STALE_EPOCH
		}
		marks[i] = x.last
	}
	return 0
}

// fill puts the committed directory, with m of every range, into a first cut.
func (d *directory) fill(cut *placementpb.Cut) {
	d.all(func(x *ledger) {
		if x.committed != nil {
			cut.Descriptors = append(cut.Descriptors, x.committed)
			cut.Marks = append(cut.Marks, &placementpb.Mark{RangeId: x.id, Revision: x.last})
		}
	})
}

// maxNewer bounds the descriptors that a refused query returns for one range;
// they are a hint, the directory itself comes with cuts.
const maxNewer = 64

// newer returns, for each named range with another epoch, its descriptor and
// those of the ranges to its right that may have been split off it since: they
// have higher ids. They rest on the directory's barrier (I6).
func (d *directory) newer(ranges []*placementpb.RangeEpoch) []*rangepb.RangeDescriptor {
	named := make(map[uint64]bool, len(ranges))
	for _, r := range ranges {
		named[r.RangeId] = true
	}
	var newer []*rangepb.RangeDescriptor
	for _, r := range ranges {
		x := d.get(r.RangeId)
		if x == nil || x.desc.Epoch == r.Epoch {
			continue
		}
		of := 0
		d.from(x, func(y *ledger) bool {
			if y != x && (y.id < x.id || named[y.id]) {
				return false
			}
			newer = append(newer, y.desc)
			of++
			return of < maxNewer
		})
	}
	return newer
}

// ledgerTable finds ledgers by id. Ids are given out one after the other, so a
// slice finds nearly all of them; the hot path does one look-up per request.
type ledgerTable struct {
	dense []*ledger
	rest  map[uint64]*ledger
}

// maxDense bounds the slice to 8 MiB.
const maxDense = 1 << 20

func (t *ledgerTable) get(id uint64) *ledger {
	if id < uint64(len(t.dense)) {
		return t.dense[id]
	}
	return t.rest[id]
}

// put adds a ledger; its id is new.
func (t *ledgerTable) put(x *ledger) {
	if old := t.get(x.id); old != nil {
		panic(fmt.Sprintf("sequencer: put %s over %s", x, old))
	}
	if x.id >= maxDense {
		if t.rest == nil {
			t.rest = map[uint64]*ledger{}
		}
		t.rest[x.id] = x
		return
	}
	if n := int(x.id) + 1 - len(t.dense); n > 0 {
		t.dense = append(t.dense, make([]*ledger, n)...)
	}
	t.dense[x.id] = x
}
