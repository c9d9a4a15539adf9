package proxy

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/proxy/router"
	"github.com/hawser-kv/hawser/proxy/watch"
)

// oneRevision is a history of one large revision, 2.
type oneRevision []mvcc.Event

func (h oneRevision) PickEvents(_, _ int64, pick func(mvcc.EventRow) (want, more bool), fn func(mvcc.Event) error) error {
	for _, e := range h {
		if want, _ := pick(mvcc.EventRow{Key: e.Kv.Key, Revision: e.Revision, Delete: e.Delete}); !want {
			continue
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	return nil
}

// encodedCall is a Watch call whose messages go through the server's codec.
type encodedCall struct {
	*watchCall
	codec encoding.CodecV2
	// sizes of the messages that were encoded by the codec, in bytes.
	sizes chan int
}

func (c *encodedCall) SendMsg(m any) error {
	b, err := c.codec.Marshal(m)
	if err != nil {
		return err
	}
	c.sizes <- b.Len()
	var r pb.WatchResponse
	if err := c.codec.Unmarshal(b, &r); err != nil {
		return err
	}
	b.Free()
	return c.Send(&r)
}

// A large revision goes to watchers as it would in messages: whole in one response to
// who did not ask for fragments, to others in the pieces that sendFragments makes. What
// it takes is counted until it is written.
func TestALargeRevisionIsSentAsItIsEncoded(t *testing.T) {
	const n, limit = 50_000, 300_000
	var history oneRevision
	whole := &pb.WatchResponse{Header: &pb.ResponseHeader{Revision: 2, MemberId: 7}}
	for i := range n {
		e := mvcc.Event{Revision: 2, Sub: uint32(i), Delete: true, Kv: &mvccpb.KeyValue{Key: fmt.Appendf(nil, "k%0*d", 6+i%40, i), ModRevision: 2}}
		history = append(history, e)
		whole.Events = append(whole.Events, &mvccpb.Event{Type: mvccpb.Event_DELETE, Kv: e.Kv})
	}
	f := watch.NewFrontier()
	s := watch.NewService(f, watch.Config{History: history})
	s.Loaded(1, 2)
	s.Start()
	defer s.Stop()
	s.Cut(&placementpb.Cut{Revision: 2, First: true, Descriptors: []*rangepb.RangeDescriptor{{RangeId: 1}}})
	responses := router.NewResponses(router.MinResponseBytes)
	server := NewWatchServer(WatchConfig{
		Service:       s,
		Current:       func(context.Context) (int64, int64, error) { return 2, 0, nil },
		FillHeader:    func(h *pb.ResponseHeader) { h.MemberId = 7 },
		FragmentBytes: limit,
		Responses:     responses,
		Stopping:      make(chan struct{}),
	})
	for _, fragment := range []bool{false, true} {
		want := []*pb.WatchResponse{whole}
		if fragment {
			want = nil
			if err := sendFragments(whole, limit, func(r *pb.WatchResponse) error { want = append(want, r); return nil }); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		call := &encodedCall{
			watchCall: &watchCall{ctx: ctx, requests: make(chan *pb.WatchRequest, 1), responses: make(chan *pb.WatchResponse)},
			codec:     newCountingCodec(NewMetrics(), responses),
			sizes:     make(chan int, len(want)+1),
		}
		call.requests <- &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
			Key: []byte("k"), RangeEnd: []byte("l"), StartRevision: 2, Fragment: fragment}}}
		ended := make(chan error, 1)
		go func() { ended <- server.Watch(call) }()
		if r := receive(t, call.watchCall, ended); !r.Created {
			t.Fatalf("the first response is %v, want created", r)
		}
		for i, w := range want {
			got := receive(t, call.watchCall, ended)
			if !proto.Equal(got, w) {
				t.Errorf("fragment %t: message %d of %d has %d events, fragment %t; want %d, %t, of the same keys",
					fragment, i, len(want), len(got.Events), got.Fragment, len(w.Events), w.Fragment)
			}
			if size := <-call.sizes; size != proto.Size(w) {
				t.Errorf("fragment %t: message %d has %d bytes, want %d", fragment, i, size, proto.Size(w))
			}
		}
		if held, _ := responses.Held(); held != 0 {
			t.Errorf("fragment %t: %d bytes are held that were written", fragment, held)
		}
		cancel()
		<-ended
	}
	if _, released := responses.Held(); released == 0 {
		t.Error("nothing was counted")
	}
}

