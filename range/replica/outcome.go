package replica

import (
	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// outcome says what a run of entries did to a range, to be told once the batch
// into which they were applied is visible. It is the only word of the applier to
// the leader, and the same on every replica that applies the same entries to the
// same state.
type outcome struct {
	// state is that after the last entry.
	state appliedState
	// entries are those that were not without effect (R0), in the order of the log.
	entries []appliedEntry
	// events are in the order of revisions; empty if nobody wants them.
	events []mvcc.Event
	// began are the replicas that splits have begun here.
	began []Saved
	// needSync: the batch must be synced.
	needSync bool
}

// appliedState is what the entries up to an index of the log made of the range.
type appliedState struct {
	desc     *rangepb.RangeDescriptor
	resolved int64
	// term of the last entry.
	term uint64
}

// appliedEntry says what became of the commands of one entry: they were applied,
// but for those that were refused.
type appliedEntry struct {
	// term and seq say which proposal the entry is.
	term, seq uint64
	commands  int
	refused   []refusal
	// refusedWhole, if not empty, says why none of the commands was looked at;
	// commands is 0 then.
	refusedWhole string
}

// refusal is one command that was refused, on every replica alike: it was
// definitely not applied.
type refusal struct {
	command int // of the entry, from 0
	why     string
}
