package compat

import (
	"fmt"
	"math"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// maxTxnDepth bounds the nesting of generated transactions.
const maxTxnDepth = 3

// maxTxnOps is the default of --max-txn-ops (T1).
const maxTxnOps = 128

func (g *Generator) txnRequest(s *State) *pb.TxnRequest {
	switch {
	case g.chance(50):
		return g.wideTxn(s)
	case g.chance(25):
		return g.readTxn(s)
	case g.chance(150):
		// Small values, but too large together.
		r := &pb.TxnRequest{}
		for n := range 2 {
			r.Success = append(r.Success, putOp(&pb.PutRequest{Key: []byte(fmt.Sprintf("v/%d", n)), Value: make([]byte, 800<<10)}))
		}
		return r
	}
	used := make(map[string]bool)
	return g.txn(s, maxTxnDepth, used)
}

// txn makes a transaction that may hold depth levels. used has the keys it puts: most of the time none is put twice, because etcd
// refuses such a request as a whole.
func (g *Generator) txn(s *State, depth int, used map[string]bool) *pb.TxnRequest {
	r := &pb.TxnRequest{}
	for range g.rng.IntN(4) {
		r.Compare = append(r.Compare, g.compare(s))
	}
	for range g.rng.IntN(5) {
		r.Success = append(r.Success, g.txnOp(s, depth, used))
	}
	for range g.rng.IntN(4) {
		r.Failure = append(r.Failure, g.txnOp(s, depth, used))
	}
	return r
}

func (g *Generator) txnOp(s *State, depth int, used map[string]bool) *pb.RequestOp {
	switch n := g.rng.IntN(1000); {
	case n < 300:
		r := g.rangeRequest(s)
		if !g.chance(4) {
			r.Revision = 0 // Most others fail, and the transaction with them.
		}
		return rangeOp(r)
	case n < 650:
		r := g.putRequest(s)
		for tries := 0; tries < 10 && used[string(r.Key)] && !g.chance(20); tries++ {
			r.Key = g.key(s)
		}
		used[string(r.Key)] = true
		if len(r.Value) > 100<<10 && !g.chance(4) {
			r.Value = r.Value[:10]
		}
		if !g.chance(4) {
			r.Lease, r.IgnoreValue = 0, false
		}
		return putOp(r)
	case n < 820:
		r := g.deleteRequest(s)
		if g.chance(4) {
			r.RangeEnd = []byte{0} // Not an interval to the check for duplicates, but everything to the delete.
		}
		if used[string(r.Key)] && !g.chance(10) {
			r.Key = g.key(s)
		}
		return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: r}}
	case n < 992:
		if depth == 1 {
			return rangeOp(g.rangeRequest(s))
		}
		return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: g.txn(s, depth-1, used)}}
	default:
		return &pb.RequestOp{} // T2: the oneof is missing.
	}
}

func rangeOp(r *pb.RangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: r}}
}

func putOp(r *pb.PutRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: r}}
}

// wideTxn makes a transaction with about as many operations as are allowed, the limit shared with a nested one at times (T1).
func (g *Generator) wideTxn(s *State) *pb.TxnRequest {
	n := maxTxnOps - 1 + g.rng.IntN(3)
	r := &pb.TxnRequest{}
	switch g.rng.IntN(4) {
	case 0:
		for range n {
			r.Compare = append(r.Compare, &pb.Compare{Key: g.key(s), Target: pb.Compare_VERSION, Result: pb.Compare_GREATER,
				TargetUnion: &pb.Compare_Version{Version: -1}})
		}
		r.Success = append(r.Success, putOp(g.putRequest(s)))
	case 1:
		for i := range n {
			r.Success = append(r.Success, putOp(&pb.PutRequest{Key: []byte(denseKey(i)), Value: g.value()}))
		}
	case 2:
		for i := range n {
			r.Failure = append(r.Failure, putOp(&pb.PutRequest{Key: []byte(denseKey(i)), Value: g.value()}))
		}
		r.Compare = append(r.Compare, &pb.Compare{Key: []byte("none"), Target: pb.Compare_VALUE})
	default:
		outer := 1 + g.rng.IntN(maxTxnOps-2)
		inner := &pb.TxnRequest{}
		for i := range n - outer {
			inner.Success = append(inner.Success, putOp(&pb.PutRequest{Key: []byte(denseKey(i)), Value: g.value()}))
		}
		r.Success = append(r.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: inner}})
		for range outer - 1 {
			r.Success = append(r.Success, rangeOp(&pb.RangeRequest{Key: g.key(s)}))
		}
	}
	return r
}

// readTxn makes a transaction that only reads (T10), at times one that may be served locally.
func (g *Generator) readTxn(s *State) *pb.TxnRequest {
	r := &pb.TxnRequest{}
	if g.chance(2) {
		r.Compare = append(r.Compare, g.compare(s))
	}
	serializable := g.chance(2)
	for range g.rng.IntN(4) {
		request := g.rangeRequest(s)
		request.Serializable = serializable
		if !g.chance(4) {
			request.Revision = 0
		}
		if g.chance(4) {
			r.Failure = append(r.Failure, rangeOp(request))
		} else {
			r.Success = append(r.Success, rangeOp(request))
		}
	}
	return r
}

// compare makes a compare; about half of them hold.
func (g *Generator) compare(s *State) *pb.Compare {
	c := &pb.Compare{Key: g.key(s), Target: pb.Compare_CompareTarget(g.rng.IntN(5)), Result: pb.Compare_CompareResult(g.rng.IntN(4))}
	if g.chance(4) {
		c.Key, c.RangeEnd = g.span(s)
	}
	if g.chance(2) {
		c.Key = []byte(g.liveKey(s))
	}
	kv := s.Live[string(c.Key)]
	off := func() int64 { return oneOf[int64](g, 0, 0, 0, 1, -1) }
	switch c.Target {
	case pb.Compare_VERSION:
		c.TargetUnion = &pb.Compare_Version{Version: kv.GetVersion() + off()}
	case pb.Compare_CREATE:
		c.TargetUnion = &pb.Compare_CreateRevision{CreateRevision: kv.GetCreateRevision() + off()}
	case pb.Compare_MOD:
		c.TargetUnion = &pb.Compare_ModRevision{ModRevision: kv.GetModRevision() + off()}
	case pb.Compare_VALUE:
		value := g.value()
		if g.chance(2) {
			value = kv.GetValue()
		}
		c.TargetUnion = &pb.Compare_Value{Value: value}
	case pb.Compare_LEASE:
		c.TargetUnion = &pb.Compare_Lease{Lease: g.lease()}
	}
	switch {
	case g.chance(25):
		c.TargetUnion = nil
	case g.chance(25):
		c.TargetUnion = &pb.Compare_Version{Version: 1} // Not what the target says, mostly.
	case g.chance(40):
		c.Target = oneOf[pb.Compare_CompareTarget](g, 5, -1, math.MaxInt32)
	case g.chance(40):
		c.Result = oneOf[pb.Compare_CompareResult](g, 4, -1, math.MinInt32)
	case g.chance(100):
		c.Key = nil
	}
	return c
}
