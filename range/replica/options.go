package replica

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
