package rangepb

import "fmt"

// ErrorKind says what an error of a range means for the request.
type ErrorKind int

// Kinds of errors. The numbers travel between nodes and keep their meaning.
const (
	// Stale: the range's span is not the one named. Nothing was applied; look
	// the key up again.
	Stale ErrorKind = iota + 1
	// NotLeader: no leader here now. Nothing was applied; try again.
	NotLeader
	// Dropped: the request was dropped before it was proposed. Nothing was
	// applied; try again.
	Dropped
	// Unresolved: the replica has not resolved what the view needs. Try again.
	Unresolved
	// NoSpace: the store is low on space. Nothing was applied.
	NoSpace
	// Busy: the range's queue is full. Nothing was applied; the client decides.
	Busy
	// TooWide: the leader does not evaluate the write, which reads too much.
	// Nothing was applied; the sender evaluates it under a latch.
	TooWide
	// Unknown: whether it was applied is not known.
	Unknown
	// Stopped: the store is stopping or has failed. Unknown for writes.
	Stopped
	// Corrupt: the replica found damage and does not serve.
	Corrupt
	// Shortage: the machine is short of file descriptors, memory or threads. Nothing
	// was applied; the client decides.
	Shortage
)

var kindNames = [...]string{
	Stale: "stale epoch", NotLeader: "not leader", Dropped: "dropped", Unresolved: "unresolved", NoSpace: "no space",
	Busy: "busy", TooWide: "too wide", Unknown: "unknown fate", Stopped: "stopped", Corrupt: "corrupt",
	Shortage: "shortage",
}

func (k ErrorKind) String() string {
	if k > 0 && int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", int(k))
}

// Error is the error of a range, for both sides of the border between proxy and
// range.
type Error struct {
	Kind    ErrorKind
	RangeID uint64
	// Leader is the replica that leads, as far as is known here (NotLeader); 0: not
	// known.
	Leader uint64
	// Descriptors are newer ones, when known (Stale). They must not be changed.
	Descriptors []*RangeDescriptor
	// Err is the cause, or nil. It stays on the node.
	Err error
}

func (e *Error) Error() string {
	text := fmt.Sprintf("range %d: %s", e.RangeID, e.Kind)
	switch {
	case e.Kind == Stale && len(e.Descriptors) > 0:
		text += fmt.Sprintf(", now %d", e.Descriptors[0].GetEpoch())
	case e.Kind == NotLeader && e.Leader != 0:
		text += fmt.Sprintf(", which is replica %d", e.Leader)
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
