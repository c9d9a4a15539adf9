package proxy

import (
	"context"
	"errors"
	"io"
	"math"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/proxy/router"
	"github.com/hawser-kv/hawser/proxy/watch"
)

// WatchConfig is what the Watch service needs.
type WatchConfig struct {
	Service *watch.Service
	// Current returns a linearizable current revision and the compacted one.
	Current func(ctx context.Context) (revision, compacted int64, err error)
	// Previous reads the version of a key at a revision, for prev_kv.
	Previous watch.PreviousReader
	// FillHeader completes a header that has its revision.
	FillHeader func(*pb.ResponseHeader)
	// FragmentBytes is the size from which a response is split for a watcher
	// that asked for fragments (etcd/W14).
	FragmentBytes int
	// Responses bounds the memory of large responses. nil: they are bounded by what gRPC
	// sends alone.
	Responses *router.Responses
	// Sent is told how many events a response had that was sent. May be nil.
	Sent func(events int)
	// Stopping is closed when the server drains: streams end then.
	Stopping <-chan struct{}
}

// watchServer is etcd's Watch service: it turns requests into calls of
// watch.Service and what that queues into etcd's responses.
type watchServer struct {
	pb.UnimplementedWatchServer
	cfg WatchConfig
}

// NewWatchServer returns etcd's Watch service.
func NewWatchServer(cfg WatchConfig) pb.WatchServer {
	cfg.Previous = watch.ReadPrevious(cfg.Previous)
	if cfg.Responses == nil {
		cfg.Responses = router.NewResponses(math.MaxInt64 / 4)
	}
	return &watchServer{cfg: cfg}
}

// Watch serves one stream: a goroutine receives, the caller's sends.
func (s *watchServer) Watch(stream grpc.BidiStreamingServer[pb.WatchRequest, pb.WatchResponse]) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	client := s.cfg.Service.Open()
	defer client.Close()

	go func() {
		// A client that has nothing more to ask is still sent its events.
		if err := s.receive(ctx, stream, client); !errors.Is(err, io.EOF) {
			cancel(err)
		}
	}()
	go func() {
		select {
		case <-s.cfg.Stopping:
			cancel(rpctypes.ErrGRPCStopped)
		case <-ctx.Done():
		}
	}()
	err := s.send(ctx, stream, client)
	switch cause := context.Cause(ctx); {
	case stream.Context().Err() != nil:
		if errors.Is(stream.Context().Err(), context.Canceled) {
			return rpctypes.ErrGRPCWatchCanceled
		}
		return stream.Context().Err()
	case cause != nil:
		return toGRPC(cause)
	}
	return toGRPC(err)
}

// receive takes the client's requests until the stream ends.
func (s *watchServer) receive(ctx context.Context, stream grpc.BidiStreamingServer[pb.WatchRequest, pb.WatchResponse], client *watch.Client) error {
	for {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		if !known(req) {
			continue // an unknown or empty request is ignored (etcd/W1)
		}
		revision, compacted, err := s.cfg.Current(ctx)
		if err != nil {
			return err
		}
		switch u := req.RequestUnion.(type) {
		case *pb.WatchRequest_CreateRequest:
			r := u.CreateRequest
			create := watch.CreateRequest{
				Start: r.Key, End: r.RangeEnd, StartRevision: r.StartRevision, WatchID: r.WatchId,
				PrevKV: r.PrevKv, Fragment: r.Fragment, Progress: r.ProgressNotify,
				Current: revision, Compacted: compacted,
			}
			for _, f := range r.Filters {
				switch f {
				case pb.WatchCreateRequest_NOPUT:
					create.NoPut = true
				case pb.WatchCreateRequest_NODELETE:
					create.NoDelete = true
				}
			}
			client.Create(create)
		case *pb.WatchRequest_CancelRequest:
			client.Cancel(u.CancelRequest.WatchId, revision)
		case *pb.WatchRequest_ProgressRequest:
			client.RequestProgress(revision)
		}
	}
}

// known says whether a request asks for something.
func known(req *pb.WatchRequest) bool {
	switch u := req.RequestUnion.(type) {
	case *pb.WatchRequest_CreateRequest:
		return u.CreateRequest != nil
	case *pb.WatchRequest_CancelRequest:
		return u.CancelRequest != nil
	case *pb.WatchRequest_ProgressRequest:
		return u.ProgressRequest != nil
	}
	return false
}

// send sends what the service queues for the stream.
func (s *watchServer) send(ctx context.Context, stream grpc.BidiStreamingServer[pb.WatchRequest, pb.WatchResponse], client *watch.Client) error {
	for {
		responses, err := client.Next(ctx)
		if err != nil {
			return err
		}
		for i, r := range responses {
			responses[i] = nil // what is sent is not held
			if r.Packed() {
				if err := s.sendPacked(ctx, r, stream); err != nil {
					return err
				}
				continue
			}
			wr, err := r.WatchResponse(s.cfg.Previous)
			if err != nil {
				return err
			}
			s.cfg.FillHeader(wr.Header)
			if r.Fragment {
				err = sendFragments(wr, s.cfg.FragmentBytes, stream.Send)
			} else {
				err = s.sendWhole(ctx, wr, stream.Send)
			}
			if err != nil {
				return err
			}
			if s.cfg.Sent != nil && len(wr.Events) > 0 {
				s.cfg.Sent(len(wr.Events))
			}
		}
	}
}

// sendWhole sends a response in one message, however large, when there is room for
// it. One that gRPC would not send ends the stream as in etcd, but before it is
// encoded.
func (s *watchServer) sendWhole(ctx context.Context, wr *pb.WatchResponse, send func(*pb.WatchResponse) error) error {
	size := int64(0)
	for _, e := range wr.Events {
		size += int64(len(e.Kv.Key) + len(e.Kv.Value) + len(e.PrevKv.GetKey()) + len(e.PrevKv.GetValue()))
	}
	share := s.cfg.Responses.NewShare()
	if err := s.cfg.Responses.Wait(ctx, share, size); err != nil {
		share.Release()
		return err
	}
	if !share.Large() {
		return send(wr)
	}
	share.ReleaseAfter(ctx) // gRPC may keep what it does not send any more
	s.cfg.Responses.Attach(wr, share)
	err := send(wr)
	if left := s.cfg.Responses.Attached(wr); left != nil {
		left.Release() // it was not encoded
	}
	return err
}

// sendFragments sends a response in pieces below limit bytes, except that a
// piece holds one event at least (etcd/W14).
func sendFragments(wr *pb.WatchResponse, limit int, send func(*pb.WatchResponse) error) error {
	if len(wr.Events) < 2 || proto.Size(wr) < limit {
		return send(wr)
	}
	events := wr.Events
	frame := proto.Size(&pb.WatchResponse{Header: wr.Header, WatchId: wr.WatchId, Fragment: true})
	for len(events) > 0 {
		n, size := 0, frame
		for n < len(events) {
			size += eventSize(events[n])
			if n > 0 && size >= limit {
				break
			}
			n++
		}
		piece := &pb.WatchResponse{Header: wr.Header, WatchId: wr.WatchId, Events: events[:n], Fragment: n < len(events)}
		if err := send(piece); err != nil {
			return err
		}
		events = events[n:]
	}
	return nil
}

// eventSize is what an event adds to the size of a WatchResponse, in bytes.
func eventSize(e *mvccpb.Event) int {
	return proto.Size(&pb.WatchResponse{Events: []*mvccpb.Event{e}})
}
