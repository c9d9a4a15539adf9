package crash

import (
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/hawser-kv/hawser/tests/compat"
	"github.com/hawser-kv/hawser/tests/testcluster"
)

// launchLimited launches the binary with a limit of file descriptors.
func launchLimited(t *testing.T, limit int, dir string) *process {
	t.Helper()
	return launchCommand(t, exec.Command("sh", "-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, limit), compat.HawserBinary(t),
		"--data-dir", dir, "--listen-client-urls", "http://127.0.0.1:0", "--advertise-client-urls", "http://127.0.0.1:0"))
}

// TestIdleConnectionsLeaveTheEngineItsDescriptors: clients cannot take the file
// descriptors that the engine needs to begin logs and to open tables.
func TestIdleConnectionsLeaveTheEngineItsDescriptors(t *testing.T) {
	p := launchLimited(t, 256, filepath.Join(testcluster.Dir(t), "data"))
	p.awaitReady(t)
	const writers, writes = 8, 100
	kv := pb.NewKVClient(at(p.address).conn(t))
	if _, err := kv.Put(within(t), &pb.PutRequest{Key: []byte("a")}); err != nil {
		t.Fatal(err) // connected before the others
	}
	for range 400 {
		c, err := net.Dial("tcp", p.address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if _, err := io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
			t.Fatal(err)
		}
	}
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
	launchLimited(t, 150, filepath.Join(testcluster.Dir(t), "data")).awaitFailure(t, "limit of file descriptors is 150")
}
