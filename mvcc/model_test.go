package mvcc

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sort"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
)

// model is etcd in plain maps: it keeps the whole state at every revision, and
// evaluates a request knowing the revision it will get.
type model struct {
	current   int64
	compacted int64                                 // -1: never
	states    map[int64]map[string]*mvccpb.KeyValue // by revision; all of them
	events    []modelEvent                          // all, in order
	leases    map[int64]bool
}

type modelEvent struct {
	rev    int64
	sub    uint32
	delete bool
	kv     *mvccpb.KeyValue
	prev   *mvccpb.KeyValue // state before the revision
}

func newModel() *model {
	return &model{current: 1, compacted: -1, states: map[int64]map[string]*mvccpb.KeyValue{1: {}}, leases: map[int64]bool{}}
}

// modelWrite is a request being evaluated on the model.
type modelWrite struct {
	m       *model
	rev     int64 // the one it will have
	before  map[string]*mvccpb.KeyValue
	now     map[string]*mvccpb.KeyValue
	changes []modelEvent
}

func (m *model) begin() *modelWrite {
	return &modelWrite{m: m, rev: m.current + 1, before: m.states[m.current], now: maps.Clone(m.states[m.current])}
}

// commit makes the write's state the current one, if it changed something, and
// returns the revision for the response.
func (w *modelWrite) commit() int64 {
	if len(w.changes) == 0 {
		return w.m.current
	}
	w.m.current = w.rev
	w.m.states[w.rev] = w.now
	w.m.events = append(w.m.events, w.changes...)
	return w.rev
}

// seen is the revision that an operation at this point reports (etcd/T9).
func (w *modelWrite) seen() int64 {
	if len(w.changes) > 0 {
		return w.rev
	}
	return w.rev - 1
}

func (w *modelWrite) note(deleted bool, kv *mvccpb.KeyValue) {
	w.changes = append(w.changes, modelEvent{
		rev: w.rev, sub: uint32(len(w.changes)), delete: deleted, kv: kv, prev: w.before[string(kv.Key)],
	})
}

func sortedKeys(state map[string]*mvccpb.KeyValue, key, rangeEnd []byte) []string {
	var ks []string
	for k := range state {
		in := k == string(key)
		switch {
		case string(rangeEnd) == "\x00":
			in = k >= string(key)
		case len(rangeEnd) > 0:
			in = k >= string(key) && k < string(rangeEnd)
		}
		if in {
			ks = append(ks, k)
		}
	}
	slices.Sort(ks)
	return ks
}

func clone(kv *mvccpb.KeyValue) *mvccpb.KeyValue {
	if kv == nil {
		return nil
	}
	return proto.Clone(kv).(*mvccpb.KeyValue)
}

func (w *modelWrite) put(p *pb.PutRequest) (*pb.PutResponse, error) {
	old := w.now[string(p.Key)]
	if (p.IgnoreLease || p.IgnoreValue) && old == nil {
		return nil, ErrKeyNotFound
	}
	kv := &mvccpb.KeyValue{Key: p.Key, Value: p.Value, Lease: p.Lease, CreateRevision: w.rev, ModRevision: w.rev, Version: 1}
	if old != nil {
		kv.CreateRevision, kv.Version = old.CreateRevision, old.Version+1
	}
	if p.IgnoreValue {
		kv.Value = old.Value
	}
	if p.IgnoreLease {
		kv.Lease = old.Lease
	}
	w.now[string(p.Key)] = kv
	w.note(false, kv)
	resp := &pb.PutResponse{Header: &pb.ResponseHeader{Revision: w.rev}}
	if p.PrevKv {
		resp.PrevKv = clone(old)
	}
	return resp, nil
}

func (w *modelWrite) delete(d *pb.DeleteRangeRequest) *pb.DeleteRangeResponse {
	resp := &pb.DeleteRangeResponse{}
	for _, k := range sortedKeys(w.now, d.Key, d.RangeEnd) {
		if d.PrevKv {
			resp.PrevKvs = append(resp.PrevKvs, clone(w.now[k]))
		}
		delete(w.now, k)
		w.note(true, &mvccpb.KeyValue{Key: []byte(k), ModRevision: w.rev})
		resp.Deleted++
	}
	resp.Header = &pb.ResponseHeader{Revision: w.seen()}
	return resp
}

