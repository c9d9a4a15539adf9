package node

import (
	"context"
	"fmt"
	"net/url"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap/zaptest"
)

// startTest starts a node on a port the system chose, with data in dir.
func startTest(t *testing.T, dir string) *Node {
	t.Helper()
	cfg := Config{Logger: zaptest.NewLogger(t)}
	cfg.DataDir = dir
	cfg.ListenClientURLs = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.EnsureDefaults()
	n, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func closeTest(t *testing.T, n *Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := n.Close(ctx); err != nil {
		t.Fatal(err)
	}
}

func dial(t *testing.T, n *Node) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{n.ClientAddr()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestRevisionsHaveNoGapOverACleanStop covers R2: the first write of the next
// process gets the next revision.
func TestRevisionsHaveNoGapOverACleanStop(t *testing.T) {
	dir := t.TempDir()
	want := int64(2)
	for round := range 3 {
		n := startTest(t, dir)
		c := dial(t, n)
		for i := range 5 {
			resp, err := c.Put(t.Context(), fmt.Sprintf("k%d", i), fmt.Sprintf("v%d", round))
			if err != nil {
				t.Fatal(err)
			}
			if resp.Header.Revision != want {
				t.Fatalf("round %d: put %d has revision %d, want %d", round, i, resp.Header.Revision, want)
			}
			want++
		}
		got, err := c.Get(t.Context(), "k", clientv3.WithPrefix())
		if err != nil {
			t.Fatal(err)
		}
		if got.Count != 5 || len(got.Kvs) != 5 || got.Header.Revision != want-1 {
			t.Fatalf("round %d: count %d, %d kvs, revision %d, want 5, 5, %d", round, got.Count, len(got.Kvs), got.Header.Revision, want-1)
		}
		closeTest(t, n)
	}
}
