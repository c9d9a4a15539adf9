package router

import (
	"context"
	"testing"
	"time"
)

// TestLateContinuationReachesNobody: a continuation that is void may come when
// its request has ended and another one has the waiter; and any number of them
// may be outstanding.
func TestLateContinuationReachesNobody(t *testing.T) {
	stopped := make(chan struct{})
	r := &Router{cfg: Config{MaxPending: 10}}
	r.cfg.EnsureDefaults()
	r.waiters.stopped = []chan struct{}{stopped}
	var late Exec
	run := func(extra int) {
		t.Helper()
		got, err := wait(context.Background(), r, false, func(exec Exec, done func(int, error)) func() {
			for range extra {
				exec(func() {})
			}
			if late != nil {
				late(func() { t.Error("a continuation of an older request was run") })
			}
			late = exec
			done(7, nil)
			return func() {}
		})
		if got != 7 || err != nil {
			t.Fatalf("got %d, %v", got, err)
		}
	}
	for i := range 10 {
		run(i)
	}
}

// TestWaiterIsNotWokenForNothing: what was said of the end of one request does
// not wake the next one.
func TestWaiterIsNotWokenForNothing(t *testing.T) {
	p := waiterPool{stopped: []chan struct{}{make(chan struct{})}}
	w := p.get(time.Minute)
	w.exec()(func() {})
	w.take()()
	p.put(w)
	if len(w.ready) != 0 {
		t.Error("the next request is woken")
	}
}
