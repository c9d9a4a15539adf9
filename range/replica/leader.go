package replica

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/range/raftgroup"
)

// leader is the part of a replica that takes requests in and, while the replica leads,
// evaluates them, gets revisions for them from the sequencer (S), proposes them and answers
// them. What the log made of them it learns from outcomes; it changes nothing of what is
// applied. It is driven by the Replica.
type leader struct {
	rangeID uint64
	limits  Limits
	log     *zap.Logger
	group   *raftgroup.Group
	link    SequencerLink
	// state is that of the applier, latest what the engine shows of it.
	state  rangeState
	latest mvcc.View

	requests *requests
	election *election
	sleep    sleep
	leadership

	tick     uint64
	flushes  uint64 // so far
	lowSpace bool   // as of the last Flush
	// budget is that of the evaluation under way, kept for its memory.
	budget mvcc.Budget
	// fault is what must stop the replica. It sticks; the Replica looks at it.
	fault error
}

// rangeState is what the leader sees of the applier.
type rangeState interface {
	fmt.Stringer
	// stagedState is the state with everything that was applied into engine batches.
	stagedState() appliedState
	// visibleState is the state that readers see.
	visibleState() appliedState
}

// leadership is what a leader knows, from its election to its end. term 0: this
// replica does not lead.
//
//	elected ──► serving (own-term entry applied and visible) ──► registered
//	   └────────────── asks S to register ──────────────────────────┘
//
// A leader evaluates only when it is serving and registered.
type leadership struct {
	term    uint64 // T
	serving bool

	reg       registration
	grants    grantQueue
	proposals proposals
	// gathered counts the passes that what is staged has waited: mayGather.
	gathered int
	// settling latches wait for what is in the log to be applied.
	settling fifo[*request]
	// held are answers of S that came before the leader was serving.
	held []*placementpb.FromSequencer

	nextNudge uint64 // tick before which no nudge makes it register
}

// newLeader returns the leader's part of a replica.
func newLeader(cfg *Config, log *zap.Logger, group *raftgroup.Group, state rangeState) *leader {
	return &leader{
		rangeID: cfg.RangeID, limits: cfg.Limits, log: log, group: group,
		link: cfg.Link, state: state, latest: cfg.MVCC.Latest(), requests: newRequests(cfg.RangeID),
		election: &election{nodeID: cfg.NodeID, retryTicks: cfg.Limits.RetryTicks, abdicateTicks: cfg.Limits.AbdicateTicks, log: log, group: group, state: state},
	}
}

// String says what readers see of the range, and whether this replica leads it.
func (l *leader) String() string {
	if l.term == 0 {
		return fmt.Sprintf("%s follower", l.state)
	}
	return fmt.Sprintf("%s leader T=%d %s log=%d", l.state, l.term, &l.reg, l.proposals.revision)
}

// beforeRaft does, ahead of raft's turn, what items, ticks and durable batches since the
// last Flush ask for.
func (l *leader) beforeRaft(round Round) {
	l.lowSpace = round.LowSpace()
	l.flushes++
	l.lookAtLeadership()
	if l.mayGather() {
		round.Again()
	} else {
		l.propose(round)
	}
	l.lookAtSession()
	l.evaluate(round)
}

// afterRaft does what raft's turn has made possible.
func (l *leader) afterRaft(b *pebble.Batch, round Round) {
	l.lookAtLeadership()
	l.giveLatches()
	l.maybeDeactivate(b, round)
}

// timePassed says that one heartbeat interval has passed.
func (l *leader) timePassed() {
	l.tick++
	l.requests.expire(l.tick, uint64(l.limits.WaitTicks))
	l.askAboutSilent()
	l.sleep.idleTicks++
}

// fail says that the replica must stop.
func (l *leader) fail(err error) {
	if l.fault == nil {
		l.fault = err
	}
}

// lookAtLeadership follows raft: this replica was elected, serves, or has lost
// its place.
func (l *leader) lookAtLeadership() {
	defer l.requests.forgetEarly()
	leads, term := l.group.IsLeader(), l.group.Term()
	if l.term != 0 && (!leads || term != l.term) {
		l.lose()
	}
	if !leads {
		l.refuseOrElect()
		return
	}
	if l.term == 0 {
		l.leadership = leadership{
			term: term, grants: grantQueue{nextSeq: 1},
			reg:       newRegistration(l.link, l.rangeID, term, 0, 0),
			proposals: newProposals(term, l.limits.TargetEntryBytes),
		}
		l.sleep = sleep{asleep: l.sleep.asleep}
		l.election.won(l.tick)
		l.log.Log(l.election.level(), "leads", zap.Uint64("term", term))
	}
	if visible := l.state.visibleState(); !l.serving && visible.term == term {
		l.serving = true
		l.proposals.begin(visible)
		l.requests.moveEarly()
		held := l.held
		l.held = nil
		for _, m := range held {
			l.handleSequencer(m)
		}
	}
}

