package node

import (
	"context"
	"errors"
	"io"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/proto/adminpb"
)

// FuzzIdentity: whatever the identity file holds, it is taken as it was written
// or refused with one of the errors that say what to do.
func FuzzIdentity(f *testing.F) {
	const dir = "data"
	fs := vfs.NewMem()
	if err := fs.MkdirAll(dir, 0o700); err != nil {
		f.Fatal(err)
	}
	write := func(t testing.TB, b []byte) {
		w, err := fs.Create(fs.PathJoin(dir, identityFile), vfs.WriteCategoryUnspecified)
		if err == nil {
			_, err = w.Write(b)
		}
		if err = errors.Join(err, w.Close()); err != nil {
			t.Fatal(err)
		}
	}
	id := identity{Format: dataFormat, ClusterID: 1 << 63, NodeID: 7}
	id.Checksum = id.sum()
	if err := writeIdentity(fs, dir, id); err != nil {
		f.Fatal(err)
	}
	r, err := fs.Open(fs.PathJoin(dir, identityFile))
	if err != nil {
		f.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err = errors.Join(err, r.Close()); err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"format":2}`))
	f.Add([]byte(`{"format":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		write(t, b)
		got, err := readIdentity(fs, dir)
		switch {
		case errors.Is(err, ErrDamaged), errors.Is(err, ErrNewerFormat):
		case err != nil:
			t.Errorf("an error that names no way out: %v", err)
		case got.Checksum != got.sum() || got.Format != dataFormat:
			t.Errorf("taken: %+v", got)
		}
	})
}

// FuzzLog: the look at the engine's log takes any bytes, and finds nothing wrong
// with those that the engine wrote.
func FuzzLog(f *testing.F) {
	fs := vfs.NewMem()
	db, err := pebble.Open("", &pebble.Options{FS: fs, Logger: quietLogger{}})
	if err != nil {
		f.Fatal(err)
	}
	for i := range 40 {
		if err := db.Set([]byte{byte(i)}, make([]byte, i*i), pebble.Sync); err != nil {
			f.Fatal(err)
		}
	}
	names, err := fs.List("")
	if err != nil {
		f.Fatal(err)
	}
	at := slices.IndexFunc(names, func(n string) bool { return filepath.Ext(n) == ".log" })
	r, err := fs.Open(names[at])
	if err != nil {
		f.Fatal(err)
	}
	log, err := io.ReadAll(r)
	if err = errors.Join(err, r.Close(), db.Close()); err != nil {
		f.Fatal(err)
	}
	const number = 2 // of the first log of an engine
	if s := scanned(log, number); s.bad && s.unreadable != int64(len(log)) {
		f.Fatalf("a good log of %d bytes is bad at %d", len(log), s.unreadable)
	}
	f.Add(log, uint32(number))
	f.Add(log[:len(log)/2], uint32(number))
	f.Add(slices.Concat(log[:3000], []byte{1}, log[3001:]), uint32(number))
	f.Fuzz(func(t *testing.T, log []byte, number uint32) {
		if s := scanned(log, number); s.bad && (s.unreadable < 0 || s.unreadable > int64(len(log))) {
			t.Errorf("bad at %d of %d bytes", s.unreadable, len(log))
		} else if s.proven && !s.bad {
			t.Error("damage is proven in a good log")
		}
	})
}

type quietLogger struct{ pebble.Logger }

func (quietLogger) Infof(string, ...any)  {}
func (quietLogger) Errorf(string, ...any) {}

func scanned(log []byte, number uint32) *logScan {
	s := &logScan{number: number, entries: map[uint64]uint64{}}
	offset := int64(0)
	for block := range slices.Chunk(log, logBlock) {
		s.scan(block, offset)
		offset += int64(len(block))
	}
	return s
}

// FuzzManifest: the judgement of a manifest's end takes any bytes.
func FuzzManifest(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, chunkHeader+1))
	f.Add([]byte{0, 0, 0, 0, 1, 0, 1, 'x'})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 4<<10 {
			return // every place in it is tried
		}
		if cutOff(b) && cutOff(slices.Concat(b, whole([]byte("a record")))) {
			t.Error("a good record follows, and it is taken for what a crash leaves")
		}
	})
}

// whole is a chunk of a manifest.
func whole(payload []byte) []byte {
	b := append([]byte{0, 0, 0, 0, byte(len(payload)), byte(len(payload) >> 8), 1}, payload...)
	sum := masked(b[6:])
	b[0], b[1], b[2], b[3] = byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24)
	return b
}

// bytesCodec sends bytes as they are.
type bytesCodec struct{}

func (bytesCodec) Name() string { return "proto" }

