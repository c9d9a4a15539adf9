package router

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// ask is a request to S that is repeated while S refuses it for a reason that
// passes. send gets the number of the try, from 1, and a callback for S's answer.
type ask[T refusable] struct {
	r       *Router
	send    func(attempt int, done func(T, error))
	done    func(T, error)
	attempt int
	ended   atomic.Bool
}

type refusable interface {
	GetRefused() bool
	GetReason() placementpb.RefusalReason
}

func (o *ask[T]) start() {
	if o.ended.Load() {
		return
	}
	o.attempt++
	seen := o.r.dir.Load()
	o.send(o.attempt, func(res T, err error) {
		if err == nil && res.GetRefused() {
			switch res.GetReason() {
			case placementpb.RefusalReason_REFUSAL_REASON_NOT_SERVING,
				placementpb.RefusalReason_REFUSAL_REASON_BUSY,
				placementpb.RefusalReason_REFUSAL_REASON_NOT_REGISTERED,
				placementpb.RefusalReason_REFUSAL_REASON_STALE_EPOCH:
				o.r.retryLater(seen, o.attempt, o.start)
				return
			}
		}
		if err != nil && !errors.As(err, new(*rangepb.Error)) { // a range's comes before S is asked
			err = fmt.Errorf("%w (%w)", ErrUnknownFate, err)
		}
		if o.ended.CompareAndSwap(false, true) {
			o.done(res, err)
		}
	})
}

func (o *ask[T]) cancel() { o.ended.Store(true) }

// Compact forgets the revisions below rev (etcd/C1) and returns the current
// revision. mvcc.ErrCompacted, mvcc.ErrFutureRev.
func (r *Router) Compact(ctx context.Context, rev int64) (int64, error) {
	res, err := wait(ctx, r, true, func(_ Exec, done func(*placementpb.CompactResult, error)) func() {
		return r.StartCompact(rev, done)
	})
	if err != nil {
		return 0, err
	}
	if res.Refused {
		switch res.Reason {
		case placementpb.RefusalReason_REFUSAL_REASON_COMPACTED:
			return 0, mvcc.ErrCompacted
		case placementpb.RefusalReason_REFUSAL_REASON_FUTURE_REVISION:
			return 0, mvcc.ErrFutureRev
		}
		return 0, fmt.Errorf("router: compaction at %d refused: %s", rev, res.Reason)
	}
	r.sawRevision(res.Revision)
	return res.Revision, nil
}

// StartCompact is Compact for callers that do not wait: done is called once, on any
// goroutine, with S's answer as it is, unless cancel was called before.
func (r *Router) StartCompact(rev int64, done func(*placementpb.CompactResult, error)) (cancel func()) {
	o := &ask[*placementpb.CompactResult]{r: r, done: done,
		send: func(_ int, f func(*placementpb.CompactResult, error)) { r.cfg.Sequencer.Compact(rev, f) }}
	o.start()
	return o.cancel
}

// Errors of HalfKey.
var (
	// ErrUnknownRange: no range has the id.
	ErrUnknownRange = errors.New("router: unknown range")
	// ErrTooFewKeys: a range of fewer than two live keys has no half.
	ErrTooFewKeys = errors.New("router: range has fewer than two keys")
)

// HalfKey returns a key at which a range is halved by size, about exactly if it is
// small, and the shortest that does so there; live keys are on both sides of it. What
// it costs does not depend on the size of the range. The caller owns the key.
// ErrUnknownRange, ErrTooFewKeys, and the errors of a read.
func (r *Router) HalfKey(ctx context.Context, rangeID uint64) ([]byte, error) {
	dir := r.dir.Load()
	if dir == nil {
		return nil, ErrUnknownRange
	}
	d := dir.ByID(rangeID)
	if d == nil {
		return nil, fmt.Errorf("%w: %d", ErrUnknownRange, rangeID)
	}
	whole := d.Span()
	var half []byte
	err := r.readAt(ctx, readPlan{
		spans: []mvcc.Access{{Start: whole.Start, End: whole.End}}, noView: true,
		eval: func(_ Point, _ mvcc.OpenView, pieces []rangepb.Piece) (err error) {
			// Split meanwhile, the first piece is what is left of the range.
			half, err = r.cfg.Ranges.HalfKey(pieces[0])
			return err
		},
	})
	if err != nil {
		return nil, err
	}
	if half == nil {
		return nil, fmt.Errorf("%w: %d", ErrTooFewKeys, rangeID)
	}
	return half, nil
}