// modelRange answers a range on a state.
func modelRange(state map[string]*mvccpb.KeyValue, r *pb.RangeRequest, header int64) *pb.RangeResponse {
	ks := sortedKeys(state, r.Key, r.RangeEnd)
	resp := &pb.RangeResponse{Header: &pb.ResponseHeader{Revision: header}, Count: int64(len(ks))}
	if r.CountOnly {
		return resp
	}
	plain := r.SortOrder == pb.RangeRequest_NONE || r.SortTarget == pb.RangeRequest_KEY && r.SortOrder == pb.RangeRequest_ASCEND
	filters := r.MinModRevision != 0 || r.MaxModRevision != 0 || r.MinCreateRevision != 0 || r.MaxCreateRevision != 0
	if plain && !filters && r.Limit > 0 && int64(len(ks))-1 > r.Limit {
		ks = ks[:r.Limit+1]
	}
	for _, k := range ks {
		kv := state[k]
		if r.MaxModRevision != 0 && kv.ModRevision > r.MaxModRevision || kv.ModRevision < r.MinModRevision ||
			r.MaxCreateRevision != 0 && kv.CreateRevision > r.MaxCreateRevision || kv.CreateRevision < r.MinCreateRevision {
			continue
		}
		resp.Kvs = append(resp.Kvs, clone(kv))
	}
	compare := map[pb.RangeRequest_SortTarget]func(a, b *mvccpb.KeyValue) int{
		pb.RangeRequest_KEY:     func(a, b *mvccpb.KeyValue) int { return bytes.Compare(a.Key, b.Key) },
		pb.RangeRequest_VALUE:   func(a, b *mvccpb.KeyValue) int { return bytes.Compare(a.Value, b.Value) },
		pb.RangeRequest_VERSION: func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.Version, b.Version) },
		pb.RangeRequest_CREATE:  func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.CreateRevision, b.CreateRevision) },
		pb.RangeRequest_MOD:     func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.ModRevision, b.ModRevision) },
	}[r.SortTarget]
	// The order of rows that compare equal is sort.Sort's, as in etcd.
	by := modelRows{resp.Kvs, compare}
	switch {
	case r.SortOrder == pb.RangeRequest_DESCEND:
		sort.Sort(sort.Reverse(by))
	case r.SortTarget != pb.RangeRequest_KEY:
		sort.Sort(by)
	}
	if r.Limit > 0 && int64(len(resp.Kvs)) > r.Limit {
		resp.Kvs, resp.More = resp.Kvs[:r.Limit], true
	}
	if r.KeysOnly {
		for _, kv := range resp.Kvs {
			kv.Value = nil
		}
	}
	return resp
}

type modelRows struct {
	kvs     []*mvccpb.KeyValue
	compare func(a, b *mvccpb.KeyValue) int
}

func (s modelRows) Len() int           { return len(s.kvs) }
func (s modelRows) Less(i, j int) bool { return s.compare(s.kvs[i], s.kvs[j]) < 0 }
func (s modelRows) Swap(i, j int)      { s.kvs[i], s.kvs[j] = s.kvs[j], s.kvs[i] }

func (m *model) rangeAt(r *pb.RangeRequest) (*pb.RangeResponse, error) {
	rev := r.Revision
	switch {
	case rev <= 0:
		rev = m.current
	case rev > m.current:
		return nil, ErrFutureRev
	case rev < m.compacted:
		return nil, ErrCompacted
	}
	return modelRange(m.states[rev], r, m.current), nil
}

func (w *modelWrite) compares(t *pb.TxnRequest, path *[]bool) {
	ok := true
	for _, c := range t.Compare {
		ok = ok && w.compare(c)
	}
	*path = append(*path, ok)
	for _, op := range modelBranch(t, ok) {
		if n := op.GetRequestTxn(); n != nil {
			w.compares(n, path)
		}
	}
}

func modelBranch(t *pb.TxnRequest, ok bool) []*pb.RequestOp {
	if ok {
		return t.Success
	}
	return t.Failure
}

