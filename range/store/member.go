package store

import (
	"github.com/cockroachdb/pebble/v2"
	"go.etcd.io/raft/v3/raftpb"
)

// Member is what the store drives: a range's replica, or the placement
// service's member of the meta group. The shard's worker alone calls it, and
// its methods neither block nor wait.
type Member interface {
	// Handle takes one item of the inbox.
	Handle(ev any)
	// Flush does what the items, ticks and durable batches since the last Flush
	// ask for, staging into r.Batch. It may be called several times a round.
	Flush(r *Round)
	// Tick says that one tick's time has passed; Flush follows. Only called
	// while WantsTicks.
	Tick()
	WantsTicks() bool
	// Close drops the member: it answers everything it holds with err, or with
	// an error that says that the fate is unknown where that is so. err is nil
	// when the member asked to be unloaded. No method is called afterwards, and
	// none of its OnCommitted and OnDurable callbacks that were not called yet.
	Close(err error)
}

// Refuser is implemented by inbox items whose sender waits for an answer. The
// store calls Refuse, instead of handing the item to a member, when there is
// none to hand it to: the member cannot be loaded, or the store has stopped.
// Refuse is called at most once, by the worker or by the caller of Post, and
// must not block. Nothing was done for the item.
type Refuser interface {
	Refuse(err error)
}

// Transport sends Raft messages to other nodes. Send must not block; a message
// that cannot be sent is dropped, which Raft expects. A release of one node has
// none.
type Transport interface {
	Send(group uint64, msgs []*raftpb.Message)
}

// Round is one step of a shard: what its members stage goes into one batch,
// which is committed once and synced at most once.
type Round struct {
	// Batch is where members stage rows. It is not indexed: nothing in it can
	// be read before it is committed.
	Batch *pebble.Batch

	shard *shard
	slot  *slot // whose Flush runs
	sync  bool

	committed []slotFunc
	durable   []slotFunc
	sends     []outgoing
}

// slotFunc is a callback of the member that a slot had when it was registered.
type slotFunc struct {
	slot   *slot
	member Member
	fn     func()
}

type outgoing struct {
	group uint64
	msgs  []*raftpb.Message
}

// NeedSync says that the batch holds what must be durable before OnDurable
// callbacks run: log appends, votes, the beginning of a group.
func (r *Round) NeedSync() { r.sync = true }

// OnCommitted registers fn to run on the worker, in this round, once the batch
// is visible to readers. It may be lost in a crash, unless what it shows rests
// on a synced log.
func (r *Round) OnCommitted(fn func()) {
	r.committed = append(r.committed, slotFunc{r.slot, r.slot.member, fn})
}

// OnDurable registers fn to run on the worker, at the start of a later round,
// once the batch is durable; without NeedSync: once every batch before it that
// needed a sync is. Callbacks of a member run in the order of registration, and
// the member is flushed after them.
func (r *Round) OnDurable(fn func()) {
	r.slot.inFlight++
	r.durable = append(r.durable, slotFunc{r.slot, r.slot.member, fn})
}

// Send sends messages to peers of the member's group after the commit.
func (r *Round) Send(msgs []*raftpb.Message) {
	if len(msgs) > 0 {
		r.sends = append(r.sends, outgoing{r.slot.id, msgs})
	}
}

// CanPropose says whether the member should append to its log in this round.
// It is false while Config.MaxSyncs syncs are in flight: what waits meanwhile
// goes into one larger entry, and the member is flushed again when a sync ends.
// The meta group always can. A member that appends nevertheless is only slower.
func (r *Round) CanPropose() bool {
	s := r.shard
	if r.slot.id == metaGroup || len(s.syncing) < s.store.cfg.MaxSyncs {
		return true
	}
	if !r.slot.gated {
		r.slot.gated = true
		s.gated = append(s.gated, r.slot)
	}
	return false
}

// LowSpace is Store.LowSpace.
func (r *Round) LowSpace() bool { return r.shard.store.LowSpace() }

// Again asks for another Flush of the member after the batch is committed, in
// the next round: what it waits for can be read then.
func (r *Round) Again() { r.slot.again = true }

// Unload says that the member has nothing to do: it is dropped, and closed
// with nil, at the end of the round, if no callback of it is outstanding and
// nothing has arrived for it. Otherwise it is flushed again and has to say it
// again.
func (r *Round) Unload() { r.slot.unload = true }

// Fail says that the member cannot go on: it is closed with err after this
// round, and everything that is sent to it until the store is opened again is
// refused with err. Other members go on. A fault that may concern the engine
// goes to FailStore instead.
func (r *Round) Fail(err error) { r.slot.failure = err }

// FailStore stops the whole store: the batch is not committed.
func (r *Round) FailStore(err error) { r.shard.store.fail(err) }
