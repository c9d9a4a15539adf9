// Package replica is one replica of a range: it evaluates writes on the range's
// newest state, gets revisions for them from the sequencer, puts their effects
// into the range's Raft log and applies them (revisions.md R3, R4, R5, R7, R10,
// R11). It is a state machine that the store drives: no goroutine, no clock, no
// network. It does not know etcd's API beyond mvcc's requests, and never answers
// a client with a state that may not be committed.
package replica

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/range/raftgroup"
	"github.com/hawser-kv/hawser/range/raftlog"
)

// SequencerLink is the node's end of the conversation with S.
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

// Replica is one replica of a range. The shard's worker owns it.
type Replica struct {
	cfg    Config
	limits Limits
	log    *zap.Logger
	group  *raftgroup.Group
	raft   *raftgroup.Driver
	read   *readState
	latest mvcc.View

	applier *applier
	// live holds the requests that are not answered, and the latches given.
	live      requestList
	conflicts conflicts
	// free requests wait for nobody in front of them, in the order in which they
	// became free.
	free fifo[*request]
	// early requests name an epoch that the log has not reached.
	early []*request
	// settling latches wait for what is in the log to be applied.
	settling fifo[*request]
	// latches are those in live, given or not.
	latches map[ownerID]*request

	lead    leadership
	overlay *mvcc.Overlay
	// budget is that of the evaluation under way, kept for its memory.
	budget mvcc.Budget
	// needed: something waits for the range to have a leader that is registered.
	needed bool
	// asleep: the sequencer has put the range to sleep (R10).
	asleep bool

	tick       uint64
	campaignAt uint64 // tick before which no new election is started
	lowSpace   bool   // as of the last Flush
	flushes    uint64 // so far
	buffer     []byte // for the next entry
	failed     error
}

// New starts the replica of a range from its rows. Errors: ErrNoReplica;
// ErrCorrupt or raftlog.ErrCorrupt if it cannot be served.
func New(cfg Config) (*Replica, error) {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	cfg.Limits.EnsureDefaults()
	saved, err := load(cfg.DB, cfg.RangeID)
	if err != nil {
		return nil, err
	}
	read, err := cfg.Readers.state(cfg.RangeID)
	if err != nil {
		return nil, err
	}
	id, ok := replicaOn(saved.Descriptor, cfg.NodeID)
	if !ok {
		return nil, fmt.Errorf("%w: range %d: descriptor %v has no replica on node %d", ErrCorrupt, cfg.RangeID, saved.Descriptor, cfg.NodeID)
	}
	raftLog, err := raftlog.Load(cfg.DB, cfg.RangeID)
	if err != nil {
		read.fail()
		return nil, fmt.Errorf("replica of range %d: %w", cfg.RangeID, err)
	}
	r := &Replica{
		cfg:     cfg,
		limits:  cfg.Limits,
		log:     cfg.Logger.With(zap.Uint64("range", cfg.RangeID), zap.Uint64("replica", id)),
		read:    read,
		latest:  cfg.MVCC.Latest(),
		latches: make(map[ownerID]*request),
		overlay: mvcc.NewOverlay(),
	}
	r.conflicts = newConflicts(func(t *ticket) { r.free.push(t.owner) })
	_, term := raftLog.Applied()
	r.applier = newApplier(&cfg, r.log, saved, term)
	if err := r.applier.ensureBoundaries(saved.Descriptor); err != nil {
		return nil, err
	}
	r.group, err = raftgroup.New(raftgroup.Config{
		ID: cfg.RangeID, ReplicaID: id, Log: raftLog, Machine: r.applier, Logger: cfg.Logger,
		ElectionTicks: cfg.ElectionTicks, HeartbeatTicks: cfg.HeartbeatTicks, Seed: cfg.Seed,
	})
	if err != nil {
		read.fail()
		return nil, fmt.Errorf("replica of range %d: %w", cfg.RangeID, err)
	}
	r.raft = raftgroup.NewDriver(r.group)
	return r, nil
}

// String says which range, what it has applied and whether it leads.
func (r *Replica) String() string {
	return fmt.Sprintf("%s %s", r.applier, &r.lead)
}

// Handle takes one item of the inbox: *Write, *Latch, *Unlatch, Nudge, Wake, Damage,
// SessionChanged, *AskStatus, *placementpb.FromSequencer or *raftpb.Message.
func (r *Replica) Handle(ev any) {
	switch ev := ev.(type) {
	case *Write:
		r.handleWrite(ev)
	case *Latch:
		r.handleLatch(ev)
	case *Unlatch:
		r.handleUnlatch(ev)
	case Nudge:
		r.handleNudge()
	case Wake:
		if r.failed == nil {
			r.need()
		}
	case Damage:
		r.fail(fmt.Errorf("%w: found by a reader: %w", ErrCorrupt, ev.Err))
	case SessionChanged: // Flush looks at the session
	case *AskStatus:
		ev.Done(r.Status(), r.failed)
	case *placementpb.FromSequencer:
		r.handleSequencer(ev)
	case *raftpb.Message:
		r.handleRaft(ev)
	default:
		panic(fmt.Sprintf("replica: range %d: inbox item %T", r.cfg.RangeID, ev))
	}
}

