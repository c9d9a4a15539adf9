package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"

	"github.com/hawser-kv/hawser/tests/history"
	"github.com/hawser-kv/hawser/tests/testcluster"
)

// watchStream is one Watch call with a few watchers, read without the mending
// that clientv3 does: it drops what comes twice.
type watchStream struct {
	rec      *recorder
	stream   pb.Watch_WatchClient
	cancel   context.CancelFunc
	watchers map[int64]*history.Watch
	over     map[int64]bool
	// pieces of a response in fragments.
	pieces map[int64][]history.Event
	// promised is the highest progress of the stream.
	promised int64
	// got are the responses, in order; err why there are no more.
	got chan *pb.WatchResponse
	err error
}

// watchRequests makes the requests of a stream: watches from old, new and future
// revisions, with every option.
func watchRequests(rng *rand.Rand, name string, ks keyspace, seen int64) map[*history.Watch]*pb.WatchCreateRequest {
	reqs := map[*history.Watch]*pb.WatchCreateRequest{}
	for i := range 1 + rng.IntN(4) {
		w := &history.Watch{Name: fmt.Sprintf("%s.%d", name, i), PrevKV: rng.IntN(2) == 0}
		w.NoPut, w.NoDelete = rng.IntN(8) == 0, rng.IntN(8) == 0
		a := rng.IntN(ks.keys())
		switch rng.IntN(4) {
		case 0:
			w.Start = ks.at(a / ks.keysPerRange * ks.keysPerRange)
		case 1:
			w.Start, w.End = "\x00", "\x00"
		default:
			w.Start, w.End = ks.at(a), ks.at(a+1+rng.IntN(10*ks.keysPerRange))
		}
		switch rng.IntN(3) {
		case 0:
			w.From = max(1, seen-rng.Int64N(50))
		case 1:
			w.From = seen + 1 + rng.Int64N(50)
		}
		req := &pb.WatchCreateRequest{
			Key: []byte(w.Start), RangeEnd: []byte(w.End), StartRevision: w.From,
			PrevKv: w.PrevKV, WatchId: int64(i + 1), ProgressNotify: rng.IntN(2) == 0, Fragment: rng.IntN(3) == 0,
		}
		if w.NoPut {
			req.Filters = append(req.Filters, pb.WatchCreateRequest_NOPUT)
		}
		if w.NoDelete {
			req.Filters = append(req.Filters, pb.WatchCreateRequest_NODELETE)
		}
		reqs[w] = req
	}
	return reqs
}

// openWatches opens a stream for the requests.
func openWatches(ctx context.Context, rec *recorder, client pb.WatchClient, reqs map[*history.Watch]*pb.WatchCreateRequest) (*watchStream, error) {
	s := &watchStream{rec: rec, watchers: map[int64]*history.Watch{}, over: map[int64]bool{}, pieces: map[int64][]history.Event{}}
	ctx, s.cancel = context.WithCancel(ctx)
	var err error
	if s.stream, err = client.Watch(ctx, grpc.WaitForReady(true)); err != nil {
		s.cancel()
		return nil, err
	}
	s.got = make(chan *pb.WatchResponse)
	go func() {
		defer close(s.got)
		for {
			resp, err := s.stream.Recv()
			if err != nil {
				s.err = err
				return
			}
			select {
			case s.got <- resp:
			case <-ctx.Done():
				s.err = ctx.Err()
				return
			}
		}
	}()
	for w, req := range reqs {
		s.watchers[req.WatchId] = w
		if err := s.send(&pb.WatchRequest_CreateRequest{CreateRequest: req}); err != nil {
			s.cancel()
			return nil, err
		}
	}
	return s, nil
}

func (s *watchStream) send(u any) error {
	req := &pb.WatchRequest{}
	switch u := u.(type) {
	case *pb.WatchRequest_CreateRequest:
		req.RequestUnion = u
	case *pb.WatchRequest_CancelRequest:
		req.RequestUnion = u
	case *pb.WatchRequest_ProgressRequest:
		req.RequestUnion = u
	}
	err := s.stream.Send(req)
	if errors.Is(err, io.EOF) {
		return nil // the reason comes with the next receive
	}
	return err
}

