package router

import (
	"errors"
	"sync"

	"github.com/hawser-kv/hawser/mvcc"
)

// localRead is a serializable read: served from the newest revision that is
// complete on this node, without S (R5).
//
// A member of etcd never answers below what it answered before. So while the
// complete revision lags behind that, S is asked as for a linearizable read;
// only when S stays silent the older state is served: it is what the read
// allows, and goes on without S. What cannot be served here goes to S, too.
type localRead struct {
	r    *Router
	plan readPlan
	exec Exec
	done func(error)

	mu struct {
		sync.Mutex
		ended bool
		// fromS is the read through S that may end this one, if any.
		fromS *read
		// served: the local state was tried; S has the last word.
		served bool
		stop   func()
	}
}

func (o *localRead) start() {
	p, ok := o.r.localPoint(o.plan.spans)
	switch {
	case !ok:
		o.askS(false)
	case p.Revision >= o.r.answered.Load():
		o.exec(o.serve)
	default:
		o.askS(true)
	}
}

func (o *localRead) cancel() {
	o.mu.Lock()
	o.mu.ended = true
	rd, stop := o.mu.fromS, o.mu.stop
	o.mu.Unlock()
	if stop != nil {
		stop()
	}
	if rd != nil {
		rd.cancel()
	}
}

func (o *localRead) finish(err error) {
	o.mu.Lock()
	ended, stop := o.mu.ended, o.mu.stop
	o.mu.ended = true
	o.mu.Unlock()
	if ended {
		return
	}
	if stop != nil {
		stop()
	}
	o.done(err)
}

// askS reads through S; with a bound, not longer than serializableWait.
func (o *localRead) askS(bounded bool) {
	rd := &read{
		r: o.r, spans: o.plan.spans, rev: o.plan.rev, exec: o.exec, noView: o.plan.noView,
		share: o.plan.share, eval: o.plan.eval,
	}
	rd.done = func(err error) {
		o.mu.Lock()
		counts := o.mu.fromS == rd
		o.mu.fromS = nil
		o.mu.Unlock()
		if counts {
			o.finish(err)
		}
	}
	o.mu.Lock()
	if o.mu.ended {
		o.mu.Unlock()
		return
	}
	o.mu.fromS = rd
	if bounded {
		o.mu.stop = o.r.cfg.After(serializableWait, o.silent)
	}
	o.mu.Unlock()
	rd.begin()
}

// silent gives up on S.
func (o *localRead) silent() {
	o.mu.Lock()
	rd := o.mu.fromS
	if o.mu.ended || o.mu.served || rd == nil {
		o.mu.Unlock()
		return
	}
	o.mu.fromS = nil // from here only serve ends the request
	o.mu.Unlock()
	rd.cancel()
	o.exec(o.serve)
}

// serve runs on Exec's goroutine.
func (o *localRead) serve() {
	o.mu.Lock()
	skip := o.mu.ended || o.mu.served
	o.mu.served = true
	o.mu.Unlock()
	if skip {
		return
	}
	o.tryHere()
}

func (o *localRead) tryHere() {
	err := o.evaluate()
	switch {
	case errors.Is(err, errAskAgain):
		o.askS(false)
	case errors.Is(err, errNoRoom):
		o.r.whenRoom(o.plan.share, func(err error) {
			if err != nil {
				o.finish(err)
				return
			}
			o.exec(o.tryHere)
		})
	default:
		o.finish(err)
	}
}

// evaluate serves the read; errAskAgain when this node cannot.
func (o *localRead) evaluate() error {
	p, ok := o.r.localPoint(o.plan.spans)
	dir := o.r.dir.Load()
	if !ok || dir == nil {
		return errAskAgain
	}
	var err error
	if p.At, err = p.resolve(o.plan.rev); err != nil {
		return err
	}
	pieces := dir.Pieces(o.plan.spans)
	v, err := o.r.cfg.Ranges.View(p.At, pieces)
	if err != nil {
		return errAskAgain
	}
	defer v.Close()
	o.plan.share.again()
	err = o.plan.eval(p, v, pieces)
	if err == nil {
		o.r.sawRevision(p.Revision)
	}
	return err
}

// localPoint returns the newest revision complete on this node for all spans.
func (r *Router) localPoint(spans []mvcc.Access) (Point, bool) {
	p := Point{Revision: Newest, Compacted: -1}
	if len(spans) == 0 {
		spans = []mvcc.Access{{Start: []byte{}}}
	}
	for _, s := range spans {
		rev, compacted, ok := r.cfg.Frontier.Complete(s.Start, s.End)
		if !ok {
			return Point{}, false
		}
		p.Revision = min(p.Revision, rev)
		p.Compacted = max(p.Compacted, compactedOf(compacted))
	}
	return p, true
}
