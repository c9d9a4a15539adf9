package router

import (
	"errors"
	"math"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// Newest as the revision of a view means: what the replicas have applied.
const Newest = math.MaxInt64

// Ranges is what the router needs of the ranges: those of this node today, of
// any node later. Every method may be called by many goroutines. A done
// callback is called exactly once, inline or later, on any goroutine; it never
// blocks and never calls back into Ranges while a lock is held.
type Ranges interface {
	// Write gives a write to the leader of a range. All spans of req lie in it. The
	// error of the answer is a *rangepb.Error, or one of the evaluation (mvcc), which
	// counts as NoEffect.
	Write(rangeID, epoch uint64, req *mvcc.Request, done func(*mvcc.Result, rangepb.WriteAnswer))
	// Latch takes latches on the spans for the owner, all at once, when nothing
	// in the leader's queue or uncommitted log touches them (R7). An error
	// means that no latch is held.
	Latch(rangeID, epoch uint64, owner *placementpb.TxnID, spans []mvcc.Access, done func(rangepb.LatchAnswer))
	// Unlatch gives the owner's latch back. The caller has sent no commit of
	// this owner, or S has refused it.
	Unlatch(rangeID uint64, owner *placementpb.TxnID)
	// Await calls done when the replica at hand has resolved rev under an epoch
	// at or above the named one; with an error of kind Stale when it no longer
	// can. Inline when it already has.
	Await(rangeID, epoch uint64, rev int64, done func(error))
	// View opens a view at rev (or Newest) over the pieces. For each piece, in
	// one engine view: the replica's epoch is at or above the named one, the
	// piece lies in its span, it has resolved Piece.Resolve, and rev is not
	// forgotten (R5). Otherwise *rangepb.Error or mvcc.ErrCompacted. Only keys of
	// the pieces may be read through it.
	View(rev int64, pieces []rangepb.Piece) (mvcc.OpenView, error)
	// HashVersions gives h the versions of the pieces that may count in the hash at
	// rev, under the same conditions and with the same errors as View, and with
	// h.Pause's.
	HashVersions(rev, compacted int64, pieces []rangepb.Piece, h *mvcc.Hasher) error
	// HalfKey returns a key that halves the piece by size, nil if fewer than two
	// keys live in it, under the same checks as View. It may be about exact; its
	// cost is bounded.
	HalfKey(rangepb.Piece) ([]byte, error)
	// PrepareSplit does beforehand what a split at the key would have to read for
	// when it is applied, where all wait. It may take its time, and fail: then it
	// is done at the split.
	PrepareSplit(key []byte)
	// Nudge says that a reader waits too long for the range: a leader with
	// nothing outstanding registers again, a group without one elects (R5).
	Nudge(rangeID uint64)
	// Wake says that the range is about to be written to: a sleeping one elects
	// and registers (R7). Others do nothing.
	Wake(rangeID uint64)
}

// passes reports whether err proves that nothing was applied and may be gone at
// the next try.
func passes(err error) bool {
	var re *rangepb.Error
	if !errors.As(err, &re) {
		return false
	}
	switch re.Kind {
	case rangepb.Stale, rangepb.NotLeader, rangepb.Dropped, rangepb.Unresolved:
		return true
	}
	return false
}

// Sequencer is what the router needs of the node's end of the conversation with
// S; placement/client satisfies it through a small adapter. The rules for done
// are those of Ranges. An error means that no answer will come: the session
// ended, or the node is stopping.
type Sequencer interface {
	// Query asks for R and the m of the ranges (R5).
	Query(ranges []*placementpb.RangeEpoch, done func(*placementpb.QueryAnswer, error))
	// NewOwner returns an owner id that was never used before, of the current
	// session.
	NewOwner() *placementpb.TxnID
	// Commit asks S to decide a transaction (R7).
	Commit(txn *placementpb.TxnCommit, done func(*placementpb.TxnResult, error))
	// Abort asks S never to commit the owner.
	Abort(owner *placementpb.TxnID)
	// Split asks S to split the range that holds key at key (R11).
	Split(key []byte, done func(*placementpb.SplitResult, error))
	// Compact asks S to forget the revisions below rev (R9).
	Compact(rev int64, done func(*placementpb.CompactResult, error))
}

// Frontier says what this node can serve without asking S (R5, R6).
type Frontier interface {
	// Complete returns the newest revision at which this node has every change
	// of [start, end) (end nil: to the end of the keyspace), and the compacted
	// revision it knows of. ok is false while it has no satisfied cut.
	Complete(start, end []byte) (rev, compacted int64, ok bool)
	// Revision returns the newest revision that S has told this node of, and the
	// compacted one: 0 and -1 before it has.
	Revision() (rev, compacted int64)
}
