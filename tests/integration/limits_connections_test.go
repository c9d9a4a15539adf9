package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/hawser-kv/hawser/proto/adminpb"
	"github.com/hawser-kv/hawser/tests/testcluster"
)

// inParallel runs fn(0) to fn(n-1), a few at a time.
func inParallel(n int, fn func(i int)) {
	const workers = 16
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			for i := w; i < n; i += workers {
				fn(i)
			}
		})
	}
	all.Wait()
}

// TestThousandConnections: each can write, read and watch; all together they
// take bounded memory, and none when they are closed.
func TestThousandConnections(t *testing.T) {
	const connections = 1000
	p := testcluster.StartProcess(t, testcluster.ProcessOptions{Splits: []string{"c0500"}})
	if _, err := p.Client().Put(t.Context(), "first", ""); err != nil {
		t.Fatal(err)
	}
	before := p.Report()
	var conns [connections]*grpc.ClientConn
	inParallel(connections, func(i int) {
		conns[i] = connect(t, p, 64*kib)
		kv := pb.NewKVClient(conns[i])
		key := fmt.Appendf(nil, "c%04d", i)
		c := openCall(t, conns[i], []*pb.WatchCreateRequest{{Key: key}})
		if c == nil {
			return
		}
		put, err := kv.Put(t.Context(), &pb.PutRequest{Key: key, Value: key})
		if err != nil {
			t.Errorf("connection %d: %v", i, err)
			return
		}
		got, err := kv.Range(t.Context(), &pb.RangeRequest{Key: key})
		if err != nil || len(got.Kvs) != 1 || got.Kvs[0].ModRevision != put.Header.Revision {
			t.Errorf("connection %d: %v, %v", i, got, err)
		}
		c.readUpTo(t, put.Header.Revision)
		if c.counts[1] != 1 {
			t.Errorf("connection %d: %d events", i, c.counts[1])
		}
	})
	open := comesDownTo(t, p, "1,000 connections with a watcher each", before, 160*mib)
	t.Log(before, "->", open)
	if open.Watchers != connections {
		t.Errorf("%d watchers, want %d", open.Watchers, connections)
	}
	for _, c := range conns {
		_ = c.Close() // that is what is tested
	}
	waitForPeace(t, p, before, 16*mib)
}

// waitForPeace waits until nothing is left of clients that have gone, and no
// more than most bytes.
func waitForPeace(t *testing.T, p *testcluster.Process, before testcluster.Report, most int64) {
	t.Helper()
	var r testcluster.Report
	testcluster.Wait(t, func() string { return "an end of what clients left: " + r.String() }, func() bool {
		r = p.Report()
		return r.Pending == 0 && r.Streams == 0 && r.Watchers == 0 && r.Goroutines <= before.Goroutines+20 &&
			(testcluster.RaceDetector || r.Heap+r.Stacks-before.Heap-before.Stacks <= most) // see atMost
	})
	t.Log(r)
}

// breakable is a connection whose network can be cut under it.
type breakable struct {
	*grpc.ClientConn
	mu  sync.Mutex
	tcp []*net.TCPConn
}

func connectBreakable(t *testing.T, p *testcluster.Process) *breakable {
	b := &breakable{}
	conn, err := grpc.NewClient("passthrough:///node",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			if len(b.tcp) > 0 {
				return nil, errors.New("cut")
			}
			c, err := p.Dial(ctx)
			if err == nil {
				b.tcp = append(b.tcp, c.(*net.TCPConn))
			}
			return c, err
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // its network is gone
	b.ClientConn = conn
	return b
}

// cut resets the connection, as a client's machine that dies.
func (b *breakable) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.tcp {
		_ = c.SetLinger(0) // it may be closed already
		_ = c.Close()
	}
}

// TestClientsGoneInTheMiddleOfStreams: clients that die while they watch, while
// a large list is half sent, and while requests are under way, leave nothing
// behind.
func TestClientsGoneInTheMiddleOfStreams(t *testing.T) {
	const clients, values = 24, 48
	p := testcluster.StartProcess(t, testcluster.ProcessOptions{Splits: []string{"v10", "v20", "v30"}})
	kv := pb.NewKVClient(connect(t, p, 0))
	value := bytes.Repeat([]byte("v"), 256*kib)
	for i := range values {
		if _, err := kv.Put(t.Context(), &pb.PutRequest{Key: fmt.Appendf(nil, "v%02d", i), Value: value}); err != nil {
			t.Fatal(err)
		}
	}
	before := p.Report()
	// All are cut at the same time, when each is in the middle.
	var conns [clients]*breakable
	var calls sync.WaitGroup
	inParallel(clients, func(i int) {
		conns[i] = connectBreakable(t, p)
		mine := pb.NewKVClient(conns[i])
		var reqs []*pb.WatchCreateRequest
		for j := range 10 {
			// From the first revision, and nobody reads on: it waits to be sent.
			reqs = append(reqs, &pb.WatchCreateRequest{Key: []byte("v"), RangeEnd: []byte("w"), StartRevision: int64(j % 2)})
		}
		openCall(t, conns[i].ClientConn, reqs)
		list, err := mine.RangeStream(context.Background(), &pb.RangeRequest{Key: []byte("v"), RangeEnd: []byte("w")})
		if err == nil {
			_, err = list.Recv()
		}
		if err != nil {
			t.Errorf("client %d: %v", i, err)
		}
		for j := range 4 {
			calls.Go(func() {
				_, err := mine.Txn(context.Background(), &pb.TxnRequest{Success: []*pb.RequestOp{
					putOp(fmt.Sprintf("v%02d", j*10), value), putOp(fmt.Sprintf("v%02d", (j*10+15)%values), value)}})
				_ = err // it may have been answered or cut
			})
		}
	})
	during := p.Report()
	t.Log(before, "->", during)
	if during.Streams != clients || during.Watchers != clients*10 {
		t.Errorf("%d streams with %d watchers", during.Streams, during.Watchers)
	}
	for _, c := range conns {
		c.cut()
	}
	calls.Wait()
	waitForPeace(t, p, before, 24*mib)
	// All streams together have at most 256 MiB of events queued. Of each client
	// there are besides: events that are being sent, one chunk of a list read and
	// two encoded, in buffers of the next power of two, and four requests.
	atMost(t, "24 watches and 24 lists half sent, 96 transactions of half a megabyte", during.Heap, 256*mib+clients*18*mib)
	if _, err := kv.Put(t.Context(), &pb.PutRequest{Key: []byte("v00")}); err != nil {
		t.Error(err)
	}
}

