package replica

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// request is a write or a latch from its arrival to its answer (a latch: to
// its release).
type request struct {
	ticket
	prev, next *request // in requests.live, in the order of arrival

	write *Write // or
	latch *Latch

	stage stage
	bytes int
	// arrived is the tick of arrival, or of the grant of a latch or the last
	// question about its owner.
	arrived uint64

	// A write.
	result *mvcc.Result
	seq    uint64 // of its grant
	// charged is what counts as in flight from the evaluation to the grant: the
	// effects may be much larger than the request.
	charged int

	// A latch.
	owner ownerID
	after int64  // revision to be applied before it is given
	e     uint64 // epoch of the sequencer under which it was given
}

// stage is how far a request has come.
type stage uint8

const (
	// stageWaiting: behind others in the conflict table, or early, or free and
	// not yet evaluated.
	stageWaiting stage = iota
	// stageSettling: a latch that waits until what touches its spans is applied.
	stageSettling
	// stageLatched: a latch that is given.
	stageLatched
	// stageAsked: a write that is evaluated and waits for its grant.
	stageAsked
	// stageGranted: a write that has its revision and is not proposed yet.
	stageGranted
	// stageProposed: a write in raft's hands: its fate is not known.
	stageProposed
	// stageGone: answered. It may still hold its place in the queue for a grant.
	stageGone
)

// ownerID is a TxnID as a map key.
type ownerID struct{ node, session, number uint64 }

func ownerOf(t *placementpb.TxnID) ownerID {
	return ownerID{t.GetNodeId(), t.GetSession(), t.GetNumber()}
}

func newWriteRequest(w *Write) *request {
	q := &request{write: w}
	q.ticket.owner = q
	q.accesses = q.inline[:0]
	switch {
	case w.Req.Put != nil:
		q.bytes = len(w.Req.Put.Key) + len(w.Req.Put.Value)
		q.accesses = append(q.accesses, pointAccess(w.Req.Put.Key, true))
	case w.Req.DeleteRange != nil && len(w.Req.DeleteRange.RangeEnd) == 0:
		q.bytes = len(w.Req.DeleteRange.Key)
		q.accesses = append(q.accesses, pointAccess(w.Req.DeleteRange.Key, true))
	default:
		q.setAccesses(w.Req.Spans())
		if w.Req.Txn != nil {
			q.bytes = proto.Size(w.Req.Txn)
		}
	}
	q.bytes += requestOverhead
	return q
}

func newLatchRequest(l *Latch) *request {
	q := &request{latch: l, owner: ownerOf(l.Owner), bytes: requestOverhead}
	q.ticket.owner = q
	q.setAccesses(l.Spans)
	for i := range l.Spans {
		q.bytes += len(l.Spans[i].Start) + len(l.Spans[i].End)
	}
	return q
}

// requestOverhead is what a request costs in memory beyond its bytes.
const requestOverhead = 256

func (q *request) setAccesses(spans []mvcc.Access) {
	q.accesses = make([]access, len(spans))
	for i, s := range spans {
		q.accesses[i] = access{start: s.Start, end: s.End, write: s.Write}
	}
}

// within reports that everything the request touches lies in the span.
func (q *request) within(s rangepb.Span) bool {
	for i := range q.accesses {
		if !s.Covers(q.accesses[i].span()) {
			return false
		}
	}
	return true
}

// epoch is the epoch that the sender of the request named.
func (q *request) epoch() uint64 {
	if q.latch != nil {
		return q.latch.Epoch
	}
	return q.write.Epoch
}

// addsData reports that the request has a put somewhere, which a full disk
// refuses while deletes go on (etcd/X12).
func addsData(r *mvcc.Request) bool {
	return r.Put != nil || r.Txn != nil && txnAddsData(r.Txn)
}

func txnAddsData(txn *pb.TxnRequest) bool {
	for _, ops := range [2][]*pb.RequestOp{txn.Success, txn.Failure} {
		for _, op := range ops {
			if op.GetRequestPut() != nil || op.GetRequestTxn() != nil && txnAddsData(op.GetRequestTxn()) {
				return true
			}
		}
	}
	return false
}