func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (bytesCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// FuzzMessages sends bytes to every method of a node, of etcd's services and of
// the admin's. It answers, with a code that says something, and goes on.
func FuzzMessages(f *testing.F) {
	cfg := Config{FS: vfs.NewMem()}
	cfg.DataDir = "data"
	cfg.ListenClientURLs = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.EnsureDefaults()
	n, err := Start(f.Context(), cfg)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := n.Kill(); err != nil {
			f.Error(err)
		}
	})
	conn, err := grpc.NewClient(n.ClientAddr(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(bytesCodec{})))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = conn.Close() }) // only its network
	var methods []string
	for _, s := range []*grpc.ServiceDesc{&pb.KV_ServiceDesc, &pb.Watch_ServiceDesc, &pb.Lease_ServiceDesc,
		&pb.Cluster_ServiceDesc, &pb.Maintenance_ServiceDesc, &pb.Auth_ServiceDesc, &adminpb.Admin_ServiceDesc} {
		for _, m := range s.Methods {
			methods = append(methods, "/"+s.ServiceName+"/"+m.MethodName)
		}
		for _, m := range s.Streams {
			methods = append(methods, "/"+s.ServiceName+"/"+m.StreamName)
		}
	}
	slices.Sort(methods)
	seed := func(method string, messages ...proto.Message) {
		at := slices.Index(methods, method)
		if at < 0 {
			f.Fatalf("no method %s", method)
		}
		var bs [2][]byte
		for i, m := range messages {
			if bs[i], err = proto.Marshal(m); err != nil {
				f.Fatal(err)
			}
		}
		f.Add(uint8(at), bs[0], bs[1])
	}
	const lastWatchID = 0x686177736572
	lastWatch, err := proto.Marshal(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
		CreateRequest: &pb.WatchCreateRequest{Key: []byte("last"), WatchId: lastWatchID}}})
	if err != nil {
		f.Fatal(err)
	}
	for _, m := range methods {
		seed(m)
	}
	seed("/etcdserverpb.KV/Put", &pb.PutRequest{Key: []byte("k"), Value: []byte("v"), PrevKv: true})
	seed("/etcdserverpb.KV/Range", &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, SortTarget: 9, Revision: -1})
	seed("/etcdserverpb.KV/RangeStream", &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, Limit: 1})
	seed("/etcdserverpb.KV/DeleteRange", &pb.DeleteRangeRequest{Key: []byte("k"), RangeEnd: []byte("a")})
	seed("/etcdserverpb.KV/Compact", &pb.CompactionRequest{Revision: 1 << 62, Physical: true})
	seed("/etcdserverpb.KV/Txn", &pb.TxnRequest{
		Compare: []*pb.Compare{{Key: []byte("k"), Target: 9, Result: 9}},
		Failure: []*pb.RequestOp{{}, {Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{}}}},
	})
	seed("/etcdserverpb.Watch/Watch",
		&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
			Key: []byte("k"), RangeEnd: []byte{0}, StartRevision: 1, WatchId: 1 << 40, Fragment: true, Filters: []pb.WatchCreateRequest_FilterType{7}}}},
		&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}})
	seed("/etcdserverpb.Maintenance/HashKV", &pb.HashKVRequest{Revision: 1 << 40})
	seed("/hawser.adminpb.Admin/SplitRange", &adminpb.SplitRangeRequest{At: &adminpb.SplitRangeRequest_Key{Key: []byte("s")}})
	seed("/hawser.adminpb.Admin/SplitRange", &adminpb.SplitRangeRequest{At: &adminpb.SplitRangeRequest_RangeId{RangeId: 1 << 63}})
	seed("/hawser.adminpb.Admin/DescribeRange", &adminpb.DescribeRangeRequest{RangeId: 1})
	f.Fuzz(func(t *testing.T, method uint8, first, second []byte) {
		name := methods[int(method)%len(methods)]
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // it hangs
		defer cancel()
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, name)
		if err != nil {
			t.Fatal(err)
		}
		_ = stream.SendMsg(&first) // what fails here is told by RecvMsg
		if name == "/etcdserverpb.Watch/Watch" {
			_ = stream.SendMsg(&second)
			_ = stream.SendMsg(&lastWatch)
		}
		_ = stream.CloseSend()
		for err == nil {
			var got []byte
			err = stream.RecvMsg(&got)
			var resp pb.WatchResponse
			if name == "/etcdserverpb.Watch/Watch" && proto.Unmarshal(got, &resp) == nil && resp.WatchId == lastWatchID {
				cancel() // a watch does not end by itself
			}
		}
		switch code := status.Code(err); {
		case errors.Is(err, io.EOF):
		case code == codes.Internal && strings.Contains(err.Error(), "unmarshal"): // gRPC's own word
		case code == codes.Unknown, code == codes.Internal, code == codes.DeadlineExceeded:
			t.Errorf("%s: %v", name, err)
		}
	})
}
