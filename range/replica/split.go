package replica

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// applySplit shrinks the range and begins the right one on this node, in the
// batch that is synced (R11). The data stays where it is.
func (a *applier) applySplit(b *pebble.Batch, c *command) error {
	s := c.split
	if err := checkSplit(a.staged.desc, s); err != nil {
		return err
	}
	began, err := Stage(a.db, b, a.nodeID, s.Right, c.revision)
	if err != nil {
		return err
	}
	if err := stageDescriptor(b, s.Left); err != nil {
		return err
	}
	a.staged.desc = s.Left
	a.outcome.needSync = true
	if began {
		a.outcome.began = append(a.outcome.began, Saved{Descriptor: s.Right, Resolved: c.revision})
	}
	return nil
}

// checkSplit checks that a split cuts the range as it is.
func checkSplit(old *rangepb.RangeDescriptor, s *placementpb.DecidedSplit) error {
	left, right := s.Left, s.Right
	if left.RangeId != old.RangeId || right.RangeId == old.RangeId || left.Epoch <= old.Epoch ||
		!bytes.Equal(right.Start, s.Key) || !old.Span().Tiles(left.Span(), right.Span()) {
		return fmt.Errorf("split of %v at %q into %v and %v", old, s.Key, left, right)
	}
	return nil
}

// ensureBoundaries makes the counts of live keys know where the range begins and
// ends: revisions grow within a range only. It is called when a range begins and
// when its replica is loaded, both before anything new is applied to it and while
// nothing that was applied is uncommitted.
func (a *applier) ensureBoundaries(desc *rangepb.RangeDescriptor) (err error) {
	b := a.db.NewBatch()
	defer func() { err = errors.Join(err, b.Close()) }()
	for _, key := range [][]byte{desc.Start, desc.End} {
		if len(key) == 0 {
			continue
		}
		if err := a.mvcc.EnsureBoundary(b, key); err != nil {
			return fmt.Errorf("boundary %q of range %d: %w", key, desc.RangeId, err)
		}
	}
	if b.Empty() {
		return nil
	}
	return b.Commit(pebble.NoSync)
}
