package router

import (
	"bytes"
	"fmt"
	"slices"
	"sort"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// Directory is an immutable picture of the ranges: sorted by start key, they
// tile the keyspace. A change makes a new one.
type Directory struct {
	ranges []*rangepb.RangeDescriptor
}

// NewDirectory returns the directory of the given descriptors, in any order. An
// error if they do not tile the keyspace.
func NewDirectory(ranges []*rangepb.RangeDescriptor) (*Directory, error) {
	d := &Directory{ranges: slices.Clone(ranges)}
	sort.Slice(d.ranges, func(i, j int) bool { return bytes.Compare(d.ranges[i].Start, d.ranges[j].Start) < 0 })
	if err := d.check(); err != nil {
		return nil, err
	}
	return d, nil
}

// check verifies the invariant of the type.
func (d *Directory) check() error {
	if len(d.ranges) == 0 {
		return fmt.Errorf("directory is empty")
	}
	if first := d.ranges[0]; len(first.Start) != 0 {
		return fmt.Errorf("directory starts at %q (range %d)", first.Start, first.RangeId)
	}
	for i := 1; i < len(d.ranges); i++ {
		a, b := d.ranges[i-1], d.ranges[i]
		if len(a.End) == 0 || !bytes.Equal(a.End, b.Start) {
			return fmt.Errorf("directory has a hole or an overlap: range %d ends at %q, range %d starts at %q",
				a.RangeId, a.End, b.RangeId, b.Start)
		}
	}
	if last := d.ranges[len(d.ranges)-1]; len(last.End) != 0 {
		return fmt.Errorf("directory ends at %q (range %d)", last.End, last.RangeId)
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

func (d *Directory) with(changed []*rangepb.RangeDescriptor, removed []uint64) (*Directory, error) {
	// The last word on an id counts.
	last := make(map[uint64]*rangepb.RangeDescriptor, len(changed)+len(removed))
	for _, c := range changed {
		last[c.RangeId] = c
	}
	for _, id := range removed {
		last[id] = nil
	}
	ranges := make([]*rangepb.RangeDescriptor, 0, len(d.ranges)+len(changed))
	for _, r := range d.ranges {
		if _, replaced := last[r.RangeId]; !replaced {
			ranges = append(ranges, r)
		}
	}
	for _, c := range changed {
		if last[c.RangeId] == c {
			ranges = append(ranges, c)
		}
	}
	return NewDirectory(ranges)
}

// All returns the descriptors in key order. The caller changes nothing.
func (d *Directory) All() []*rangepb.RangeDescriptor { return d.ranges }

// ByID returns the range with the id, or nil.
func (d *Directory) ByID(id uint64) *rangepb.RangeDescriptor {
	for _, r := range d.ranges {
		if r.RangeId == id {
			return r
		}
	}
	return nil
}

// Lookup returns the range that holds key.
func (d *Directory) Lookup(key []byte) *rangepb.RangeDescriptor { return d.ranges[d.index(key)] }

// index returns the position of the range that holds key.
func (d *Directory) index(key []byte) int {
	lo, hi := 1, len(d.ranges) // the first range whose start is above key is in [lo, hi]
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if bytes.Compare(d.ranges[mid].Start, key) > 0 {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo - 1
}

// Pieces returns the ranges that the spans touch, in key order, each once, each
// with the hull of what is touched in it. Together they cover the spans.
func (d *Directory) Pieces(spans []mvcc.Access) []Piece {
	if len(spans) == 1 { // most requests
		s := spans[0]
		if s.End != nil && bytes.Compare(s.Start, s.End) >= 0 {
			return nil
		}
		i := d.index(s.Start)
		r := d.ranges[i]
		if len(r.End) == 0 || s.End != nil && bytes.Compare(s.End, r.End) <= 0 {
			return []Piece{{RangeID: r.RangeId, Epoch: r.Epoch, Start: s.Start, End: s.End}}
		}
	}
	parts := d.cut(spans)
	out := make([]Piece, len(parts))
	for i, p := range parts {
		out[i] = pieceOf(d.ranges[p.index], p.spans)
	}
	return out
}

// pieceOf returns the piece of a range of which spans are touched.
func pieceOf(r *rangepb.RangeDescriptor, spans []mvcc.Access) Piece {
	p := Piece{RangeID: r.RangeId, Epoch: r.Epoch, Start: spans[0].Start, End: spans[0].End}
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

// part is what spans touch in the range at index.
type part struct {
	index int
	spans []mvcc.Access
}

// cut divides spans over the ranges, in key order.
func (d *Directory) cut(spans []mvcc.Access) []part {
	if i, ok := d.within(spans); ok { // nearly always
		return []part{{index: i, spans: spans}}
	}
	return d.divide(spans)
}

// within returns the range that holds all of the spans, if one does; none of
// them is empty then.
func (d *Directory) within(spans []mvcc.Access) (index int, ok bool) {
	if len(spans) == 0 {
		return 0, false
	}
	index = d.index(spans[0].Start)
	r := d.ranges[index]
	for _, s := range spans {
		if bytes.Compare(s.Start, r.Start) < 0 || s.End != nil && bytes.Compare(s.Start, s.End) >= 0 ||
			len(r.End) != 0 && (s.End == nil || bytes.Compare(s.End, r.End) > 0) {
			return 0, false
		}
	}
	return index, true
}

func (d *Directory) divide(spans []mvcc.Access) []part {
	byIndex := make(map[int]int)
	var parts []part
	for _, s := range spans {
		if s.End != nil && bytes.Compare(s.Start, s.End) >= 0 {
			continue // an empty interval touches nothing
		}
		for i := d.index(s.Start); i < len(d.ranges); i++ {
			r := d.ranges[i]
			if s.End != nil && bytes.Compare(r.Start, s.End) >= 0 {
				break
			}
			c := s
			if bytes.Compare(c.Start, r.Start) < 0 {
				c.Start = r.Start
			}
			if len(r.End) != 0 && (c.End == nil || bytes.Compare(c.End, r.End) > 0) {
				c.End = r.End
			}
			at, ok := byIndex[i]
			if !ok {
				at = len(parts)
				byIndex[i] = at
				parts = append(parts, part{index: i})
			}
			parts[at].spans = append(parts[at].spans, c)
		}
	}
	sort.Slice(parts, func(i, j int) bool { return parts[i].index < parts[j].index })
	return parts
}

// String prints the directory as one line a range, for tests and logs.
func (d *Directory) String() string {
	var b bytes.Buffer
	for _, r := range d.ranges {
		fmt.Fprintf(&b, "r%d:{%q-%q} epoch=%d\n", r.RangeId, r.Start, r.End, r.Epoch)
	}
	return b.String()
}
