package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/proxy/router"
)

func TestKVOverThreeRanges(t *testing.T) {
	b := newBackend(t, router.Config{}, "b", "m")
	_, addr := startServer(t, b)
	c := newClient(t, addr)
	ctx := t.Context()

	put, err := c.Put(ctx, "a", "1")
	if err != nil {
		t.Fatal(err)
	}
	if h := put.Header; h.ClusterId != clusterID || h.MemberId != memberID || h.RaftTerm != 7 || h.Revision != 2 {
		t.Errorf("header %v (etcd/X5, etcd/X6)", h)
	}
	txn, err := c.Txn(ctx).If(clientv3.Compare(clientv3.Version("a"), "=", 1)).
		Then(clientv3.OpPut("c", "2"), clientv3.OpPut("z", "3"), clientv3.OpGet("a")).Commit()
	if err != nil {
		t.Fatal(err)
	}
	if !txn.Succeeded || txn.Header.Revision != 3 {
		t.Errorf("txn %v", txn)
	}
	get, err := c.Get(ctx, "", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	if get.Count != 3 || len(get.Kvs) != 3 || get.Kvs[2].ModRevision != 3 || get.Header.Revision != 3 {
		t.Errorf("get %v", get)
	}
	del, err := c.Delete(ctx, "a", clientv3.WithFromKey(), clientv3.WithPrevKV())
	if err != nil {
		t.Fatal(err)
	}
	if del.Deleted != 3 || len(del.PrevKvs) != 3 || del.Header.Revision != 4 {
		t.Errorf("delete %v (etcd/D1, etcd/D2)", del)
	}
	del, err = c.Delete(ctx, "a", clientv3.WithFromKey())
	if err != nil {
		t.Fatal(err)
	}
	if del.Deleted != 0 || del.Header.Revision != 4 {
		t.Errorf("a delete of nothing took a revision: %v (etcd/D2)", del)
	}
	if _, err := c.Compact(ctx, 3, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	if b.waited.Load() != 3 {
		t.Error("physical compaction was not waited for (etcd/C2)")
	}
	for _, c := range []struct {
		do   func() error
		want error
	}{
		{func() error { _, err := c.Get(ctx, "a", clientv3.WithRev(2)); return err }, rpctypes.ErrCompacted},
		{func() error { _, err := c.Get(ctx, "a", clientv3.WithRev(5)); return err }, rpctypes.ErrFutureRev},
		{func() error { _, err := c.Compact(ctx, 3); return err }, rpctypes.ErrCompacted},
		{func() error { _, err := c.Compact(ctx, 9); return err }, rpctypes.ErrFutureRev},
		{func() error { _, err := c.Put(ctx, "", "x"); return err }, rpctypes.ErrEmptyKey},
		{func() error { _, err := c.Put(ctx, "no", "", clientv3.WithIgnoreValue()); return err }, rpctypes.ErrKeyNotFound},
		{func() error { _, err := c.Put(ctx, "no", "x", clientv3.WithLease(9)); return err }, rpctypes.ErrLeaseNotFound},
	} {
		if err := c.do(); !errors.Is(err, c.want) {
			t.Errorf("got %v, want %v", err, c.want)
		}
	}
}

// TestRequestSizeLimitIsThatOfEtcdsLogEntry: etcd/X7.
func TestRequestSizeLimitIsThatOfEtcdsLogEntry(t *testing.T) {
	const limit = 1536 * 1024
	b := newBackend(t, router.Config{})
	_, addr := startServer(t, b)
	kv := pb.NewKVClient(dial(t, addr))

	entry := func(e *pb.InternalRaftRequest) int {
		e.Header = &pb.RequestHeader{ID: memberID << 48 & (1<<64 - 1)}
		return proto.Size(e)
	}
	put := &pb.PutRequest{Key: []byte("k")}
	over := entry(&pb.InternalRaftRequest{Put: &pb.PutRequest{Key: []byte("k"), Value: make([]byte, limit)}}) - limit
	put.Value = make([]byte, limit-over)
	if n := entry(&pb.InternalRaftRequest{Put: put}); n != limit {
		t.Fatalf("the entry has %d bytes", n)
	}
	if _, err := kv.Put(t.Context(), put); err != nil {
		t.Errorf("at the limit: %v", err)
	}
	put.Value = append(put.Value, 0)
	if _, err := kv.Put(t.Context(), put); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "etcdserver: request is too large") {
		t.Errorf("one byte above the limit: %v", err)
	}
	txn := &pb.TxnRequest{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: put}}}}
	if _, err := kv.Txn(t.Context(), txn); status.Code(err) != codes.InvalidArgument {
		t.Errorf("transaction above the limit: %v", err)
	}
	put.Value = make([]byte, limit+512*1024)
	if _, err := kv.Put(t.Context(), put); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "received message larger than max") {
		t.Errorf("above what gRPC receives: %v", err)
	}
}

