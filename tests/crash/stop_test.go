package crash

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/hawser-kv/hawser/proto/adminpb"
	"github.com/hawser-kv/hawser/tests/history"
	"github.com/hawser-kv/hawser/tests/testcluster"
)

// TestCleanStopsUnderLoadAreNotNoticed: SIGTERM answers what is under way, ends
// with code 0 and leaves no gap in the revisions; clients that wait for the next
// process and watchers that resume do not notice.
func TestCleanStopsUnderLoadAreNotNoticed(t *testing.T) {
	seed := fromEnv(t, "HAWSER_CRASH_SEED", rand.Uint64())
	t.Logf("HAWSER_CRASH_SEED=%d", seed)
	rng := rand.New(rand.NewPCG(seed, 1<<33))
	dir := filepath.Join(testcluster.Dir(t), "data")
	to := new(endpoint)
	l := newLoad(t, to, 64)
	l.run(6, seed)
	l.watch(watchOptions{name: "etcd's client", start: "k", end: "l", from: 2, etcdClient: true})
	for round := range 4 {
		p := start(t, dir)
		to.set(p)
		for i := range 3 {
			l.watchSomething(rng, fmt.Sprintf("watch %d.%d", round, i))
		}
		goal := l.answered.Load() + 200
		await(t, "answers", func() bool { return l.answered.Load() >= goal })
		began := time.Now()
		p.stop(t)
		t.Logf("stopped in %v", time.Since(began).Round(time.Millisecond))
		to.set(nil)
	}
	p := start(t, dir)
	to.set(p)
	l.finish(true)
	p.stop(t)
	for _, op := range l.mu.ops {
		if op.Outcome == history.Unknown {
			t.Errorf("not answered: %v", op)
		}
	}
}

// splitAt makes a range of every 1/n of the keyspace of load.keyAt.
func splitAt(t *testing.T, conn *grpc.ClientConn, keys ...string) {
	t.Helper()
	for _, k := range keys {
		_, err := adminpb.NewAdminClient(conn).SplitRange(within(t), &adminpb.SplitRangeRequest{
			At: &adminpb.SplitRangeRequest_Key{Key: []byte(k)}})
		if err != nil {
			t.Fatalf("split at %q: %v", k, err)
		}
	}
}

