package meta

import "github.com/hawser-kv/hawser/proto/placementpb"

// FirstRevision is the revision of an empty keyspace; the first write gets the
// one after it, as in etcd (etcd/X6).
const FirstRevision int64 = 1

// NeverCompacted is the compacted revision before the first compaction, as in
// etcd (etcd/X6).
const NeverCompacted int64 = -1

// Header is what is one for the cluster. All of it is one row. Its bound and
// compacted revision are the cluster's to change, the rest is the directory's.
type Header struct {
	// ClusterID is 0 until the Bootstrap command is applied.
	ClusterID uint64
	// Bound: no revision above it was ever handed out (R2).
	Bound int64
	// Compacted revision; NeverCompacted before the first compaction.
	Compacted int64
	// NextRangeID is the smallest id that no range ever had.
	NextRangeID uint64
}

// setHeader stages the header as it is now.
func (e *entry) setHeader(h *Header) {
	e.set(rowKey(headerRow), &placementpb.MetaHeader{
		Format: formatVersion, ClusterId: h.ClusterID, Bound: h.Bound,
		Compacted: h.Compacted, NextRangeId: h.NextRangeID,
	})
}

// cluster is the part that moves the bound and the compacted revision.
//
// Always FirstRevision <= Bound and Compacted <= Bound; Compacted never falls,
// and Bound only to the last revision handed out (R2).
type cluster struct{ header *Header }

func (c cluster) apply(e *entry, cmd *placementpb.MetaCommand) (mine bool, err error) {
	h := c.header
	switch m := cmd.Command.(type) {
	case *placementpb.MetaCommand_RaiseBound:
		if m.RaiseBound.Bound <= h.Bound {
			return true, e.invalid("raise of bound %d to %d", h.Bound, m.RaiseBound.Bound)
		}
		h.Bound = m.RaiseBound.Bound

	case *placementpb.MetaCommand_HandOver:
		if m.HandOver.Last > h.Bound || m.HandOver.Last < FirstRevision {
			return true, e.invalid("hand-over at %d over the bound %d", m.HandOver.Last, h.Bound)
		}
		h.Bound = m.HandOver.Last

	case *placementpb.MetaCommand_Compact:
		if m.Compact.Revision <= h.Compacted || m.Compact.Revision > h.Bound {
			return true, e.invalid("compaction at %d: compacted %d, bound %d", m.Compact.Revision, h.Compacted, h.Bound)
		}
		h.Compacted = m.Compact.Revision

	default:
		return false, nil
	}
	e.setHeader(h)
	return true, nil
}

func (c cluster) rows() []rowKind {
	return []rowKind{{headerRow, 0, func(r *row) error {
		m := &placementpb.MetaHeader{}
		if err := r.decode(m); err != nil {
			return err
		}
		if m.Format > formatVersion {
			return &NewerFormatError{What: "meta header", Format: m.Format}
		}
		*c.header = Header{ClusterID: m.ClusterId, Bound: m.Bound, Compacted: m.Compacted, NextRangeID: m.NextRangeId}
		return nil
	}}}
}

func (c cluster) check() error {
	h := c.header
	if h.ClusterID == 0 {
		return corruptState("rows without a header")
	}
	if h.Bound < FirstRevision || h.Compacted > h.Bound {
		return corruptState("bound %d, compacted %d", h.Bound, h.Compacted)
	}
	return nil
}
