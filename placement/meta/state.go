// Package meta is the replicated state of the meta group and its commands
// (revisions.md section 3): the directory, the bound, which ranges are active,
// the marks of those that are not, the compacted revision and the decided
// entries that a participant has not reported.
//
// The state is a plain value in memory; Apply is a function of (state, index,
// term, command) and Stage writes only the rows that changed. The package
// knows no Raft, no clock and no network.
package meta

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// FirstRevision is the revision of an empty keyspace; the first write gets the
// one after it, as in etcd (etcd/X6).
const FirstRevision int64 = 1

// NeverCompacted is the compacted revision before the first compaction, as in
// etcd (etcd/X6).
const NeverCompacted int64 = -1

// State is the applied state of the meta group. It is not safe for concurrent
// use. Descriptors and decided entries are immutable once they are in it and
// may be shared.
type State struct {
	// ClusterID is 0 until the Bootstrap command is applied.
	ClusterID uint64
	// Bound: no revision above it was ever handed out (R2).
	Bound int64
	// Compacted revision; NeverCompacted before the first compaction.
	Compacted int64
	// NextRangeID is the smallest id that no range ever had.
	NextRangeID uint64

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

// New returns the state before Bootstrap.
func New() *State {
	return &State{Compacted: NeverCompacted, NextRangeID: 1, ranges: map[uint64]*Range{}}
}

// Len is the number of ranges.
func (s *State) Len() int { return len(s.ranges) }

// Range returns the range with the id, or nil. The caller must not modify it.
func (s *State) Range(id uint64) *Range { return s.ranges[id] }

// Ranges returns all ranges in the order of their spans. The caller must not
// modify them.
func (s *State) Ranges() []*Range {
	all := make([]*Range, 0, len(s.ranges))
	// In any order: sorted below.
	for _, r := range s.ranges {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *Range) int { return bytes.Compare(a.Desc.Start, b.Desc.Start) })
	return all
}

// Changes says which rows a command changed.
type Changes struct {
	// Ignored: the command's epoch is not the term of its entry; nothing
	// changed (R0).
	Ignored bool

	header  bool
	ranges  []uint64
	decided []*placementpb.Decided
	dropped []*placementpb.Decided
}

// Apply applies the command of the entry at (index, term) of the meta log. A
// command of another term than its entry's is ignored (R0). A command that
// does not fit the state wraps ErrInvalidCommand and changes nothing: S judges
// on the state with all it proposed applied, so this is a fault, not a refusal.
func (s *State) Apply(index, term uint64, cmd *placementpb.MetaCommand) (Changes, error) {
	if cmd.Epoch != term {
		return Changes{Ignored: true}, nil
	}
	invalid := func(format string, args ...any) (Changes, error) {
		return Changes{}, fmt.Errorf("meta entry %d of term %d: %w: %s", index, term, ErrInvalidCommand, fmt.Sprintf(format, args...))
	}
	if _, ok := cmd.Command.(*placementpb.MetaCommand_Bootstrap); !ok && s.ClusterID == 0 {
		return invalid("%T before bootstrap", cmd.Command)
	}
	switch c := cmd.Command.(type) {
	case *placementpb.MetaCommand_Bootstrap:
		if s.ClusterID != 0 {
			return invalid("bootstrap of cluster %x, which is %x", c.Bootstrap.ClusterId, s.ClusterID)
		}
		return s.bootstrap(c.Bootstrap, invalid)

	case *placementpb.MetaCommand_RaiseBound:
		if c.RaiseBound.Bound <= s.Bound {
			return invalid("raise of bound %d to %d", s.Bound, c.RaiseBound.Bound)
		}
		s.Bound = c.RaiseBound.Bound
		return Changes{header: true}, nil

	case *placementpb.MetaCommand_HandOver:
		if c.HandOver.Last > s.Bound || c.HandOver.Last < FirstRevision {
			return invalid("hand-over at %d over the bound %d", c.HandOver.Last, s.Bound)
		}
		s.Bound = c.HandOver.Last
		return Changes{header: true}, nil

	case *placementpb.MetaCommand_Activate:
		for _, id := range c.Activate.RangeIds {
			if r := s.ranges[id]; r == nil || r.Active {
				return invalid("activation of r%d, which is unknown or active", id)
			}
		}
		for _, id := range c.Activate.RangeIds {
			s.ranges[id].Active = true
		}
		return Changes{ranges: c.Activate.RangeIds}, nil

	case *placementpb.MetaCommand_Deactivate:
		d := c.Deactivate
		r := s.ranges[d.RangeId]
		if r == nil || !r.Active || len(r.Decided) > 0 || d.Mark > s.Bound {
			return invalid("deactivation of r%d at %d", d.RangeId, d.Mark)
		}
		r.Active, r.Mark = false, d.Mark
		return Changes{ranges: []uint64{d.RangeId}}, nil

	case *placementpb.MetaCommand_Transaction:
		return s.transaction(index, c.Transaction, invalid)

	case *placementpb.MetaCommand_Split:
		return s.split(index, c.Split, invalid)

	case *placementpb.MetaCommand_Reported:
		r := s.ranges[c.Reported.RangeId]
		if r == nil {
			return invalid("report of r%d, which is unknown", c.Reported.RangeId)
		}
		for i, d := range r.Decided {
			if d.MetaIndex == c.Reported.MetaIndex {
				r.Decided = slices.Delete(r.Decided, i, i+1)
				return Changes{dropped: []*placementpb.Decided{d}}, nil
			}
		}
		return invalid("report of r%d: no decided entry %d", c.Reported.RangeId, c.Reported.MetaIndex)

	case *placementpb.MetaCommand_Compact:
		if c.Compact.Revision <= s.Compacted || c.Compact.Revision > s.Bound {
			return invalid("compaction at %d: compacted %d, bound %d", c.Compact.Revision, s.Compacted, s.Bound)
		}
		s.Compacted = c.Compact.Revision
		return Changes{header: true}, nil
	}
	return invalid("unknown command %T", cmd.Command)
}

