package integration

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/hawser-kv/hawser/tests/testcluster"
)

// connect returns a connection of its own, without clientv3. window is the
// flow-control window of a stream: what the server may send to a client that
// does not read. 0: gRPC's, which grows.
func connect(t *testing.T, p *testcluster.Process, window int32) *grpc.ClientConn {
	t.Helper()
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return p.Dial(ctx) }),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30), grpc.MaxCallSendMsgSize(1<<30)),
	}
	if window > 0 {
		opts = append(opts, grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(8*window))
	}
	conn, err := grpc.NewClient("passthrough:///node", opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // it may have been closed by the test
	return conn
}

// watchCall is a Watch call whose watchers count their events.
type watchCall struct {
	stream pb.Watch_WatchClient
	cancel context.CancelFunc
	counts []int // by watch id
}

func createWatch(req *pb.WatchCreateRequest) *pb.WatchRequest {
	return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: req}}
}

// openCall opens a call with watchers for the requests; their ids are set, from
// 1 on. It returns when all are created.
func openCall(t *testing.T, conn *grpc.ClientConn, reqs []*pb.WatchCreateRequest) *watchCall {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	stream, err := pb.NewWatchClient(conn).Watch(ctx)
	if err != nil {
		t.Errorf("open a watch: %v", err)
		return nil
	}
	c := &watchCall{stream: stream, cancel: cancel, counts: make([]int, len(reqs)+1)}
	sent := make(chan error, 1)
	go func() {
		for i, r := range reqs {
			r.WatchId = int64(i + 1)
			if err := stream.Send(createWatch(r)); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	for created := 0; created < len(reqs); {
		resp, err := stream.Recv()
		if err != nil {
			t.Errorf("create watchers: %v", err)
			return nil
		}
		if resp.Created && !resp.Canceled {
			created++
		} else if !c.count(t, resp) {
			return nil
		}
	}
	if err := <-sent; err != nil {
		t.Errorf("create watchers: %v", err)
		return nil
	}
	return c
}

func (c *watchCall) count(t *testing.T, resp *pb.WatchResponse) bool {
	if resp.Canceled || resp.WatchId < 1 {
		t.Errorf("unexpected: %v", resp)
		return false
	}
	c.counts[resp.WatchId] += len(resp.Events)
	return true
}

// readUpTo counts events until everything at or below rev has come.
func (c *watchCall) readUpTo(t *testing.T, rev int64) {
	if err := c.stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}}); err != nil {
		t.Errorf("ask for progress: %v", err)
		return
	}
	for {
		resp, err := c.stream.Recv()
		if err != nil {
			t.Errorf("read a watch: %v", err)
			return
		}
		if resp.WatchId == -1 && len(resp.Events) == 0 && !resp.Canceled {
			if resp.Header.Revision < rev {
				t.Errorf("progress at %d, want at least %d", resp.Header.Revision, rev)
			}
			return
		}
		if !c.count(t, resp) {
			return
		}
	}
}

// TestTenThousandWatchersOnOneConnection: 9,000 watchers on ten streams and
// 1,000 on streams of their own get exactly what they asked for, in bounded
// memory, and are gone when the connection is.
func TestTenThousandWatchersOnOneConnection(t *testing.T) {
	const streams, each, alone, puts = 10, 900, 1000, 200
	p := testcluster.StartProcess(t, testcluster.ProcessOptions{Splits: []string{"w02000", "w04000", "w06000", "w08000"}})
	conn := connect(t, p, 0)
	kv := pb.NewKVClient(conn)
	if _, err := kv.Put(t.Context(), &pb.PutRequest{Key: []byte("first")}); err != nil {
		t.Fatal(err)
	}
	before := p.Report()

	// Watcher i watches one key; every hundredth watches all of them.
	keyOf := func(i int) []byte { return fmt.Appendf(nil, "w%05d", i) }
	request := func(i int) *pb.WatchCreateRequest {
		if i%100 == 0 {
			return &pb.WatchCreateRequest{Key: []byte("w"), RangeEnd: []byte("x")}
		}
		return &pb.WatchCreateRequest{Key: keyOf(i)}
	}
	var calls [streams + alone]*watchCall
	firstOf := func(call int) int {
		if call < streams {
			return call * each
		}
		return streams*each + call - streams
	}
	var opening sync.WaitGroup
	next := atomic.Int64{}
	for range 16 {
		opening.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(calls); i = int(next.Add(1)) - 1 {
				n := 1
				if i < streams {
					n = each
				}
				var reqs []*pb.WatchCreateRequest
				for j := range n {
					reqs = append(reqs, request(firstOf(i)+j))
				}
				calls[i] = openCall(t, conn, reqs)
			}
		})
	}
	opening.Wait()
	if t.Failed() {
		t.FailNow()
	}
	open := comesDownTo(t, p, "10,000 watchers on 1,010 streams", before, 60*mib)
	t.Log(before, "->", open)
	if open.Watchers != streams*each+alone || open.Streams != streams+alone {
		t.Errorf("%d watchers on %d streams", open.Watchers, open.Streams)
	}

	written := map[int]int{}
	last := int64(0)
	for i := range puts {
		to := i * 51 % (streams*each + alone)
		written[to]++
		resp, err := kv.Put(t.Context(), &pb.PutRequest{Key: keyOf(to), Value: []byte("v")})
		if err != nil {
			t.Fatal(err)
		}
		last = resp.Header.Revision
	}
	var reading sync.WaitGroup
	for i, c := range calls {
		reading.Go(func() {
			c.readUpTo(t, last)
			for j := range c.counts[1:] {
				w := firstOf(i) + j
				want := written[w]
				if w%100 == 0 {
					want = puts
				}
				if c.counts[j+1] != want {
					t.Errorf("watcher %d got %d events, want %d", w, c.counts[j+1], want)
				}
			}
		})
	}
	reading.Wait()
	_ = conn.Close() // with everything on it

	waitForPeace(t, p, before, 16*mib)
}