// Previous values of a large revision are read when there is room for them: what is
// larger than all responses may be is refused before it is read to its end, what is
// not waits for its turn, and fragments are read one by one.
func TestPreviousValuesOfALargeRevisionAreBounded(t *testing.T) {
	const n, valueBytes, limit, watchers = 1000, 48 << 10, 1 << 20, 4
	var history oneRevision
	for i := range n {
		history = append(history, mvcc.Event{Revision: 3, Sub: uint32(i), Delete: true, Kv: &mvccpb.KeyValue{Key: fmt.Appendf(nil, "k%04d", i), ModRevision: 3}})
	}
	f := watch.NewFrontier()
	s := watch.NewService(f, watch.Config{History: history})
	s.Loaded(1, 3)
	s.Start()
	defer s.Stop()
	s.Cut(&placementpb.Cut{Revision: 3, First: true, Descriptors: []*rangepb.RangeDescriptor{{RangeId: 1}}})
	responses := router.NewResponses(router.MinResponseBytes)
	var read atomic.Int64 // bytes of previous values
	server := NewWatchServer(WatchConfig{
		Service: s,
		Current: func(context.Context) (int64, int64, error) { return 3, 0, nil },
		Previous: func(key []byte, _ int64) (*mvccpb.KeyValue, error) {
			read.Add(valueBytes)
			if held, _ := responses.Held(); held > responses.Limit() {
				t.Errorf("%d bytes are held, %d may be", held, responses.Limit())
			}
			return &mvccpb.KeyValue{Key: key, Value: make([]byte, valueBytes), CreateRevision: 2, ModRevision: 2, Version: 1}, nil
		},
		FillHeader:    func(*pb.ResponseHeader) {},
		FragmentBytes: limit,
		Responses:     responses,
		Stopping:      make(chan struct{}),
	})
	begin := func(end string, fragment bool) (*encodedCall, chan error, context.CancelFunc) {
		ctx, cancel := context.WithCancel(t.Context())
		call := &encodedCall{
			watchCall: &watchCall{ctx: ctx, requests: make(chan *pb.WatchRequest, 1), responses: make(chan *pb.WatchResponse)},
			codec:     newCountingCodec(NewMetrics(), responses), sizes: make(chan int, n),
		}
		call.requests <- &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
			Key: []byte("k"), RangeEnd: []byte(end), StartRevision: 3, Fragment: fragment, PrevKv: true}}}
		ended := make(chan error, 1)
		go func() { ended <- server.Watch(call) }()
		if r := receive(t, call.watchCall, ended); !r.Created {
			t.Fatalf("the first response is %v, want created", r)
		}
		return call, ended, cancel
	}
	next := func(key int, r *pb.WatchResponse) int {
		for _, e := range r.Events {
			if want := fmt.Sprintf("k%04d", key); string(e.Kv.Key) != want || len(e.PrevKv.GetValue()) != valueBytes {
				t.Fatalf("event of %q with %d bytes before, want %q with %d", e.Kv.Key, len(e.PrevKv.GetValue()), want, valueBytes)
			}
			key++
		}
		return key
	}

	_, ended, cancel := begin("l", false)
	if err := <-ended; status.Code(err) != codes.ResourceExhausted {
		t.Errorf("%d bytes in one message: %v", n*valueBytes, err)
	}
	cancel()
	if got := read.Load(); got > router.MinResponseBytes+valueBytes {
		t.Errorf("%d bytes were read for a response that is refused, %d may be", got, router.MinResponseBytes)
	}

	call, ended, cancel := begin("l", true)
	before := read.Load()
	for keys := 0; keys < n; {
		r := receive(t, call.watchCall, ended)
		keys = next(keys, r)
		if r.Fragment != (keys < n) {
			t.Errorf("fragment %t after %d keys", r.Fragment, keys)
		}
		// The piece that is sent next may be there.
		if ahead := read.Load() - before - int64(keys)*valueBytes; ahead > 2*limit {
			t.Fatalf("%d bytes were read ahead", ahead)
		}
	}
	cancel()
	<-ended

	var all sync.WaitGroup
	for range watchers { // each has 9.6 MB of 16 MiB
		call, ended, cancel := begin("k0200", false)
		all.Go(func() {
			defer cancel()
			select {
			case r := <-call.responses:
				if got := next(0, r); got != 200 {
					t.Errorf("%d events", got)
				}
			case err := <-ended:
				t.Errorf("the watch ended: %v", err)
			}
		})
	}
	all.Wait()
	if held, released := responses.Held(); held != 0 || released == 0 {
		t.Errorf("%d bytes are held that were written, %d were", held, released)
	}
}
