package proxy

import (
	"context"
	"runtime"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/proxy/router"
	"github.com/hawser-kv/hawser/proxy/watch"
)

// packedResponse is a WatchResponse that is encoded: its fields but the events, and
// the events. countingCodec hands them over to gRPC without a copy.
type packedResponse struct {
	frame  []byte
	events [][]byte
	// share holds what the events take until gRPC has written them; nil if nothing is
	// counted.
	share *router.Share
}

func (p *packedResponse) buffers() mem.BufferSlice {
	out := make(mem.BufferSlice, 0, len(p.events)+1)
	out = append(out, mem.SliceBuffer(p.frame))
	for _, b := range p.events {
		out = append(out, mem.SliceBuffer(b))
	}
	if p.share == nil {
		return out
	}
	held := new([]byte)
	*held = p.events[len(p.events)-1]
	if mem.IsBelowBufferPoolingThreshold(cap(*held)) { // gRPC does not say when it has written it
		p.share.Release()
		return out
	}
	// A connection that breaks may leave the buffer to the garbage collector.
	runtime.AddCleanup(held, (*router.Share).Release, p.share)
	out[len(out)-1] = mem.NewBuffer(held, releasing{p.share})
	return out
}

// sendPacked sends a response with the events of a large revision, which are encoded:
// in one message, or in fragments if the watcher asked for them.
func (s *watchServer) sendPacked(ctx context.Context, r *watch.Response, stream grpc.ServerStream) error {
	n := r.NumEvents()
	wr := &pb.WatchResponse{Header: &pb.ResponseHeader{Revision: r.Revision}, WatchId: r.WatchID}
	s.cfg.FillHeader(wr.Header)
	var err error
	if r.Fragment {
		err = s.sendPackedFragments(r, wr, stream)
	} else {
		err = s.sendPackedWhole(ctx, r, wr, stream)
	}
	if err == nil && s.cfg.Sent != nil {
		s.cfg.Sent(n)
	}
	return err
}

// sendPackedWhole is sendWhole.
func (s *watchServer) sendPackedWhole(ctx context.Context, r *watch.Response, wr *pb.WatchResponse, stream grpc.ServerStream) error {
	frame, err := proto.Marshal(wr)
	if err != nil {
		return err
	}
	p := &packedResponse{frame: frame}
	share := s.cfg.Responses.NewShare()
	if r.ReadsPrevious() {
		err = s.cfg.Responses.Try(ctx, share, func() error { return s.encode(r, p, share.HoldEncoded) })
	} else {
		size := int64(0)
		if err = s.encode(r, p, func(n int64) error { size += n; return nil }); err == nil {
			err = s.cfg.Responses.Wait(ctx, share, size)
		}
	}
	if err != nil {
		share.Release()
		return err
	}
	if share.Large() {
		share.ReleaseAfter(ctx) // gRPC may keep what it does not send any more
		p.share = share
	}
	return stream.SendMsg(p)
}

// encode puts the events of a response into p. hold is told of the bytes of each
// piece; after its error p has no events.
func (s *watchServer) encode(r *watch.Response, p *packedResponse, hold func(n int64) error) error {
	events, err := s.pieces(r, hold)
	if err == nil {
		err = hold(int64(len(p.frame)))
	}
	if err == nil {
		p.events = events
	}
	return err
}

func (s *watchServer) pieces(r *watch.Response, hold func(n int64) error) (events [][]byte, err error) {
	for b, err := range r.Encoded(s.cfg.Previous) {
		if err != nil {
			return nil, err
		}
		if err := hold(int64(len(b))); err != nil {
			return nil, err
		}
		events = append(events, b)
	}
	return events, nil
}

// sendPackedFragments cuts where sendFragments does.
func (s *watchServer) sendPackedFragments(r *watch.Response, wr *pb.WatchResponse, stream grpc.ServerStream) error {
	wr.Fragment = true
	more, err := proto.Marshal(wr)
	if err != nil {
		return err
	}
	wr.Fragment = false
	last, err := proto.Marshal(wr)
	if err != nil {
		return err
	}
	piece := &packedResponse{frame: more}
	n, size := 0, len(more)
	for b, err := range r.Encoded(s.cfg.Previous) {
		if err != nil {
			return err
		}
		from := 0 // what of b is in no piece yet begins here
		for at := 0; at < len(b); {
			_, _, event := protowire.ConsumeField(b[at:])
			if event < 0 {
				return protowire.ParseError(event)
			}
			if n > 0 && size+event >= s.cfg.FragmentBytes {
				if at > from {
					piece.events = append(piece.events, b[from:at])
				}
				if err := stream.SendMsg(piece); err != nil {
					return err
				}
				piece = &packedResponse{frame: more}
				n, size, from = 0, len(more), at
			}
			n++
			size += event
			at += event
		}
		piece.events = append(piece.events, b[from:])
	}
	piece.frame = last
	return stream.SendMsg(piece)
}
