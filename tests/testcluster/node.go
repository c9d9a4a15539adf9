package testcluster

import (
	"context"
	"net"
	"net/url"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/hawser-kv/hawser/cmd/config"
	"github.com/hawser-kv/hawser/cmd/node"
	"github.com/hawser-kv/hawser/proto/adminpb"
	"github.com/hawser-kv/hawser/proxy"
)

// Options say how a node is started. The zero value is a node as a user starts
// it, but that its time limits are far off: what a slow machine does late is
// not what tests are about.
type Options struct {
	// Splits are keys at which the keyspace is cut before Start returns.
	Splits []string
	// FS is the node's disk. nil: the real one.
	FS vfs.FS
	// Configure changes the flags. May be nil.
	Configure func(*config.Config)
	// Tune and TuneServer change what flags do not reach. May be nil.
	Tune       func(*node.CoreConfig)
	TuneServer func(*proxy.Config)
}

const (
	// farOff is a time limit that no test waits for.
	farOff = 10 * time.Minute
	// waitLimit is how long a test waits for what must come.
	waitLimit = 2 * time.Minute
)

func (o *Options) config(dir string) node.Config {
	cfg := node.Config{FS: o.FS, Logger: zap.NewNop(), TuneServer: o.TuneServer}
	cfg.DataDir = dir
	cfg.ListenClientURLs = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	if o.Configure != nil {
		o.Configure(&cfg.Config)
	}
	cfg.Tune = func(c *node.CoreConfig) {
		c.Router.RequestTimeout = farOff
		c.Limits.WaitTicks = int(farOff / (100 * time.Millisecond))
		if o.Tune != nil {
			o.Tune(c)
		}
	}
	return cfg
}

// Node is a node in the test's process.
type Node struct {
	tb  testing.TB
	opt Options
	dir string

	mu struct {
		sync.Mutex
		node *node.Node
		// up is closed while the node runs.
		up chan struct{}
	}
}

// Start starts a node on a directory of the test, on a port that the system
// chooses. It is closed with the test.
func Start(tb testing.TB, opt Options) *Node {
	tb.Helper()
	n := &Node{tb: tb, opt: opt, dir: filepath.Join(Dir(tb), "node")}
	n.mu.up = make(chan struct{})
	tb.Cleanup(func() {
		if n.Inside() != nil {
			n.Close()
		}
	})
	n.Restart()
	if len(opt.Splits) > 0 {
		n.Split(opt.Splits...)
	}
	return n
}

// Restart starts the node again on its directory, after Close or Kill.
func (n *Node) Restart() {
	n.tb.Helper()
	started, err := node.Start(context.Background(), n.opt.config(n.dir))
	if err != nil {
		n.tb.Fatalf("start the node: %v", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.node != nil {
		n.tb.Fatal("the node runs already")
	}
	n.mu.node = started
	close(n.mu.up)
}

func (n *Node) take() *node.Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	taken := n.mu.node
	n.mu.node, n.mu.up = nil, make(chan struct{})
	return taken
}

// Close stops the node as SIGTERM does.
func (n *Node) Close() {
	n.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), farOff)
	defer cancel()
	if err := n.take().Close(ctx); err != nil {
		n.tb.Errorf("close the node: %v", err)
	}
}

// Kill stops the node without draining or handing over.
func (n *Node) Kill() {
	n.tb.Helper()
	if err := n.take().Kill(); err != nil {
		n.tb.Errorf("kill the node: %v", err)
	}
}

// Inside is the running node, nil between two.
func (n *Node) Inside() *node.Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.node
}

// Dial connects to the node, wherever it listens now; between two lives it
// waits for the next.
func (n *Node) Dial(ctx context.Context) (net.Conn, error) {
	for {
		n.mu.Lock()
		in, up := n.mu.node, n.mu.up
		n.mu.Unlock()
		if in != nil {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", in.ClientAddr())
		}
		select {
		case <-up:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Client returns a client of its own connection, which finds the node again
// after a restart.
func (n *Node) Client() *clientv3.Client {
	n.tb.Helper()
	return client(n.tb, n.Dial)
}

func client(tb testing.TB, dial func(context.Context) (net.Conn, error)) *clientv3.Client {
	tb.Helper()
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"http://node.test:1"}, // a name for the dialer
		DialOptions: []grpc.DialOption{
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }),
		},
		Logger: zap.NewNop(),
	})
	if err != nil {
		tb.Fatalf("make a client: %v", err)
	}
	tb.Cleanup(func() { _ = c.Close() }) // it may have been closed by the test
	return c
}

// Split cuts the keyspace at keys.
func (n *Node) Split(keys ...string) {
	n.tb.Helper()
	c := n.Client()
	defer func() { _ = c.Close() }() // it has answered
	split(n.tb, c, keys)
}

func split(tb testing.TB, c *clientv3.Client, keys []string) {
	tb.Helper()
	admin := adminpb.NewAdminClient(c.ActiveConnection())
	for _, k := range keys {
		_, err := admin.SplitRange(context.Background(),
			&adminpb.SplitRangeRequest{At: &adminpb.SplitRangeRequest_Key{Key: []byte(k)}}, grpc.WaitForReady(true))
		if err != nil {
			tb.Fatalf("split at %.40q: %v", k, err)
		}
	}
}

// Wait waits until cond holds, and fails the test if it does not for long. what
// says what is waited for.
func Wait(tb testing.TB, what func() string, cond func() bool) {
	tb.Helper()
	deadline := time.NewTimer(waitLimit)
	defer deadline.Stop()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for !cond() {
		select {
		case <-deadline.C:
			tb.Fatalf("it never came: %s", what())
		case <-again.C:
		}
	}
}
