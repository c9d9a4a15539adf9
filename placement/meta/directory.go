package meta

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// directory is the part with the ranges: descriptors, which are active, marks,
// and decided entries.
//
// The spans tile the keyspace once the cluster is bootstrapped, all ids are
// below the next one, and an inactive range has no decided entries and a mark at
// or below the bound.
type directory struct {
	header *Header
	ranges map[uint64]*Range
}

// Range is one range in the meta state.
type Range struct {
	Desc *rangepb.RangeDescriptor
	// Active ranges may have grants; an inactive one has resolved all it ever
	// will below Mark, and has no decided entries (R10).
	Active bool
	// Mark is m of the range while it is inactive; without meaning else.
	Mark int64
	// Decided entries the range has not reported, in the order of the meta log.
	Decided []*placementpb.Decided
}

// Len is the number of ranges.
func (s *State) Len() int { return len(s.directory.ranges) }

// Range returns the range with the id, or nil. The caller must not modify it.
func (s *State) Range(id uint64) *Range { return s.directory.ranges[id] }

// Ranges returns all ranges in the order of their spans. The caller must not
// modify them.
func (s *State) Ranges() []*Range { return s.directory.sorted() }

func (d *directory) sorted() []*Range {
	all := make([]*Range, 0, len(d.ranges))
	// In any order: sorted below.
	for _, r := range d.ranges {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *Range) int { return bytes.Compare(a.Desc.Start, b.Desc.Start) })
	return all
}

func (d *directory) apply(e *entry, cmd *placementpb.MetaCommand) (mine bool, err error) {
	switch c := cmd.Command.(type) {
	case *placementpb.MetaCommand_Bootstrap:
		return true, d.bootstrap(e, c.Bootstrap)
	case *placementpb.MetaCommand_Activate:
		return true, d.activate(e, c.Activate)
	case *placementpb.MetaCommand_Deactivate:
		return true, d.deactivate(e, c.Deactivate)
	case *placementpb.MetaCommand_Transaction:
		return true, d.transaction(e, c.Transaction)
	case *placementpb.MetaCommand_Split:
		return true, d.split(e, c.Split)
	case *placementpb.MetaCommand_Reported:
		return true, d.reported(e, c.Reported)
	}
	return false, nil
}

// bootstrap is the first command of a cluster. It is the directory's because the
// ranges are what may not fit; other parts begin empty.
func (d *directory) bootstrap(e *entry, b *placementpb.Bootstrap) error {
	if d.header.ClusterID != 0 {
		return e.invalid("bootstrap of cluster %x, which is %x", b.ClusterId, d.header.ClusterID)
	}
	if b.ClusterId == 0 {
		return e.invalid("bootstrap without a cluster id")
	}
	if err := checkTiling(b.Ranges); err != nil {
		return e.invalid("%v", err)
	}
	ranges := make(map[uint64]*Range, len(b.Ranges))
	next := uint64(1)
	for _, desc := range b.Ranges {
		if desc.RangeId == 0 || ranges[desc.RangeId] != nil || desc.Epoch == 0 {
			return e.invalid("bootstrap with range id %d, epoch %d", desc.RangeId, desc.Epoch)
		}
		ranges[desc.RangeId] = &Range{Desc: desc, Mark: FirstRevision}
		next = max(next, desc.RangeId+1)
	}
	d.header.ClusterID, d.header.Bound, d.header.NextRangeID, d.ranges = b.ClusterId, FirstRevision, next, ranges
	e.setHeader(d.header)
	for _, desc := range b.Ranges {
		e.setRange(ranges[desc.RangeId])
	}
	return nil
}

func (d *directory) activate(e *entry, a *placementpb.Activate) error {
	for _, id := range a.RangeIds {
		if r := d.ranges[id]; r == nil || r.Active {
			return e.invalid("activation of r%d, which is unknown or active", id)
		}
	}
	for _, id := range a.RangeIds {
		r := d.ranges[id]
		r.Active = true
		e.setRange(r)
	}
	return nil
}

