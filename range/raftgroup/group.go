// Package raftgroup drives the Raft group of one range, or of the placement
// service, on one node: it turns raft's requests into rows of an engine batch,
// applies what is committed to a state machine, and says what must be durable
// before which message may leave. It starts no goroutine, reads no clock and
// commits nothing: the store does.
package raftgroup

import (
	"errors"
	"fmt"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/range/raftlog"
)

// ErrNotLeader says that this replica is not the leader, or hands leadership
// over: nothing was proposed or asked.
var ErrNotLeader = errors.New("raftgroup: not leader")

// ErrNotServing says that the leader has not yet applied an entry of its own
// term, so it cannot confirm a read (pitfalls: raft skips this check for a
// single voter).
var ErrNotServing = errors.New("raftgroup: leader has not applied its own term")

// ErrSnapshot says that a snapshot arrived. Groups do not send or take any yet.
var ErrSnapshot = errors.New("raftgroup: snapshots of groups are not supported")

// ErrApply says that the Machine refused a committed entry: damage, a bug, or a
// fault of the engine. The entries before it are applied.
var ErrApply = errors.New("raftgroup: apply")

// Limits that are the same for all groups; reasons in pitfalls.md.
const (
	maxSizePerMsg    = 256 << 10 // 0 would make raft panic
	maxCommittedSize = 4 << 20   // bounds one apply; 0 likewise
	maxInflightMsgs  = 256
	maxInflightBytes = 8 << 20
	defaultElection  = 10
	defaultHeartbeat = 1
	defaultKeep      = 256
	defaultKeepBytes = 256 << 10
	truncateEntries  = 64       // entries worth a truncation: one row of state each time
	truncateBytes    = 64 << 10 // or bytes
)

// Group is one replica's part in a Raft group. Its methods say which of them
// leave work for Ready; call Ready after them. It is not safe for concurrent
// use: the shard's worker owns it.
type Group struct {
	id, replica uint64
	rn          *raft.RawNode
	log         *raftlog.Log
	machine     Machine
	keepEntries uint64
	keepBytes   uint64
	maxBatch    int // MaxBatchBytes; less in tests

	// settler is the machine, if it is one. uncommitted: entries were applied whose
	// batch is not known to be committed. held are raft's requests to apply that are
	// not done, heldDone how many entries of the first are.
	settler     Settler
	uncommitted bool
	held        []*raftpb.Message
	heldDone    int

	// dirty: raft was given something since the last Ready. Asking raft itself
	// allocates.
	dirty bool
	// soleVoter: the configuration is this replica alone. autoLeave: it is a
	// joint one that the leader leaves by itself.
	soleVoter, autoLeave bool
	// term, lead, state and committed are raft's, as of the last Ready.
	term, lead, committed uint64
	state                 raft.StateType
	// election is the clock of followers and candidates. vote is the last seen.
	election electionTimer
	vote     uint64
	// unsynced counts the Works that need a sync and were not reported durable.
	unsynced int
	// durableApplied is the highest index known to be applied durably: a sync
	// that began after it was written has ended.
	durableApplied uint64
	// failed is the fault that stopped the group. Sticky.
	failed error
}

