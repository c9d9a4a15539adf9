package node

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/proxy/router"
	"github.com/hawser-kv/hawser/range/replica"
	"github.com/hawser-kv/hawser/range/shortage"
	"github.com/hawser-kv/hawser/range/store"
)

// ranges is this node's ranges as the router asks them.
type ranges struct{ c *Core }

var _ router.Ranges = ranges{}

// Write posts a write to the range's leader.
func (r ranges) Write(rangeID, epoch uint64, req *mvcc.Request, done func(router.WriteResult)) {
	m := r.c.measures
	var began time.Time
	if m != nil {
		began = time.Now()
	}
	r.c.Store.Post(rangeID, &replica.Write{Epoch: epoch, Req: req, Done: func(res replica.WriteResult) {
		if m != nil {
			m.wrote(rangeID, req, time.Since(began), res.Err)
		}
		out := router.WriteResult{Result: res.Result, Revision: res.Revision, NoEffect: res.NoEffect}
		if res.Err != nil && !res.NoEffect {
			out.Err = routerError(rangeID, res.Err)
		} else {
			out.Err = res.Err
		}
		done(out)
	}})
}

// Latch posts a latch to the range's leader.
func (r ranges) Latch(rangeID, epoch uint64, owner *placementpb.TxnID, spans []mvcc.Access, done func(router.LatchResult)) {
	r.c.Store.Post(rangeID, &replica.Latch{Owner: owner, Epoch: epoch, Spans: spans, Done: func(res replica.LatchResult) {
		if res.Err != nil {
			done(router.LatchResult{Err: routerError(rangeID, res.Err)})
			return
		}
		resolved, _ := r.c.Readers.Resolved(rangeID)
		done(router.LatchResult{Term: res.Term, Session: res.Session, Resolved: resolved})
	}})
}

// Unlatch gives a latch back.
func (r ranges) Unlatch(rangeID uint64, owner *placementpb.TxnID) {
	r.c.Store.Post(rangeID, &replica.Unlatch{Owner: owner})
}

// Await waits for the local replica.
func (r ranges) Await(rangeID, epoch uint64, rev int64, done func(error)) {
	r.c.Readers.Await(rangeID, epoch, rev, func(err error) {
		if err != nil {
			err = routerError(rangeID, err)
		}
		done(err)
	})
}

// View opens a view of the local engine.
func (r ranges) View(rev int64, pieces []rangepb.Piece) (router.View, error) {
	v, err := r.c.Readers.View(rev, pieces...)
	if err != nil {
		return nil, viewError(pieces, err)
	}
	view := &guardedView{View: v, guard: guard{r.c, pieces}, close: v.Close}
	if r.c.measures != nil {
		view.began = time.Now()
	}
	return view, nil
}

// HashVersions gives h the versions of the pieces in the local engine.
func (r ranges) HashVersions(rev, compacted int64, pieces []rangepb.Piece, h *mvcc.Hasher) error {
	if err := r.c.Readers.Check(pieces...); err != nil {
		return viewError(pieces, err)
	}
	for _, p := range pieces {
		if err := r.c.MVCC.HashVersions(p.Start, p.End, rev, compacted, h); err != nil {
			if errors.Is(err, mvcc.ErrPending) {
				r.c.hashAwaits.Store(max(rev, r.c.hashAwaits.Load())) // a lost race asks again
			}
			return viewError(pieces, guard{r.c, pieces}.check(p.Start, err))
		}
	}
	return nil
}

// HalfKey halves the piece by the sizes of the local engine.
func (r ranges) HalfKey(p rangepb.Piece) ([]byte, error) {
	pieces := []rangepb.Piece{p}
	if err := r.c.Readers.Check(pieces...); err != nil {
		return nil, viewError(pieces, err)
	}
	key, err := r.c.MVCC.HalfKey(p.Start, p.End)
	if err != nil {
		return nil, viewError(pieces, guard{r.c, pieces}.check(p.Start, err))
	}
	return key, nil
}

// PrepareSplit cuts the counts at the key.
func (r ranges) PrepareSplit(key []byte) {
	if err := r.c.MVCC.PrepareBoundary(key); err != nil {
		// What is damaged is found again, and told, by who needs it.
		r.c.log.Warn("split not prepared", zap.Error(err))
	}
}

// Nudge has the range look after itself.
func (r ranges) Nudge(rangeID uint64) { r.c.Store.Post(rangeID, replica.Nudge{}) }

// Wake has the range elect and register a leader.
func (r ranges) Wake(rangeID uint64) { r.c.Store.Post(rangeID, replica.Wake{}) }

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
	return routerError(id, err)
}

// routerError maps the replica's and the store's errors to the router's kinds.
func routerError(rangeID uint64, err error) error {
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