func (d *directory) deactivate(e *entry, a *placementpb.DeactivateRange) error {
	r := d.ranges[a.RangeId]
	if r == nil || !r.Active || len(r.Decided) > 0 || a.Mark > d.header.Bound {
		return e.invalid("deactivation of r%d at %d", a.RangeId, a.Mark)
	}
	r.Active, r.Mark = false, a.Mark
	e.setRange(r)
	return nil
}

// reported forgets a decided entry that the range has in its log.
func (d *directory) reported(e *entry, report *placementpb.Reported) error {
	r := d.ranges[report.RangeId]
	if r == nil {
		return e.invalid("report of r%d, which is unknown", report.RangeId)
	}
	for i, entry := range r.Decided {
		if entry.MetaIndex == report.MetaIndex {
			r.Decided = slices.Delete(r.Decided, i, i+1)
			e.drop(rowKey(decidedRow, entry.RangeId, entry.MetaIndex))
			return nil
		}
	}
	return e.invalid("report of r%d: no decided entry %d", report.RangeId, report.MetaIndex)
}

// transaction decides a transaction over ranges (R7): an entry for each.
func (d *directory) transaction(e *entry, t *placementpb.Transaction) error {
	if t.Revision > d.header.Bound {
		return e.invalid("transaction at %d over the bound %d", t.Revision, d.header.Bound)
	}
	for _, p := range t.Participants {
		r := d.ranges[p.RangeId]
		if r == nil || !r.Active || r.Desc.Epoch != p.Epoch {
			return e.invalid("transaction at %d: participant r%d epoch %d", t.Revision, p.RangeId, p.Epoch)
		}
	}
	for _, p := range t.Participants {
		entry := &placementpb.Decided{
			RangeId: p.RangeId, Revision: t.Revision, MetaIndex: e.index,
			Entry: &placementpb.Decided_Txn{Txn: &placementpb.DecidedTxn{Owner: t.Owner, Effects: p.Effects}},
		}
		r := d.ranges[p.RangeId]
		r.Decided = append(r.Decided, entry)
		e.setDecided(entry)
	}
	return nil
}

// split divides a range; its leader gets the entry (R11).
func (d *directory) split(e *entry, sp *placementpb.Split) error {
	left, right := sp.Left, sp.Right
	if left == nil || right == nil {
		return e.invalid("split without descriptors")
	}
	r := d.ranges[left.RangeId]
	switch {
	case r == nil || !r.Active:
		return e.invalid("split of r%d, which is unknown or inactive", left.RangeId)
	case left.Epoch != r.Desc.Epoch+1 || right.Epoch == 0:
		return e.invalid("split of r%d epoch %d into epochs %d and %d", left.RangeId, r.Desc.Epoch, left.Epoch, right.Epoch)
	case right.RangeId < d.header.NextRangeID:
		return e.invalid("split of r%d: id %d was used before", left.RangeId, right.RangeId)
	case !r.Desc.Span().Tiles(left.Span(), right.Span()):
		return e.invalid("split of r%d [%q, %q) at %q", left.RangeId, r.Desc.Start, r.Desc.End, left.End)
	case sp.Revision > d.header.Bound:
		return e.invalid("split of r%d at %d over the bound %d", left.RangeId, sp.Revision, d.header.Bound)
	}
	entry := &placementpb.Decided{
		RangeId: left.RangeId, Revision: sp.Revision, MetaIndex: e.index,
		Entry: &placementpb.Decided_Split{Split: &placementpb.DecidedSplit{Key: right.Start, Left: left, Right: right}},
	}
	r.Desc = left
	r.Decided = append(r.Decided, entry)
	half := &Range{Desc: right, Mark: sp.Revision}
	d.ranges[right.RangeId] = half
	d.header.NextRangeID = right.RangeId + 1
	e.setHeader(d.header)
	e.setRange(r)
	e.setRange(half)
	e.setDecided(entry)
	return nil
}

