package history

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
)

// Truth is the history of the keyspace by revision.
type Truth struct {
	// events of each revision, in order of sub-revision.
	events map[int64][]Event
	last   int64
	// versions of each key, by ascending revision.
	versions map[string][]Event
	keys     []string
}

// NewTruth makes the history out of the events of a watch over everything from
// the first revision on. It fails if they cannot be a history: an order that
// goes back, a create or version that does not follow.
func NewTruth(events []Event) (*Truth, error) {
	t := &Truth{events: map[int64][]Event{}, last: 1, versions: map[string][]Event{}}
	for _, e := range events {
		r, key := e.revision(), string(e.Kv.Key)
		if r < t.last || r <= 1 {
			return nil, fmt.Errorf("the watch over everything goes back from %d to %s", t.last, e)
		}
		vs := t.versions[key]
		var prev *mvccpb.KeyValue
		if n := len(vs); n > 0 && !vs[n-1].Delete {
			prev = vs[n-1].Kv
		}
		switch {
		case e.Delete && prev == nil:
			return nil, fmt.Errorf("%s: the key was not there", e)
		case !e.Delete && prev == nil && (e.Kv.CreateRevision != r || e.Kv.Version != 1):
			return nil, fmt.Errorf("%s: the key was not there", e)
		case !e.Delete && prev != nil && (e.Kv.CreateRevision != prev.CreateRevision || e.Kv.Version != prev.Version+1):
			return nil, fmt.Errorf("%s: does not follow create %d, version %d", e, prev.CreateRevision, prev.Version)
		}
		if len(vs) == 0 {
			t.keys = append(t.keys, key)
		}
		t.versions[key] = append(vs, e)
		t.events[r] = append(t.events[r], e)
		t.last = r
	}
	sort.Strings(t.keys)
	return t, nil
}

// get returns the key-value of a key at a revision, nil if it was not live.
func (t *Truth) get(key string, rev int64) *mvccpb.KeyValue {
	vs := t.versions[key]
	i := sort.Search(len(vs), func(i int) bool { return vs[i].revision() > rev })
	if i == 0 || vs[i-1].Delete {
		return nil
	}
	return vs[i-1].Kv
}

// scan returns the key-values of an interval at a revision, in key order.
func (t *Truth) scan(start, end string, rev int64) []*mvccpb.KeyValue {
	var kvs []*mvccpb.KeyValue
	for _, k := range t.keys {
		if !inside(k, start, end) {
			continue
		}
		if kv := t.get(k, rev); kv != nil {
			kvs = append(kvs, kv)
		}
	}
	return kvs
}

// source is the keyspace at revisions: the truth, or the state of a model.
type source interface {
	get(key string, rev int64) *mvccpb.KeyValue
	scan(start, end string, rev int64) []*mvccpb.KeyValue
}

// state is the keyspace in the middle of a request: the source at a revision,
// with what the request has written.
type state struct {
	src     source
	rev     int64
	own     map[string]*mvccpb.KeyValue // nil: deleted
	effects []Event
}

func inside(key, start, end string) bool {
	switch {
	case end == "":
		return key == start
	case end == "\x00":
		return key >= start
	}
	return key >= start && key < end
}

func (s *state) get(key string) *mvccpb.KeyValue {
	if kv, ok := s.own[key]; ok {
		return kv
	}
	return s.src.get(key, s.rev)
}

func (s *state) scan(start, end string) []*mvccpb.KeyValue {
	kvs := s.src.scan(start, end, s.rev)
	if len(s.own) == 0 {
		return kvs
	}
	merged := map[string]*mvccpb.KeyValue{}
	for _, kv := range kvs {
		merged[string(kv.Key)] = kv
	}
	for k, kv := range s.own {
		if inside(k, start, end) {
			merged[k] = kv
		}
	}
	kvs = nil
	for _, k := range slices.Sorted(maps.Keys(merged)) {
		if kv := merged[k]; kv != nil {
			kvs = append(kvs, kv)
		}
	}
	return kvs
}

func (s *state) header() *pb.ResponseHeader {
	rev := s.rev
	if len(s.effects) > 0 {
		rev++
	}
	return &pb.ResponseHeader{Revision: rev}
}

// rng answers a range without sort and filters. at is the view, which an
// explicit revision changes.
func (s *state) rng(r *pb.RangeRequest) *pb.RangeResponse {
	view := s
	if r.Revision > 0 {
		view = &state{src: s.src, rev: r.Revision}
	}
	kvs := view.scan(string(r.Key), string(r.RangeEnd))
	resp := &pb.RangeResponse{Header: s.header(), Count: int64(len(kvs))}
	if r.CountOnly {
		return resp
	}
	if r.Limit > 0 && int64(len(kvs)) > r.Limit {
		kvs, resp.More = kvs[:r.Limit], true
	}
	for _, kv := range kvs {
		kv = proto.CloneOf(kv)
		if r.KeysOnly {
			kv.Value = nil
		}
		resp.Kvs = append(resp.Kvs, kv)
	}
	return resp
}

