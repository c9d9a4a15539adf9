// Package materialiser writes out, beside the traffic, the large deletions that a
// node has applied as one row each (mvcc, pending deletions): who needs a tombstone
// and an event for each key waits for it, everybody else does not notice.
package materialiser

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/range/shortage"
)

// Store is the engine's data, as the materialiser needs it (mvcc.Store).
type Store interface {
	// Pending returns the number of keys whose deletion is to be written out.
	Pending() int64
	// MaterialiseStep writes out so many.
	MaterialiseStep(maxKeys int) (mvcc.Materialised, error)
}

// Config says what a Materialiser works on and how gently.
type Config struct {
	Store Store
	// Finished is called when a deletion is written out, from the goroutine that
	// steps: who waited for it can go on. May be nil.
	Finished func()
	// Damaged takes what a step has met, no shortage, and says whether it was damage of
	// one deletion, which steps leave out from now on. May be nil: none is.
	Damaged func(error) bool
	// StepKeys is how many keys a step writes out, some microseconds each. Default
	// 500.
	StepKeys int
	// Pause is the least between two steps: as long as the step took, if that is
	// more, which leaves the others half of a core at least. Default 1 ms, negative
	// for none at all.
	Pause time.Duration
	// Awaited says that somebody waits for what is pending: then a pause is a quarter of
	// the step before it. May be nil.
	Awaited func() bool
	Logger  *zap.Logger
}

// Materialiser is a state machine in small steps. Start drives it with a goroutine;
// a simulation calls Step itself. Kick is safe for concurrent use.
type Materialiser struct {
	cfg    Config
	kick   chan struct{}
	stop   context.CancelFunc
	done   chan struct{}
	failed atomic.Bool
}

// New returns a materialiser that does nothing before Start, or Step.
func New(cfg Config) *Materialiser {
	if cfg.StepKeys <= 0 {
		cfg.StepKeys = 500
	}
	if cfg.Pause == 0 {
		cfg.Pause = time.Millisecond
	}
	if cfg.Finished == nil {
		cfg.Finished = func() {}
	}
	if cfg.Damaged == nil {
		cfg.Damaged = func(error) bool { return false }
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	return &Materialiser{cfg: cfg, kick: make(chan struct{}, 1)}
}

// Kick says that something may be pending. It does not block.
func (m *Materialiser) Kick() {
	if m.cfg.Store.Pending() == 0 {
		return
	}
	select {
	case m.kick <- struct{}{}:
	default:
	}
}

// Step does a bounded amount of work. It reports whether there is more to do right
// away. Damage of one deletion is no error: the others go on. After a shortage
// (shortage.Is) the same is to be done again; after any other error there is nothing
// more: the engine failed.
func (m *Materialiser) Step() (more bool, err error) {
	if m.failed.Load() {
		return false, nil
	}
	did, err := m.cfg.Store.MaterialiseStep(m.cfg.StepKeys)
	switch {
	case err == nil:
	case shortage.Is(err):
		return false, fmt.Errorf("materialiser: %w", err)
	case m.cfg.Damaged(err):
		return true, nil
	default:
		m.failed.Store(true)
		return false, fmt.Errorf("materialiser: %w", err)
	}
	if did.Revision != 0 {
		m.cfg.Logger.Info("wrote out a large deletion", zap.Int64("revision", did.Revision))
		m.cfg.Finished()
	}
	return !did.Done, nil
}

// pause is how long to rest after a step that took so long.
func (m *Materialiser) pause(took time.Duration) time.Duration {
	switch {
	case m.cfg.Pause < 0:
		return 0
	case m.cfg.Awaited != nil && m.cfg.Awaited():
		return took / 4
	}
	return max(m.cfg.Pause, took)
}

// shortagePause is the time between two attempts while the machine is short of
// something.
const shortagePause = 100 * time.Millisecond

// Start drives the materialiser with a goroutine until Stop. failed is called with a
// fault of the engine.
func (m *Materialiser) Start(failed func(error)) {
	ctx, cancel := context.WithCancel(context.Background())
	m.stop = cancel
	m.done = make(chan struct{})
	go func() {
		defer close(m.done)
		short := false
		for {
			select {
			case <-ctx.Done():
				return
			case <-m.kick:
			}
			for ctx.Err() == nil {
				began := time.Now()
				more, err := m.Step()
				if shortage.Is(err) {
					if !short {
						m.cfg.Logger.Warn("the writing out of a large deletion waits for the end of a shortage", zap.Error(err))
					}
					short = true
					select {
					case <-ctx.Done():
					case <-time.After(shortagePause):
					}
					continue
				}
				if err != nil {
					failed(err)
					return
				}
				short = false
				if !more {
					break
				}
				if pause := m.pause(time.Since(began)); pause > 0 {
					select {
					case <-ctx.Done():
					case <-time.After(pause):
					}
				}
			}
		}
	}()
	m.Kick()
}

// Stop ends the goroutine. What is not written out is after the next start.
func (m *Materialiser) Stop() {
	if m.stop != nil {
		m.stop()
		<-m.done
	}
}
