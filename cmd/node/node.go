// Package node wires one node of Hawser: its data directory, engine, ranges,
// placement service and proxy, its listeners and its background work. It
// decides nothing about data.
package node

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/cmd/config"
	"github.com/hawser-kv/hawser/cmd/version"
	"github.com/hawser-kv/hawser/placement/autocompact"
	"github.com/hawser-kv/hawser/placement/sequencer"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proxy"
	"github.com/hawser-kv/hawser/proxy/router"
	"github.com/hawser-kv/hawser/proxy/watch"
	"github.com/hawser-kv/hawser/range/compactor"
	"github.com/hawser-kv/hawser/range/engine"
	"github.com/hawser-kv/hawser/range/replica"
	"github.com/hawser-kv/hawser/range/store"
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

// giveUpTimeout bounds the hand-over of a start that is given up.
const giveUpTimeout = 10 * time.Second

// newIDs draws a cluster and a node id; both fit a positive int64, which some
// clients parse.
func newIDs() (clusterID, nodeID uint64) {
	draw := func() uint64 {
		var b [8]byte
		for {
			_, _ = rand.Read(b[:]) // never fails
			if id := binary.BigEndian.Uint64(b[:]) >> 1; id != 0 {
				return id
			}
		}
	}
	return draw(), draw()
}