// New returns the group as its log says. A sole voter campaigns at once: nobody
// else can lead, so there is nothing to wait for. Errors wrap
// raftlog.ErrCorrupt when the log says what cannot be.
func New(cfg Config) (g *Group, err error) {
	cfg.ensureDefaults()
	index, _ := cfg.Log.Applied()
	g = &Group{
		id:          cfg.ID,
		replica:     cfg.ReplicaID,
		log:         cfg.Log,
		machine:     cfg.Machine,
		keepEntries: cfg.KeepEntries,
		keepBytes:   cfg.KeepBytes,
		election:    newElectionTimer(cfg.ElectionTicks, cfg.Seed, cfg.ID, cfg.ReplicaID),
		maxBatch:    MaxBatchBytes,
	}
	g.settler, _ = cfg.Machine.(Settler)
	// What the log finds applied may only be visible, when the group was unloaded
	// and is loaded again. What was cut off was applied durably.
	first, _ := cfg.Log.FirstIndex()
	g.durableApplied = first - 1
	defer g.guard(&err)
	_, cs, err := cfg.Log.InitialState()
	if err != nil {
		return nil, err
	}
	g.setConfState(cs)
	g.rn, err = raft.NewRawNode(&raft.Config{
		ID:                        cfg.ReplicaID,
		ElectionTick:              cfg.ElectionTicks,
		HeartbeatTick:             cfg.HeartbeatTicks,
		Storage:                   cfg.Log,
		Applied:                   index,
		AsyncStorageWrites:        true,
		MaxSizePerMsg:             maxSizePerMsg,
		MaxCommittedSizePerReady:  maxCommittedSize,
		MaxInflightMsgs:           maxInflightMsgs,
		MaxInflightBytes:          maxInflightBytes,
		CheckQuorum:               true,
		PreVote:                   true,
		ReadOnlyOption:            raft.ReadOnlySafe,
		Logger:                    newLogger(cfg.Logger, cfg.ID, cfg.ReplicaID),
		DisableProposalForwarding: true,
		StepDownOnRemoval:         true,
	})
	if err != nil {
		return nil, fmt.Errorf("group %d: %w", cfg.ID, err)
	}
	st := g.rn.BasicStatus()
	g.term, g.lead, g.state, g.committed = st.HardState.GetTerm(), st.Lead, st.RaftState, st.HardState.GetCommit()
	g.vote = st.HardState.GetVote()
	// What is committed and not applied is work, too.
	g.dirty = true
	if g.soleVoter {
		err = g.Campaign()
	}
	return g, err
}

func (g *Group) setConfState(cs *raftpb.ConfState) {
	v := cs.GetVoters()
	g.autoLeave = cs.GetAutoLeave()
	g.soleVoter = len(v) == 1 && v[0] == g.replica && len(cs.GetVotersOutgoing()) == 0 &&
		len(cs.GetLearners()) == 0 && len(cs.GetLearnersNext()) == 0
}

// guard turns the panic that raft answers to a damaged log with into an error,
// and makes it stick. Every other panic is a broken invariant and goes on.
func (g *Group) guard(err *error) {
	if g.log.Corrupt() != nil {
		recover() //nolint:errcheck // the damage is the reason, whatever raft made of it
		*err = fmt.Errorf("group %d: %w", g.id, g.log.Corrupt())
	}
	if *err != nil && errors.Is(*err, raftlog.ErrCorrupt) {
		g.failed = *err
	}
}

// step gives raft a message, or the reason why not.
func (g *Group) step(m *raftpb.Message) (err error) {
	if g.failed != nil {
		return g.failed
	}
	defer g.guard(&err)
	g.dirty = true
	return g.rn.Step(m)
}

// Campaign starts an election.
func (g *Group) Campaign() (err error) {
	if g.failed != nil {
		return g.failed
	}
	defer g.guard(&err)
	g.dirty = true
	return g.rn.Campaign()
}

// Propose offers an entry. ErrNotLeader says that it was not taken and will
// never be in the log: what was evaluated on top of it is wrong, too. nil says
// only that it was offered: it is in the log when Apply is called with it.
// data is copied.
func (g *Group) Propose(data []byte) (err error) {
	if g.failed != nil {
		return g.failed
	}
	if len(data) == 0 {
		panic(fmt.Sprintf("raftgroup: group %d: empty proposal", g.id))
	}
	if g.state != raft.StateLeader {
		return ErrNotLeader
	}
	defer g.guard(&err)
	g.dirty = true
	if err := g.rn.Propose(data); errors.Is(err, raft.ErrProposalDropped) {
		return ErrNotLeader
	} else if err != nil {
		return err
	}
	return nil
}

// ProposeConfChange offers a change of the configuration. Same answers as
// Propose; a change that raft finds invalid now becomes an entry without effect.
func (g *Group) ProposeConfChange(cc *raftpb.ConfChangeV2) (err error) {
	if g.failed != nil {
		return g.failed
	}
	if g.state != raft.StateLeader {
		return ErrNotLeader
	}
	defer g.guard(&err)
	g.dirty = true
	if err := g.rn.ProposeConfChange(cc); errors.Is(err, raft.ErrProposalDropped) {
		return ErrNotLeader
	} else if err != nil {
		return err
	}
	return nil
}

