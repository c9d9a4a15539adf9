package node

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap/zaptest"
)

func startOnSocket(t *testing.T, dir, socket string) (*Node, error) {
	t.Helper()
	cfg := Config{Logger: zaptest.NewLogger(t)}
	cfg.DataDir = dir
	cfg.ListenClientURLs = []url.URL{{Scheme: "unix", Path: socket}}
	return Start(t.Context(), cfg)
}

// TestUnixSocketServesClients also covers the file of a socket: a server that is
// stopped removes it, one that is killed leaves it behind, and what somebody
// listens on is never taken away.
func TestUnixSocketServesClients(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(t.TempDir(), "s")
	n, err := startOnSocket(t, dir, socket)
	if err != nil {
		t.Fatal(err)
	}
	for _, endpoint := range []string{n.ClientAddr(), "unix://" + socket} {
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if _, err := c.Put(t.Context(), "k", "v"); err != nil {
			t.Fatalf("%s: %v", endpoint, err)
		}
		members, err := c.MemberList(t.Context())
		if err != nil || len(members.Members[0].ClientURLs) != 1 || members.Members[0].ClientURLs[0] != "unix://"+socket {
			t.Fatalf("members %v, error %v", members, err)
		}
	}
	web := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	resp, err := web.Get("http://local/health")
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("health: %v, %v", resp, err)
	}
	_ = resp.Body.Close()
	web.CloseIdleConnections()

	if other, err := startOnSocket(t, t.TempDir(), socket); err == nil {
		closeTest(t, other)
		t.Fatal("a second server took a socket in use")
	}
	closeTest(t, n)
	if _, err := os.Lstat(socket); !os.IsNotExist(err) {
		t.Fatalf("the socket of a stopped server: %v", err)
	}

	// As kill -9 leaves it.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	n, err = startOnSocket(t, dir, socket)
	if err != nil {
		t.Fatal(err)
	}
	closeTest(t, n)
}

func TestFileThatIsNoSocketIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := startOnSocket(t, t.TempDir(), path); err == nil {
		closeTest(t, n)
		t.Fatal("listens on a file")
	}
	if content, err := os.ReadFile(path); err != nil || string(content) != "mine" {
		t.Fatalf("content %q, error %v", content, err)
	}
}
