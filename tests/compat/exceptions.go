package compat

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
)

// An exception is a difference from etcd that is wanted, or that etcd does not define. docs/differences.md has a section for
// each, under the same id; a test compares the two lists.
type exception struct {
	id string
	// title is the section's title.
	title string
}

// The exceptions. What applies them, or keeps them out of a run, is named beside each; nothing else may differ.
var exceptions = []exception{
	{"D1", "A keys-only range keeps the lease"},                           // keepLease
	{"D2", "A serializable read may be older"},                            // Runner.refreshStale
	{"D3", "A put that ignores value or lease after a delete of its key"}, // defuse
	{"D4", "HashKV at a revision that was compacted"},                     // Runner.isLeftOut
	{"D5", "RangeStream with a sort target and no order"},                 // referenceOp
	{"D6", "A key deleted and put at the revision that is compacted"},     // Runner.isLeftOut
}

// keepLease applies D1: where etcd 3.7 leaves `lease` out of a keys-only answer, Hawser may send it. a and b are the answers of etcd
// and of the other server to request; b is changed.
func keepLease(request, a, b proto.Message) {
	switch request := request.(type) {
	case *pb.RangeRequest:
		if !request.KeysOnly || request.SortTarget == pb.RangeRequest_VALUE {
			return
		}
		inA, _ := a.(*pb.RangeResponse)
		inB, _ := b.(*pb.RangeResponse)
		kvsA, kvsB := inA.GetKvs(), inB.GetKvs()
		for i := range min(len(kvsA), len(kvsB)) {
			if kvsA[i].GetLease() == 0 {
				kvsB[i].Lease = 0
			}
		}
	case *pb.TxnRequest:
		inA, _ := a.(*pb.TxnResponse)
		inB, _ := b.(*pb.TxnResponse)
		ops := request.Success
		if !inA.GetSucceeded() {
			ops = request.Failure
		}
		if len(inA.GetResponses()) != len(ops) || len(inB.GetResponses()) != len(ops) {
			return
		}
		for i, op := range ops {
			switch {
			case op.GetRequestRange() != nil:
				keepLease(op.GetRequestRange(), inA.Responses[i].GetResponseRange(), inB.Responses[i].GetResponseRange())
			case op.GetRequestTxn() != nil:
				keepLease(op.GetRequestTxn(), inA.Responses[i].GetResponseTxn(), inB.Responses[i].GetResponseTxn())
			}
		}
	}
}

// mayBeStale tells whether a request allows an answer that is older than the newest state (etcd/R10, etcd/T10), which D2 is about.
func mayBeStale(request proto.Message) bool {
	switch request := request.(type) {
	case *pb.RangeRequest:
		return request.Serializable
	case *pb.TxnRequest:
		for _, op := range append(append([]*pb.RequestOp(nil), request.Success...), request.Failure...) {
			if r := op.GetRequestRange(); r == nil || !r.Serializable {
				return false
			}
		}
		return true
	}
	return false
}

// referenceOp applies D5: it returns the step whose answer from etcd is the one wanted. TestStreamWithSortTarget compares the
// streams themselves, up to the ten keys with which etcd answers as its Range does.
func referenceOp(op Op) Op {
	request, ok := op.Request.(*pb.RangeRequest)
	if !ok || op.Kind != RangeStream {
		return op
	}
	// RangeStream refuses filters, Range does not.
	filtered := request.MinModRevision != 0 || request.MaxModRevision != 0 || request.MinCreateRevision != 0 || request.MaxCreateRevision != 0
	if request.SortOrder == pb.RangeRequest_NONE && request.SortTarget != pb.RangeRequest_KEY && !filtered {
		op.Kind = Range
	}
	return op
}