// record keeps what a response tells.
func (s *watchStream) record(t *testing.T, resp *pb.WatchResponse) error {
	if resp.WatchId == -1 {
		if resp.Created || resp.Canceled || len(resp.Events) > 0 {
			t.Errorf("a response for no watcher: %v", resp)
			return nil
		}
		s.promised = max(s.promised, resp.Header.Revision)
		for id, w := range s.watchers {
			if !s.over[id] && w.From > 0 {
				w.Responses = append(w.Responses, history.Response{Revision: resp.Header.Revision, Progress: true})
			}
		}
		return nil
	}
	w := s.watchers[resp.WatchId]
	switch {
	case w == nil:
		t.Errorf("a response for a watcher that is not there: %v", resp)
	case resp.Created:
		if resp.Canceled {
			t.Errorf("watch %s was refused: %s", w.Name, resp.CancelReason)
		}
		if w.From == 0 {
			w.From = resp.Header.Revision + 1
		}
	case resp.Canceled:
		wasOver := s.over[resp.WatchId]
		s.over[resp.WatchId] = true
		if resp.CompactRevision > 0 {
			if resp.CompactRevision <= w.From && len(w.Responses) == 0 {
				t.Errorf("watch %s from %d was ended by a compaction at %d", w.Name, w.From, resp.CompactRevision)
			}
			w.Responses = append(w.Responses, history.Response{Compacted: resp.CompactRevision})
			return s.send(&pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: resp.WatchId}})
		}
		if !wasOver {
			t.Errorf("watch %s was cancelled: %v", w.Name, resp)
		}
	case s.over[resp.WatchId]:
		t.Errorf("watch %s: after its end: %v", w.Name, resp)
	case len(resp.Events) == 0 && !resp.Fragment:
		w.Responses = append(w.Responses, history.Response{Revision: resp.Header.Revision, Progress: true})
	default:
		events := append(s.pieces[resp.WatchId], recordEvents(resp.Events)...)
		delete(s.pieces, resp.WatchId)
		if resp.Fragment {
			s.pieces[resp.WatchId] = events
			return nil
		}
		w.Responses = append(w.Responses, history.Response{Revision: resp.Header.Revision, Events: events})
	}
	return nil
}

func recordEvents(events []*mvccpb.Event) []history.Event {
	var out []history.Event
	for _, e := range events {
		out = append(out, history.Event{Delete: e.Type == mvccpb.Event_DELETE, Kv: e.Kv, PrevKv: e.PrevKv})
	}
	return out
}

// finish reads until every watcher has got everything up to last, and keeps what
// the watchers got. What a
// stream got that broke, or was left, counts as far as it goes.
func (s *watchStream) finish(t *testing.T, last int64, broken bool) {
	defer s.cancel()
	if !broken && s.readUpTo(t, last) {
		for id, w := range s.watchers {
			w.Finished, w.UpTo = !s.over[id], last
		}
	}
	s.rec.mu.Lock()
	defer s.rec.mu.Unlock()
	for _, w := range s.watchers {
		if w.From > 0 {
			s.rec.run.Watches = append(s.rec.run.Watches, w)
		}
	}
}

func (s *watchStream) readUpTo(t *testing.T, last int64) bool {
	// A watcher that is still to start would keep the stream from promising
	// anything. Its cancellation is no end of what was asked: it got nothing,
	// and there was nothing.
	for id, w := range s.watchers {
		if w.From > last && !s.over[id] {
			s.over[id] = true
			if err := s.send(&pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: id}}); err != nil {
				t.Errorf("cancel: %v", err)
				return false
			}
		}
	}
	for {
		open := false
		for id := range s.watchers {
			open = open || !s.over[id]
		}
		if !open || s.promised >= last {
			return true
		}
		// A compaction that ends a watcher makes the stream ignore the request:
		// ask again after each response.
		if err := s.send(&pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}); err != nil {
			t.Errorf("ask for progress: %v", err)
			return false
		}
		resp, ok := <-s.got
		if !ok {
			t.Errorf("read a watch to the end: %v", s.err)
			return false
		}
		if err := s.record(t, resp); err != nil {
			t.Errorf("watch: %v", err)
			return false
		}
	}
}

// watchRandomly opens streams one after the other and reads some of each, until
// done is closed; the last it reads up to the revision that last gives. Streams
// may break only if there are faults.
func watchRandomly(ctx context.Context, t *testing.T, rec *recorder, n *testcluster.Node, ks keyspace, name string, seed uint64,
	faults bool, done <-chan struct{}, last func() int64) {
	rng := rand.New(rand.NewPCG(seed, 0x77))
	client := pb.NewWatchClient(n.Client().ActiveConnection())
	for i := 0; ; i++ {
		s, err := openWatches(ctx, rec, client, watchRequests(rng, fmt.Sprintf("%s.%d", name, i), ks, rec.seen.Load()))
		if err != nil {
			if !faults || ctx.Err() != nil {
				t.Errorf("open a watch: %v", err)
				return
			}
			continue // the server has just gone
		}
		broken, ended := false, false
		for left := 5 + rng.IntN(40); left > 0 && !broken && !ended; left-- {
			select {
			case <-done:
				ended = true
			case resp, ok := <-s.got:
				if broken = !ok; broken {
					if !faults {
						t.Errorf("a watch broke: %v", s.err)
					}
					break
				}
				err := s.record(t, resp)
				if err == nil && rng.IntN(4) == 0 {
					err = s.send(&pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}})
				}
				broken = err != nil
			}
		}
		if ended {
			s.finish(t, last(), false)
			return
		}
		s.finish(t, 0, true)
	}
}
