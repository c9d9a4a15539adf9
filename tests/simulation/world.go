package simulation

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hawser-kv/hawser/cmd/node"
	"github.com/hawser-kv/hawser/proxy/router"
	"github.com/hawser-kv/hawser/proxy/watch"
	"github.com/hawser-kv/hawser/range/compactor"
	"github.com/hawser-kv/hawser/range/engine"
	"github.com/hawser-kv/hawser/range/materialiser"
	"github.com/hawser-kv/hawser/range/replica"
	"github.com/hawser-kv/hawser/range/store"
	"github.com/hawser-kv/hawser/tests/history"
)

// Options say what a world does.
type Options struct {
	Seed  uint64
	Steps int
	// Clients with one request in flight each.
	Clients int
	// Shards is the number of workers for the ranges; the meta group has one more.
	Shards int
	// Faults lets nodes crash, disks fail and fill up.
	Faults bool
	// Plant is a bug to be found by the checkers.
	Plant Plant
}

// errCrash is what the engine commit before which the node crashes gets.
var errCrash = errors.New("simulation: the node crashes before this commit")

// world is one simulated cluster.
type world struct {
	opt   Options
	rng   *rand.Rand
	clock clock
	node  *simNode
	// moment numbers what happens, for the recorded history.
	moment  int64
	clients []*simClient
	run     history.Run
	stats   Stats
	trace   uint64
	fail    error
}

// Stats says what happened in a run.
type Stats struct {
	Steps, Crashes, CommitCrashes, DiskFaults, FullDisks int
	Splits, Compactions                                  int
	// Interleaved rounds of one worker lay within that of another.
	Interleaved                int
	Answered, Refused, Unknown int
	Events, Watches            int
	Revision                   int64
	// Written is how often some of a large deletion was written out.
	Written int
	// Trace is a hash of everything that was decided and answered: two runs of
	// one seed have the same.
	Trace uint64
}

func (s Stats) String() string {
	return fmt.Sprintf("%d steps, revision %d, %d answered, %d refused, %d unknown, %d splits, %d compactions, %d watches with %d events, %d rounds within another, %d parts of large deletions written out, "+
		"%d crashes and %d before a commit, %d disk faults, %d full disks, trace %016x",
		s.Steps, s.Revision, s.Answered, s.Refused, s.Unknown, s.Splits, s.Compactions, s.Watches, s.Events, s.Interleaved, s.Written,
		s.Crashes, s.CommitCrashes, s.DiskFaults, s.FullDisks, s.Trace)
}

// simNode is a node and its disk.
type simNode struct {
	mem  *vfs.MemFS
	core *node.Core
	// life counts the node's starts: what belongs to an earlier one is dead.
	life int
	// committing shards are in a round, each before its commit within that of the one
	// before it.
	committing map[int]bool
	// crashAfter counts engine commits down to a crash; 0 for none.
	crashAfter int
	crashed    bool
	full       bool
}

func newWorld(opt Options) (*world, error) {
	w := &world{opt: opt, rng: rand.New(rand.NewPCG(opt.Seed, 0x68617773)), node: &simNode{mem: vfs.NewCrashableMem()}}
	if err := w.start(); err != nil {
		return nil, err
	}
	for i := range opt.Clients {
		w.clients = append(w.clients, newClient(w, i))
	}
	return w, nil
}

func (w *world) note(format string, args ...any) {
	h := fnv.New64a()
	fmt.Fprintf(h, "%016x %d ", w.trace, w.moment)
	fmt.Fprintf(h, format, args...)
	w.trace = h.Sum64()
}

func (w *world) tick() int64 {
	w.moment++
	return w.moment
}

