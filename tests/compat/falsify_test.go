package compat

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// A lie falsifies a message of the second server before the runner sees it. It returns whether it has changed anything.
type lie func(proto.Message) bool

// lies are faults that the runner must see, each alone. A checker that has never caught anything proves nothing.
var lies = map[string]lie{
	"one key less": onRange(func(r *pb.RangeResponse) bool {
		if len(r.Kvs) < 2 {
			return false
		}
		r.Kvs = r.Kvs[:len(r.Kvs)-1]
		return true
	}),
	"two keys swapped": onRange(func(r *pb.RangeResponse) bool {
		if len(r.Kvs) < 2 {
			return false
		}
		r.Kvs[0], r.Kvs[1] = r.Kvs[1], r.Kvs[0]
		return true
	}),
	"count is the number returned": onRange(func(r *pb.RangeResponse) bool {
		changed := r.Count != int64(len(r.Kvs))
		r.Count = int64(len(r.Kvs))
		return changed
	}),
	"more is forgotten": onRange(func(r *pb.RangeResponse) bool {
		changed := r.More
		r.More = false
		return changed
	}),
	"version off by one": onRange(func(r *pb.RangeResponse) bool {
		if len(r.Kvs) == 0 {
			return false
		}
		r.Kvs[0].Version++
		return true
	}),
	"put answers an older revision": func(m proto.Message) bool {
		r, ok := m.(*pb.PutResponse)
		if ok {
			r.Header.Revision--
		}
		return ok
	},
	"nested header has a revision": func(m proto.Message) bool {
		r, _ := m.(*pb.TxnResponse)
		for _, op := range r.GetResponses() {
			if nested := op.GetResponseTxn(); nested != nil {
				nested.Header.Revision = r.Header.Revision
				return true
			}
		}
		return false
	},
	"hash": func(m proto.Message) bool {
		r, ok := m.(*pb.HashKVResponse)
		if ok {
			r.Hash++
		}
		return ok
	},
	"an event is lost": onEvents(func(r *pb.WatchResponse) bool {
		r.Events = r.Events[1:]
		return true
	}),
	"an event comes twice": onEvents(func(r *pb.WatchResponse) bool {
		r.Events = append(r.Events, r.Events[len(r.Events)-1])
		return true
	}),
	"prev_kv is missing": onEvents(func(r *pb.WatchResponse) bool {
		for _, e := range r.Events {
			if e.PrevKv != nil {
				e.PrevKv = nil
				return true
			}
		}
		return false
	}),
	"a delete has a value": onEvents(func(r *pb.WatchResponse) bool {
		for _, e := range r.Events {
			if e.Type == mvccpb.Event_DELETE {
				e.Kv.Value = []byte("v")
				return true
			}
		}
		return false
	}),
	"watch header is not the event's revision": onEvents(func(r *pb.WatchResponse) bool {
		r.Header.Revision++
		return true
	}),
	"progress goes too far": func(m proto.Message) bool {
		r, ok := m.(*pb.WatchResponse)
		if !ok || r.WatchId != -1 || r.Created || len(r.Events) > 0 {
			return false
		}
		r.Header.Revision++
		return true
	},
	"compaction cancels without compact_revision": func(m proto.Message) bool {
		r, ok := m.(*pb.WatchResponse)
		if !ok || r.CompactRevision == 0 {
			return false
		}
		r.CompactRevision = 0
		return true
	},
	"the member changes its id": func(m proto.Message) bool {
		r, ok := m.(*pb.PutResponse)
		if ok {
			r.Header.MemberId++
		}
		return ok
	},
}

func onRange(change func(*pb.RangeResponse) bool) lie {
	return func(m proto.Message) bool {
		r, ok := m.(*pb.RangeResponse)
		return ok && change(r)
	}
}

func onEvents(change func(*pb.WatchResponse) bool) lie {
	return func(m proto.Message) bool {
		r, ok := m.(*pb.WatchResponse)
		return ok && len(r.Events) > 0 && change(r)
	}
}

// liar applies a lie to the first message that it fits, from some message on so that a run is under way.
type liar struct {
	lie  lie
	told atomic.Bool
}

func (l *liar) tell(m any) {
	if m, ok := m.(proto.Message); ok && !l.told.Load() && l.lie(m) {
		l.told.Store(true)
	}
}

func (l *liar) options() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			err := invoke(ctx, method, req, reply, cc, opts...)
			if err == nil {
				l.tell(reply)
			}
			return err
		}),
		grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			stream, err := open(ctx, desc, cc, method, opts...)
			return &lyingStream{stream, l}, err
		}),
	}
}

type lyingStream struct {
	grpc.ClientStream
	liar *liar
}

func (s *lyingStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil {
		s.liar.tell(m)
	}
	return err
}

