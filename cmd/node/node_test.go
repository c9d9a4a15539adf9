package node

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap/zaptest"
)

var anyPort = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}

// startTest starts a node on a port the system chose, with data in dir.
func startTest(t *testing.T, dir string) *Node {
	t.Helper()
	cfg := Config{Logger: zaptest.NewLogger(t)}
	cfg.DataDir = dir
	cfg.ListenClientURLs = anyPort
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

// TestHTTPHasItsOwnAddresses: --listen-client-http-urls takes HTTP away from the
// client addresses, --listen-metrics-urls adds some; --enable-pprof and
// --metrics=extensive show there.
func TestHTTPHasItsOwnAddresses(t *testing.T) {
	cfg := Config{Logger: zaptest.NewLogger(t)}
	cfg.DataDir = t.TempDir()
	cfg.ListenClientURLs, cfg.ListenClientHTTPURLs, cfg.ListenMetricsURLs = anyPort, anyPort, anyPort
	cfg.EnablePprof, cfg.Metrics = true, "extensive"
	n, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer closeTest(t, n)
	if _, err := dial(t, n).Put(t.Context(), "a", "1"); err != nil {
		t.Fatal(err)
	}
	get := func(l net.Listener, path string) (int, string) {
		t.Helper()
		client := http.Client{Timeout: 10 * time.Second}
		resp, err := client.Get("http://" + l.Addr().String() + path)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	if code, body := get(n.listeners[0], "/health"); code != 0 {
		t.Errorf("HTTP on the client address: %d %s", code, body)
	}
	for _, path := range []string{"/health", "/version", "/debug/pprof/goroutine?debug=1"} {
		if code, body := get(n.webListeners[0], path); code != 200 {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	for path, want := range map[string]int{"/readyz": 200, "/debug/pprof/": 404} {
		if code, body := get(n.metricsListeners[0], path); code != want {
			t.Errorf("%s on the metrics address: %d %s, want %d", path, code, body, want)
		}
	}
	const count = `grpc_server_handling_seconds_count{grpc_method="Put",grpc_service="etcdserverpb.KV",grpc_type="unary"} 1`
	if _, body := get(n.metricsListeners[0], "/metrics"); !strings.Contains(body, count) {
		t.Error("no latency of puts")
	}
}