func (s *state) put(r *pb.PutRequest, own int64) *pb.PutResponse {
	key := string(r.Key)
	prev := s.get(key)
	kv := &mvccpb.KeyValue{Key: r.Key, Value: r.Value, CreateRevision: own, ModRevision: own, Version: 1}
	if prev != nil {
		kv.CreateRevision, kv.Version = prev.CreateRevision, prev.Version+1
	}
	s.own[key] = kv
	s.effects = append(s.effects, Event{Kv: kv})
	resp := &pb.PutResponse{Header: &pb.ResponseHeader{Revision: own}}
	if r.PrevKv {
		resp.PrevKv = prev
	}
	return resp
}

func (s *state) del(r *pb.DeleteRangeRequest, own int64) *pb.DeleteRangeResponse {
	kvs := s.scan(string(r.Key), string(r.RangeEnd))
	resp := &pb.DeleteRangeResponse{Deleted: int64(len(kvs))}
	for _, kv := range kvs {
		s.own[string(kv.Key)] = nil
		s.effects = append(s.effects, Event{Delete: true, Kv: &mvccpb.KeyValue{Key: kv.Key, ModRevision: own}})
		if r.PrevKv {
			resp.PrevKvs = append(resp.PrevKvs, kv)
		}
	}
	resp.Header = s.header()
	return resp
}

// holds evaluates a compare on one key.
func (s *state) holds(c *pb.Compare) bool {
	kv := s.get(string(c.Key))
	if kv == nil {
		if c.Target == pb.Compare_VALUE {
			return false
		}
		kv = &mvccpb.KeyValue{}
	}
	var sign int
	switch c.Target {
	case pb.Compare_VALUE:
		sign = bytes.Compare(kv.Value, c.GetValue())
	case pb.Compare_MOD:
		sign = compareInts(kv.ModRevision, c.GetModRevision())
	case pb.Compare_CREATE:
		sign = compareInts(kv.CreateRevision, c.GetCreateRevision())
	case pb.Compare_VERSION:
		sign = compareInts(kv.Version, c.GetVersion())
	default:
		panic(fmt.Sprintf("history: compare target %v", c.Target))
	}
	switch c.Result {
	case pb.Compare_EQUAL:
		return sign == 0
	case pb.Compare_NOT_EQUAL:
		return sign != 0
	case pb.Compare_GREATER:
		return sign > 0
	}
	return sign < 0
}

func compareInts(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// apply runs a request on the truth at rev. If it changes something it is at
// rev+1.
func (t *Truth) apply(o *Op, rev int64) (answer proto.Message, effects []Event) {
	return apply(t, o, rev)
}

func apply(src source, o *Op, rev int64) (answer proto.Message, effects []Event) {
	s := &state{src: src, rev: rev, own: map[string]*mvccpb.KeyValue{}}
	switch {
	case o.Range != nil:
		return s.rng(o.Range), nil
	case o.Put != nil:
		resp := s.put(o.Put, rev+1)
		return resp, s.effects
	case o.Delete != nil:
		resp := s.del(o.Delete, rev+1)
		return resp, s.effects
	}
	resp := &pb.TxnResponse{Succeeded: true}
	for _, c := range o.Txn.Compare {
		resp.Succeeded = resp.Succeeded && s.holds(c)
	}
	ops := o.Txn.Success
	if !resp.Succeeded {
		ops = o.Txn.Failure
	}
	for _, op := range ops {
		var r pb.ResponseOp
		switch u := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			r.Response = &pb.ResponseOp_ResponseRange{ResponseRange: s.rng(u.RequestRange)}
		case *pb.RequestOp_RequestPut:
			r.Response = &pb.ResponseOp_ResponsePut{ResponsePut: s.put(u.RequestPut, rev+1)}
		case *pb.RequestOp_RequestDeleteRange:
			r.Response = &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: s.del(u.RequestDeleteRange, rev+1)}
		default:
			panic(fmt.Sprintf("history: operation %T", u))
		}
		resp.Responses = append(resp.Responses, &r)
	}
	resp.Header = s.header()
	return resp, s.effects
}

// sameEvents compares events but for their previous values.
func sameEvents(a, b []Event) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Delete != b[i].Delete || !proto.Equal(a[i].Kv, b[i].Kv) {
			return false
		}
	}
	return true
}

func show(events []Event) string {
	var s []string
	for _, e := range events {
		s = append(s, e.String())
	}
	return strings.Join(s, "; ")
}
