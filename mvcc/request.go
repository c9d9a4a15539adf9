package mvcc

import (
	"bytes"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// Request is one of etcd's KV requests; exactly one field is set. The request
// is not changed by this package, and what is evaluated from it may alias it:
// nobody may change it while a Result of it is in use.
type Request struct {
	Put         *pb.PutRequest
	DeleteRange *pb.DeleteRangeRequest
	Txn         *pb.TxnRequest
	Range       *pb.RangeRequest
}

// Access is a span of keys that a request may touch.
type Access struct {
	Start []byte
	End   []byte // excluded; nil: to the end of the keyspace
	Write bool   // may put or delete in the span; reads otherwise
}

// interval turns etcd's (key, range_end) into [start, end), end nil for the end
// of the keyspace: no range_end is one key, "\x00" all from key on (etcd/R1). It
// allocates for one key. start >= end is an empty interval.
func interval(key, rangeEnd []byte) (start, end []byte) {
	switch {
	case len(rangeEnd) == 0:
		b := make([]byte, len(key)+1)
		copy(b, key)
		return b[:len(key):len(key)], b
	case len(rangeEnd) == 1 && rangeEnd[0] == 0:
		return key, nil
	}
	return key, rangeEnd
}

// emptyInterval says whether [start, end) holds no key.
func emptyInterval(start, end []byte) bool {
	return end != nil && bytes.Compare(start, end) >= 0
}

// Spans returns every span that the request may touch, in the order of the
// request: compares, both branches, nested transactions. Spans may overlap and
// repeat. An empty interval (range_end <= key) counts as its first key, so that
// every request has a place where it is evaluated.
func (r *Request) Spans() []Access {
	switch {
	case r.Put != nil:
		return appendAccess(make([]Access, 0, 1), r.Put.Key, nil, true)
	case r.DeleteRange != nil:
		return appendAccess(make([]Access, 0, 1), r.DeleteRange.Key, r.DeleteRange.RangeEnd, true)
	case r.Range != nil:
		return appendAccess(make([]Access, 0, 1), r.Range.Key, r.Range.RangeEnd, false)
	case r.Txn != nil:
		return appendTxnAccess(make([]Access, 0, 4), r.Txn)
	}
	return nil
}

func appendTxnAccess(spans []Access, txn *pb.TxnRequest) []Access {
	for _, c := range txn.GetCompare() {
		spans = appendAccess(spans, c.GetKey(), c.GetRangeEnd(), false)
	}
	for _, ops := range [2][]*pb.RequestOp{txn.GetSuccess(), txn.GetFailure()} {
		for _, op := range ops {
			switch o := op.GetRequest().(type) {
			case *pb.RequestOp_RequestRange:
				spans = appendAccess(spans, o.RequestRange.GetKey(), o.RequestRange.GetRangeEnd(), false)
			case *pb.RequestOp_RequestPut:
				spans = appendAccess(spans, o.RequestPut.GetKey(), nil, true)
			case *pb.RequestOp_RequestDeleteRange:
				spans = appendAccess(spans, o.RequestDeleteRange.GetKey(), o.RequestDeleteRange.GetRangeEnd(), true)
			case *pb.RequestOp_RequestTxn:
				spans = appendTxnAccess(spans, o.RequestTxn)
			}
		}
	}
	return spans
}

func appendAccess(spans []Access, key, rangeEnd []byte, write bool) []Access {
	start, end := interval(key, rangeEnd)
	if emptyInterval(start, end) {
		start, end = interval(key, nil)
	}
	return append(spans, Access{start, end, write})
}

// IsReadOnly says whether the request can change nothing whatever the state is.
// As in etcd a nested transaction makes its parent a writing one (etcd/T10).
func (r *Request) IsReadOnly() bool {
	if r.Txn == nil {
		return r.Range != nil
	}
	return allOps(r.Txn, func(op *pb.RequestOp) bool { return isRange(op) })
}

// IsSerializable says whether the request may be answered from a state that is
// not the newest: a serializable range, or a transaction of nothing but such
// ranges, also one without any operation (etcd/R10, etcd/T10).
func (r *Request) IsSerializable() bool {
	if r.Txn == nil {
		return r.Range.GetSerializable()
	}
	return allOps(r.Txn, func(op *pb.RequestOp) bool { return isRange(op) && op.GetRequestRange().GetSerializable() })
}

func isRange(op *pb.RequestOp) bool {
	_, ok := op.GetRequest().(*pb.RequestOp_RequestRange)
	return ok
}

func allOps(txn *pb.TxnRequest, ok func(*pb.RequestOp) bool) bool {
	for _, op := range txn.GetSuccess() {
		if !ok(op) {
			return false
		}
	}
	for _, op := range txn.GetFailure() {
		if !ok(op) {
			return false
		}
	}
	return true
}
