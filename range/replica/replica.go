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

	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/range/raftgroup"
	"github.com/hawser-kv/hawser/range/raftlog"
	"github.com/hawser-kv/hawser/range/shortage"
)

// Replica is one replica of a range. It connects its parts: the Raft group, the applier,
// which is the group's state machine, the leader, which proposes to it, and the readers, who
// see what is applied. The shard's worker owns it.
type Replica struct {
	cfg     Config
	log     *zap.Logger
	group   *raftgroup.Group
	raft    *raftgroup.Driver
	applier *applier
	leader  *leader
	read    *readState
	failed  error
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
		read.failUnlessShort(err)
		return nil, fmt.Errorf("replica of range %d: %w", cfg.RangeID, err)
	}
	r := &Replica{
		cfg:  cfg,
		log:  cfg.Logger.With(zap.Uint64("range", cfg.RangeID), zap.Uint64("replica", id)),
		read: read,
	}
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
		read.failUnlessShort(err)
		return nil, fmt.Errorf("replica of range %d: %w", cfg.RangeID, err)
	}
	r.raft = raftgroup.NewDriver(r.group)
	r.leader = newLeader(&r.cfg, r.log, r.group, r.applier)
	return r, nil
}

// String says which range, what it has applied and whether it leads.
func (r *Replica) String() string { return r.leader.String() }

// Handle takes one item of the inbox: *Write, *Latch, *Unlatch, Nudge, Wake, Damage,
// SessionChanged, *AskStatus, *placementpb.FromSequencer or *raftpb.Message.
func (r *Replica) Handle(ev any) {
	if r.failed != nil {
		r.refuse(ev)
		return
	}
	switch ev := ev.(type) {
	case *Write:
		r.leader.handleWrite(ev)
	case *Latch:
		r.leader.handleLatch(ev)
	case *Unlatch:
		r.leader.handleUnlatch(ev)
	case Nudge:
		r.leader.handleNudge()
	case Wake:
		r.leader.need()
	case Damage:
		r.fail(fmt.Errorf("%w: found by a reader: %w", ErrCorrupt, ev.Err))
	case SessionChanged: // Flush looks at the session
	case *AskStatus:
		ev.Done(r.Status(), nil)
	case *placementpb.FromSequencer:
		r.leader.handleSequencer(ev)
	case *raftpb.Message:
		r.leader.sleep.wake() // another replica has woken the group
		if err := r.group.Step(ev); err != nil {
			r.log.Debug("raft message dropped", zap.Error(err))
		}
	default:
		panic(fmt.Sprintf("replica: range %d: inbox item %T", r.cfg.RangeID, ev))
	}
	r.lookAtFault()
}

// refuse answers for a replica that has stopped.
func (r *Replica) refuse(ev any) {
	switch ev := ev.(type) {
	case *AskStatus:
		ev.Done(r.Status(), r.failed)
	case interface{ Refuse(error) }:
		ev.Refuse(r.failed)
	}
}

// Flush does what items, ticks and durable batches since the last Flush ask
// for, staging into b, the batch of the round.
func (r *Replica) Flush(b *pebble.Batch, round Round) {
	if err := r.raft.Begin(round); err != nil {
		r.fail(err)
	}
	if r.failed == nil {
		r.leader.beforeRaft(round)
		r.advance(b, round)
		r.lookAtFault()
	}
	if r.failed == nil {
		r.leader.afterRaft(b, round)
		r.lookAtFault()
	}
	if r.failed != nil {
		round.Fail(r.failed)
		return
	}
	if r.leader.sleep.asleep {
		round.Unload()
	}
}

// advance gives raft its turn.
func (r *Replica) advance(b *pebble.Batch, round Round) {
	before := b.Len()
	work, err := r.raft.Advance(b, round)
	if err != nil {
		r.fail(err)
		// After a shortage the replica begins again from its rows, if none were staged.
		if !damaged(err) && !(shortage.Is(err) && b.Len() == before) {
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
	a, err := r.leader.proposals.match(o.entries)
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
	r.leader.say(a)
}

// damaged tells a fault of this replica's data, after which others go on, from
// one of the engine.
func damaged(err error) bool {
	return errors.Is(err, ErrCorrupt) || errors.Is(err, raftlog.ErrCorrupt)
}

// lookAtFault stops the replica if the leader has found what must stop it.
func (r *Replica) lookAtFault() {
	if err := r.leader.fault; err != nil {
		r.fail(err)
	}
}

// fail stops the replica: it serves nothing any more. The store closes it; after a
// shortage, which is no damage, it loads another in its place.
func (r *Replica) fail(err error) {
	if r.failed != nil {
		return
	}
	if shortage.Is(err) {
		r.log.Warn("replica begins again after a shortage", zap.Stringer("state", r), zap.Error(err))
		r.failed = fmt.Errorf("replica: range %d: %w", r.cfg.RangeID, err)
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
	if err := r.group.Tick(); err != nil {
		r.fail(err)
		return
	}
	r.leader.timePassed()
}

// WantsTicks reports that time matters to the replica: it is awake.
func (r *Replica) WantsTicks() bool { return !r.leader.sleep.asleep && r.failed == nil }

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
	r.leader.requests.close(err)
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
	q := r.leader.requests
	visible := r.applier.visible
	return Status{
		Descriptor: visible.desc, Resolved: visible.resolved, Raft: r.group.Status(),
		Queued: q.live.count, Latches: q.givenLatches(), Registered: r.leader.reg.phase == regOpen,
	}
}