// TestSlowClientsAreDropped: connections that send nothing, or never the end of
// what they began, are dropped in time if they have not come to a request, hold
// little memory, and keep nobody else waiting.
func TestSlowClientsAreDropped(t *testing.T) {
	const timeout = 300 * time.Millisecond
	p := testcluster.StartProcess(t, testcluster.ProcessOptions{HeaderTimeout: timeout})
	kv := pb.NewKVClient(connect(t, p, 0))
	if _, err := kv.Put(t.Context(), &pb.PutRequest{Key: []byte("first")}); err != nil {
		t.Fatal(err)
	}
	before := p.Report()
	preface := http2.ClientPreface
	for _, c := range []struct {
		name string
		sent string
	}{
		{"nothing", ""},
		{"one byte of HTTP", "G"},
		{"half a header", "GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: "},
		{"one byte of a preface", preface[:1]},
		{"half a preface", preface[:len(preface)/2]},
		{"a preface alone", preface},
		{"a preface and half a frame", preface + "\x00\x00\x06\x04"},
		{"a header whose body never comes", "POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"},
		{"half a body", "GET /version HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc"},
		{"half a chunk", "POST /version HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n50\r\nabc"},
	} {
		t.Run(c.name, func(t *testing.T) {
			const connections = 16
			inParallel(connections, func(int) {
				conn, err := p.Dial(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				defer func() { _ = conn.Close() }() // the server has closed it
				if _, err := io.WriteString(conn, c.sent); err != nil {
					t.Error(err)
				}
				// However late: it must end.
				_ = conn.SetReadDeadline(time.Now().Add(time.Minute)) // works on any TCP connection
				if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
					t.Error("the connection is still there")
				}
			})
			if _, err := kv.Put(t.Context(), &pb.PutRequest{Key: []byte("beside")}); err != nil {
				t.Error(err)
			}
		})
	}
	waitForPeace(t, p, before, 8*mib)
}

// TestHalfOpenRequests: a gRPC request whose message never ends, or whose header
// never does, cannot be told from a slow network: it is kept, as by etcd. It
// costs little memory, whatever length it announces, and no one else anything.
func TestHalfOpenRequests(t *testing.T) {
	const connections, streams = 100, 20
	p := testcluster.StartProcess(t, testcluster.ProcessOptions{})
	kv := pb.NewKVClient(connect(t, p, 0))
	if _, err := kv.Put(t.Context(), &pb.PutRequest{Key: []byte("first")}); err != nil {
		t.Fatal(err)
	}
	before := p.Report()
	inParallel(connections, func(i int) {
		conn, err := p.Dial(t.Context())
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { _ = conn.Close() }) // the test may have closed it
		halfOpen(t, conn, i, streams)
	})
	for range 20 {
		if _, err := kv.Put(t.Context(), &pb.PutRequest{Key: []byte("beside")}); err != nil {
			t.Error(err)
		}
	}
	after := comesDownTo(t, p, "2,000 half-open requests on 100 connections", before, 64*mib)
	t.Log(before, "->", after)
}

// halfOpen begins requests on a connection that never end.
func halfOpen(t *testing.T, conn net.Conn, i, streams int) {
	var header bytes.Buffer
	enc := hpack.NewEncoder(&header)
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", "/etcdserverpb.KV/Put"}, {":authority", "x"},
		{"content-type", "application/grpc"}, {"te", "trailers"}} {
		if err := enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			t.Error(err)
		}
	}
	block := header.Bytes()
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Error(err)
		return
	}
	f := http2.NewFramer(conn, nil) // what the server says is not read
	err := f.WriteSettings()
	for s := range streams {
		id := uint32(2*s + 1)
		if err != nil {
			break
		}
		if s == streams-1 && i%2 == 0 {
			// A header without an end: nothing else may come on this connection.
			err = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:len(block)/2]})
			break
		}
		if err = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndHeaders: true}); err != nil {
			break
		}
		switch s % 3 {
		case 0: // a message of 1.9 MiB is announced, and three bytes come
			err = f.WriteData(id, false, []byte{0, 0, 0x1e, 0, 0, 1, 2, 3})
		case 1: // half the length
			err = f.WriteData(id, false, []byte{0, 0})
		}
	}
	if err != nil && !strings.Contains(err.Error(), "reset") {
		t.Error(err)
	}
}

// split cuts the keyspace of a process at a key.
func split(t *testing.T, p *testcluster.Process, key []byte) {
	t.Helper()
	admin := adminpb.NewAdminClient(connect(t, p, 0))
	if _, err := admin.SplitRange(t.Context(), &adminpb.SplitRangeRequest{At: &adminpb.SplitRangeRequest_Key{Key: key}}); err != nil {
		t.Errorf("split: %v", err)
	}
}
