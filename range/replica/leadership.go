package replica

import (
	"fmt"
	"slices"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// leadership is what a leader knows, from its election to its end. term 0: this
// replica does not lead.
//
//	elected ──► serving (own-term entry applied and visible) ──► registered
//	   └────────────── asks S to register ──────────────────────────┘
//
// A leader evaluates only when it is serving and registered. From serving on it
// has proposed everything that its log holds beyond the applied state, so
// logRevision and logDesc are the truth about the log, uncommitted tail
// included (R3 c).
type leadership struct {
	term    uint64 // T
	serving bool

	// logRevision is the highest revision in the log or staged for it, logDesc
	// the descriptor as the log leaves it: a split counts from its proposal.
	logRevision int64
	logDesc     *rangepb.RangeDescriptor

	reg registration
	// queue holds the evaluated writes in the order of their seqs; the first
	// len-unasked of them are asked for.
	queue   fifo[*request]
	unasked int
	nextSeq uint64

	// held are answers of S that came before the leader was serving.
	held []*placementpb.FromSequencer

	// building is the entry that takes commands; full are closed ones. Neither is
	// proposed yet.
	building *proposal
	full     []*proposal
	// instant: S answered the last question for grants before the next Flush.
	// askedIn is the Flush of that question, gathered counts passes: mayGather.
	instant  bool
	askedIn  uint64
	gathered int
	// inflight are the proposals made and not visible yet, in the order of the
	// log; the first applied of them are applied into a batch.
	inflight fifo[*proposal]
	applied  int
	// inflightBytes is the size of all that is evaluated and not visible.
	inflightBytes int
	nextProposal  uint64
	// visibleProposal is the last that became visible.
	visibleProposal uint64

	// reachedAt is the tick at which there was a session last, or leadership was
	// offered for want of one to the heirs-th voter after this.
	reachedAt uint64
	heirs     int

	idleTicks    int
	nextNudge    uint64 // tick before which no nudge makes it register
	deactivating bool
	// durableAt is the applied index that is known to be on disk because a sync
	// was asked for it before going to sleep.
	durableAt uint64
}

func (l *leadership) String() string {
	if l.term == 0 {
		return "follower"
	}
	return fmt.Sprintf("leader T=%d %s log=%d", l.term, &l.reg, l.logRevision)
}

type regPhase uint8

const (
	regNone  regPhase = iota
	regAsked          // Register is sent
	regOpen           // Registered; grants flow
)

// registration is (e, T, session) and how far it has come (R3).
type registration struct {
	phase          regPhase
	e, session     uint64
	firstSeq       uint64 // of grants asked under it
	r0             int64
	resolveIn      uint64 // proposal with its Resolve(r0)
	notBefore      uint64 // tick before which it is not asked again
	refusedAlready bool   // logged
}

func (g *registration) String() string {
	return fmt.Sprintf("%s e=%d session=%d", [...]string{"unregistered", "registering", "registered"}[g.phase], g.e, g.session)
}

// lookAtLeadership follows raft: this replica was elected, serves, or has lost
// its place.
func (r *Replica) lookAtLeadership() {
	defer r.forgetEarly()
	leader, term := r.group.IsLeader(), r.group.Term()
	l := &r.lead
	if l.term != 0 && (!leader || term != l.term) {
		r.loseLeadership()
	}
	if !leader {
		r.refuseOrElect()
		return
	}
	if l.term == 0 {
		*l = leadership{term: term, nextSeq: 1, nextProposal: 1, reachedAt: r.tick}
		r.log.Log(r.electionLevel(), "leads", zap.Uint64("term", term))
	}
	if !l.serving && r.applier.visible.term == term {
		l.serving = true
		l.logRevision, l.logDesc = r.applier.visible.resolved, r.applier.visible.desc
		r.moveEarly()
		held := l.held
		l.held = nil
		for _, m := range held {
			r.handleSequencer(m)
		}
	}
}

// refuseOrElect sends requests to the leader, or starts an election if there is
// none. What was proposed is not refused: of that, only writes are left whose
// effects are staged in the batch of this round, and committed answers them.
func (r *Replica) refuseOrElect() {
	if leader := r.group.Leader(); leader != 0 {
		r.needed = false
		for q := r.live.first; q != nil; {
			next := q.next
			if q.stage != stageProposed {
				r.refuse(q, r.notLeader(leader))
			}
			q = next
		}
		return
	}
	if r.needed && !r.group.SoleVoter() && r.tick >= r.campaignAt {
		// Each replica has another period, so that two which collide part again.
		r.campaignAt = r.tick + uint64(r.limits.RetryTicks*(len(r.applier.visible.desc.Replicas)+max(0, r.position())))
		if err := r.group.Campaign(); err != nil {
			r.log.Warn("cannot campaign", zap.Error(err))
		}
	}
}

// need notes that the range must have a registered leader. S wakes all replicas
// of a range at once, and if all of them campaigned at once none would win, now and at
// every repetition: they take turns, in the order of the descriptor.
func (r *Replica) need() {
	r.wake()
	if r.needed {
		return
	}
	r.needed = true
	turn := max(0, r.position())
	r.campaignAt = max(r.campaignAt, r.tick+uint64(turn*r.limits.RetryTicks))
}

// position is the place of this replica in the descriptor.
func (r *Replica) position() int {
	return slices.IndexFunc(r.applier.visible.desc.Replicas, func(rep *rangepb.Replica) bool { return rep.NodeId == r.cfg.NodeID })
}

func (r *Replica) notLeader(leader uint64) error {
	return &RangeError{Kind: NotLeader, RangeID: r.cfg.RangeID, Descriptor: r.applier.visible.desc, LeaderReplicaID: leader}
}

func (r *Replica) staleEpoch(desc *rangepb.RangeDescriptor) error {
	return &RangeError{Kind: StaleEpoch, RangeID: r.cfg.RangeID, Descriptor: desc}
}

// electionLevel is the log level of what elections decide. A sole voter leads
// whenever it is awake: thousands of them do when a node starts, and it says
// nothing.
func (r *Replica) electionLevel() zapcore.Level {
	if r.group.SoleVoter() {
		return zap.DebugLevel
	}
	return zap.InfoLevel
}

// loseLeadership ends the leadership: what is in flight and not applied has an
// unknown fate, what is not proposed was not applied and is not any more
// (pitfalls: no re-proposals, ever). What is applied, and not visible yet, is
// answered by committed. Latches are void: no S accepts them under a later term.
func (r *Replica) loseLeadership() {
	r.log.Log(r.electionLevel(), "no longer leads", zap.Uint64("term", r.lead.term))
	r.dropRegistration()
	r.dropStaged()
	l := &r.lead
	for _, p := range l.inflight.all()[l.applied:] {
		for i := range p.items {
			if q := p.items[i].request; q != nil {
				r.finish(q, WriteResult{Err: fmt.Errorf("%w: range %d", ErrUnknownFate, r.cfg.RangeID)})
			}
		}
	}
	for q := r.live.first; q != nil; {
		next := q.next
		switch q.stage {
		case stageLatched:
			r.leave(q)
		case stageSettling:
			q.stage = stageWaiting
			r.free.push(q)
		}
		q = next
	}
	r.settling = fifo[*request]{}
	r.overlay = mvcc.NewOverlay()
	r.lead = leadership{}
}

// lookAtSession follows the node's session with S: a new one ends everything
// that the old one promised, and the leader registers at once (R3).
func (r *Replica) lookAtSession() {
	l := &r.lead
	if l.term == 0 {
		return
	}
	e, session, ok := r.cfg.Link.Session()
	if !ok {
		if l.reg.phase != regNone {
			r.dropRegistration()
		}
		r.maybeAbdicate()
		return
	}
	l.reachedAt = r.tick
	if l.reg.e != e || l.reg.session != session {
		if e < l.reg.e {
			panic(fmt.Sprintf("replica: range %d: sequencer epoch falls from %d to %d", r.cfg.RangeID, l.reg.e, e))
		}
		r.dropRegistration()
		l.held = nil
		l.reg = registration{e: e, session: session}
	}
	if l.reg.phase == regNone && !r.asleep && r.tick >= l.reg.notBefore {
		r.register()
	}
}

// maybeAbdicate gives leadership to the next voter when S cannot be reached for
// an election timeout: another node may reach it (R3). A sole voter waits.
func (r *Replica) maybeAbdicate() {
	l := &r.lead
	if r.group.SoleVoter() || r.tick < l.reachedAt+uint64(r.limits.AbdicateTicks) {
		return
	}
	l.reachedAt = r.tick // else to the one after it
	voters := r.applier.visible.desc.Replicas
	l.heirs++
	heir := voters[(r.position()+l.heirs)%len(voters)]
	if heir.NodeId == r.cfg.NodeID {
		return
	}
	r.log.Warn("no sequencer: handing leadership over", zap.Uint64("to", heir.ReplicaId))
	if err := r.group.TransferLeader(heir.ReplicaId); err != nil {
		r.log.Warn("cannot hand leadership over", zap.Error(err))
	}
}

func (r *Replica) register() {
	l := &r.lead
	l.reg.phase = regAsked
	desc := l.logDesc
	if desc == nil {
		desc = r.applier.staged.desc // not serving yet; S only wants it not to be newer
	}
	r.send(&placementpb.ToSequencer{Body: &placementpb.ToSequencer_Register{Register: &placementpb.Register{
		RangeId: r.cfg.RangeID, Epoch: desc.Epoch, Term: l.term}}})
}

// send gives a message to S under the registration's session.
func (r *Replica) send(m *placementpb.ToSequencer) {
	m.Session = r.lead.reg.session
	r.cfg.Link.Send(m)
}

// dropRegistration gives up what rests on the registration: the queue, which is
// not granted and will not be (R3 a). What is granted goes on: it was taken
// while the registration was good. Latches stay until S speaks again.
func (r *Replica) dropRegistration() {
	l := &r.lead
	l.reg.phase = regNone
	l.deactivating = false
	for l.queue.len() > 0 {
		q := l.queue.pop()
		l.inflightBytes -= q.charged
		if q.stage == stageAsked {
			r.refuse(q, ErrDropped)
		}
	}
	l.unasked = 0
}

// distrust gives the registration up because S said what cannot be, and
// registers anew after a pause: that ends whatever was wrong between the two
// with a Resolve. It is loud.
func (r *Replica) distrust(why string, fields ...zap.Field) {
	r.log.Error("registering anew: "+why, append(fields, zap.Stringer("state", r))...)
	r.dropRegistration()
	r.lead.reg.notBefore = r.tick + uint64(r.limits.RetryTicks)
}

// handleSequencer takes a message of S about this range.
func (r *Replica) handleSequencer(m *placementpb.FromSequencer) {
	if r.failed != nil {
		return
	}
	if _, ok := m.Body.(*placementpb.FromSequencer_Wake); ok {
		r.need()
		return
	}
	l := &r.lead
	// R3 a: what is of another registration is dropped, whenever it comes. The
	// link is asked too: a session that is over but not looked at yet is over.
	e, session, ok := r.cfg.Link.Session()
	if l.term == 0 || !ok || m.Epoch != e || m.Session != session || m.Epoch != l.reg.e || m.Session != l.reg.session {
		return
	}
	if !l.serving {
		l.held = append(l.held, m)
		return
	}
	switch b := m.Body.(type) {
	case *placementpb.FromSequencer_Registered:
		r.handleRegistered(b.Registered)
	case *placementpb.FromSequencer_Grant:
		r.handleGrant(b.Grant)
	case *placementpb.FromSequencer_Decided:
		if l.reg.phase == regOpen {
			r.handleDecided(b.Decided)
		}
	case *placementpb.FromSequencer_Unlatch:
		r.handleSequencerUnlatch(m.Epoch, b.Unlatch)
	case *placementpb.FromSequencer_Deactivated:
		r.handleDeactivated(b.Deactivated)
	default:
		r.log.Warn("unexpected message of the sequencer", zap.String("body", fmt.Sprintf("%T", m.Body)))
	}
}

// handleRegistered is R3 c.
func (r *Replica) handleRegistered(m *placementpb.Registered) {
	l := &r.lead
	if l.reg.phase != regAsked || m.Term != l.term {
		return
	}
	if m.Refused {
		if !l.reg.refusedAlready {
			l.reg.refusedAlready = true
			r.log.Warn("registration refused", zap.String("reason", m.Reason), zap.Stringer("state", r))
		}
		l.reg.phase = regNone
		l.reg.notBefore = r.tick + uint64(r.limits.RetryTicks)
		return
	}
	if m.R0 < l.logRevision {
		// A meta group that was rolled back, or a bug: its grants would go
		// backwards (pitfalls: an agent refuses a revision that does not grow).
		r.distrust("r0 is below the log", zap.Int64("r0", m.R0))
		return
	}
	// Latches given under an older S are void; under this one they stay until it
	// decides, refuses or aborts (R7).
	for q := r.live.first; q != nil; {
		next := q.next
		if q.stage == stageLatched && q.e != l.reg.e {
			r.leave(q)
		}
		q = next
	}
	l.reg.phase = regOpen // decided entries are taken from here on
	for _, d := range m.Decided {
		if r.inLog(d) {
			r.reportIfVisible(d)
			continue
		}
		if r.takeDecided(d); l.reg.phase != regOpen || r.failed != nil {
			return
		}
	}
	if l.logDesc.Epoch != m.Epoch {
		r.distrust("the sequencer has another epoch", zap.Uint64("epoch", m.Epoch))
		return
	}
	if m.R0 < l.logRevision {
		r.distrust("r0 is below a decided entry", zap.Int64("r0", m.R0))
		return
	}
	p := r.stage(command{kind: commandResolve, revision: m.R0}, proposed{})
	l.reg.resolveIn = p.seq
	l.reg.firstSeq, l.reg.r0 = l.nextSeq, m.R0
	l.reg.refusedAlready = false
	l.idleTicks = 0
	r.needed = false
	r.log.Debug("registered", zap.Int64("r0", m.R0), zap.Stringer("state", r))
}

// latchesOpen reports that the Resolve of the registration is applied: only
// then are latches given out (R3 c).
func (l *leadership) latchesOpen() bool {
	return l.reg.phase == regOpen && l.visibleProposal >= l.reg.resolveIn
}

// handleNudge wakes the range, or lets a leader that has nothing outstanding
// register again: the Resolve that follows lets go a reader who waits for a
// grant that is lost (R5).
func (r *Replica) handleNudge() {
	if r.failed != nil {
		return
	}
	r.need()
	l := &r.lead
	if l.reg.phase == regOpen && l.queue.len() == 0 && l.building == nil && len(l.full) == 0 &&
		l.inflight.len() == 0 && !l.deactivating && r.tick >= l.nextNudge {
		l.reg.phase = regNone
		l.nextNudge = r.tick + uint64(r.limits.RetryTicks)
		l.idleTicks = 0
	}
}