func (w *modelWrite) compare(c *pb.Compare) bool {
	ks := sortedKeys(w.before, c.Key, c.RangeEnd)
	kvs := []*mvccpb.KeyValue{}
	for _, k := range ks {
		kvs = append(kvs, w.before[k])
	}
	if len(kvs) == 0 {
		if c.Target == pb.Compare_VALUE {
			return false
		}
		kvs = append(kvs, &mvccpb.KeyValue{})
	}
	for _, kv := range kvs {
		var d int
		switch c.Target {
		case pb.Compare_VERSION:
			d = cmp.Compare(kv.Version, c.GetVersion())
		case pb.Compare_CREATE:
			d = cmp.Compare(kv.CreateRevision, c.GetCreateRevision())
		case pb.Compare_MOD:
			d = cmp.Compare(kv.ModRevision, c.GetModRevision())
		case pb.Compare_VALUE:
			d = bytes.Compare(kv.Value, c.GetValue())
		case pb.Compare_LEASE:
			d = cmp.Compare(kv.Lease, c.GetLease())
		}
		holds := map[pb.Compare_CompareResult]bool{
			pb.Compare_EQUAL: d == 0, pb.Compare_GREATER: d > 0, pb.Compare_LESS: d < 0, pb.Compare_NOT_EQUAL: d != 0,
		}
		if h, known := holds[c.Result]; known && !h {
			return false
		}
	}
	return true
}

func (w *modelWrite) check(t *pb.TxnRequest, path *[]bool) error {
	ok := (*path)[0]
	*path = (*path)[1:]
	for _, op := range modelBranch(t, ok) {
		switch o := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			rev := o.RequestRange.Revision
			if rev > w.m.current {
				return ErrFutureRev
			}
			if rev != 0 && rev < w.m.compacted {
				return ErrCompacted
			}
		case *pb.RequestOp_RequestPut:
			p := o.RequestPut
			if p.Lease != 0 && !w.m.leases[p.Lease] {
				return ErrLeaseNotFound
			}
			if (p.IgnoreLease || p.IgnoreValue) && w.before[string(p.Key)] == nil {
				return ErrKeyNotFound
			}
		case *pb.RequestOp_RequestTxn:
			if err := w.check(o.RequestTxn, path); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *modelWrite) execute(t *pb.TxnRequest, path *[]bool) (*pb.TxnResponse, error) {
	ok := (*path)[0]
	*path = (*path)[1:]
	resp := &pb.TxnResponse{Header: &pb.ResponseHeader{}, Succeeded: ok}
	for _, op := range modelBranch(t, ok) {
		out := &pb.ResponseOp{}
		switch o := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			state := w.now
			if o.RequestRange.Revision > 0 {
				state = w.m.states[o.RequestRange.Revision]
			}
			out.Response = &pb.ResponseOp_ResponseRange{ResponseRange: modelRange(state, o.RequestRange, w.seen())}
		case *pb.RequestOp_RequestPut:
			p, err := w.put(o.RequestPut)
			if err != nil {
				return nil, err
			}
			out.Response = &pb.ResponseOp_ResponsePut{ResponsePut: p}
		case *pb.RequestOp_RequestDeleteRange:
			out.Response = &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: w.delete(o.RequestDeleteRange)}
		case *pb.RequestOp_RequestTxn:
			n, err := w.execute(o.RequestTxn, path)
			if err != nil {
				return nil, err
			}
			out.Response = &pb.ResponseOp_ResponseTxn{ResponseTxn: n}
		}
		resp.Responses = append(resp.Responses, out)
	}
	return resp, nil
}

// do runs a request and returns its response.
func (m *model) do(r *Request) (proto.Message, error) {
	if r.Range != nil {
		return m.rangeAt(r.Range)
	}
	w := m.begin()
	switch {
	case r.Put != nil:
		if r.Put.Lease != 0 && !m.leases[r.Put.Lease] {
			return nil, ErrLeaseNotFound
		}
		resp, err := w.put(r.Put)
		if err != nil {
			return nil, err
		}
		resp.Header.Revision = w.commit()
		return resp, nil
	case r.DeleteRange != nil:
		resp := w.delete(r.DeleteRange)
		resp.Header.Revision = w.commit()
		return resp, nil
	}
	var path []bool
	w.compares(r.Txn, &path)
	checked := slices.Clone(path)
	if err := w.check(r.Txn, &checked); err != nil {
		return nil, err
	}
	resp, err := w.execute(r.Txn, &path)
	if err != nil {
		// The key was there before the transaction, which deleted it first. etcd
		// panics.
		return nil, fmt.Errorf("%w in the middle of a transaction", err)
	}
	resp.Header.Revision = w.commit()
	return resp, nil
}