// lose ends the leadership: what is in flight and not applied has an
// unknown fate, what is not proposed was not applied and is not any more
// (pitfalls: no re-proposals, ever). What is applied, and not visible yet, has its
// answers. Latches are void: no S accepts them under a later term.
func (l *leader) lose() {
	l.log.Log(l.election.level(), "no longer leads", zap.Uint64("term", l.term))
	l.dropRegistration()
	l.dropStaged()
	for _, q := range l.proposals.unapplied() {
		l.requests.finish(q, nil, rangepb.WriteAnswer{Err: fmt.Errorf("%w: range %d", ErrUnknownFate, l.rangeID)})
	}
	for q := l.requests.live.first; q != nil; {
		next := q.next
		switch q.stage {
		case stageLatched:
			l.requests.leave(q)
		case stageSettling:
			q.stage = stageWaiting
			l.requests.free.push(q)
		}
		q = next
	}
	l.leadership = leadership{}
}

// handleWrite takes a write in.
func (l *leader) handleWrite(w *Write) {
	if err := l.admit(w.Epoch); err != nil {
		w.Refuse(err)
		return
	}
	if l.lowSpace && addsData(w.Req) {
		w.Refuse(ErrNoSpace)
		return
	}
	q := newWriteRequest(w)
	if l.requests.live.bytes+q.bytes > l.limits.MaxQueuedBytes && l.requests.live.count > 0 {
		w.Refuse(ErrTooManyRequests)
		return
	}
	l.enter(q)
}

// admit says why a request cannot be taken in.
func (l *leader) admit(epoch uint64) error {
	if l.requests.live.count >= l.limits.MaxQueued {
		return ErrTooManyRequests
	}
	if desc := l.logDescriptor(); epoch < desc.Epoch {
		return staleEpoch(l.rangeID, desc)
	}
	if !l.group.IsLeader() {
		if leader := l.group.Leader(); leader != 0 {
			return l.notLeader(leader)
		}
	}
	return nil
}

// need notes that the range must have a registered leader.
func (l *leader) need() {
	l.sleep.wake()
	l.election.need(l.tick)
}

// refuseOrElect sends requests to the leader, or starts an election if there is
// none. What was proposed is not refused: of that, only writes are left whose
// effects are staged in the batch of this round, and their answers are on their way.
func (l *leader) refuseOrElect() {
	leader := l.group.Leader()
	if leader == 0 {
		l.election.maybeCampaign(l.tick)
		return
	}
	l.election.needed = false
	if l.requests.live.count > 0 {
		l.requests.refuseUnproposed(l.notLeader(leader))
	}
}

// notLeader sends a request to another replica, which leads.
func (l *leader) notLeader(leader uint64) error {
	return &rangepb.Error{Kind: rangepb.NotLeader, RangeID: l.rangeID, Leader: leader}
}

// enter takes a request in: the range must have a leader for it.
func (l *leader) enter(q *request) {
	l.need()
	l.sleep.idleTicks = 0
	l.requests.enter(q, l.tick)
}

// logDescriptor is the descriptor as the log leaves it, as far as is known.
func (l *leader) logDescriptor() *rangepb.RangeDescriptor {
	if l.serving {
		return l.proposals.desc
	}
	return l.state.stagedState().desc
}

// inflightBytes is the size of all that is evaluated and not visible.
func (l *leader) inflightBytes() int { return l.grants.charged + l.proposals.bytes }

// Staged commands wait for more for at most so many passes, of some microseconds
// each, or until there are so many commands.
const (
	maxGatheredPasses   = 32
	maxGatheredCommands = 128
)

// mayGather reports that what is staged should wait for the next pass. A
// sequencer on the same node answers within the round, so writes that wait for
// each other, as those of one hot key do, are granted one a pass; gathered, they
// share an entry, and Raft's work for it.
func (l *leader) mayGather() bool {
	p := &l.proposals
	if p.building == nil || len(p.full) > 0 || !l.grants.instant || l.requests.free.len() == 0 ||
		l.gathered == maxGatheredPasses || len(p.building.items) >= maxGatheredCommands ||
		l.reg.phase != regOpen || l.sleep.deactivating || l.inflightBytes() >= l.limits.MaxInflightBytes {
		return false
	}
	if !l.reg.current() {
		return false
	}
	l.gathered++
	return true
}

// propose offers what is staged to raft.
func (l *leader) propose(round Round) {
	if !l.proposals.staged() || !round.CanPropose() {
		return
	}
	l.gathered = 0
	all, err := l.proposals.propose(l.group.Propose, raftgroup.MaxBatchBytes)
	if err != nil {
		l.log.Warn("proposal dropped", zap.Error(err), zap.Stringer("state", l))
		l.dropStaged()
		l.dropRegistration()
		l.reg.notBefore = l.tick + 1
		return
	}
	if !all {
		round.Again() // raft gives all of it to one batch
	}
}

// dropStaged gives up what is staged and not proposed. The revisions it had are
// lost; the registration that follows ends them with its Resolve.
func (l *leader) dropStaged() {
	for _, q := range l.proposals.drop(l.state.visibleState()) {
		l.requests.refuse(q, ErrDropped)
	}
}
