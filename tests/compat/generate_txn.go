package compat

import (
	"fmt"
	"math"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// maxTxnDepth bounds the nesting of generated transactions.
const maxTxnDepth = 3

// maxTxnOps is the default of --max-txn-ops (etcd/T1).
const maxTxnOps = 128

func (g *Generator) txnRequest(s *State) *pb.TxnRequest {
	switch {
	case g.chance(50):
		return g.wideTxn(s)
	case g.chance(25):
		return g.readTxn(s)
	case g.chance(12):
		return g.cornerTxn(s)
	case g.chance(150):
		// Small values, but too large together.
		r := &pb.TxnRequest{}
		for n := range 2 {
			r.Success = append(r.Success, putOp(&pb.PutRequest{Key: []byte(fmt.Sprintf("v/%d", n)), Value: make([]byte, 800<<10)}))
		}
		return r
	}
	r := g.txn(s, maxTxnDepth, make(map[string]bool))
	defuse(r, hasDelete(r))
	return r
}

// hasDelete tells whether a transaction deletes anything, in any branch.
func hasDelete(r *pb.TxnRequest) bool {
	return slices.ContainsFunc(slices.Concat(r.Success, r.Failure), func(op *pb.RequestOp) bool {
		return op.GetRequestDeleteRange() != nil || op.GetRequestTxn() != nil && hasDelete(op.GetRequestTxn())
	})
}

// defuse removes what kills etcd 3.7.3 for good: ignore_value or ignore_lease in a put after a delete of its key in the same
// transaction (D3). To be sure, no put in a transaction with a delete has them.
func defuse(r *pb.TxnRequest, deletes bool) {
	for _, op := range slices.Concat(r.Success, r.Failure) {
		if put := op.GetRequestPut(); put != nil && deletes {
			put.IgnoreValue, put.IgnoreLease = false, false
		}
		if nested := op.GetRequestTxn(); nested != nil {
			defuse(nested, deletes)
		}
	}
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
		return deleteOp(r)
	case n < 992:
		if depth == 1 {
			return rangeOp(g.rangeRequest(s))
		}
		return txnOp(g.txn(s, depth-1, used))
	default:
		return &pb.RequestOp{} // etcd/T2: the oneof is missing.
	}
}

func rangeOp(r *pb.RangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: r}}
}

func putOp(r *pb.PutRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: r}}
}

func deleteOp(r *pb.DeleteRangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: r}}
}

func txnOp(r *pb.TxnRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: r}}
}

// cornerTxn makes one of the transactions that have surprised somebody.
func (g *Generator) cornerTxn(s *State) *pb.TxnRequest {
	key, value := g.key(s), g.value()
	put := putOp(&pb.PutRequest{Key: key, Value: value, PrevKv: true})
	remove := deleteOp(&pb.DeleteRangeRequest{Key: key, PrevKv: true})
	get := func(revision int64) *pb.RequestOp { return rangeOp(&pb.RangeRequest{Key: key, Revision: revision}) }
	exists := &pb.Compare{Key: key, Target: pb.Compare_CREATE, Result: pb.Compare_GREATER, TargetUnion: &pb.Compare_CreateRevision{}}
	in := func(ops ...*pb.RequestOp) *pb.RequestOp { return txnOp(&pb.TxnRequest{Success: ops}) }
	switch g.rng.IntN(11) {
	case 0: // A key that is put and deleted at one revision: two nested transactions are not checked against each other.
		return &pb.TxnRequest{Success: []*pb.RequestOp{in(put), get(0), in(remove), get(0)}}
	case 1: // The same in the order that is refused.
		return &pb.TxnRequest{Success: []*pb.RequestOp{in(remove), in(put)}}
	case 2: // A delete of all keys from here on, which the check for duplicates does not see as an interval.
		return &pb.TxnRequest{Success: []*pb.RequestOp{deleteOp(&pb.DeleteRangeRequest{Key: key, RangeEnd: []byte{0}, PrevKv: true}), put, get(0)}}
	case 3:
		return &pb.TxnRequest{Success: []*pb.RequestOp{put, get(0), deleteOp(&pb.DeleteRangeRequest{Key: key, RangeEnd: []byte{0}}), get(0)}}
	case 4: // etcd/T5: the nested compare sees the state before the outer put.
		return &pb.TxnRequest{Success: []*pb.RequestOp{put, txnOp(&pb.TxnRequest{Compare: []*pb.Compare{exists},
			Success: []*pb.RequestOp{get(0)}, Failure: []*pb.RequestOp{rangeOp(&pb.RangeRequest{Key: key, CountOnly: true})}})}}
	case 5: // etcd/T6: revisions inside.
		return &pb.TxnRequest{Success: []*pb.RequestOp{put, get(s.Revision), get(s.Revision - 1), get(0)}}
	case 6:
		return &pb.TxnRequest{Success: []*pb.RequestOp{put, get(oneOf(g, s.Revision+1, s.Compacted, s.Compacted-1, -1))}}
	case 7: // etcd/T4: a value that is not there is never equal and never unequal.
		missing := append(slices.Clone(key), "missing"...)
		return &pb.TxnRequest{Compare: []*pb.Compare{{Key: missing, Target: pb.Compare_VALUE, Result: oneOf(g, pb.Compare_EQUAL, pb.Compare_NOT_EQUAL, pb.Compare_LESS)}},
			Success: []*pb.RequestOp{put}, Failure: []*pb.RequestOp{remove}}
	case 8: // etcd/T3: the same key in both branches of a nested transaction.
		return &pb.TxnRequest{Success: []*pb.RequestOp{txnOp(&pb.TxnRequest{Compare: []*pb.Compare{exists}, Success: []*pb.RequestOp{put}, Failure: []*pb.RequestOp{put}})}}
	case 9: // The whole keyspace has to fulfil it.
		return &pb.TxnRequest{Compare: []*pb.Compare{{Key: []byte{0}, RangeEnd: []byte{0}, Target: pb.Compare_CREATE, Result: pb.Compare_LESS,
			TargetUnion: &pb.Compare_CreateRevision{CreateRevision: s.Revision + int64(g.rng.IntN(2))}}}, Success: []*pb.RequestOp{put}, Failure: []*pb.RequestOp{get(0)}}
	default: // Deletes may overlap; the second finds nothing.
		return &pb.TxnRequest{Success: []*pb.RequestOp{remove, remove, deleteOp(&pb.DeleteRangeRequest{Key: key, RangeEnd: append(slices.Clone(key), 0)})}}
	}
}

// wideTxn makes a transaction with about as many operations as are allowed, the limit shared with a nested one at times (etcd/T1).
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
		r.Success = append(r.Success, txnOp(inner))
		for range outer - 1 {
			r.Success = append(r.Success, rangeOp(&pb.RangeRequest{Key: g.key(s)}))
		}
	}
	return r
}

// readTxn makes a transaction that only reads (etcd/T10), at times one that may be served locally.
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
