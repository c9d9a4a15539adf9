package rangepb

// Piece is the part of a request that lies in one range.
type Piece struct {
	// RangeID and Epoch are as the directory or the sequencer named them.
	RangeID, Epoch uint64
	// Start and End are the smallest span that covers what the request touches
	// in the range; End nil: to the end of the keyspace.
	Start, End []byte
	// Resolve is the revision that the replica must have resolved: min(r, m)
	// (R5). 0: none.
	Resolve int64
}
