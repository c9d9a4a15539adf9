package host

import (
	"context"
	"errors"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/range/engine"
	"github.com/hawser-kv/hawser/range/replica"
	"github.com/hawser-kv/hawser/range/shortage"
	"github.com/hawser-kv/hawser/range/store"
)

// IsDamage reports whether err says that what is on the disk is not what was
// written, be it the engine's own data or a replica's.
func IsDamage(err error) bool {
	return engine.IsDamage(err) || errors.Is(err, replica.ErrCorrupt)
}

// isNewer reports whether err says that a newer release wrote what was read.
func isNewer(err error) bool { return engine.IsNewer(err) }

// viewError maps an error of reading; mvcc's own and the client's leaving pass as
// they are.
func viewError(pieces []rangepb.Piece, err error) error {
	if errors.Is(err, mvcc.ErrCompacted) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	var id uint64
	if len(pieces) > 0 {
		id = pieces[0].RangeID
	}
	return ErrorOf(id, err)
}

// ErrorOf returns the error of a range that who asked is given for one of the replica,
// the store or the engine: a *rangepb.Error, or mvcc.ErrLeaseNotFound. err is not nil.
// rangeID is 0 if no single range is meant.
func ErrorOf(rangeID uint64, err error) error {
	out := &rangepb.Error{Kind: rangepb.Unknown, RangeID: rangeID, Err: err}
	switch {
	case errors.As(err, &out):
	case errors.Is(err, replica.ErrLeaseNotFound):
		return mvcc.ErrLeaseNotFound
	case shortage.Is(err) && errors.Is(err, replica.ErrUnknownFate):
		out.Kind = rangepb.Unknown
	case shortage.OfSpace(err):
		out.Kind = rangepb.NoSpace
	case shortage.Is(err):
		out.Kind = rangepb.Shortage
	case errors.Is(err, replica.ErrFailed), errors.Is(err, store.ErrNotServed):
		out.Kind = rangepb.Corrupt
	case errors.Is(err, store.ErrStopped):
		out.Kind = rangepb.Stopped
	case errors.Is(err, replica.ErrUnknownFate):
		out.Kind = rangepb.Unknown
	case errors.Is(err, store.ErrNoSpace), errors.Is(err, replica.ErrNoSpace):
		out.Kind = rangepb.NoSpace
	case errors.Is(err, replica.ErrTooWide):
		out.Kind = rangepb.TooWide
	case errors.Is(err, replica.ErrTooManyRequests):
		out.Kind = rangepb.Busy
	case errors.Is(err, replica.ErrNotResolved), errors.Is(err, mvcc.ErrPending), errors.Is(err, replica.ErrAwaitExpired):
		out.Kind = rangepb.Unresolved
	case errors.Is(err, replica.ErrNoReplica):
		out.Kind = rangepb.Stale
	case replica.NotApplied(err):
		out.Kind = rangepb.Dropped
	}
	return out
}