// start starts the node on what its disk holds.
func (w *world) start() error {
	n := w.node
	n.life++
	n.crashed, n.crashAfter = false, 0
	n.committing = map[int]bool{}
	life := n.life
	var fs vfs.FS = n.mem
	if w.opt.Plant == AckBeforeSync {
		fs = lyingFS{n.mem}
	}
	ids := rand.New(rand.NewPCG(w.opt.Seed, 1))
	core, err := node.OpenCore(node.CoreConfig{
		Engine: engine.Config{
			FS: fs, Dir: "data", CacheBytes: 1 << 20,
			NewIDs: func() (uint64, uint64) { return ids.Uint64()>>1 | 1, ids.Uint64()>>1 | 1 },
			Tune: func(o *pebble.Options) {
				// What the engine does by itself must not depend on its own
				// goroutines' timing.
				o.DisableAutomaticCompactions = true
				o.MemTableSize = 16 << 20
			},
		},
		Store: store.Config{
			ManualSync: true, Shards: w.opt.Shards, MetaShard: true,
			FreeBytes: func() (uint64, error) {
				if n.full {
					return 0, nil
				}
				return 1 << 40, nil
			},
			BeforeCommit: func(shard int, b *pebble.Batch, _ bool) error {
				if n.life == life {
					if err := w.interleave(shard); err != nil {
						return err
					}
				}
				if n.crashAfter > 0 {
					if n.crashAfter--; n.crashAfter == 0 {
						n.crashed = true
						return errCrash
					}
				}
				return w.beforeCommit(b)
			},
		},
		// Deletes of few keys are large ones here.
		Limits: replica.Limits{IdleTicks: 40, SilentTicks: 10, RetryTicks: 5, MaxDeletedKeys: 1},
		Watch:  watch.Config{Limits: watch.Limits{StreamBytes: 4 << 10, CatchUpRevisions: 10, BufferBytes: 16 << 10}},
		Router: router.Config{SpanKeys: 1, After: func(d time.Duration, f func()) func() {
			return w.clock.after(d, func() {
				if n.life == life {
					f()
				}
			})
		}},
		Compactor:    compactor.Config{BatchLimit: 7},
		Materialiser: materialiser.Config{StepKeys: 1},
	})
	if err != nil {
		return fmt.Errorf("start %d: %w", life, err)
	}
	n.core = core
	core.Begin()
	return nil
}

// crash ends the node as a power failure would: what was not synced is gone.
func (w *world) crash() error {
	n := w.node
	w.note("crash")
	clone := n.mem.CrashClone(vfs.CrashCloneCfg{})
	old := n.core
	n.life++ // nothing of the old life reaches a client
	for _, c := range w.clients {
		c.serverGone()
	}
	// The old node goes on for a moment on its old disk, which nobody reads.
	n.crashAfter = 0
	old.Router.Stop()
	old.Store.Stop()
	old.Client.Stop()
	if err := old.Close(); err != nil && !errors.Is(err, errCrash) {
		return fmt.Errorf("close after a crash: %w", err)
	}
	n.mem = clone
	return w.start()
}

// step does one thing.
func (w *world) step() error {
	n := w.node
	w.stats.Steps++
	p := w.rng.IntN(1000)
	switch {
	case p < 430:
		return w.round()
	case p < 470: // the disk has it; the store hears of it later, or crashes before
		if err := n.core.Store.SyncLog(); err != nil {
			return w.faulted(err)
		}
	case p < 600:
		if _, err := n.core.Store.SyncNext(w.worker()); err != nil {
			return w.faulted(err)
		}
	case p < 640:
		n.core.Store.Tick()
		n.core.Tick(200)
		if err := n.core.Store.PollSpace(); err != nil {
			return err
		}
	case p < 670:
		w.clock.fire()
	case p < 740:
		n.core.Watch.Step()
	case p < 760:
		n.core.Watch.ReadHistory()
	case p < 775:
		if _, err := n.core.Compactor.Step(); err != nil {
			return w.faulted(err)
		}
	case p < 785:
		if err := w.materialise(); err != nil {
			return w.faulted(err)
		}
	case p < 990 || !w.opt.Faults:
		w.clients[w.rng.IntN(len(w.clients))].act()
	case p < 992:
		w.stats.Crashes++
		return w.crash()
	case p < 996:
		if n.crashAfter == 0 {
			n.crashAfter = 1 + w.rng.IntN(20)
		}
	case p < 998:
		if n.full = !n.full; n.full {
			w.stats.FullDisks++
		}
	default:
		// The disk fails for good at the next commit: as a crash, but the
		// process sees the error.
		n.crashAfter = 1
		w.stats.DiskFaults++
	}
	return nil
}

// worker draws one of the store's workers.
func (w *world) worker() int { return w.rng.IntN(w.node.core.Store.Workers()) }

// round has some workers do a round each.
func (w *world) round() error {
	for range 1 + w.rng.IntN(w.node.core.Store.Workers()) {
		if _, err := w.node.core.Store.RunRound(w.worker()); err != nil {
			return w.faulted(err)
		}
	}
	return nil
}