// TestStopWithManyRanges: a hundred ranges, all of them active, stop as one does.
func TestStopWithManyRanges(t *testing.T) {
	dir := filepath.Join(testcluster.Dir(t), "data")
	p := start(t, dir)
	conn := at(p.address).conn(t)
	var keys []string
	for i := range 99 {
		keys = append(keys, fmt.Sprintf("k%03d", i))
	}
	splitAt(t, conn, keys...)
	kv := pb.NewKVClient(conn)
	put := func(i int) int64 {
		t.Helper()
		resp, err := kv.Put(within(t), &pb.PutRequest{Key: fmt.Appendf(nil, "k%03d", i), Value: []byte("v")})
		if err != nil {
			t.Fatal(err)
		}
		return resp.Header.Revision
	}
	last := int64(1)
	for i := range 99 {
		last = put(i)
	}
	began := time.Now()
	p.stop(t)
	t.Logf("100 ranges stopped in %v", time.Since(began).Round(time.Millisecond))

	p = start(t, dir)
	conn = at(p.address).conn(t)
	kv = pb.NewKVClient(conn)
	info, err := adminpb.NewAdminClient(conn).ServerInfo(within(t), &adminpb.ServerInfoRequest{})
	if err != nil || info.Ranges != 100 {
		t.Errorf("ranges after the restart: %v, %v", info, err)
	}
	resp, err := kv.Range(within(t), &pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l")})
	if err != nil || resp.Count != 99 || resp.Header.Revision != last {
		t.Errorf("count %d at %d, %v; want 99 at %d", resp.GetCount(), resp.GetHeader().GetRevision(), err, last)
	}
	if rev := put(0); rev != last+1 {
		t.Errorf("a put after the restart has revision %d, want %d", rev, last+1)
	}
	p.stop(t)
}

// TestSecondSignalEndsTheDrain: an operator who does not want to wait for a
// request that takes long signals again.
func TestSecondSignalEndsTheDrain(t *testing.T) {
	dir := filepath.Join(testcluster.Dir(t), "data")
	p := start(t, dir, "--enable-pprof")
	put(t, p.address, "a", "1")
	// A profile takes as long as one asks, here longer than the test.
	profile := make(chan error, 1)
	go func() {
		for {
			resp, err := http.Get("http://" + p.address + "/debug/pprof/trace?seconds=3600")
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if err == nil && resp.StatusCode == http.StatusInternalServerError {
					continue // the short trace that looks for this one was first
				}
			}
			profile <- err
			return
		}
	}()
	// Trace is on when a second one is refused.
	await(t, "the trace", func() bool {
		resp, err := http.Get("http://" + p.address + "/debug/pprof/trace?seconds=0.001")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusInternalServerError
	})
	p.signal(t, syscall.SIGTERM)
	await(t, "the drain", func() bool { return strings.Contains(p.output(), "received signal; shutting down") })
	select {
	case <-p.exited:
		t.Fatalf("the drain did not wait for the request under way; exit code %d", p.exitCode())
	default:
	}
	p.signal(t, syscall.SIGTERM)
	if code := p.awaitExit(t); code != 1 || !strings.Contains(p.output(), "not waited for requests under way") {
		t.Errorf("exit code %d\n%s", code, p.tail(2<<10))
	}
	if err := <-profile; err == nil {
		t.Error("the request under way ended well")
	}
	// It was no clean stop, but nothing is lost.
	p = start(t, dir)
	if got := get(t, p.address, "a"); got != "1" {
		t.Errorf("a is %q", got)
	}
	p.stop(t)
}

// TestStopDuringStart: a signal at any moment of the start ends it, with code 0
// and without a gap in the revisions.
func TestStopDuringStart(t *testing.T) {
	dir := filepath.Join(testcluster.Dir(t), "data")
	p := start(t, dir)
	usual := p.readyIn
	last := put(t, p.address, "a", "1")
	p.stop(t)
	rng := rand.New(rand.NewPCG(fromEnv(t, "HAWSER_CRASH_SEED", rand.Uint64()), 0))
	for range 8 {
		p := launch(t, dir)
		select {
		case <-p.started: // signals are handled
		case <-p.exited:
			t.Fatalf("exit code %d\n%s", p.exitCode(), p.tail(4<<10))
		}
		select {
		case <-p.ready:
		case <-time.After(time.Duration(rng.Int64N(int64(usual)))):
		}
		p.signal(t, syscall.SIGTERM)
		if code := p.awaitExit(t); code != 0 {
			t.Fatalf("exit code %d\n%s", code, p.tail(4<<10))
		}
	}
	p = start(t, dir)
	if rev := put(t, p.address, "a", "2"); rev != last+1 {
		t.Errorf("a put has revision %d, the one before %d", rev, last)
	}
	p.stop(t)
}

// put puts a key and returns its revision.
func put(t *testing.T, address string, key, value string) int64 {
	t.Helper()
	resp, err := pb.NewKVClient(at(address).conn(t)).Put(within(t), &pb.PutRequest{Key: []byte(key), Value: []byte(value)})
	if err != nil {
		t.Fatalf("put %s: %v", key, err)
	}
	return resp.Header.Revision
}

// get returns the value of a key, "" if there is none.
func get(t *testing.T, address string, key string) string {
	t.Helper()
	resp, err := pb.NewKVClient(at(address).conn(t)).Range(within(t), &pb.RangeRequest{Key: []byte(key)})
	if err != nil {
		t.Fatalf("get %s: %v", key, err)
	}
	if len(resp.Kvs) == 0 {
		return ""
	}
	return string(resp.Kvs[0].Value)
}