type invalidFunc func(format string, args ...any) (Changes, error)

func (s *State) bootstrap(b *placementpb.Bootstrap, invalid invalidFunc) (Changes, error) {
	if b.ClusterId == 0 {
		return invalid("bootstrap without a cluster id")
	}
	if err := checkTiling(b.Ranges); err != nil {
		return invalid("%v", err)
	}
	ranges := make(map[uint64]*Range, len(b.Ranges))
	ch := Changes{header: true}
	next := uint64(1)
	for _, d := range b.Ranges {
		if d.RangeId == 0 || ranges[d.RangeId] != nil || d.Epoch == 0 {
			return invalid("bootstrap with range id %d, epoch %d", d.RangeId, d.Epoch)
		}
		ranges[d.RangeId] = &Range{Desc: d, Mark: FirstRevision}
		ch.ranges = append(ch.ranges, d.RangeId)
		next = max(next, d.RangeId+1)
	}
	s.ClusterID, s.Bound, s.NextRangeID, s.ranges = b.ClusterId, FirstRevision, next, ranges
	return ch, nil
}

func (s *State) transaction(index uint64, t *placementpb.Transaction, invalid invalidFunc) (Changes, error) {
	if t.Revision > s.Bound {
		return invalid("transaction at %d over the bound %d", t.Revision, s.Bound)
	}
	for _, p := range t.Participants {
		r := s.ranges[p.RangeId]
		if r == nil || !r.Active || r.Desc.Epoch != p.Epoch {
			return invalid("transaction at %d: participant r%d epoch %d", t.Revision, p.RangeId, p.Epoch)
		}
	}
	var ch Changes
	for _, p := range t.Participants {
		d := &placementpb.Decided{
			RangeId: p.RangeId, Revision: t.Revision, MetaIndex: index,
			Entry: &placementpb.Decided_Txn{Txn: &placementpb.DecidedTxn{Owner: t.Owner, Effects: p.Effects}},
		}
		r := s.ranges[p.RangeId]
		r.Decided = append(r.Decided, d)
		ch.decided = append(ch.decided, d)
	}
	return ch, nil
}

func (s *State) split(index uint64, sp *placementpb.Split, invalid invalidFunc) (Changes, error) {
	left, right := sp.Left, sp.Right
	if left == nil || right == nil {
		return invalid("split without descriptors")
	}
	r := s.ranges[left.RangeId]
	switch {
	case r == nil || !r.Active:
		return invalid("split of r%d, which is unknown or inactive", left.RangeId)
	case left.Epoch != r.Desc.Epoch+1 || right.Epoch == 0:
		return invalid("split of r%d epoch %d into epochs %d and %d", left.RangeId, r.Desc.Epoch, left.Epoch, right.Epoch)
	case right.RangeId < s.NextRangeID:
		return invalid("split of r%d: id %d was used before", left.RangeId, right.RangeId)
	case !bytes.Equal(left.Start, r.Desc.Start) || !bytes.Equal(right.End, r.Desc.End) ||
		!bytes.Equal(left.End, right.Start) || bytes.Compare(left.Start, left.End) >= 0 ||
		len(right.End) > 0 && bytes.Compare(right.Start, right.End) >= 0:
		return invalid("split of r%d [%q, %q) at %q", left.RangeId, r.Desc.Start, r.Desc.End, left.End)
	case sp.Revision > s.Bound:
		return invalid("split of r%d at %d over the bound %d", left.RangeId, sp.Revision, s.Bound)
	}
	d := &placementpb.Decided{
		RangeId: left.RangeId, Revision: sp.Revision, MetaIndex: index,
		Entry: &placementpb.Decided_Split{Split: &placementpb.DecidedSplit{Key: right.Start, Left: left, Right: right}},
	}
	r.Desc = left
	r.Decided = append(r.Decided, d)
	s.ranges[right.RangeId] = &Range{Desc: right, Mark: sp.Revision}
	s.NextRangeID = right.RangeId + 1
	return Changes{header: true, ranges: []uint64{left.RangeId, right.RangeId}, decided: []*placementpb.Decided{d}}, nil
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
		case !last && (bytes.Compare(d.Start, d.End) >= 0 || !bytes.Equal(d.End, ds[i+1].Start)):
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
