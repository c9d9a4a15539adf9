// Package compactor removes from a node's engine what a compaction of the
// keyspace has made garbage (revisions.md R9), in small steps beside the
// traffic.
package compactor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/range/shortage"
)

// ErrStopped ends the waiting for a compaction when the node stops.
var ErrStopped = errors.New("compactor: stopped")

// Store is the engine's data, as the compactor needs it (mvcc.Store).
type Store interface {
	// Forgotten is the revision below which versions may be gone.
	Forgotten() int64
	// SetForgotten raises it, durably, before anything is removed.
	SetForgotten(revision int64) error
	// CompactStep removes a bounded amount and says whether all is done.
	CompactStep(maxEvents int) (done bool, err error)
	// Backlog estimates what is left for further steps, in events.
	Backlog() int64
}

// Config says what a Compactor works on and how gently.
type Config struct {
	Store Store
	// Complete returns the revision up to which every range of this node is
	// complete: nothing at or below it is still to be applied. Only what lies
	// below it may be removed, for the revision index would not name what
	// comes later.
	Complete func() int64
	// BatchLimit is the number of revisions one step removes. Default 1000.
	BatchLimit int
	// Pause is the least between two steps, so that writers are not held up:
	// twice as long as the step took if that is more, which leaves them two
	// thirds of a core at least. Default 10 ms, negative for none at all.
	Pause time.Duration
	// Spread is how long a compaction with much to do should take: what it
	// removes goes through the engine's flushes and merges, which are felt less
	// one after the other than in a row. It may take longer by Pause, and is done
	// sooner if there is little to do, or if somebody waits for it (WhenRemoved).
	// Default one minute, negative for as soon as Pause allows.
	Spread time.Duration
	// Hurry says that room is short: nothing is spread. May be nil.
	Hurry func() bool
	// Stepped is told how long a step took, and Finished how long a compaction did,
	// rests included. Under Start only. Both or none.
	Stepped, Finished func(time.Duration)
	Logger            *zap.Logger
}

// Compactor is a state machine in small steps: Request names the compacted
// revision, Step does a bounded part of what is to be done. Start drives it
// with a goroutine; a simulation calls Step itself. Safe for concurrent use,
// except that one caller at a time may Step.
type Compactor struct {
	cfg  Config
	kick chan struct{}
	stop context.CancelFunc
	done chan struct{}
	mu   struct {
		sync.Mutex
		// wanted is the compacted revision, finished the one up to which
		// everything is removed.
		wanted, finished int64
		waiters          []waiter
		err              error
	}
}

type waiter struct {
	revision int64
	done     func(error)
}

// New returns a compactor that does nothing before Start, or Step.
func New(cfg Config) *Compactor {
	if cfg.BatchLimit <= 0 {
		cfg.BatchLimit = 1000
	}
	if cfg.Pause == 0 {
		cfg.Pause = 10 * time.Millisecond
	}
	if cfg.Spread == 0 {
		cfg.Spread = time.Minute
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	return &Compactor{cfg: cfg, kick: make(chan struct{}, 1)}
}

// Request tells the compacted revision. It only grows.
func (c *Compactor) Request(revision int64) {
	c.mu.Lock()
	grew := revision > c.mu.wanted
	c.mu.wanted = max(c.mu.wanted, revision)
	c.mu.Unlock()
	if grew {
		c.Kick()
	}
}

// Kick has the compactor look whether it can go on: the frontier moved.
func (c *Compactor) Kick() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// Waiting says whether a compaction waits for the frontier or is under way.
func (c *Compactor) Waiting() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.finished < c.mu.wanted
}

// Wanted returns the newest compacted revision that was requested.
func (c *Compactor) Wanted() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.wanted
}

// Removed returns the revision up to which everything that compactions made garbage
// is removed, 0 if nothing was since the start.
func (c *Compactor) Removed() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.finished
}

// WhenRemoved calls done once everything that the compaction of revision made
// garbage is removed: at once if it is. An error is the fault that ended the
// compactor.
func (c *Compactor) WhenRemoved(revision int64, done func(error)) {
	c.mu.Lock()
	if c.mu.finished < revision && c.mu.err == nil {
		c.mu.waiters = append(c.mu.waiters, waiter{revision, done})
		c.mu.Unlock()
		return
	}
	err := c.mu.err
	if c.mu.finished >= revision {
		err = nil
	}
	c.mu.Unlock()
	done(err)
}

