package router

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// waiter is the caller's side of one request: the goroutine that waits, and
// runs what the state machine of the request gives to Exec. Pooled: a request
// that ends in time leaves nothing behind.
type waiter struct {
	// next holds the continuation that is outstanding, and may hold a void one
	// before it (Exec).
	next  chan func()
	timer *time.Timer
	// stopped is closed when the router stops.
	stopped <-chan struct{}
}

type waiterPool struct {
	pool    sync.Pool
	stopped []chan struct{}
	made    atomic.Uint64
}

func (p *waiterPool) get(timeout time.Duration) *waiter {
	if w, ok := p.pool.Get().(*waiter); ok {
		w.timer.Reset(timeout)
		return w
	}
	stopped := p.stopped[p.made.Add(1)%uint64(len(p.stopped))]
	return &waiter{next: make(chan func(), 2), timer: time.NewTimer(timeout), stopped: stopped}
}

// put takes back a waiter of a finished request; nobody holds it any more but,
// seldom, for a void continuation, which is dropped here.
func (p *waiterPool) put(w *waiter) {
	w.timer.Stop()
	select {
	case <-w.next:
	default:
	}
	p.pool.Put(w)
}

// exec is the Exec of the request.
func (w *waiter) exec(f func()) {
	select {
	case w.next <- f:
	default:
		panic("router: a request has three continuations outstanding")
	}
}

// wait runs one request and waits for it on the caller's goroutine. start
// begins it and returns how to leave it. isWrite chooses how the client's
// leaving is told: etcd passes the context's own error through for a read (E2)
// and gives ErrCanceled or ErrTimeout for a write.
func wait[T any](ctx context.Context, r *Router, isWrite bool, start func(exec Exec, done func(T, error)) (cancel func())) (T, error) {
	var (
		out      T
		err      error
		finished bool
	)
	if r.pending.Add(1) > r.cfg.MaxPending {
		r.pending.Add(-1)
		return out, ErrTooManyRequests
	}
	defer r.pending.Add(-1)
	if isWrite {
		r.pendingWrites.Add(1)
		defer r.pendingWrites.Add(-1)
	}
	w := r.waiters.get(r.cfg.RequestTimeout)
	select {
	case <-w.stopped:
		r.waiters.put(w)
		return out, ErrStopped
	default:
	}
	cancel := start(w.exec, func(v T, e error) {
		w.exec(func() { out, err, finished = v, e, true })
	})
	for !finished {
		select {
		case f := <-w.next:
			f()
		case <-ctx.Done():
			cancel()
			return out, leftError(ctx.Err(), isWrite)
		case <-w.timer.C:
			cancel()
			return out, ErrTimeout
		case <-w.stopped:
			cancel()
			return out, ErrStopped
		}
	}
	r.waiters.put(w)
	return out, err
}

func leftError(err error, isWrite bool) error {
	if !isWrite {
		return err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return ErrTimeout
	}
	return ErrCanceled
}
