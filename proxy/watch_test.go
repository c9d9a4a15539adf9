package proxy

import (
	"context"
	"io"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/proxy/watch"
)

// watchCall is the server's end of a Watch call: requests are closed when the
// client has nothing more to ask.
type watchCall struct {
	grpc.ServerStream
	ctx       context.Context
	requests  chan *pb.WatchRequest
	responses chan *pb.WatchResponse
}

func (c *watchCall) Context() context.Context { return c.ctx }

func (c *watchCall) Recv() (*pb.WatchRequest, error) {
	select {
	case r, ok := <-c.requests:
		if !ok {
			return nil, io.EOF
		}
		return r, nil
	case <-c.ctx.Done():
		return nil, c.ctx.Err()
	}
}

func (c *watchCall) Send(r *pb.WatchResponse) error {
	select {
	case c.responses <- r:
		return nil
	case <-c.ctx.Done():
		return c.ctx.Err()
	}
}

// A client that has closed its side for sending, as one does that writes a
// fixed body, is still sent its events, as by etcd.
func TestWatchGoesOnWhenTheClientHasNothingMoreToAsk(t *testing.T) {
	f := watch.NewFrontier()
	s := watch.NewService(f, watch.Config{})
	s.Start()
	defer s.Stop()
	s.Cut(&placementpb.Cut{Revision: 1, First: true, Descriptors: []*rangepb.RangeDescriptor{{RangeId: 1}}})

	ctx, cancel := context.WithCancel(t.Context())
	call := &watchCall{ctx: ctx, requests: make(chan *pb.WatchRequest, 1), responses: make(chan *pb.WatchResponse)}
	server := NewWatchServer(WatchConfig{
		Service:    s,
		Current:    func(context.Context) (int64, int64, error) { return 1, 0, nil },
		FillHeader: func(*pb.ResponseHeader) {},
		Stopping:   make(chan struct{}),
	})
	call.requests <- &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{Key: []byte("k")}}}
	close(call.requests)
	ended := make(chan error, 1)
	go func() { ended <- server.Watch(call) }()

	if r := receive(t, call, ended); !r.Created {
		t.Fatalf("the first response is %v, want created", r)
	}
	s.Applied(1, 2, []mvcc.Event{{Revision: 2, Kv: &mvccpb.KeyValue{Key: []byte("k"), ModRevision: 2}}})
	s.Cut(&placementpb.Cut{Revision: 2, Marks: []*placementpb.Mark{{RangeId: 1, Revision: 2}}})
	if r := receive(t, call, ended); len(r.Events) != 1 {
		t.Fatalf("the response is %v, want one event", r)
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("a call that its client cancelled ends without an error")
	}
}

func receive(t *testing.T, call *watchCall, ended <-chan error) *pb.WatchResponse {
	t.Helper()
	select {
	case r := <-call.responses:
		return r
	case err := <-ended:
		t.Fatalf("the call ended: %v", err)
		return nil
	}
}