// Step does a bounded amount of work. It reports whether there is more to do
// right away. After a shortage (shortage.Is) the same is to be done again; after any
// other error there is nothing more: the engine failed.
func (c *Compactor) Step() (more bool, err error) {
	c.mu.Lock()
	wanted, finished, err := c.mu.wanted, c.mu.finished, c.mu.err
	c.mu.Unlock()
	if err != nil || finished >= wanted {
		return false, err
	}
	// One after the other: with a higher target the store would begin again, and
	// never end while targets come faster than it reaches one.
	if forgotten := c.cfg.Store.Forgotten(); finished >= forgotten && forgotten < wanted {
		if c.cfg.Complete() < wanted {
			return false, nil // Kick comes when the frontier has moved
		}
		if err := c.cfg.Store.SetForgotten(wanted); err != nil {
			return false, c.fail(fmt.Errorf("compactor: forget revisions below %d: %w", wanted, err))
		}
	}
	target := c.cfg.Store.Forgotten()
	done, err := c.cfg.Store.CompactStep(c.cfg.BatchLimit)
	if err != nil {
		return false, c.fail(fmt.Errorf("compactor: remove revisions below %d: %w", target, err))
	}
	if !done {
		return true, nil
	}
	c.cfg.Logger.Info("finished scheduled compaction", zap.Int64("compact-revision", target))
	c.finish(target, nil)
	return c.Waiting(), nil
}

func (c *Compactor) finished() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.finished
}

func (c *Compactor) fail(err error) error {
	if !shortage.Is(err) {
		c.finish(0, err)
	}
	return err
}

// finish records progress or the fault, and tells who waits.
func (c *Compactor) finish(revision int64, err error) {
	c.mu.Lock()
	c.mu.finished = max(c.mu.finished, revision)
	if err != nil {
		c.mu.err = err
	}
	var tell []waiter
	kept := c.mu.waiters[:0]
	for _, w := range c.mu.waiters {
		if err != nil || w.revision <= c.mu.finished {
			tell = append(tell, w)
		} else {
			kept = append(kept, w)
		}
	}
	clear(c.mu.waiters[len(kept):])
	c.mu.waiters = kept
	c.mu.Unlock()
	for _, w := range tell {
		w.done(err)
	}
}

// Awaited says whether somebody waits for what a compaction removes (WhenRemoved).
func (c *Compactor) Awaited() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.mu.waiters) > 0
}

// shortagePause is the time between two attempts while the machine is short of
// something.
const shortagePause = 100 * time.Millisecond

// maxPause bounds the pause between steps that are spread.
const maxPause = 100 * time.Millisecond

// pause is how long to rest after a step that took so long, if what is left of
// the compaction should take so long.
func (c *Compactor) pause(took, left time.Duration) time.Duration {
	if c.cfg.Pause < 0 {
		return 0
	}
	pause := max(c.cfg.Pause, 2*took)
	if c.Awaited() || c.cfg.Hurry != nil && c.cfg.Hurry() {
		return pause
	}
	steps := c.cfg.Store.Backlog()/int64(c.cfg.BatchLimit) + 1
	return max(pause, min(left/time.Duration(steps)-took, maxPause))
}

// Start drives the compactor with a goroutine until Stop. failed is called
// with a fault of the engine.
func (c *Compactor) Start(failed func(error)) {
	ctx, cancel := context.WithCancel(context.Background())
	c.stop = cancel
	c.done = make(chan struct{})
	go func() {
		defer close(c.done)
		short := false
		for {
			select {
			case <-ctx.Done():
				return
			case <-c.kick:
			}
			var target int64
			var since, end time.Time
			for ctx.Err() == nil {
				began, finished := time.Now(), c.finished()
				if since.IsZero() {
					since = began
				}
				more, err := c.Step()
				if shortage.Is(err) {
					if !short {
						c.cfg.Logger.Warn("the removal of compacted revisions waits for the end of a shortage", zap.Error(err))
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
				done := c.finished() > finished
				if c.cfg.Stepped != nil && (more || done) {
					c.cfg.Stepped(time.Since(began))
				}
				if done {
					if c.cfg.Finished != nil {
						c.cfg.Finished(time.Since(since))
					}
					since = time.Time{}
				}
				if !more {
					break
				}
				if t := c.cfg.Store.Forgotten(); t != target {
					target, end = t, began.Add(c.cfg.Spread)
				}
				if pause := c.pause(time.Since(began), time.Until(end)); pause > 0 {
					select {
					case <-ctx.Done():
					case <-time.After(pause):
					}
				}
			}
		}
	}()
}

// Stop ends the goroutine and the waiting. What is not removed yet is removed
// after the next start.
func (c *Compactor) Stop() {
	if c.stop != nil {
		c.stop()
		<-c.done
	}
	c.finish(0, ErrStopped)
}
