package replica

import (
	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
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
	Done WriteDone
}

// Refuse answers a write that reaches no replica: nothing was applied.
func (w *Write) Refuse(err error) { w.Done(nil, rangepb.WriteAnswer{Err: err}) }

// WriteDone takes the answer to a Write. With ErrUnknownFate and ErrFailed the write
// may have been applied, or may still be: see NotApplied.
type WriteDone func(*mvcc.Result, rangepb.WriteAnswer)

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
	Done func(rangepb.LatchAnswer)
}

// Refuse answers a latch that reaches no replica.
func (l *Latch) Refuse(err error) { l.Done(rangepb.LatchAnswer{Err: err}) }

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

// AskStatus asks a replica for its status. It is an inbox item.
type AskStatus struct {
	// Done is called once, with the store's error if there is no replica.
	Done func(Status, error)
}

// Refuse answers when no replica can.
func (a *AskStatus) Refuse(err error) { a.Done(Status{}, err) }
