package replica

import (
	"github.com/cockroachdb/pebble/v2"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// Config says what a replica works with. All fields without a default are
// required.
type Config struct {
	RangeID uint64
	NodeID  uint64
	DB      *pebble.DB
	MVCC    *mvcc.Store
	Readers *Readers
	Link    SequencerLink
	// Events may be nil.
	Events EventSink
	// Began is called, on the worker, when a split has begun a replica here and
	// its rows are visible. May be nil.
	Began func(*rangepb.RangeDescriptor)
	// Logger may be nil.
	Logger *zap.Logger
	Limits Limits
	// ElectionTicks, HeartbeatTicks and Seed are the Raft group's; zero: its
	// defaults.
	ElectionTicks, HeartbeatTicks int
	Seed                          uint64
}

// SequencerLink is the node's end of the conversation with the sequencer (S).
type SequencerLink interface {
	// Send takes a message whose Body and Session are set; the link fills in the
	// rest and drops it if that session is over. It must not block. Answers come
	// through the inbox.
	Send(*placementpb.ToSequencer)
	// Session returns the epoch e of the sequencer that the node listens to and
	// the node's session with it. ok is false while there is none. Neither ever
	// goes back.
	Session() (epoch, session uint64, ok bool)
}

// EventSink is told what became visible, in the order of revisions: everything
// of the range at or below resolved that was not in earlier calls. It must not
// block, and must not change the events.
type EventSink interface {
	Applied(rangeID uint64, resolved int64, events []mvcc.Event)
}

// Round is what a replica needs of a round of the store (store.Round).
type Round interface {
	NeedSync()
	OnCommitted(fn func())
	OnDurable(fn func())
	Send(msgs []*raftpb.Message)
	CanPropose() bool
	LowSpace() bool
	Again()
	Unload()
	Fail(err error)
	FailStore(err error)
}

// Limits bound what a replica holds. Zero fields mean the defaults.
type Limits struct {
	// MaxQueued is how many writes and latches may wait or be on their way at
	// once; more are refused with ErrTooManyRequests. Default 5000, as etcd
	// (etcd/X9).
	MaxQueued int
	// MaxQueuedBytes bounds the same in bytes of requests. Default 64 MiB.
	MaxQueuedBytes int
	// MaxInflightBytes is how many bytes may be proposed and not applied;
	// above it nothing new is evaluated. More hides the latency of a slow disk,
	// and costs memory. Default 16 MiB.
	MaxInflightBytes int
	// TargetEntryBytes is the size at which a Raft entry is closed and the next
	// begun. Default 256 KiB, raft's message size; 64 MiB at most.
	TargetEntryBytes int
	// IdleTicks is how long a range without writes stays active (R10).
	// Default 300.
	IdleTicks int
	// SilentTicks is how long a latch is held before the sequencer is asked to
	// abort its owner, and again after each such time (R7). Default 50.
	SilentTicks int
	// RetryTicks is the pause before a refused or unanswered request to the
	// sequencer is repeated. Default 5.
	RetryTicks int
	// AbdicateTicks is how long a leader of several voters goes on without a
	// sequencer before it offers leadership to another (R3). Default 10, an
	// election timeout.
	AbdicateTicks int
	// WaitTicks is how long a request waits for evaluation before it is given up
	// with ErrDropped. Default 100.
	WaitTicks int
	// MaxEvaluationRows and MaxEvaluationBytes bound what the evaluation of one
	// write may look at on the worker, which all ranges of a shard wait for
	// (mvcc.Budget): wider ones are refused with ErrTooWide. Default 2,000 rows,
	// a millisecond or two, and 1 MiB.
	MaxEvaluationRows, MaxEvaluationBytes int
	// MaxDeletedKeys is how many keys the deletes of intervals in one write may end on
	// the worker; of wider ones the sender makes deletions of spans. Default 4,096,
	// some 20 ms with their application.
	MaxDeletedKeys int
}

// EnsureDefaults fills the zero fields.
func (l *Limits) EnsureDefaults() {
	for _, f := range []struct {
		field *int
		value int
	}{
		{&l.MaxQueued, 5000},
		{&l.MaxQueuedBytes, 64 << 20},
		{&l.MaxInflightBytes, 16 << 20},
		{&l.TargetEntryBytes, 256 << 10},
		{&l.IdleTicks, 300},
		{&l.SilentTicks, 50},
		{&l.RetryTicks, 5},
		{&l.AbdicateTicks, 10},
		{&l.WaitTicks, 100},
		{&l.MaxEvaluationRows, 2000},
		{&l.MaxEvaluationBytes, 1 << 20},
		{&l.MaxDeletedKeys, 4096},
	} {
		if *f.field <= 0 {
			*f.field = f.value
		}
	}
	l.TargetEntryBytes = min(l.TargetEntryBytes, maxTargetEntryBytes)
}