// TestWatcherThatNeverReads: a client that does not read costs the server a
// bounded queue and nobody else anything: writers go on, and watchers beside it,
// on its own connection too, get everything. When it reads at last, it has lost
// nothing.
func TestWatcherThatNeverReads(t *testing.T) {
	const puts, size, writers = 1536, 64 * kib, 8
	p := testcluster.StartProcess(t, testcluster.ProcessOptions{Splits: []string{"k3", "k6"}})
	kv := pb.NewKVClient(connect(t, p, 0))
	if _, err := kv.Put(t.Context(), &pb.PutRequest{Key: []byte("first")}); err != nil {
		t.Fatal(err)
	}
	before := p.Report()
	all := func() []*pb.WatchCreateRequest {
		return []*pb.WatchCreateRequest{{Key: []byte("k"), RangeEnd: []byte("l")}}
	}
	shared := connect(t, p, 512*kib)
	var silent []*watchCall
	for range 4 {
		silent = append(silent, openCall(t, shared, all()))
	}
	beside := openCall(t, shared, all())
	elsewhere := openCall(t, connect(t, p, 0), all())
	if t.Failed() {
		t.FailNow()
	}

	value := bytes.Repeat([]byte("x"), size)
	var writing, reading sync.WaitGroup
	last := atomic.Int64{}
	for _, c := range []*watchCall{beside, elsewhere} {
		reading.Go(func() {
			for c.counts[1] < puts {
				resp, err := c.stream.Recv()
				if err != nil {
					t.Errorf("a watcher beside the silent one: %v", err)
					return
				}
				if !c.count(t, resp) {
					return
				}
			}
		})
	}
	for w := range writers {
		writing.Go(func() {
			for i := range puts / writers {
				resp, err := kv.Put(t.Context(), &pb.PutRequest{Key: fmt.Appendf(nil, "k%d-%d", i%10, w), Value: value})
				if err != nil {
					t.Errorf("put: %v", err)
					return
				}
				for old := last.Load(); resp.Header.Revision > old && !last.CompareAndSwap(old, resp.Header.Revision); old = last.Load() {
				}
			}
		})
	}
	writing.Wait()
	reading.Wait()
	after := p.Report()
	t.Log(before, "->", after)
	// What was promised to the silent ones. A queue is full when it holds more than
	// 8 MiB, and what one step or one read adds, 4 MiB at most, is added as a whole.
	const queue = 8*mib + 4*mib
	atMost(t, "queues of four silent watchers of 96 MiB each", after.Queued, 4*queue)
	if after.Queued < 4*8*mib {
		t.Errorf("%.1f MiB wait for silent watchers: they are not silent", float64(after.Queued)/mib)
	}
	// The queues stay; beside them the engine has two memory tables in its heap, if
	// it was built without cgo, and all that is passing.
	comesDownTo(t, p, "what is kept for silent watchers", before, 4*queue+64*mib)

	for i, c := range silent {
		reading.Go(func() {
			c.readUpTo(t, last.Load())
			if c.counts[1] != puts {
				t.Errorf("silent watcher %d got %d events in the end, want %d", i, c.counts[1], puts)
			}
		})
	}
	reading.Wait()
	t.Log(p.Report())
}

// TestCompactionOvertakesASilentWatcher: what a client has not read for long may
// be compacted; it is told so when it reads (etcd/W9).
func TestCompactionOvertakesASilentWatcher(t *testing.T) {
	p := testcluster.StartProcess(t, testcluster.ProcessOptions{Splits: []string{"k5"}})
	kv := pb.NewKVClient(connect(t, p, 0))
	c := openCall(t, connect(t, p, 512*kib), []*pb.WatchCreateRequest{{Key: []byte("k"), RangeEnd: []byte("l")}})
	if t.Failed() {
		t.FailNow()
	}
	value := bytes.Repeat([]byte("x"), mib)
	last := int64(0)
	for i := range 40 {
		resp, err := kv.Put(t.Context(), &pb.PutRequest{Key: fmt.Appendf(nil, "k%d", i%10), Value: value})
		if err != nil {
			t.Fatal(err)
		}
		last = resp.Header.Revision
	}
	if _, err := kv.Compact(t.Context(), &pb.CompactionRequest{Revision: last, Physical: true}); err != nil {
		t.Fatal(err)
	}
	seen := int64(0)
	for {
		resp, err := c.stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range resp.Events {
			if e.Kv.ModRevision != seen+1 && seen > 0 {
				t.Fatalf("revision %d after %d", e.Kv.ModRevision, seen)
			}
			seen = e.Kv.ModRevision
		}
		if resp.Canceled {
			if resp.CompactRevision != last || seen >= last {
				t.Errorf("cancelled with compact revision %d after events up to %d, want %d", resp.CompactRevision, seen, last)
			}
			return
		}
	}
}
