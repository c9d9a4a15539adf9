package crash

import (
	"bytes"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hawser-kv/hawser/cmd/node"
	"github.com/hawser-kv/hawser/tests/testcluster"
)

// flipValue inverts a byte of a value wherever tables have it: among the data,
// and in a Raft log. It returns their names.
func flipValue(t *testing.T, dir string, value []byte) (tables []string) {
	t.Helper()
	for _, name := range files(t, dir, "*.sst") {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for at := 0; ; at++ {
			i := bytes.Index(b[at:], value)
			if i < 0 {
				break
			}
			at += i
			flipAt(t, name, int64(at))
			tables = append(tables, name)
		}
	}
	if len(tables) == 0 {
		t.Fatal("no table has the value")
	}
	return tables
}

// startUncached starts a node in this process whose engine caches nothing, and
// returns the errors that it logs.
func startUncached(t *testing.T, dir string) (*node.Node, *observer.ObservedLogs) {
	t.Helper()
	core, log := observer.New(zap.ErrorLevel)
	cfg := node.Config{Logger: zap.New(core)}
	cfg.DataDir = dir
	cfg.ListenClientURLs = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.Tune = func(c *node.CoreConfig) {
		c.Engine.CacheBytes = 1 << 10
	}
	n, err := node.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return n, log
}

// isCorrupt is the answer of a range whose data is damaged.
func isCorrupt(err error) bool {
	return status.Code(err) == codes.DataLoss && strings.Contains(err.Error(), "etcdserver: corrupt cluster")
}

// TestDamageFoundWhileRunning flips a byte of a table that a running server has
// not read yet. The range whose data is there stops and answers that it is
// corrupt, to reads, writes, transactions and watches; nothing is ever answered
// wrong, the other ranges go on, and the log says what is damaged.
func TestDamageFoundWhileRunning(t *testing.T) {
	const keys, ranges = 4000, 4
	dir := filepath.Join(testcluster.Dir(t), "data")
	p := start(t, dir)
	splitAt(t, at(p.address).conn(t), keyName(keys/4), keyName(keys/2), keyName(3*keys/4))
	fill(t, p.address, keys)
	if _, err := pb.NewMaintenanceClient(at(p.address).conn(t)).Defragment(within(t), &pb.DefragmentRequest{}); err != nil {
		t.Fatal(err)
	}
	p.stop(t)

	// In this process, with a cache that holds next to nothing: what is read comes
	// from the disk.
	n, log := startUncached(t, dir)
	address := n.ClientAddr()
	tables := flipValue(t, dir, valueOf(5*keys/8))
	damaged := readable(t, address, keys)
	t.Logf("%d of %d keys are not served", damaged, keys)
	if damaged == 0 || damaged > keys/ranges {
		t.Fatalf("want the keys of one of %d ranges at most, and some", ranges)
	}
	named := slices.ContainsFunc(log.FilterMessage("damaged file").All(), func(e observer.LoggedEntry) bool {
		path, _ := e.ContextMap()["path"].(string)
		return slices.Contains(tables, path)
	})
	if !named || log.FilterMessage("replica stops").Len() != 1 {
		t.Errorf("the log does not say what is damaged: %v", log.All())
	}

	kv := pb.NewKVClient(at(address).conn(t))
	refused, served := 0, 0
	count := func(what string, err error) {
		t.Helper()
		switch {
		case err == nil:
			served++
		case isCorrupt(err):
			refused++
		default:
			t.Errorf("%s: %v", what, err)
		}
	}
	for i := range ranges {
		_, err := kv.Put(within(t), &pb.PutRequest{Key: []byte(keyName(i*keys/ranges + 1)), Value: valueOf(i*keys/ranges + 1)})
		count("put", err)
	}
	if refused != 1 || served != ranges-1 {
		t.Errorf("puts: %d refused, %d served", refused, served)
	}
	refused, served = 0, 0
	_, err := kv.Range(within(t), &pb.RangeRequest{Key: []byte("key"), RangeEnd: []byte("kez")})
	count("get of everything", err)
	_, err = kv.DeleteRange(within(t), &pb.DeleteRangeRequest{Key: []byte("key"), RangeEnd: []byte("kez")})
	count("delete of everything", err)
	if refused != 2 {
		t.Errorf("%d of two requests over all ranges were refused", refused)
	}
	watchDamaged(t, address, keys)
	if err := n.Kill(); err != nil {
		t.Errorf("kill: %v", err)
	}

	// The next process finds the same, at the latest when it is read.
	p = launch(t, dir)
	select {
	case <-p.ready:
		if readable(t, p.address, keys) == 0 {
			t.Error("the damage is forgotten")
		}
	case <-p.exited:
		if code := p.exitCode(); code != 1 || !strings.Contains(p.output(), "the data directory is damaged") {
			t.Errorf("exit code %d", code)
		}
	}
	p.kill()
}

// watchDamaged watches from the first revision: the watch ends with an error
// when it comes to what cannot be read, and sends nothing wrong before.
func watchDamaged(t *testing.T, address string, keys int) {
	t.Helper()
	stream, err := pb.NewWatchClient(at(address).conn(t)).Watch(within(t))
	if err != nil {
		t.Fatal(err)
	}
	err = stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
		Key: []byte("key"), RangeEnd: []byte("kez"), StartRevision: 2}}})
	if err != nil {
		t.Fatal(err)
	}
	next := 0
	for {
		resp, err := stream.Recv()
		if err != nil {
			if !isCorrupt(err) {
				t.Errorf("after %d events the watch ends: %v", next, err)
			}
			return
		}
		for _, e := range resp.Events {
			if next < keys && (string(e.Kv.Key) != keyName(next) || string(e.Kv.Value) != string(valueOf(next))) {
				t.Fatalf("event %d is of %s at %d", next, e.Kv.Key, e.Kv.ModRevision)
			}
			if next++; next == keys {
				t.Fatal("the watch has sent what cannot be read")
			}
		}
	}
}
