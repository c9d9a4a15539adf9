package history

import (
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
)

// Outcome says what a client knows of a request.
type Outcome int

const (
	// OK: answered.
	OK Outcome = iota
	// Refused: an error that says that nothing was applied.
	Refused
	// Unknown: it may have been applied, or may yet be until the server's next
	// crash.
	Unknown
)

// Refusal says why a Refused request was refused, where a checker can tell
// whether that was right.
type Refusal int

const (
	// OtherRefusal is any other reason.
	OtherRefusal Refusal = iota
	// RefusedCompacted: the revision asked for was compacted.
	RefusedCompacted
	// RefusedFuture: the revision asked for was never reached.
	RefusedFuture
)

// Op is one request of one client. Call and Return are moments of one clock
// that never gives two the same; Return of an Unknown one is when the client
// gave up.
type Op struct {
	Client       int
	Call, Return int64
	Outcome      Outcome
	Refusal      Refusal
	Err          string

	// One of these is the request.
	Range  *pb.RangeRequest
	Put    *pb.PutRequest
	Delete *pb.DeleteRangeRequest
	Txn    *pb.TxnRequest
	// Compact is not checked against the truth, but by Linearizable.
	Compact *pb.CompactionRequest

	// Answer is the response of an OK request.
	Answer proto.Message
}

// header returns the revision in the answer's header.
func (o *Op) header() int64 {
	type headed interface{ GetHeader() *pb.ResponseHeader }
	return o.Answer.(headed).GetHeader().GetRevision()
}

func (o *Op) request() proto.Message {
	switch {
	case o.Range != nil:
		return o.Range
	case o.Put != nil:
		return o.Put
	case o.Delete != nil:
		return o.Delete
	case o.Compact != nil:
		return o.Compact
	}
	return o.Txn
}

// writes reports whether the request may make a revision.
func (o *Op) writes() bool { return o.Range == nil && o.Compact == nil }

func (o *Op) String() string {
	s := fmt.Sprintf("client %d [%d, %d] %T{%v}", o.Client, o.Call, o.Return, o.request(), o.request())
	switch o.Outcome {
	case OK:
		return s + fmt.Sprintf(" = %v", o.Answer)
	case Refused:
		return s + " refused: " + o.Err
	}
	return s + " unknown: " + o.Err
}

// Event is one change of one key.
type Event struct {
	Delete bool
	Kv     *mvccpb.KeyValue
	PrevKv *mvccpb.KeyValue // of watches with prev_kv
}

func (e Event) revision() int64 { return e.Kv.ModRevision }

func (e Event) String() string {
	if e.Delete {
		return fmt.Sprintf("%d: delete %q", e.Kv.ModRevision, e.Kv.Key)
	}
	return fmt.Sprintf("%d: put %q = %q (create %d, version %d)", e.Kv.ModRevision, e.Kv.Key, e.Kv.Value, e.Kv.CreateRevision, e.Kv.Version)
}

// Response is one message that a watcher got.
type Response struct {
	// Revision of the header.
	Revision int64
	Events   []Event
	// Progress: no events, a promise that all at or below Revision were sent.
	Progress bool
	// Compacted: the watch ended because of a compaction at this revision.
	Compacted int64
}

// Watch is what one watcher asked and got, over reconnections too.
type Watch struct {
	Name string
	// Start and End as in etcd's request; From is the first revision wanted.
	Start, End      string
	From            int64
	NoPut, NoDelete bool
	PrevKV          bool
	Responses       []Response
	// Finished: the watcher was open until the end, when it had got everything
	// up to UpTo.
	Finished bool
	UpTo     int64
}
