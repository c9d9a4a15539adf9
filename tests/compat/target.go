package compat

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/hawser-kv/hawser/proto/adminpb"
	"github.com/hawser-kv/hawser/tests/etcdtools"
)

// A Target is a kind of server that answers etcd's API.
type Target interface {
	// Name stands in reports.
	Name() string
	// Start starts a server with an empty keyspace. It is stopped at the end of the test.
	Start(t testing.TB) Server
}

// A Server is one running server of a Target.
type Server interface {
	// Endpoint is the client address as host:port.
	Endpoint() string
	// Split makes each key the first key of a range. Targets without ranges do nothing.
	Split(ctx context.Context, keys [][]byte) error
	// Stop stops the server before the end of the test.
	Stop()
}

// Etcd is the real etcd.
type Etcd struct{}

// Name implements Target.
func (Etcd) Name() string { return "etcd" }

// Start implements Target.
func (Etcd) Start(t testing.TB) Server { return etcdServer{etcdtools.StartEtcd(t)} }

type etcdServer struct{ running *etcdtools.Running }

func (s etcdServer) Endpoint() string                      { return s.running.Endpoint }
func (s etcdServer) Split(context.Context, [][]byte) error { return nil }
func (s etcdServer) Stop()                                 { s.running.Stop() }

// Hawser is the server of this repository as a process of its own.
type Hawser struct {
	// Flags are appended to the command line.
	Flags []string
}

// Name implements Target.
func (Hawser) Name() string { return "hawser" }

// Start implements Target.
func (h Hawser) Start(t testing.TB) Server {
	t.Helper()
	binary := HawserBinary(t)
	running := etcdtools.StartServer(t, func(client string) *exec.Cmd {
		args := append([]string{
			"--data-dir", filepath.Join(t.TempDir(), "data"),
			"--listen-client-urls", "http://" + client, "--advertise-client-urls", "http://" + client,
			// etcd's default: Status shows a quota, and its field is left out when there is none.
			"--quota-backend-bytes", "2147483648",
		}, h.Flags...)
		return exec.Command(binary, args...)
	})
	conn, err := grpc.NewClient(running.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return hawserServer{running, adminpb.NewAdminClient(conn)}
}

type hawserServer struct {
	running *etcdtools.Running
	admin   adminpb.AdminClient
}

func (s hawserServer) Endpoint() string { return s.running.Endpoint }
func (s hawserServer) Stop()            { s.running.Stop() }

func (s hawserServer) Split(ctx context.Context, keys [][]byte) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, key := range keys {
		request := &adminpb.SplitRangeRequest{At: &adminpb.SplitRangeRequest_Key{Key: key}}
		if _, err := s.admin.SplitRange(ctx, request); err != nil {
			return fmt.Errorf("split at %s: %w", quote(key), err)
		}
	}
	return nil
}

var hawserBuild struct {
	sync.Once
	dir string
	err error
}

// HawserBinary returns the path of the hawser command: $HAWSER_BINARY, or built from this tree, once in a process.
// RemoveHawserBinary removes what was built.
func HawserBinary(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("HAWSER_BINARY"); path != "" {
		return path
	}
	hawserBuild.Do(func() {
		if hawserBuild.dir, hawserBuild.err = os.MkdirTemp("", "hawser-compat-"); hawserBuild.err != nil {
			return
		}
		// A delete of three keys takes the way of one of millions.
		args := []string{"build", "-o", hawserBuild.dir, "-ldflags", "-X github.com/hawser-kv/hawser/cmd/node.wideDeleteKeys=2"}
		if raceDetector {
			args = append(args, "-race")
		}
		out, err := exec.Command("go", append(args, "github.com/hawser-kv/hawser/cmd/hawser")...).CombinedOutput()
		if err != nil {
			hawserBuild.err = fmt.Errorf("go build ./cmd/hawser: %w\n%s", err, out)
		}
	})
	if hawserBuild.err != nil {
		t.Fatal(hawserBuild.err)
	}
	return filepath.Join(hawserBuild.dir, "hawser")
}

// RemoveHawserBinary is for TestMain, after all tests.
func RemoveHawserBinary() {
	if hawserBuild.dir != "" {
		os.RemoveAll(hawserBuild.dir)
	}
}
