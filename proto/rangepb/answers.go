package rangepb

// WriteAnswer is what the leader of a range says of a write, beside the write's
// evaluated result (mvcc.Result), which is nil if Err is set or NoEffect.
type WriteAnswer struct {
	// Revision of the write; who gets the answer finishes the result with it.
	Revision int64
	// NoEffect: on the leader's newest state the write changes nothing, or its
	// evaluation refuses it (then Err says why, with an error of mvcc). That state
	// may not be committed, so this is no answer to a client: the write must be asked
	// again as a read (R4). Nothing was applied.
	NoEffect bool
	// Err says why the write was not applied, or may not have been.
	Err error
}

// LatchAnswer is what the leader of a range says of a latch: what the commit must name
// (R7), or why no latch is held.
type LatchAnswer struct {
	// Term and Session are those under which the leader is registered, Epoch that of
	// the range's span.
	Term, Session, Epoch uint64
	// Resolved is what the leader had resolved when it gave the latch: a
	// replica that has resolved it has every change of the latched spans.
	Resolved int64
	Err      error
}
