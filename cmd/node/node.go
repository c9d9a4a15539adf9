// Package node wires one node of Hawser: its data directory, engine, ranges,
// placement service and proxy, its listeners and its background work. It
// decides nothing about data.
package node

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/cmd/config"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proxy"
)

// reserveBytes is the room on disk below which puts are refused.
const reserveBytes = 256 << 20

// Config says how a node runs. The zero value of FS is the disk.
type Config struct {
	config.Config
	Logger *zap.Logger
	// FS is where the data is.
	FS vfs.FS
	// Tune changes what a test wants different. May be nil.
	Tune func(*CoreConfig)
	// TuneServer does the same for the server. May be nil.
	TuneServer func(*proxy.Config)
}

// Node is a running node.
type Node struct {
	cfg  Config
	log  *zap.Logger
	core *Core

	server  *proxy.Server
	metrics *proxy.Metrics
	// listeners are for clients, the first is ClientAddr; webListeners and
	// metricsListeners for HTTP alone and for metrics and health.
	listeners, webListeners, metricsListeners []net.Listener
	// openFiles is how many file descriptors the engine may use for its tables.
	openFiles int
	running   sync.WaitGroup
	// draining ends the Watch streams, stopping the background work.
	draining  chan struct{}
	stopping  chan struct{}
	failed    chan error
	failOnce  sync.Once
	fault     atomic.Pointer[error]
	closeOnce sync.Once
}

// Start opens the data directory, starts the node and returns when it serves.
func Start(ctx context.Context, cfg Config) (_ *Node, err error) {
	cfg.EnsureDefaults()
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	if cfg.FS == nil {
		cfg.FS = vfs.Default
	}
	n := &Node{
		cfg: cfg, log: cfg.Logger, metrics: proxy.NewMetrics(),
		draining: make(chan struct{}), stopping: make(chan struct{}), failed: make(chan error, 1),
	}
	// The listeners first: a port in use is found before the data is touched.
	if err := n.listen(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			n.closeListeners()
		}
	}()
	cc := n.coreConfig()
	cc.Registry = n.metrics.Registry()
	if cfg.Tune != nil {
		cfg.Tune(&cc)
	}
	if n.core, err = OpenCore(cc); err != nil {
		return nil, err
	}
	if err := n.run(ctx); err != nil {
		// Who is asked to end while it starts leaves no gap either.
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveUpTimeout)
		defer cancel()
		return nil, n.end(err, func() error { return n.stopCore(end, ctx.Err() != nil) })
	}
	return n, nil
}

func (n *Node) run(ctx context.Context) error {
	c := n.core
	c.Store.Start(context.WithoutCancel(ctx))
	c.Watch.Start()
	faulted := func(what string) func(error) {
		return func(err error) {
			if isDamage(err) {
				c.damagedOutside(what, err)
				return
			}
			if c.Err() == nil { // else watchStore tells
				n.fail(err)
			}
		}
	}
	c.Compactor.Start(faulted("the removal of compacted revisions, which ends"))
	c.Materialiser.Start(faulted("the writing out of a large deletion, which ends"))
	n.background(n.tick)
	n.background(n.watchStore)
	n.background(n.tendKnown)
	n.background(n.giveMemoryBack)
	n.background(n.reclaim)
	c.Begin()
	// Serving begins when S answers: everything a client may ask rests on it.
	if _, _, err := c.current(ctx); err != nil {
		return fmt.Errorf("waiting for the sequencer: %w", err)
	}
	if c.AutoCompaction(n.cfg.Config) != nil {
		n.background(n.autoCompact)
	}
	return n.serve()
}

// background runs fn until the node stops.
func (n *Node) background(fn func()) { n.running.Go(fn) }

// awaitFor is how long a read may wait inside a range; the router's request
// timeout, 105 s at most, comes first.
const awaitFor = 2 * time.Minute

func (n *Node) tick() {
	t := time.NewTicker(n.cfg.HeartbeatInterval)
	defer t.Stop()
	await := ticksOf(awaitFor, n.cfg.HeartbeatInterval)
	for {
		select {
		case <-n.stopping:
			return
		case <-t.C:
			n.core.Tick(await)
		}
	}
}

// tendKnown takes the keys that were there at the start into the filter of known
// keys, 200,000 a second, and looks now and then whether there is more to do.
func (n *Node) tendKnown() {
	const stepKeys, pause, rest = 2000, 10 * time.Millisecond, 10 * time.Second
	t := time.NewTicker(pause)
	defer t.Stop()
	for {
		select {
		case <-n.stopping:
			return
		case <-t.C:
		}
		done, err := n.core.MVCC.TendKnown(stepKeys)
		switch {
		case err != nil:
			// It is only slower without; reads of the same rows tell of damage.
			n.log.Warn("filter of known keys", zap.Error(err))
			t.Reset(rest)
		case done:
			t.Reset(rest)
		default:
			t.Reset(pause)
		}
	}
}

func (n *Node) watchStore() {
	select {
	case <-n.stopping:
	case <-n.core.Store.Failed():
		n.fail(n.core.Err())
	}
}

// fail reports the fault that ends the node.
func (n *Node) fail(err error) {
	n.failOnce.Do(func() {
		n.log.Error("fault", zap.Error(err))
		n.fault.Store(&err)
		n.failed <- err
	})
}

// askAgainAfter is the pause before S is asked again when it does not serve.
const askAgainAfter = 20 * time.Millisecond

// current asks S for the current revision and the compacted one; while S does
// not serve (no leader, a hand-over) it is asked again.
func (c *Core) current(ctx context.Context) (revision, compacted int64, err error) {
	type answer struct {
		a   *placementpb.QueryAnswer
		err error
	}
	for {
		got := make(chan answer, 1)
		c.Client.Query(nil, func(a *placementpb.QueryAnswer, err error) { got <- answer{a, err} })
		select {
		case a := <-got:
			if a.err != nil {
				return 0, 0, a.err
			}
			if !a.a.Refused {
				c.Router.Saw(a.a.Revision) // it goes into a header of a watch
				return a.a.Revision, a.a.Compacted, nil
			}
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		case <-c.Store.Failed():
			return 0, 0, c.Store.Err()
		}
		select {
		case <-time.After(askAgainAfter):
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		}
	}
}

// ClientAddr is the address of the first client listener, as a client dials it:
// host and port, or unix:PATH.
func (n *Node) ClientAddr() string {
	addr := n.listeners[0].Addr()
	if addr.Network() == "unix" {
		return "unix:" + addr.String()
	}
	return addr.String()
}

// Err delivers the fault that ended the node, if one does.
func (n *Node) Err() <-chan error { return n.failed }

// Core returns the node's inside, for tests.
func (n *Node) Core() *Core { return n.core }
