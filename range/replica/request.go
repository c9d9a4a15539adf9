package replica

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
)

// Write asks the leader of a range for a write. It is an inbox item.
type Write struct {
	// Epoch of the span that the sender means.
	Epoch uint64
	// Req must pass mvcc.CheckRequest, and all its spans lie in the range.
	// Nobody may change it until Done is called and the result is used.
	Req *mvcc.Request
	// Done is called exactly once, on the worker or, if the store refuses the
	// item, by who posted it. It must not block.
	Done func(WriteResult)
}

// Refuse answers a write that reaches no replica: nothing was applied.
func (w *Write) Refuse(err error) { w.Done(WriteResult{Err: err}) }

// WriteResult is the answer to a Write.
type WriteResult struct {
	// Result is what the write evaluated to; the receiver calls its Finish with
	// Revision. nil if Err is set or NoEffect.
	Result *mvcc.Result
	// Revision of the write.
	Revision int64
	// NoEffect: on the leader's newest state the write changes nothing, or mvcc
	// refuses it (then Err is mvcc's error). That state may not be committed, so
	// this is no answer to a client: it must be asked again as a read (R4).
	NoEffect bool
	// Err says why nothing was applied; with ErrUnknownFate and ErrFailed it may
	// have been, or may still be: see NotApplied.
	Err error
}

// Latch asks the leader of a range for a latch on spans, for a transaction over
// ranges (R7). It is an inbox item.
type Latch struct {
	Owner *placementpb.TxnID
	// Epoch of the span that the sender means.
	Epoch uint64
	Spans []mvcc.Access
	// Done is called exactly once, as Write.Done. When it is called without an
	// error, all spans are latched and what Readers shows of them is committed
	// and will not change until the latch is released.
	Done func(LatchResult)
}

// Refuse answers a latch that reaches no replica.
func (l *Latch) Refuse(err error) { l.Done(LatchResult{Err: err}) }

// LatchResult is the answer to a Latch: what the commit must name (R7), or why
// no latch is held.
type LatchResult struct {
	Term, Session, Epoch uint64
	Err                  error
}

// Unlatch is the word of the owner itself that it has sent no commit and never
// will. It is an inbox item.
type Unlatch struct {
	Owner *placementpb.TxnID
}

// Nudge says that somebody waits too long for what the range should resolve: a
// leader with nothing outstanding registers again, a group without one elects
// (R5). It is an inbox item.
type Nudge struct{}

// Wake says that the range will be written to: it must have a registered leader.
// It is an inbox item.
type Wake struct{}

// Damage says that a reader found the range's data in the engine damaged. The
// replica stops. It is an inbox item.
type Damage struct{ Err error }

// SessionChanged says that the node's session with the sequencer began, ended
// or was replaced; the replica asks its SequencerLink. It is an inbox item for
// every loaded replica.
type SessionChanged struct{}

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

// request is a write or a latch from its arrival to its answer (a latch: to
// its release).
type request struct {
	ticket
	prev, next *request // in Replica.live, in the order of arrival

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

// within reports that everything the request touches lies in [start, end).
func (q *request) within(start, end []byte) bool {
	for i := range q.accesses {
		if !q.accesses[i].within(start, end) {
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

// requestList is a list of requests in the order of arrival.
type requestList struct {
	first, last *request
	count       int
	bytes       int
}

func (l *requestList) push(q *request) {
	q.prev, q.next = l.last, nil
	if l.last != nil {
		l.last.next = q
	} else {
		l.first = q
	}
	l.last = q
	l.count++
	l.bytes += q.bytes
}

func (l *requestList) remove(q *request) {
	if q.prev != nil {
		q.prev.next = q.next
	} else {
		l.first = q.next
	}
	if q.next != nil {
		q.next.prev = q.prev
	} else {
		l.last = q.prev
	}
	q.prev, q.next = nil, nil
	l.count--
	l.bytes -= q.bytes
}

// fifo is a queue without allocations in the steady state.
type fifo[T any] struct {
	items []T
	head  int
}

func (f *fifo[T]) len() int  { return len(f.items) - f.head }
func (f *fifo[T]) push(v T)  { f.items = append(f.items, v) }
func (f *fifo[T]) front() *T { return &f.items[f.head] }
func (f *fifo[T]) all() []T  { return f.items[f.head:] }
func (f *fifo[T]) pop() T {
	v := f.items[f.head]
	var zero T
	f.items[f.head] = zero
	f.head++
	if f.head == len(f.items) {
		f.items, f.head = f.items[:0], 0
	} else if f.head >= 64 && f.head > len(f.items)/2 {
		n := copy(f.items, f.items[f.head:])
		clear(f.items[n:])
		f.items, f.head = f.items[:n], 0
	}
	return v
}
