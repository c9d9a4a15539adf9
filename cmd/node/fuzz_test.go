package node

import (
	"context"
	"errors"
	"io"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

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