func (n *Node) coreConfig() CoreConfig {
	c := &n.cfg
	ticks := func(d time.Duration) int { return ticksOf(d, c.HeartbeatInterval) }
	return CoreConfig{
		Engine: engine.Config{
			FS: c.FS, Dir: c.DataDir, NewIDs: newIDs, MustExist: c.InitialClusterState == config.ClusterExisting,
			CacheBytes: c.EngineCacheBytes, MemTableBytes: c.EngineMemTableBytes, MaxOpenFiles: n.openFiles, NoSync: c.UnsafeNoFsync,
		},
		Logger: n.log,
		Store: store.Config{
			Shards: c.Shards, MetaShard: true,
			TickInterval: c.HeartbeatInterval, ReserveBytes: reserveBytes,
			FreeBytes: func() (uint64, error) {
				if n.core == nil {
					return reserveBytes * 2, nil // opening: looked at with the first tick
				}
				return n.core.freeBytes()
			},
			QuotaBytes: c.QuotaBackendBytes,
			UsedBytes: func() int64 {
				if n.core == nil {
					return 0
				}
				return n.core.engine.Size().InUse
			},
		},
		Sequencer: sequencer.Config{
			WakeTicks: ticks(c.ElectionTimeout), SplitTicks: ticks(5 * time.Second),
		},
		Limits: replica.Limits{
			IdleTicks: ticks(30 * time.Second), SilentTicks: ticks(5 * time.Second), RetryTicks: ticks(500 * time.Millisecond),
			AbdicateTicks: ticks(c.ElectionTimeout), WaitTicks: ticks(10 * time.Second),
			MaxDeletedKeys: wideDelete(),
		},
		ElectionTicks: ticks(c.ElectionTimeout),
		Watch:         watch.Config{ProgressInterval: c.WatchProgressNotifyInterval},
		Router: router.Config{
			RequestTimeout: 5*time.Second + 2*c.ElectionTimeout,
			SpanKeys:       int64(wideDelete()),
			Responses:      router.NewResponses(c.MaxResponseBytes),
		},
		Compactor: compactor.Config{
			BatchLimit: c.CompactionBatchLimit, Pause: c.CompactionSleepInterval,
		},
	}
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

// wideDeleteKeys is set by the linker (-X), in binaries for tests only: how many keys a
// request may delete before that is a large deletion. Empty: the defaults.
var wideDeleteKeys string

// wideDelete returns wideDeleteKeys, 0 for the defaults.
func wideDelete() int {
	if wideDeleteKeys == "" {
		return 0
	}
	n, err := strconv.Atoi(wideDeleteKeys)
	if err != nil {
		panic("node: wideDeleteKeys: " + err.Error())
	}
	return n
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

// ticksOf returns a duration in ticks of an interval, rounded up.
func ticksOf(d, interval time.Duration) int {
	return int((d + interval - 1) / interval)
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

// AutoCompaction returns the policy that a configuration asks for, nil if none.
func (c *Core) AutoCompaction(cfg config.Config) *autocompact.Policy {
	switch {
	case cfg.AutoCompactionMode == config.Periodic && cfg.AutoCompactionWindow > 0:
		return autocompact.Periodic(cfg.AutoCompactionWindow)
	case cfg.AutoCompactionMode == config.Revision && cfg.AutoCompactionRevisions > 0:
		return autocompact.Revisions(cfg.AutoCompactionRevisions)
	}
	return nil
}

func (n *Node) autoCompact() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	policy := n.core.AutoCompaction(n.cfg.Config)
	t := time.NewTicker(policy.Interval())
	defer t.Stop()
	for {
		select {
		case <-n.stopping:
			return
		case now := <-t.C:
			rev := policy.Observe(now, n.core.Router.LocalRevision())
			if rev == 0 {
				continue
			}
			if _, err := n.core.Router.Compact(ctx, rev); err != nil {
				n.log.Warn("auto compaction", zap.Int64("revision", rev), zap.Error(err))
				continue
			}
			policy.Compacted(now, rev)
		}
	}
}

func (n *Node) listen() error {
	openFiles, connections, err := shareDescriptors(descriptorLimit())
	if err != nil {
		return err
	}
	n.openFiles = openFiles
	places := make(chan struct{}, connections)
	for _, group := range []struct {
		what   string
		urls   []url.URL
		to     *[]net.Listener
		places chan struct{}
	}{
		{"clients", n.cfg.ListenClientURLs, &n.listeners, places},
		{"HTTP", n.cfg.ListenClientHTTPURLs, &n.webListeners, places},
		{"metrics", n.cfg.ListenMetricsURLs, &n.metricsListeners, make(chan struct{}, metricsConnections)},
	} {
		for _, u := range group.urls {
			l, err := listenOn(u)
			if err != nil {
				n.closeListeners()
				return fmt.Errorf("listen for %s on %s: %w", group.what, u.String(), err)
			}
			if connections > 0 {
				l = newLimitedListener(l, group.places)
			}
			*group.to = append(*group.to, l)
		}
	}
	for i, u := range n.cfg.ListenClientURLs {
		n.cfg.AdvertiseClientURLs = realPort(n.cfg.AdvertiseClientURLs, u, n.listeners[i])
	}
	return nil
}

// realPort replaces a port 0 in what is advertised for u by l's.
func realPort(advertised []url.URL, u url.URL, l net.Listener) []url.URL {
	if network, _ := config.ListenAddress(u); network != "tcp" || u.Port() != "0" {
		return advertised
	}
	out := make([]url.URL, len(advertised))
	for i, a := range advertised {
		if a.Host == u.Host {
			_, port, err := net.SplitHostPort(l.Addr().String())
			if err == nil {
				a.Host = net.JoinHostPort(a.Hostname(), port)
			}
		}
		out[i] = a
	}
	return out
}

func (n *Node) closeListeners() {
	for _, l := range slices.Concat(n.listeners, n.webListeners, n.metricsListeners) {
		_ = l.Close() // given up
	}
}

func (n *Node) serve() error {
	c := n.core
	member := proxy.Member{ID: c.NodeID, Name: n.cfg.Name, PeerURLs: urlStrings(n.cfg.InitialAdvertisePeerURLs),
		ClientURLs: urlStrings(n.cfg.AdvertiseClientURLs)}
	keepaliveInterval, keepaliveTimeout := n.cfg.ServerKeepalive()
	var debug http.Handler
	if n.cfg.EnablePprof {
		debug = profiles()
	}
	sc := proxy.Config{
		ClusterID: c.ClusterID, MemberID: c.NodeID, Members: []proxy.Member{member},
		Version: version.Get().Version,
		Router:  c.Router,
		Watch: proxy.NewWatchServer(proxy.WatchConfig{
			Service: c.Watch, Current: c.current,
			Previous:      history{c.MVCC}.previous,
			FillHeader:    proxy.FillHeader(c.ClusterID, c.NodeID, c),
			FragmentBytes: n.cfg.MaxRequestBytes + 512<<10,
			Responses:     c.Router.Responses(),
			Sent:          n.metrics.SentEvents,
			Stopping:      n.draining,
		}),
		Meta: c, Storage: c, Replicas: c.Ranges, Metrics: n.metrics, Stats: c.Stats, BusiestRanges: c.busiestRanges,
		MaxRequestBytes: n.cfg.MaxRequestBytes, MaxTxnOps: n.cfg.MaxTxnOps,
		MaxConcurrentStreams: n.cfg.MaxConcurrentStreams,
		KeepaliveMinTime:     n.cfg.GRPCKeepAliveMinTime,
		KeepaliveInterval:    keepaliveInterval, KeepaliveTimeout: keepaliveTimeout,
		RequestTimeout: 5*time.Second + 2*n.cfg.ElectionTimeout, ElectionTimeout: n.cfg.ElectionTimeout,
		QuotaBytes: max(n.cfg.QuotaBackendBytes, 0), ExtensiveMetrics: n.cfg.Metrics == "extensive", SlowRequest: n.cfg.WarningUnaryRequestDuration,
		Debug:  debug,
		Logger: n.log,
	}
	if n.cfg.TuneServer != nil {
		n.cfg.TuneServer(&sc)
	}
	server, err := proxy.NewServer(sc)
	if err != nil {
		return err
	}
	n.server = server
	clients := server.Serve
	if len(n.webListeners) > 0 {
		clients = server.ServeGRPC
	}
	n.serveOn(n.listeners, clients)
	n.serveOn(n.webListeners, server.ServeHTTP1)
	n.serveOn(n.metricsListeners, server.ServeMetrics)
	return nil
}

// serveOn serves each of ls; one that fails ends the node.
func (n *Node) serveOn(ls []net.Listener, serve func(net.Listener) error) {
	for _, l := range ls {
		n.background(func() {
			if err := serve(l); err != nil && !errors.Is(err, proxy.ErrServerStopped) {
				n.fail(err)
			}
		})
	}
}

func urlStrings(us []url.URL) []string {
	out := make([]string, len(us))
	for i, u := range us {
		out[i] = u.String()
	}
	return out
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

// Close drains and stops: no new requests, streams end, requests under way
// finish, revisions are handed over without a gap (R2), the engine is closed.
// The fault that ended the node, or ends it meanwhile, is in the chain of the
// error.
func (n *Node) Close(ctx context.Context) error {
	var err error
	n.closeOnce.Do(func() {
		close(n.draining)
		err = n.end(nil, func() error {
			err := errors.Join(n.server.Drain(ctx), n.stopCore(ctx, true))
			n.server.Stop()
			return err
		})
	})
	return err
}

// end returns, with the errors of stop, why the node ends: what is known already
// and the node's fault. Once the engine has given up with locks held, stop may wait
// for ever for who writes to it, and nothing is left to be done in order: end does
// not wait for it then.
func (n *Node) end(why error, stop func() error) error {
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	var err error
	select {
	case err = <-stopped:
	case <-n.core.engine.Fault.Locked():
		err = engine.ErrNotClosed
		defer n.closeListeners()
	}
	if fault := n.core.Err(); fault != nil {
		n.fail(fault) // watchStore may have ended before it saw it
	}
	err = errors.Join(why, err)
	if p := n.fault.Load(); p != nil && !errors.Is(err, *p) {
		err = errors.Join(*p, err)
	}
	return err
}

// Kill stops as a crash would, for tests: nothing is drained or handed over.
func (n *Node) Kill() error {
	var err error
	n.closeOnce.Do(func() {
		close(n.draining)
		err = n.end(nil, func() error {
			n.server.Stop()
			return n.stopCore(context.Background(), false)
		})
	})
	return err
}

func (n *Node) stopCore(ctx context.Context, handOver bool) error {
	c := n.core
	if handOver && c.Err() == nil {
		done := make(chan struct{})
		c.Placement.HandOver(func() { close(done) })
		select {
		case <-done:
		case <-ctx.Done():
			n.log.Warn("stopping without a hand-over: revisions will have a gap")
		case <-c.Store.Failed():
		}
	}
	close(n.stopping)
	c.Router.Stop()
	c.Compactor.Stop()
	c.Materialiser.Stop()
	c.Store.Stop()
	c.Client.Stop()
	c.Watch.Stop()
	n.running.Wait()
	if handOver && c.Err() == nil {
		n.flush(ctx)
	}
	return c.Close()
}

// flush spares the next start to read all of it from the engine's log again.
// Nothing rests on it: without room the engine would try again and again, and a
// slow disk must not keep the node from its end.
func (n *Node) flush(ctx context.Context) {
	free, err := n.core.freeBytes()
	if err == nil && free < reserveBytes {
		err = store.ErrNoSpace
	}
	if err == nil {
		err = n.core.engine.Flush(ctx)
	}
	if err == nil {
		return
	}
	n.log.Warn("stopping without a flush of the engine: the next start takes longer", zap.Error(err))
}

// profiles serves /debug/pprof.
func profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}