// Step takes a message of another replica. Messages that do not fit (from a
// replica that is not a member, local ones) are errors and change nothing.
func (g *Group) Step(m *raftpb.Message) error {
	if m.GetType() == raftpb.MsgSnap {
		return ErrSnapshot
	}
	if raft.IsLocalMsg(m.GetType()) || raft.IsLocalMsgTarget(m.GetFrom()) || m.GetTo() != g.replica {
		return fmt.Errorf("group %d: %s from %d to %d", g.id, m.GetType(), m.GetFrom(), m.GetTo())
	}
	if fromLeader(m) && m.GetTerm() >= g.term {
		g.election.heard()
	}
	err := g.step(m)
	if errors.Is(err, raft.ErrProposalDropped) {
		return ErrNotLeader
	}
	return err
}

// Tick says that a tick's time has passed. Time means nothing to a leader that is
// alone: there is nobody to send heartbeats to or to hear from.
func (g *Group) Tick() (err error) {
	if g.failed != nil {
		return g.failed
	}
	if g.state != raft.StateLeader {
		return g.tickElection()
	}
	if g.soleVoter {
		return nil
	}
	defer g.guard(&err)
	g.rn.Tick()
	g.dirty = g.dirty || g.rn.HasReady()
	return nil
}

// tickElection passes a tick of silence to a replica that does not lead.
func (g *Group) tickElection() error {
	forget, campaign := g.election.tick()
	if forget && g.lead != 0 {
		if err := g.ForgetLeader(); err != nil {
			return err
		}
	}
	if campaign {
		return g.Campaign()
	}
	return nil
}

// ReadIndex starts a round that confirms that this replica is the leader. The
// answer is a ReadState with the same context in the Work of a Ready; none
// comes if leadership is lost. At most once per context. The context is kept.
func (g *Group) ReadIndex(ctx []byte) (err error) {
	switch {
	case g.failed != nil:
		return g.failed
	case g.state != raft.StateLeader:
		return ErrNotLeader
	case !g.Serving():
		return ErrNotServing
	}
	defer g.guard(&err)
	g.dirty = true
	g.rn.ReadIndex(ctx)
	return nil
}

// TransferLeader asks to hand leadership to another voter. Proposals are
// refused until that is done or given up after an election timeout.
func (g *Group) TransferLeader(to uint64) (err error) {
	if g.failed != nil {
		return g.failed
	}
	defer g.guard(&err)
	g.dirty = true
	g.rn.TransferLeader(to)
	return nil
}

// Resign gives leadership up: this replica becomes a follower of the next term,
// with no leader and no vote given. A sole voter campaigns at once; in a group of
// several whoever's election timeout ends first does, this replica included. What
// was proposed may still be committed; a transfer under way is given up. If raft
// does not lead any more nothing happens.
func (g *Group) Resign() (err error) {
	if g.failed != nil {
		return g.failed
	}
	defer g.guard(&err)
	st := g.rn.BasicStatus()
	if st.RaftState != raft.StateLeader {
		return nil
	}
	g.dirty = true
	// raft has no call for it, but any word of a later term ends a leader's.
	if err := g.rn.Step(&raftpb.Message{
		Type: raftpb.MsgHeartbeatResp.Enum(), From: new(g.replica), To: new(g.replica), Term: new(st.HardState.GetTerm() + 1),
	}); err != nil {
		return fmt.Errorf("group %d: resign: %w", g.id, err)
	}
	if g.soleVoter {
		return g.Campaign()
	}
	return nil
}

// ForgetLeader makes a follower forget its leader, whose node is known to be
// gone, so that it votes for another (pitfalls: many groups).
func (g *Group) ForgetLeader() (err error) {
	if g.failed != nil {
		return g.failed
	}
	defer g.guard(&err)
	g.dirty = true
	return g.rn.ForgetLeader()
}

// ReportUnreachable says that messages to a replica were lost.
func (g *Group) ReportUnreachable(replica uint64) (err error) {
	if g.failed != nil {
		return g.failed
	}
	defer g.guard(&err)
	g.dirty = true
	g.rn.ReportUnreachable(replica)
	return nil
}

// confChange decodes an entry that changes the configuration.
func confChange(e *raftpb.Entry) (raftpb.ConfChangeI, []byte, error) {
	if e.GetType() == raftpb.EntryConfChange {
		cc := new(raftpb.ConfChange)
		err := proto.Unmarshal(e.GetData(), cc)
		return cc, cc.GetContext(), err
	}
	cc := new(raftpb.ConfChangeV2)
	err := proto.Unmarshal(e.GetData(), cc)
	return cc, cc.GetContext(), err
}
