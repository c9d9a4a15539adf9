package history

import (
	"math/rand/v2"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// Requests makes the requests of one client at random.
type Requests struct {
	Rand *rand.Rand
	// Key picks a key, Span an interval of keys. Value returns a new value.
	Key   func() []byte
	Span  func() (start, end []byte)
	Value func() []byte
	// Known is the last mod revision seen of each key, for compare-and-swap; the
	// caller keeps it.
	Known map[string]int64
	// MaxLimit bounds the limit of a range, exclusively; 0 is no limit.
	MaxLimit int64
}

// Put writes a key.
func (q *Requests) Put() *pb.PutRequest {
	return &pb.PutRequest{Key: q.Key(), Value: q.Value(), PrevKv: q.Rand.IntN(3) == 0}
}

// Range reads a key or a span at the newest revision.
func (q *Requests) Range() *pb.RangeRequest {
	r := &pb.RangeRequest{Key: q.Key()}
	if q.Rand.IntN(2) == 0 {
		r.Key, r.RangeEnd = q.Span()
		r.Limit = q.Rand.Int64N(q.MaxLimit)
		r.CountOnly = q.Rand.IntN(4) == 0
		r.KeysOnly = q.Rand.IntN(4) == 0
	}
	return r
}

// Delete deletes a key or, sometimes, a span.
func (q *Requests) Delete() *pb.DeleteRangeRequest {
	d := &pb.DeleteRangeRequest{Key: q.Key(), PrevKv: q.Rand.IntN(2) == 0}
	if q.Rand.IntN(4) == 0 {
		d.Key, d.RangeEnd = q.Span()
	}
	return d
}

// Txn compares some keys and writes others, in one range or in several; often it
// is a compare-and-swap of a key that was read.
func (q *Requests) Txn() *pb.TxnRequest {
	t := &pb.TxnRequest{}
	for range 1 + q.Rand.IntN(2) {
		key := q.Key()
		cmp := &pb.Compare{Key: key, Result: pb.Compare_EQUAL, Target: pb.Compare_MOD,
			TargetUnion: &pb.Compare_ModRevision{ModRevision: q.Known[string(key)]}}
		if q.Rand.IntN(4) == 0 {
			cmp.Target, cmp.Result = pb.Compare_VERSION, pb.Compare_GREATER
			cmp.TargetUnion = &pb.Compare_Version{Version: q.Rand.Int64N(3)}
		}
		t.Compare = append(t.Compare, cmp)
	}
	used := map[string]bool{}
	for range 1 + q.Rand.IntN(3) {
		key := q.Key()
		if used[string(key)] {
			continue
		}
		used[string(key)] = true
		op := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: key, Value: q.Value(), PrevKv: q.Rand.IntN(3) == 0}}}
		if q.Rand.IntN(5) == 0 {
			op.Request = &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: key, PrevKv: q.Rand.IntN(2) == 0}}
		}
		t.Success = append(t.Success, op)
	}
	t.Success = append(t.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: q.Range()}})
	t.Failure = append(t.Failure, &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: t.Compare[0].Key}}})
	if q.Rand.IntN(6) == 0 {
		t.Failure = append(t.Failure, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: q.Key(), Value: q.Value()}}})
	}
	return t
}
