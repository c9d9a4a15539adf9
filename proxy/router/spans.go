package router

import (
	"errors"
	"fmt"
	"time"

	"github.com/hawser-kv/hawser/mvcc"
)

// errManySpans: a request would delete spans, and as many as there may be are not
// written out yet. Nothing was changed.
var errManySpans = errors.New("router: too many large deletions are still being written out")

// spansPause is how long a request waits before it looks again whether there are fewer.
const spansPause = 10 * time.Millisecond

// takeSpans counts the deletions of spans among effects as under way, and returns their
// number for giveSpans. errManySpans if there are too many before them.
func (r *Router) takeSpans(effs []mvcc.Effect) (n int64, err error) {
	for i := range effs {
		if effs[i].IsSpan() {
			n++
		}
	}
	if n == 0 {
		return 0, nil
	}
	if before := r.spansUnderWay.Add(n) - n; !r.roomForSpans(before) {
		r.giveSpans(n)
		return 0, errManySpans
	}
	return n, nil
}

func (r *Router) giveSpans(n int64) { r.spansUnderWay.Add(-n) }

func (r *Router) roomForSpans(underWay int64) bool {
	return underWay+int64(r.cfg.PendingSpans()) < int64(r.cfg.MaxPendingSpans)
}

// waitForSpans starts over, without latches meanwhile, when fewer deletions of spans are
// pending.
func (o *write) waitForSpans() {
	o.mu.Lock()
	ended := o.mu.ended
	o.mu.Unlock()
	switch {
	case ended:
	case o.waited >= o.r.cfg.RequestTimeout/2:
		o.finish(nil, fmt.Errorf("%w (%w)", ErrTooManyRequests, errManySpans))
	default:
		o.waited += spansPause
		o.r.cfg.After(spansPause, func() {
			if o.r.roomForSpans(o.r.spansUnderWay.Load()) {
				o.begin()
				return
			}
			o.waitForSpans()
		})
	}
}
