package crash

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hawser-kv/hawser/tests/compat"
	"github.com/hawser-kv/hawser/tests/testcluster"
)

// launchLimited launches the binary with a soft and a hard limit of file descriptors.
func launchLimited(t *testing.T, soft, hard int, dir string, flags ...string) *process {
	t.Helper()
	args := []string{"-c", fmt.Sprintf(`ulimit -S -n %d && ulimit -H -n %d && exec "$0" "$@"`, soft, hard), compat.HawserBinary(t),
		"--data-dir", dir, "--listen-client-urls", "http://127.0.0.1:0", "--advertise-client-urls", "http://127.0.0.1:0"}
	return launchCommand(t, exec.Command("sh", append(args, flags...)...))
}

// idle opens n connections with the HTTP/2 preface that ask for nothing.
func idle(t *testing.T, address string, n int) {
	t.Helper()
	for range n {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if _, err := io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestIdleConnectionsLeaveTheEngineItsDescriptors: clients cannot take the file
// descriptors that the engine needs to begin logs and to open tables.
func TestIdleConnectionsLeaveTheEngineItsDescriptors(t *testing.T) {
	p := launchLimited(t, 256, 256, filepath.Join(testcluster.Dir(t), "data"))
	p.awaitReady(t)
	const writers, writes = 8, 100
	kv := pb.NewKVClient(at(p.address).conn(t))
	if _, err := kv.Put(within(t), &pb.PutRequest{Key: []byte("a")}); err != nil {
		t.Fatal(err) // connected before the others
	}
	idle(t, p.address, 400)
	var done sync.WaitGroup
	for w := range writers {
		done.Go(func() {
			for i := range writes {
				if _, err := kv.Put(within(t), &pb.PutRequest{Key: fmt.Appendf(nil, "%d/%d", w, i), Value: make([]byte, 16<<10)}); err != nil {
					t.Errorf("put %d of writer %d: %v", i, w, err)
					return
				}
			}
		})
	}
	done.Wait()
	got, err := kv.Range(within(t), &pb.RangeRequest{Key: []byte("0"), RangeEnd: []byte("9"), CountOnly: true})
	if err != nil || got.Count != writers*writes {
		t.Errorf("%v, %v", got, err)
	}
	if out := p.output(); strings.Contains(out, "too many open files") {
		t.Errorf("it ran out of descriptors:\n%s", p.tail(4<<10))
	}
	p.stop(t)
}

// TestTooFewDescriptors: with less than the server keeps for itself it does not
// start, as etcd.
func TestTooFewDescriptors(t *testing.T) {
	launchLimited(t, 150, 150, filepath.Join(testcluster.Dir(t), "data")).awaitFailure(t, "limit of file descriptors is 150")
}

// TestSoftLimitIsRaised: as every Go program the server takes the hard limit; what a
// shell or a unit sets as the soft one does not stop it.
func TestSoftLimitIsRaised(t *testing.T) {
	p := launchLimited(t, 100, 400, filepath.Join(testcluster.Dir(t), "data"))
	p.awaitReady(t)
	if l := p.descriptors(t, nil); l.Cur < 399 { // the runtime takes one less
		t.Errorf("the soft limit is %d, the hard one %d", l.Cur, l.Max)
	}
	p.stop(t)
}

// descriptors sets the process's limits of file descriptors, unless to is nil, and
// returns those before.
func (p *process) descriptors(t *testing.T, to *syscall.Rlimit) (before syscall.Rlimit) {
	t.Helper()
	_, _, e := syscall.RawSyscall6(syscall.SYS_PRLIMIT64, uintptr(p.cmd.Process.Pid), syscall.RLIMIT_NOFILE,
		uintptr(unsafe.Pointer(to)), uintptr(unsafe.Pointer(&before)), 0, 0)
	if e != 0 {
		t.Fatal(e)
	}
	return before
}

// TestMetricsHaveConnectionsOfTheirOwn: clients that hold all connections do not keep
// the health checks of --listen-metrics-urls waiting.
func TestMetricsHaveConnectionsOfTheirOwn(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	_ = free.Close() // the server's now
	p := launchLimited(t, 170, 170, filepath.Join(testcluster.Dir(t), "data"), "--listen-metrics-urls", "http://"+address)
	p.awaitReady(t)
	idle(t, p.address, 100)
	for range 3 {
		c := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
		r, err := c.Get("http://" + address + "/health")
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Body.Close()
		if r.StatusCode != http.StatusOK {
			t.Errorf("health: %s", r.Status)
		}
	}
	p.stop(t)
}

// TestServerWithoutDescriptors: while the process may open no file, writers fill many
// logs and tables and readers read what no cache holds. What is refused is Unavailable,
// or late, and nothing else, the process lives, and with the shortage all of it ends;
// what was acknowledged is there.
func TestServerWithoutDescriptors(t *testing.T) {
	t.Run("but for those it gives back", func(t *testing.T) {
		withoutDescriptors(t, 100, func(p *process) uint64 {
			for n := 0; ; n++ {
				if _, err := os.Lstat(fmt.Sprintf("/proc/%d/fd/%d", p.cmd.Process.Pid, n)); err != nil {
					return uint64(n)
				}
			}
		})
	})
	t.Run("none", func(t *testing.T) {
		withoutDescriptors(t, 12, func(*process) uint64 { return 3 })
	})
}

// withoutDescriptors writes n keys with each writer under the limit.
func withoutDescriptors(t *testing.T, n int, limit func(*process) uint64) {
	p := launchLimited(t, 400, 400, filepath.Join(testcluster.Dir(t), "data"), "--engine-memtable-bytes", "1048576", "--engine-cache-bytes", "2097152")
	p.awaitReady(t)
	kv := pb.NewKVClient(at(p.address).conn(t))
	const writers, before = 8, 100
	value := make([]byte, 16<<10)
	var refused, served atomic.Int64
	var acknowledged [writers]map[string]bool
	for w := range acknowledged {
		acknowledged[w] = make(map[string]bool)
	}
	load := func(round string, n int, timeout time.Duration, mayRefuse bool) {
		look := func(what string, err error) {
			switch {
			case err == nil:
				served.Add(1)
			case mayRefuse && (status.Code(err) == codes.Unavailable || status.Code(err) == codes.DeadlineExceeded):
				refused.Add(1)
			default:
				t.Errorf("%s: %s: %v", round, what, err)
			}
		}
		var done sync.WaitGroup
		for w := range writers {
			done.Go(func() {
				for i := range n {
					ctx, cancel := context.WithTimeout(t.Context(), timeout)
					key := fmt.Sprintf("%d/%s/%06d", w, round, i*7919%n)
					_, err := kv.Put(ctx, &pb.PutRequest{Key: []byte(key), Value: value})
					look("put", err)
					if err == nil {
						acknowledged[w][key] = true
					}
					_, err = kv.Range(ctx, &pb.RangeRequest{Key: fmt.Appendf(nil, "%d/before/%06d", (w+1)%writers, i%before)})
					look("get", err)
					cancel()
				}
			})
		}
		done.Wait()
	}
	load("before", before, tooLong, false)
	limits := p.descriptors(t, &syscall.Rlimit{Cur: limit(p), Max: 400})
	load("short", n, time.Second, true)
	t.Logf("%d served, %d refused", served.Load()-2*writers*before, refused.Load())
	if !strings.Contains(p.output(), "a shortage begins") {
		t.Error("nobody noticed")
	}
	p.descriptors(t, &limits)
	await(t, "a put after the shortage", func() bool {
		_, err := kv.Put(within(t), &pb.PutRequest{Key: []byte("ended")})
		return err == nil
	})
	load("after", 50, tooLong, false)
	for w := range writers {
		got, err := kv.Range(within(t), &pb.RangeRequest{Key: fmt.Appendf(nil, "%d/", w), RangeEnd: fmt.Appendf(nil, "%d0", w), KeysOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range got.Kvs {
			delete(acknowledged[w], string(kv.Key))
		}
		if len(acknowledged[w]) > 0 {
			t.Errorf("%d acknowledged keys of writer %d are not there", len(acknowledged[w]), w)
		}
	}
	await(t, "the end of the shortage in the log", func() bool { return strings.Contains(p.output(), "the shortage has ended") })
	if out := p.output(); strings.Contains(strings.ToLower(out), "corrupt") || strings.Count(out, "\n") > 200 {
		t.Errorf("damage is reported, or too much logged: %d lines\n%s", strings.Count(out, "\n"), p.tail(8<<10))
	}
	p.stop(t)
}