// interleave has, now and then, others act between what a shard has staged and its
// commit, as on several cores: another worker does a round, the materialiser or the
// compactor a step, and the disk takes what was committed so far, so that a crash leaves
// just that.
func (w *world) interleave(shard int) error {
	n := w.node
	n.committing[shard] = true
	defer delete(n.committing, shard)
	if other := w.worker(); w.rng.IntN(3) == 0 && !n.committing[other] {
		if _, err := n.core.Store.RunRound(other); err != nil {
			return err
		}
		w.stats.Interleaved++
	}
	if w.rng.IntN(4) == 0 {
		if err := w.materialise(); err != nil {
			return err
		}
	}
	if w.rng.IntN(8) == 0 {
		if _, err := n.core.Compactor.Step(); err != nil {
			return err
		}
	}
	if w.rng.IntN(8) == 0 {
		return n.core.Store.SyncLog()
	}
	return nil
}

// faulted restarts a node that stopped because of a planned fault.
func (w *world) faulted(err error) error {
	if !w.node.crashed {
		return err
	}
	w.stats.CommitCrashes++
	return w.crash()
}

// quiesce lets everything under way end, without faults.
func (w *world) quiesce(done func() bool) error {
	w.opt.Faults, w.node.full = false, false
	w.node.crashAfter = 0
	for i := range 200_000 {
		if i%20 == 0 && done() {
			return nil
		}
		var err error
		switch i % 8 {
		case 0, 1, 2, 3:
			for shard := range w.node.core.Store.Workers() {
				if err == nil {
					_, err = w.node.core.Store.RunRound(shard)
				}
			}
		case 4:
			for shard := range w.node.core.Store.Workers() {
				if err == nil {
					_, err = w.node.core.Store.SyncNext(shard)
				}
			}
		case 5:
			w.node.core.Watch.Step()
			w.node.core.Watch.ReadHistory()
		case 6:
			if i%64 == 6 {
				w.node.core.Store.Tick()
				w.node.core.Tick(200)
				err = w.node.core.Store.PollSpace()
			}
			w.clock.fire()
		default:
			if err = w.materialise(); err != nil {
				break
			}
			if _, err = w.node.core.Compactor.Step(); err == nil {
				for _, c := range w.clients {
					c.take()
				}
			}
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("it does not come to rest: %s", w.pending())
}

// materialise writes out some of a large deletion.
func (w *world) materialise() error {
	if w.node.core.MVCC.Pending() > 0 {
		w.stats.Written++
	}
	_, err := w.node.core.Materialiser.Step()
	return err
}

func (w *world) pending() string {
	s := ""
	for _, c := range w.clients {
		if c.op != nil {
			s += fmt.Sprintf("%v; ", c.op)
		}
	}
	return s + fmt.Sprintf("ranges that lag: %v; placement: %+v", w.node.core.Frontier.Lagging(), w.node.core.Placement.Stats())
}

// Simulate runs one seed. An error tells what went wrong, or what the history
// contradicts.
func Simulate(opt Options) (stats Stats, err error) {
	w, err := newWorld(opt)
	if err != nil {
		return Stats{}, err
	}
	defer func() {
		w.stats.Trace = w.trace
		stats = w.stats
	}()
	for range opt.Steps {
		if err := w.step(); err != nil {
			return stats, err
		}
		if w.fail != nil {
			return stats, w.fail
		}
	}
	if err := w.finish(); err != nil {
		return stats, err
	}
	return stats, errors.Join(history.Check(&w.run)...)
}

// finish ends all requests, reads the truth to its end and closes the node.
func (w *world) finish() error {
	w.run.Dense = w.stats.Crashes+w.stats.CommitCrashes == 0
	idle := func() bool {
		for _, c := range w.clients {
			if c.op != nil {
				return false
			}
		}
		return true
	}
	if err := w.quiesce(idle); err != nil {
		return err
	}
	last, err := w.current()
	if err != nil {
		return err
	}
	w.stats.Revision, w.run.Revision = last, last
	reached := func() bool {
		for _, c := range w.clients {
			if !c.reached(last) {
				return false
			}
		}
		return true
	}
	if err := w.quiesce(reached); err != nil {
		return fmt.Errorf("watchers do not reach revision %d: %w", last, err)
	}
	for _, c := range w.clients {
		c.finish(&w.run, last)
	}
	w.stats.Watches = len(w.run.Watches)
	for _, wt := range w.run.Watches {
		for _, r := range wt.Responses {
			w.stats.Events += len(r.Events)
		}
	}
	c := w.node.core
	if err := w.quiesce(func() bool { return !c.Compactor.Waiting() }); err != nil {
		return fmt.Errorf("the compaction does not end: %w", err)
	}
	if n, err := c.MVCC.Garbage(); n != 0 || err != nil {
		return fmt.Errorf("%d versions are left by the compaction at %d (%w)", n, c.MVCC.Forgotten(), err)
	}
	c.Router.Stop()
	c.Store.Stop()
	c.Client.Stop()
	return c.Close()
}