// TestEveryLieIsFound runs two real etcds, the second one with one fault in what it says.
func TestEveryLieIsFound(t *testing.T) {
	for name, lie := range lies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			liar := &liar{lie: lie}
			generator := NewGenerator(1, 3000, 1)
			steps := 0
			campaign := Campaign{Target: Etcd{}, Runner: RunnerOptions{Patience: 2 * time.Second, OptionsB: liar.options()}}
			_, difference, _ := campaign.run(t, func(r *Runner) (Op, bool) {
				steps++
				return generator.Next(&r.State, r.Watchers()), steps < 3000
			})
			switch {
			case !liar.told.Load():
				t.Fatalf("after %d steps the lie still had no occasion", steps)
			case difference == nil:
				t.Fatal("not found")
			}
			t.Logf("found: %s", difference)
		})
	}
}

// TestErrorsAreComparedByCodeAndText: two answers that are errors are equal only if clients cannot tell them apart.
func TestErrorsAreComparedByCodeAndText(t *testing.T) {
	notFound := newAnswer[*pb.PutResponse](nil, status.Error(5, "etcdserver: requested lease not found"))
	for name, other := range map[string]*answer{
		"code":       newAnswer[*pb.PutResponse](nil, status.Error(3, "etcdserver: requested lease not found")),
		"text":       newAnswer[*pb.PutResponse](nil, status.Error(5, "requested lease not found")),
		"no error":   newAnswer(&pb.PutResponse{}, nil),
		"one's rule": {code: 5, text: "etcdserver: requested lease not found", violation: "a rule"},
	} {
		if len(diffAnswers(&pb.PutRequest{}, notFound, other)) == 0 {
			t.Errorf("%s: no difference between %v and %v", name, notFound, other)
		}
	}
	if lines := diffAnswers(&pb.PutRequest{}, notFound, notFound); len(lines) > 0 {
		t.Errorf("an answer differs from itself: %q", lines)
	}
}

// TestKeysOnlyLeaseIsTheOnlyFreedom shows how far exception D1 goes.
func TestKeysOnlyLeaseIsTheOnlyFreedom(t *testing.T) {
	kvs := func(lease, version int64) *pb.RangeResponse {
		return &pb.RangeResponse{Kvs: []*mvccpb.KeyValue{{Key: []byte("k"), Version: version, Lease: lease}}}
	}
	keysOnly := &pb.RangeRequest{Key: []byte("k"), KeysOnly: true}
	inTxn := func(r *pb.RangeResponse) *pb.TxnResponse {
		return &pb.TxnResponse{Succeeded: true, Responses: []*pb.ResponseOp{{Response: &pb.ResponseOp_ResponseRange{ResponseRange: r}}}}
	}
	for _, test := range []struct {
		name    string
		request proto.Message
		a, b    proto.Message
		equal   bool
	}{
		{"lease kept", keysOnly, kvs(0, 1), kvs(7, 1), true},
		{"lease kept in a txn", &pb.TxnRequest{Success: []*pb.RequestOp{rangeOp(keysOnly)}}, inTxn(kvs(0, 1)), inTxn(kvs(7, 1)), true},
		{"another lease", keysOnly, kvs(6, 1), kvs(7, 1), false},
		{"lease lost", keysOnly, kvs(7, 1), kvs(0, 1), false},
		{"version", keysOnly, kvs(0, 1), kvs(7, 2), false},
		{"not keys-only", &pb.RangeRequest{Key: []byte("k")}, kvs(0, 1), kvs(7, 1), false},
		{"sorted by value: etcd keeps it too", &pb.RangeRequest{Key: []byte("k"), KeysOnly: true, SortTarget: pb.RangeRequest_VALUE}, kvs(0, 1), kvs(7, 1), false},
	} {
		lines := diffAnswers(test.request, newAnswer(test.a, nil), newAnswer(test.b, nil))
		if equal := len(lines) == 0; equal != test.equal {
			t.Errorf("%s: differences %q", test.name, lines)
		}
	}
}

// TestShrinkKeepsWhatIsNeeded: a fault that needs two of many steps is shrunk to few.
func TestShrinkKeepsWhatIsNeeded(t *testing.T) {
	if testing.Short() {
		t.Skip("starts some tens of servers")
	}
	lie := onRange(func(r *pb.RangeResponse) bool {
		for _, kv := range r.Kvs {
			if string(kv.Key) == "the key" {
				kv.Version += 5
				return true
			}
		}
		return false
	})
	var ops []Op
	for n := range 16 {
		key := denseKey(n)
		if n == 8 {
			key = "the key"
		}
		ops = append(ops, Op{Kind: Put, Request: &pb.PutRequest{Key: []byte(key), Value: []byte("v")}})
	}
	ops = append(ops, Op{Kind: Range, Request: &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}}})
	liar := &liar{lie: lie}
	campaign := Campaign{Target: Etcd{}, Runner: RunnerOptions{OptionsB: liar.options()}}
	campaign.beforeRun = func() { liar.told.Store(false) }
	shorter, difference := campaign.shrink(t, ops, 20*time.Second)
	if difference == nil || len(shorter) > 5 {
		t.Fatalf("%d steps are left: %v", len(shorter), shorter)
	}
	if text := difference.String(); !strings.Contains(text, "kvs[0].version: 1 | 6") {
		t.Fatalf("unexpected difference: %s", text)
	}
}