func (r *Replica) handleRaft(m *raftpb.Message) {
	if r.failed != nil {
		return
	}
	if r.asleep {
		r.wake() // another replica has woken the group
	}
	if err := r.group.Step(m); err != nil {
		r.log.Debug("raft message dropped", zap.Error(err))
	}
}

// Flush does what items, ticks and durable batches since the last Flush ask
// for, staging into b, the batch of the round.
func (r *Replica) Flush(b *pebble.Batch, round Round) {
	if err := r.raft.Begin(round); err != nil {
		r.fail(err)
	}
	if r.failed != nil {
		round.Fail(r.failed)
		return
	}
	r.lowSpace = round.LowSpace()
	r.flushes++
	r.lookAtLeadership()
	if r.mayGather() {
		round.Again()
	} else {
		r.propose(round)
	}
	r.lookAtSession()
	r.evaluate(round)
	r.advance(b, round)
	if r.failed != nil {
		round.Fail(r.failed)
		return
	}
	r.lookAtLeadership()
	r.giveLatches()
	r.maybeDeactivate(b, round)
	if r.asleep {
		round.Unload()
	}
}

// advance gives raft its turn.
func (r *Replica) advance(b *pebble.Batch, round Round) {
	work, err := r.raft.Advance(b, round)
	if err != nil {
		r.fail(err)
		if !damaged(err) {
			round.FailStore(err)
		}
		return
	}
	if r.group.HasReady() {
		round.Again() // the batch is full
	}
	if !work.Applied {
		return
	}
	o := r.applier.takeOutcome()
	if o.needSync {
		round.NeedSync()
	}
	a, err := r.match(o.entries)
	if err != nil {
		r.fail(err)
		return
	}
	round.OnCommitted(func() {
		r.group.BatchCommitted()
		r.committed(&o, &a)
	})
	round.Again()
}

// committed runs when the batch with applied entries is visible: it publishes,
// tells the watchers, and answers.
func (r *Replica) committed(o *outcome, a *answers) {
	if r.failed != nil {
		return
	}
	if err := r.applier.committed(o); err != nil {
		r.fail(err)
		return
	}
	for i := range o.began {
		y := &o.began[i]
		r.cfg.Readers.begin(y.Descriptor.RangeId, y)
	}
	r.read.publish(o.state.desc, o.state.resolved)
	if r.cfg.Events != nil {
		r.cfg.Events.Applied(r.cfg.RangeID, o.state.resolved, o.events)
	}
	for _, y := range o.began {
		if r.cfg.Began != nil {
			r.cfg.Began(y.Descriptor)
		}
	}
	r.say(a)
}

// damaged tells a fault of this replica's data, after which others go on, from
// one of the engine.
func damaged(err error) bool {
	return errors.Is(err, ErrCorrupt) || errors.Is(err, raftlog.ErrCorrupt)
}

// fail stops the replica: it serves nothing any more. The store closes it.
func (r *Replica) fail(err error) {
	if r.failed != nil {
		return
	}
	r.log.Error("replica stops", zap.Stringer("state", r), zap.Error(err))
	r.failed = fmt.Errorf("%w: range %d: %w", ErrFailed, r.cfg.RangeID, err)
	r.read.fail()
}

// Tick says that one heartbeat interval has passed.
func (r *Replica) Tick() {
	if r.failed != nil {
		return
	}
	r.tick++
	if err := r.group.Tick(); err != nil {
		r.fail(err)
		return
	}
	r.expire()
	r.askAboutSilent()
	r.lead.idleTicks++
}

// WantsTicks reports that time matters to the replica: it is awake.
func (r *Replica) WantsTicks() bool { return !r.asleep && r.failed == nil }

// Close answers everything that the replica holds: with err, or with
// ErrUnknownFate what is proposed. err nil: it was put to sleep and holds
// nothing.
func (r *Replica) Close(err error) {
	if err == nil {
		err = ErrDropped
	}
	if r.failed == nil {
		r.failed = err
	}
	for r.live.first != nil {
		q := r.live.first
		if q.stage == stageProposed {
			r.finish(q, WriteResult{Err: fmt.Errorf("%w: %w", ErrUnknownFate, err)})
			continue
		}
		r.refuse(q, err)
	}
}

// Status is what operators want to know of a replica.
type Status struct {
	Descriptor *rangepb.RangeDescriptor
	Resolved   int64
	Raft       raftgroup.Status
	// Queued requests, latches given among them.
	Queued, Latches int
	Registered      bool
}

// Status returns a copy of the replica's status. For the worker.
func (r *Replica) Status() Status {
	latches := 0
	// In any order: they are counted.
	for _, q := range r.latches {
		if q.stage == stageLatched {
			latches++
		}
	}
	return Status{
		Descriptor: r.applier.visible.desc, Resolved: r.applier.visible.resolved, Raft: r.group.Status(),
		Queued: r.live.count, Latches: latches, Registered: r.lead.reg.phase == regOpen,
	}
}

// AskStatus asks a replica for its status. It is an inbox item.
type AskStatus struct {
	// Done is called once, with the store's error if there is no replica.
	Done func(Status, error)
}

// Refuse answers when no replica can.
func (a *AskStatus) Refuse(err error) { a.Done(Status{}, err) }
