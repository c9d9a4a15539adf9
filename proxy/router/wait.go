package router

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// waiter is the caller's side of one request: the goroutine that waits, and
// runs what the state machine of the request gives to Exec. Pooled: a
// continuation that comes late, void as it is, must not reach the request that
// has the waiter by then, so each names its own.
type waiter struct {
	// ready has room for one: there may be something in the queue.
	ready chan struct{}
	timer *time.Timer
	// stopped is closed when the router stops.
	stopped <-chan struct{}
	mu      struct {
		sync.Mutex
		// request numbers the requests that had this waiter.
		request uint64
		queue   []func()
	}
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
	return &waiter{ready: make(chan struct{}, 1), timer: time.NewTimer(timeout), stopped: stopped}
}

// put takes back a waiter of a finished request.
func (p *waiterPool) put(w *waiter) {
	w.timer.Stop()
	w.mu.Lock()
	w.mu.request++
	clear(w.mu.queue)
	w.mu.queue = w.mu.queue[:0]
	w.mu.Unlock()
	// The last continuation was often queued by the one before it, so nobody
	// waited to be told: the next request would be woken for nothing.
	select {
	case <-w.ready:
	default:
	}
	p.pool.Put(w)
}

// exec returns the Exec of the request that has the waiter now.
func (w *waiter) exec() Exec {
	w.mu.Lock()
	request := w.mu.request
	w.mu.Unlock()
	return func(f func()) {
		w.mu.Lock()
		if w.mu.request == request {
			w.mu.queue = append(w.mu.queue, f)
		}
		w.mu.Unlock()
		select {
		case w.ready <- struct{}{}:
		default:
		}
	}
}

// take returns the next continuation, nil if there is none.
func (w *waiter) take() (f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.mu.queue) > 0 {
		f = w.mu.queue[0]
		w.mu.queue[0] = nil
		w.mu.queue = append(w.mu.queue[:0], w.mu.queue[1:]...)
	}
	return f
}

// wait runs one request and waits for it on the caller's goroutine. start
// begins it and returns how to leave it. isWrite chooses how the client's
// leaving is told: etcd passes the context's own error through for a read (etcd/E2)
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
	exec := w.exec()
	cancel := start(exec, func(v T, e error) {
		exec(func() { out, err, finished = v, e, true })
	})
	for !finished {
		if f := w.take(); f != nil {
			f()
			continue
		}
		select {
		case <-w.ready:
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
