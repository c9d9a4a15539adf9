package store

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Many writers on several shards; Stop comes in the middle. Every put is
// answered once; those answered without error are there, in each writer's order.
func TestStopAnswersEverybody(t *testing.T) {
	before := runtime.NumGoroutine()
	db := openDB(t, vfs.NewMem())
	const groups, writers = 5, 8
	begin(t, db, 0, 1, 2, 3, 4)
	r := newRig(t, db, func(c *Config) {
		c.ManualSync = false
		c.Shards, c.MetaShard = 2, true
		c.TickInterval = time.Millisecond
	})
	var mu sync.Mutex
	load := r.load
	r.store.cfg.Loader = func(id uint64) (Member, error) {
		mu.Lock()
		defer mu.Unlock()
		return load(id)
	}
	r.store.Start(context.Background())
	var acked, refused, lost, total atomic.Int64
	enough := make(chan struct{})
	var once sync.Once
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range 10000 {
				answer := make(chan error, 2)
				total.Add(1)
				r.store.Post(uint64(i%groups), &put{text: fmt.Sprintf("%d.%d", w, i), done: func(p *put) { answer <- p.err }})
				switch err := <-answer; {
				case err == nil:
					if acked.Add(1) == 2000 {
						once.Do(func() { close(enough) })
					}
				case errors.Is(err, ErrStopped):
					refused.Add(1)
					return
				default:
					lost.Add(1)
					return
				}
			}
		})
	}
	<-enough
	r.store.Stop()
	wg.Wait()
	if acked.Load()+refused.Load()+lost.Load() != total.Load() || acked.Load() < 2000 {
		t.Errorf("%d puts: %d acknowledged, %d refused, %d unknown", total.Load(), acked.Load(), refused.Load(), lost.Load())
	}
	var rows int
	for id := range uint64(groups) {
		rows += len(readLedger(t, db, id))
	}
	if int64(rows) < acked.Load() {
		t.Errorf("%d rows, %d acknowledged", rows, acked.Load())
	}
	if err := r.store.Err(); err != nil {
		t.Error(err)
	}
	must(t, db.Close())
	waitFor(t, func() bool { return runtime.NumGoroutine() <= before })
}

// waitFor waits for a condition that goroutines which are ending make true.
func waitFor(t *testing.T, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !cond(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("condition does not come true")
		}
	}
}

// The context of Start stops the store, too.
func TestCancelStopsTheStore(t *testing.T) {
	db := openDB(t, vfs.NewMem())
	defer db.Close()
	begin(t, db, 1)
	r := newRig(t, db, func(c *Config) { c.ManualSync = false })
	ctx, cancel := context.WithCancel(t.Context())
	r.store.Start(ctx)
	answer := make(chan error, 1)
	r.store.Post(1, &put{text: "a", done: func(p *put) { answer <- p.err }})
	must(t, <-answer)
	cancel()
	r.store.workers.Wait()
	r.store.Post(1, &put{text: "b", done: func(p *put) { answer <- p.err }})
	if err := <-answer; !errors.Is(err, ErrStopped) {
		t.Errorf("after cancel: %v", err)
	}
}

// Time is polled with the ticks.
func TestSpaceIsPolled(t *testing.T) {
	db := openDB(t, vfs.NewMem())
	defer db.Close()
	var free atomic.Uint64
	free.Store(1 << 40)
	r := newRig(t, db, func(c *Config) {
		c.ManualSync = false
		c.TickInterval = time.Millisecond
		c.FreeBytes = func() (uint64, error) { return free.Load(), nil }
	})
	r.store.Start(t.Context())
	defer r.store.Stop()
	free.Store(1)
	waitFor(t, r.store.LowSpace)
	free.Store(1 << 40)
	waitFor(t, func() bool { return !r.store.LowSpace() })
}