// setRange stages the row of a range as it is now.
func (e *entry) setRange(r *Range) {
	e.set(rowKey(rangeRow, r.Desc.RangeId), &placementpb.MetaRange{Desc: r.Desc, Active: r.Active, Mark: r.Mark})
}

func (e *entry) setDecided(d *placementpb.Decided) {
	e.set(rowKey(decidedRow, d.RangeId, d.MetaIndex), d)
}

// rows are loaded decided entries first: 'd' sorts before 'r'.
func (d *directory) rows() []rowKind {
	return []rowKind{{decidedRow, 2, d.loadDecided}, {rangeRow, 1, d.loadRange}}
}

func (d *directory) loadDecided(r *row) error {
	m := &placementpb.Decided{}
	if err := r.decode(m); err != nil {
		return err
	}
	if m.RangeId != r.ids[0] || m.MetaIndex != r.ids[1] {
		return r.corrupt("decided entry %d of r%d", m.MetaIndex, m.RangeId)
	}
	of := d.loading(m.RangeId)
	of.Decided = append(of.Decided, m)
	return nil
}

func (d *directory) loadRange(r *row) error {
	m := &placementpb.MetaRange{}
	if err := r.decode(m); err != nil {
		return err
	}
	if m.Desc == nil || m.Desc.RangeId != r.ids[0] {
		return r.corrupt("descriptor of r%d", m.Desc.GetRangeId())
	}
	of := d.loading(m.Desc.RangeId)
	of.Desc, of.Active, of.Mark = m.Desc, m.Active, m.Mark
	return nil
}

// loading returns a range of which some rows are loaded.
func (d *directory) loading(id uint64) *Range {
	r := d.ranges[id]
	if r == nil {
		r = &Range{}
		d.ranges[id] = r
	}
	return r
}

func (d *directory) check() error {
	// In any order: only which of several damages is named depends on it.
	for id, r := range d.ranges {
		switch {
		case r.Desc == nil:
			return corruptState("decided entry of r%d, which has no row", id)
		case id >= d.header.NextRangeID:
			return corruptState("r%d, but ids end at %d", id, d.header.NextRangeID)
		case !r.Active && len(r.Decided) > 0:
			return corruptState("r%d is inactive and has %d decided entries", id, len(r.Decided))
		case !r.Active && r.Mark > d.header.Bound:
			return corruptState("r%d: mark %d over the bound %d", id, r.Mark, d.header.Bound)
		}
	}
	if err := checkTiling(descriptors(d.sorted())); err != nil {
		return corruptState("directory: %v", err)
	}
	return nil
}

// checkTiling says whether the descriptors, in this order, cover the whole
// keyspace without gap and overlap.
func checkTiling(ds []*rangepb.RangeDescriptor) error {
	if len(ds) == 0 {
		return fmt.Errorf("no ranges")
	}
	for i, d := range ds {
		last := i == len(ds)-1
		switch {
		case i == 0 && len(d.Start) > 0:
			return fmt.Errorf("r%d, the first range, starts at %q", d.RangeId, d.Start)
		case last && len(d.End) > 0:
			return fmt.Errorf("r%d, the last range, ends at %q", d.RangeId, d.End)
		case !last && (d.Span().IsEmpty() || !d.Span().Meets(ds[i+1].Span())):
			return fmt.Errorf("r%d [%q, %q) and r%d from %q", d.RangeId, d.Start, d.End, ds[i+1].RangeId, ds[i+1].Start)
		}
	}
	return nil
}

func descriptors(rs []*Range) []*rangepb.RangeDescriptor {
	ds := make([]*rangepb.RangeDescriptor, len(rs))
	for i, r := range rs {
		ds[i] = r.Desc
	}
	return ds
}