// TestMaxTxnOpsIsConfigured: etcd/T1.
func TestMaxTxnOpsIsConfigured(t *testing.T) {
	b := newBackend(t, router.Config{})
	_, addr := startServer(t, b, func(c *Config) { c.MaxTxnOps = 2 })
	c := newClient(t, addr)
	op := clientv3.OpGet("a")
	if _, err := c.Txn(t.Context()).Then(op, op).Commit(); err != nil {
		t.Error(err)
	}
	if _, err := c.Txn(t.Context()).Then(op, op, op).Commit(); !errors.Is(err, rpctypes.ErrTooManyOps) {
		t.Error(err)
	}
}

// TestRangeStreamIsTheRange: etcd/RS1 to etcd/RS5. The chunks together are the answer of
// Range; header, more and count come with the last one only.
func TestRangeStreamIsTheRange(t *testing.T) {
	b := newBackend(t, router.Config{}, "k020", "k05", "k3")
	_, addr := startServer(t, b)
	kv := pb.NewKVClient(dial(t, addr))
	ctx := t.Context()
	for i := range 400 {
		size := 10
		if i > 300 {
			size = 40_000
		}
		if _, err := kv.Put(ctx, &pb.PutRequest{Key: fmt.Appendf(nil, "k%03d", i), Value: bytes.Repeat([]byte("v"), size)}); err != nil {
			t.Fatal(err)
		}
	}
	key := []byte("k")
	for _, req := range []*pb.RangeRequest{
		{Key: key, RangeEnd: []byte{0}},
		{Key: key, RangeEnd: []byte("l"), KeysOnly: true},
		{Key: key, RangeEnd: []byte("l"), Limit: 10},
		{Key: key, RangeEnd: []byte("l"), Limit: 33},
		{Key: key, RangeEnd: []byte("l"), Limit: 400},
		{Key: key, RangeEnd: []byte("l"), Limit: -1},
		{Key: key, RangeEnd: []byte("l"), Revision: 200},
		{Key: key, RangeEnd: []byte("l"), Revision: -3},
		{Key: key, RangeEnd: []byte("l"), CountOnly: true},
		{Key: key, RangeEnd: []byte("l"), Serializable: true, SortOrder: pb.RangeRequest_ASCEND},
		{Key: []byte("k007")},
		{Key: []byte("nothing")},
		{Key: []byte("x"), RangeEnd: []byte("a")},
	} {
		want, err := kv.Range(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		stream, err := kv.RangeStream(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		got := &pb.RangeResponse{}
		chunks := 0
		for {
			chunk, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.Header != nil {
				t.Errorf("%v: a chunk after the one with the header", req)
			}
			r := chunk.RangeResponse
			if r.Header == nil && (r.Count != 0 || r.More) {
				t.Errorf("%v: count or more before the last chunk", req)
			}
			if n := proto.Size(r); n > 2*1536*1024+50_000 {
				t.Errorf("%v: a chunk of %d bytes", req, n)
			}
			if chunks == 0 && len(r.Kvs) > 10 && req.Limit >= 0 {
				t.Errorf("%v: %d keys in the first chunk", req, len(r.Kvs))
			}
			proto.Merge(got, r)
			chunks++
		}
		if !proto.Equal(got, want) {
			t.Errorf("%v: %d keys, count %d, more %v, header %v; Range has %d, %d, %v, %v",
				req, len(got.Kvs), got.Count, got.More, got.Header, len(want.Kvs), want.Count, want.More, want.Header)
		}
	}
	for _, c := range []struct {
		req  *pb.RangeRequest
		text string
	}{
		{&pb.RangeRequest{Key: key, SortOrder: pb.RangeRequest_DESCEND}, "RangeStream does not support custom sort orders"},
		{&pb.RangeRequest{Key: key, SortOrder: pb.RangeRequest_ASCEND, SortTarget: pb.RangeRequest_MOD}, "RangeStream does not support custom sort orders"},
		{&pb.RangeRequest{Key: key, MinModRevision: 1}, "RangeStream does not support revision filters"},
	} {
		stream, err := kv.RangeStream(ctx, c.req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = stream.Recv(); status.Code(err) != codes.Unimplemented || status.Convert(err).Message() != c.text {
			t.Errorf("%v: %v", c.req, err)
		}
	}
}

// TestRangeStreamKeepsItsRevision: etcd/RS4. What is written between two chunks is
// not in the later one, whether a revision was asked for or not.
func TestRangeStreamKeepsItsRevision(t *testing.T) {
	b := newBackend(t, router.Config{}, "k2")
	c := newClient(t, func() string { _, addr := startServer(t, b); return addr }())
	for i := range 30 {
		if _, err := c.Put(t.Context(), fmt.Sprintf("k%02d", i), "old"); err != nil {
			t.Fatal(err)
		}
	}
	chunks := 0
	err := b.router.RangeStream(t.Context(), &pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l")}, 1<<20, func(r *pb.RangeResponse) error {
		if chunks++; chunks == 1 {
			if _, err := c.Put(t.Context(), "k29", "new"); err != nil {
				return err
			}
		}
		for _, kv := range r.Kvs {
			if string(kv.Value) != "old" {
				t.Errorf("%s is %s", kv.Key, kv.Value)
			}
		}
		if r.Header != nil && r.Header.Revision != 31 {
			t.Errorf("header at %d", r.Header.Revision)
		}
		return nil
	})
	if err != nil || chunks < 2 {
		t.Errorf("%d chunks, %v", chunks, err)
	}
}

// TestSilentSequencer: etcd/X8, etcd/E2, etcd/R10. Without S linearizable requests time out as
// etcd's do, and serializable ones are served.
func TestSilentSequencer(t *testing.T) {
	b := newBackend(t, router.Config{RequestTimeout: time.Hour})
	_, addr := startServer(t, b)
	patient := pb.NewKVClient(dial(t, addr))
	_, addr = startServer(t, b, b.impatient)
	kv := pb.NewKVClient(dial(t, addr))
	if _, err := newClient(t, addr).Put(t.Context(), "a", "1"); err != nil {
		t.Fatal(err)
	}
	b.silent.Store(true)
	if _, err := kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("a")}); !isStatus(err, codes.Unavailable, "etcdserver: request timed out") {
		t.Errorf("linearizable read: %v", err)
	}
	if _, err := kv.DeleteRange(t.Context(), &pb.DeleteRangeRequest{Key: []byte("none")}); !isStatus(err, codes.Unavailable, "etcdserver: request timed out") {
		t.Errorf("write without effect: %v", err)
	}
	resp, err := kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("a"), Serializable: true})
	if err != nil || len(resp.Kvs) != 1 {
		t.Errorf("serializable read: %v, %v", resp, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := patient.Range(ctx, &pb.RangeRequest{Key: []byte("a")}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("read with a deadline: %v", err)
	}
}

func isStatus(err error, code codes.Code, text string) bool {
	s := status.Convert(err)
	return s.Code() == code && s.Message() == text
}

// TestLowSpaceRefusesPutsOnly: etcd/X12.
func TestLowSpaceRefusesPutsOnly(t *testing.T) {
	b := newBackend(t, router.Config{}, "m")
	_, addr := startServer(t, b)
	c := newClient(t, addr)
	ctx := t.Context()
	if _, err := c.Put(ctx, "a", "1"); err != nil {
		t.Fatal(err)
	}
	b.lowSpace.Store(true)
	if _, err := c.Put(ctx, "a", "2"); !errors.Is(err, rpctypes.ErrNoSpace) {
		t.Errorf("put: %v", err)
	}
	nested := clientv3.OpTxn(nil, nil, []clientv3.Op{clientv3.OpPut("z", "")})
	if _, err := c.Txn(ctx).Then(nested).Commit(); !errors.Is(err, rpctypes.ErrNoSpace) {
		t.Errorf("transaction with a put: %v", err)
	}
	if _, err := c.Get(ctx, "a"); err != nil {
		t.Errorf("get: %v", err)
	}
	if _, err := c.Delete(ctx, "a"); err != nil {
		t.Errorf("delete: %v", err)
	}
	alarms, err := c.AlarmList(ctx)
	if err != nil || len(alarms.Alarms) != 1 || alarms.Alarms[0].Alarm != pb.AlarmType_NOSPACE {
		t.Errorf("alarms: %v, %v", alarms, err)
	}
	b.lowSpace.Store(false)
	if _, err := c.Put(ctx, "a", "3"); err != nil {
		t.Errorf("put when there is room: %v", err)
	}
}

// TestGzipIsAccepted: etcd/X16.
func TestGzipIsAccepted(t *testing.T) {
	b := newBackend(t, router.Config{})
	_, addr := startServer(t, b)
	kv := pb.NewKVClient(dial(t, addr, grpc.WithDefaultCallOptions(grpc.UseCompressor(gzip.Name))))
	if _, err := kv.Put(t.Context(), &pb.PutRequest{Key: []byte("a"), Value: bytes.Repeat([]byte("x"), 10_000)}); err != nil {
		t.Fatal(err)
	}
	resp, err := kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("a")})
	if err != nil || len(resp.Kvs[0].Value) != 10_000 {
		t.Errorf("%v, %v", resp, err)
	}
}
