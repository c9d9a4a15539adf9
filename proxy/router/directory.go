package router

import (
	"bytes"
	"fmt"
	"sort"

	"github.com/google/btree"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// Directory is an immutable picture of the ranges: they tile the keyspace. A
// change makes a new one, which shares with the old all that is the same, so it
// costs what changes, times the logarithm of the number of ranges.
type Directory struct {
	byStart *btree.BTreeG[startEntry]
	byID    *btree.BTreeG[idEntry]
}

// startEntry is a range under its start key. Both trees are changed while they are
// made and never after; a tree is cloned under the router's lock only, as btree
// demands, and read by anybody.
type startEntry struct {
	start []byte
	desc  *rangepb.RangeDescriptor
}

// idEntry is a range under its id.
type idEntry struct {
	id   uint64
	desc *rangepb.RangeDescriptor
}

// directoryDegree makes nodes of a few cache lines.
const directoryDegree = 16

func newDirectory() *Directory {
	return &Directory{
		byStart: btree.NewG(directoryDegree, func(a, b startEntry) bool { return bytes.Compare(a.start, b.start) < 0 }),
		byID:    btree.NewG(directoryDegree, func(a, b idEntry) bool { return a.id < b.id }),
	}
}

// NewDirectory returns the directory of the given descriptors, in any order. An
// error if they do not tile the keyspace.
func NewDirectory(ranges []*rangepb.RangeDescriptor) (*Directory, error) {
	d := newDirectory()
	for _, r := range ranges {
		if err := d.insert(r); err != nil {
			return nil, err
		}
	}
	if len(ranges) == 0 {
		return nil, fmt.Errorf("directory is empty")
	}
	for _, r := range ranges {
		if err := d.checkAt(r.Start); err != nil {
			return nil, err
		}
	}
	return d, nil
}

func (d *Directory) insert(r *rangepb.RangeDescriptor) error {
	if old, ok := d.byID.ReplaceOrInsert(idEntry{r.RangeId, r}); ok {
		return fmt.Errorf("directory names range %d twice, from %q and %q", r.RangeId, old.desc.Start, r.Start)
	}
	if old, ok := d.byStart.ReplaceOrInsert(startEntry{r.Start, r}); ok {
		return fmt.Errorf("directory has an overlap: ranges %d and %d start at %q", old.desc.RangeId, r.RangeId, r.Start)
	}
	return nil
}

// checkAt verifies that there is no hole and no overlap around key: the range at or
// before it begins where the one before ends, and ends where the next begins.
func (d *Directory) checkAt(key []byte) error {
	r := d.Lookup(key)
	if r == nil {
		first, _ := d.byStart.Min()
		return fmt.Errorf("directory starts at %q", first.start)
	}
	var before, next *rangepb.RangeDescriptor
	d.byStart.DescendLessOrEqual(startEntry{start: r.Start}, func(e startEntry) bool {
		before = e.desc
		return before == r
	})
	d.from(r, func(x *rangepb.RangeDescriptor) bool {
		next = x
		return next == r
	})
	if before == r && len(r.Start) != 0 {
		return fmt.Errorf("directory starts at %q (range %d)", r.Start, r.RangeId)
	}
	if before != r {
		if err := checkNeighbours(before, r); err != nil {
			return err
		}
	}
	if next != r {
		return checkNeighbours(r, next)
	}
	if len(r.End) != 0 {
		return fmt.Errorf("directory ends at %q (range %d)", r.End, r.RangeId)
	}
	return nil
}

func checkNeighbours(a, b *rangepb.RangeDescriptor) error {
	if !a.Span().Meets(b.Span()) {
		return fmt.Errorf("directory has a hole or an overlap: range %d ends at %q, range %d starts at %q",
			a.RangeId, a.End, b.RangeId, b.Start)
	}
	return nil
}

// Apply returns the directory after a cut (R6): the cut's own picture when it
// is the first of a subscription, else this one with the changes. It returns d
// itself when the cut changes no range.
func (d *Directory) Apply(cut *placementpb.Cut) (*Directory, error) {
	if cut.First {
		return NewDirectory(cut.Descriptors)
	}
	if len(cut.Descriptors) == 0 && len(cut.Removed) == 0 {
		return d, nil
	}
	if d == nil {
		return nil, fmt.Errorf("directory: a change came before the first cut")
	}
	return d.with(cut.Descriptors, cut.Removed)
}

// Newer returns the directory with descriptors learned from an error, or d
// itself when they say nothing new or do not fit without more of them: a hint
// is taken only when the whole still tiles.
func (d *Directory) Newer(hints []*rangepb.RangeDescriptor) *Directory {
	var fresh []*rangepb.RangeDescriptor
	for _, h := range hints {
		if old := d.ByID(h.RangeId); old == nil || old.Epoch < h.Epoch {
			fresh = append(fresh, h)
		}
	}
	if len(fresh) == 0 {
		return d
	}
	n, err := d.with(fresh, nil)
	if err != nil {
		return d
	}
	return n
}

// with returns the directory with some ranges changed and some removed. What did
// not change tiles, so it is enough to look where something did.
func (d *Directory) with(changed []*rangepb.RangeDescriptor, removed []uint64) (*Directory, error) {
	// The last word on an id counts.
	last := make(map[uint64]*rangepb.RangeDescriptor, len(changed)+len(removed))
	for _, c := range changed {
		last[c.RangeId] = c
	}
	for _, id := range removed {
		last[id] = nil
	}
	n := &Directory{byStart: d.byStart.Clone(), byID: d.byID.Clone()}
	var touched [][]byte
	take := func(id uint64) {
		if old, ok := n.byID.Delete(idEntry{id: id}); ok {
			n.byStart.Delete(startEntry{start: old.desc.Start})
			touched = append(touched, old.desc.Start)
		}
	}
	for _, c := range changed {
		take(c.RangeId)
	}
	for _, id := range removed {
		take(id)
	}
	for _, c := range changed {
		if last[c.RangeId] != c {
			continue
		}
		last[c.RangeId] = nil // once
		if err := n.insert(c); err != nil {
			return nil, err
		}
		touched = append(touched, c.Start)
	}
	for _, key := range touched {
		if err := n.checkAt(key); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// Len returns the number of ranges.
func (d *Directory) Len() int { return d.byStart.Len() }

// All returns the descriptors in key order, in a new slice.
func (d *Directory) All() []*rangepb.RangeDescriptor {
	all := make([]*rangepb.RangeDescriptor, 0, d.Len())
	d.byStart.Ascend(func(e startEntry) bool {
		all = append(all, e.desc)
		return true
	})
	return all
}

// from visits r and the ranges after it, in key order, while f says so.
func (d *Directory) from(r *rangepb.RangeDescriptor, f func(*rangepb.RangeDescriptor) bool) {
	d.byStart.AscendGreaterOrEqual(startEntry{start: r.Start}, func(e startEntry) bool { return f(e.desc) })
}

// ByID returns the range with the id, or nil.
func (d *Directory) ByID(id uint64) *rangepb.RangeDescriptor {
	e, _ := d.byID.Get(idEntry{id: id})
	return e.desc
}

// Lookup returns the range that holds key.
func (d *Directory) Lookup(key []byte) (r *rangepb.RangeDescriptor) {
	d.byStart.DescendLessOrEqual(startEntry{start: key}, func(e startEntry) bool {
		r = e.desc
		return false
	})
	return r
}

// Pieces returns the ranges that the spans touch, in key order, each once, each
// with the hull of what is touched in it. Together they cover the spans.
func (d *Directory) Pieces(spans []mvcc.Access) []rangepb.Piece {
	if len(spans) == 1 { // most requests
		s := keysOf(spans[0])
		if s.IsEmpty() {
			return nil
		}
		if r := d.Lookup(s.Start); r.Span().Covers(s) {
			return []rangepb.Piece{{RangeID: r.RangeId, Epoch: r.Epoch, Start: s.Start, End: s.End}}
		}
	}
	parts := d.cut(spans)
	out := make([]rangepb.Piece, len(parts))
	for i, p := range parts {
		out[i] = pieceOf(p.desc, p.spans)
	}
	return out
}

// pieceOf returns the piece of a range of which spans are touched.
func pieceOf(r *rangepb.RangeDescriptor, spans []mvcc.Access) rangepb.Piece {
	p := rangepb.Piece{RangeID: r.RangeId, Epoch: r.Epoch, Start: spans[0].Start, End: spans[0].End}
	for _, s := range spans[1:] {
		if bytes.Compare(s.Start, p.Start) < 0 {
			p.Start = s.Start
		}
		if p.End != nil && (s.End == nil || bytes.Compare(s.End, p.End) > 0) {
			p.End = s.End
		}
	}
	return p
}

// keysOf returns the keys of an access.
func keysOf(a mvcc.Access) rangepb.Span { return rangepb.Span{Start: a.Start, End: a.End} }

// part is what spans touch in a range.
type part struct {
	desc  *rangepb.RangeDescriptor
	spans []mvcc.Access
}

// cut divides spans over the ranges, in key order.
func (d *Directory) cut(spans []mvcc.Access) []part {
	if r, ok := d.within(spans); ok { // nearly always
		return []part{{desc: r, spans: spans}}
	}
	return d.divide(spans)
}

// within returns the range that holds all of the spans, if one does; none of
// them is empty then.
func (d *Directory) within(spans []mvcc.Access) (r *rangepb.RangeDescriptor, ok bool) {
	if len(spans) == 0 {
		return nil, false
	}
	r = d.Lookup(spans[0].Start)
	whole := r.Span()
	for i := range spans {
		if s := keysOf(spans[i]); s.IsEmpty() || !whole.Covers(s) {
			return nil, false
		}
	}
	return r, true
}

func (d *Directory) divide(spans []mvcc.Access) []part {
	at := make(map[*rangepb.RangeDescriptor]int)
	var parts []part
	for _, a := range spans {
		s := keysOf(a)
		if s.IsEmpty() {
			continue // it touches nothing
		}
		d.from(d.Lookup(s.Start), func(r *rangepb.RangeDescriptor) bool {
			if !s.Overlaps(r.Span()) {
				return false
			}
			c := r.Span().Clip(s)
			i, ok := at[r]
			if !ok {
				i = len(parts)
				at[r] = i
				parts = append(parts, part{desc: r})
			}
			parts[i].spans = append(parts[i].spans, mvcc.Access{Start: c.Start, End: c.End, Write: a.Write})
			return true
		})
	}
	sort.Slice(parts, func(i, j int) bool { return bytes.Compare(parts[i].desc.Start, parts[j].desc.Start) < 0 })
	return parts
}

// String prints the directory as one line a range, for tests and logs.
func (d *Directory) String() string {
	var b bytes.Buffer
	for _, r := range d.All() {
		fmt.Fprintf(&b, "r%d:{%q-%q} epoch=%d\n", r.RangeId, r.Start, r.End, r.Epoch)
	}
	return b.String()
}
