package engine_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sort"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hawser-kv/hawser/cmd/node"
	"github.com/hawser-kv/hawser/range/engine"
)

// startNode starts a node on a port the system chose, with data in dir.
func startNode(t *testing.T, dir string) (*node.Node, *clientv3.Client) {
	t.Helper()
	var cfg node.Config
	cfg.DataDir = dir
	cfg.ListenClientURLs = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	n, err := node.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{n.ClientAddr()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // only its network
	return n, c
}

// logOf returns the newest log of a node that was killed under load.
func logOf(t *testing.T) (dir, name string, content []byte) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "data")
	n, c := startNode(t, dir)
	var clients sync.WaitGroup
	for i := range 8 {
		clients.Go(func() {
			for k := range 15 {
				if _, err := c.Put(t.Context(), fmt.Sprintf("%d/%d", i, k), string(bytes.Repeat([]byte{byte(i)}, 500+k*2000))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	clients.Wait()
	// One large batch: its record goes over many blocks.
	kv := pb.NewKVClient(c.ActiveConnection())
	for i := range 3 {
		if _, err := kv.Put(t.Context(), &pb.PutRequest{Key: []byte("large"), Value: make([]byte, 300_000+i)}); err != nil {
			t.Fatal(err)
		}
	}
	name, content = killed(t, n, dir)
	return dir, name, content
}

// killed kills a node and returns its newest log. It removes the notes of what is
// synced: these tests are about what the log itself proves.
func killed(t *testing.T, n *node.Node, dir string) (name string, content []byte) {
	t.Helper()
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	name = newestLog(t, dir)
	content, err := os.ReadFile(name)
	if err := errors.Join(err, os.Remove(filepath.Join(dir, "engine", engine.SyncedFile))); err != nil {
		t.Fatal(err)
	}
	return name, content
}

func newestLog(t *testing.T, dir string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "engine", "*.log"))
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	sort.Strings(names)
	return names[len(names)-1]
}

// TestDamagedSmallLogIsRefused: also where the block that is damaged is the last,
// or the only one: all but the last two writes are proven by those behind them.
func TestDamagedSmallLogIsRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	n, c := startNode(t, dir)
	var proven int64
	for i := range 60 {
		if i == 58 {
			info, err := os.Stat(newestLog(t, dir))
			if err != nil {
				t.Fatal(err)
			}
			proven = info.Size()
		}
		if _, err := c.Put(t.Context(), fmt.Sprint("s/", i), fmt.Sprint("v", i)); err != nil {
			t.Fatal(err)
		}
	}
	name, content := killed(t, n, dir)
	if len(content) > engine.LogBlock || proven < 1000 {
		t.Fatalf("a log of %d bytes, %d of them proven", len(content), proven)
	}
	for i := int64(0); i < proven; i += 7 {
		damaged := bytes.Clone(content)
		damaged[i] ^= 1
		if err := os.WriteFile(name, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := engine.CheckLog(vfs.Default, dir); !errors.Is(err, engine.ErrDamaged) {
			t.Fatalf("byte %d of %d: %v", i, len(content), err)
		}
	}
}

// TestDamagedLogIsRefused flips bytes all over a log. Up to the last few rounds
// of writes, of which nothing later tells that they were synced, all are found.
func TestDamagedLogIsRefused(t *testing.T) {
	dir, name, content := logOf(t)
	if err := engine.CheckLog(vfs.Default, dir); err != nil {
		t.Fatal(err)
	}
	const large = 2 * 2 * 300_000 // each twice: as an entry and as data
	missed := 0
	for i := 5; i < len(content); i += len(content) / 150 {
		damaged := bytes.Clone(content)
		damaged[i] ^= 0x41
		if err := os.WriteFile(name, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		switch err := engine.CheckLog(vfs.Default, dir); {
		case errors.Is(err, engine.ErrDamaged):
		case err != nil:
			t.Fatalf("byte %d: %v", i, err)
		case i < len(content)-large-2*engine.LogBlock && content[i] != 0:
			missed++
			t.Logf("byte %d of %d: not noticed", i, len(content))
		}
	}
	if missed > 0 {
		t.Errorf("%d flips not noticed", missed)
	}
}

// TestCutLogIsNot: what a crash leaves of a log, also where it was written over
// an older one.
func TestCutLogIsNot(t *testing.T) {
	dir, name, content := logOf(t)
	older := bytes.Clone(content)
	if _, proven := engine.ScanLog(older, 7, true); proven {
		t.Fatal("records of another log count")
	}
	for n := len(content); n > 0; n -= len(content) / 40 {
		for _, rest := range [][]byte{nil, make([]byte, 100_000), bytes.Repeat([]byte("garbage"), 20_000)} {
			if err := os.WriteFile(name, append(content[:n:n], rest...), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := engine.CheckLog(vfs.Default, dir); err != nil {
				t.Fatalf("cut at %d of %d, then %d bytes: %v", n, len(content), len(rest), err)
			}
		}
	}
}
