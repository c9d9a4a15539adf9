package router

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
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
		if err != nil && !errors.As(err, new(*RangeError)) { // a range's comes before S is asked
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
		o := &ask[*placementpb.CompactResult]{r: r, done: done,
			send: func(_ int, f func(*placementpb.CompactResult, error)) { r.cfg.Sequencer.Compact(rev, f) }}
		o.start()
		return o.cancel
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

// Errors of HalfKey.
var (
	// ErrUnknownRange: no range has the id.
	ErrUnknownRange = errors.New("router: unknown range")
	// ErrTooFewKeys: a range of fewer than two live keys has no half.
	ErrTooFewKeys = errors.New("router: range has fewer than two keys")
)

// halfSamples bounds what HalfKey keeps in memory while it scans.
const halfSamples = 4096

// HalfKey returns the key at which a range is halved by the size of its live
// keys and values: the shortest above the last key of the left half and not above
// the first of the right one. It reads the range once. The caller owns the key.
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
	span := mvcc.Access{Start: d.Start}
	if len(d.End) != 0 {
		span.End = d.End
	}
	var half []byte
	err := r.readAt(ctx, readPlan{
		spans: []mvcc.Access{span},
		eval: func(_ Point, v View, _ []Piece) error {
			var s sizes
			if err := v.Scan(span.Start, span.End, mvcc.ScanOptions{}, func(kv *mvccpb.KeyValue) (bool, error) {
				s.add(kv.Key, len(kv.Key)+len(kv.Value))
				return true, ctx.Err()
			}); err != nil {
				return forgotten(err)
			}
			half = s.half()
			return nil
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

// sizes samples a scan: places between two keys with the bytes that stand before
// them, at about even distances in bytes.
type sizes struct {
	samples []sample
	total   int
	step    int
	// last is the key before the next one, nil before the first.
	last []byte
}

// sample is a place where the scan may be cut: key is the shortest boundary there.
type sample struct {
	key    []byte
	before int
}

// add takes the next key of the scan, which may change after the call.
func (s *sizes) add(key []byte, size int) {
	// Before the first key there is no place: the left half would be empty.
	if s.last != nil && (len(s.samples) == 0 || s.total-s.samples[len(s.samples)-1].before >= s.step) {
		s.samples = append(s.samples, sample{separator(s.last, key), s.total})
		if len(s.samples) == halfSamples {
			s.step = max(2*s.step, 2*s.total/halfSamples)
			kept := s.samples[:1]
			for _, x := range s.samples[1:] {
				if x.before-kept[len(kept)-1].before >= s.step {
					kept = append(kept, x)
				}
			}
			s.samples = kept
		}
	}
	s.last = append(s.last[:0], key...)
	s.total += size
}

// separator returns the shortest key above left and not above right, which is above
// left: the beginning of right that is no beginning of left. Any shorter one that is
// not above right is not above left either.
func separator(left, right []byte) []byte {
	n := 0
	for n < len(left) && left[n] == right[n] {
		n++
	}
	return bytes.Clone(right[:n+1])
}

// half returns the boundary of the sample nearest to the middle, nil without any.
func (s *sizes) half() []byte {
	var best []byte
	distance := 0
	for _, x := range s.samples {
		d := x.before - s.total/2
		if d < 0 {
			d = -d
		}
		if best == nil || d < distance {
			best, distance = x.key, d
		}
	}
	return best
}
