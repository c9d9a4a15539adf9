// Package sequencer is the sequencer S of the revision protocol
// (revisions.md): it hands out revisions, keeps for every range the last one
// assigned to it (the ledger), answers queries with R and the m of ranges, and
// decides registrations, transactions over ranges, splits, deactivations and
// compactions through entries of the meta group's log.
//
// It is a pure state machine: no goroutine, clock, lock, randomness or I/O. A
// driver gives it messages of nodes, applied entries, confirmed rounds and
// ticks, and takes what Ready returns. The same calls give the same output.
package sequencer

import (
	"cmp"
	"fmt"

	"github.com/hawser-kv/hawser/placement/meta"
	"github.com/hawser-kv/hawser/proto/placementpb"
)

// Config are the limits of a Sequencer; zero fields get their defaults.
type Config struct {
	// Bootstrap is proposed when S leads a meta group that has no cluster yet;
	// nil: S then waits for another to do it.
	Bootstrap *placementpb.Bootstrap
	// MinBoundStep and MaxBoundStep limit how many revisions the bound is
	// raised ahead (R2). A crash of S leaves a gap of at most one and a half
	// steps; a step too small makes bursts wait for the meta log. Defaults 32
	// and 1<<20.
	MinBoundStep, MaxBoundStep int64
	// MaxHeld bounds the messages that wait until S serves or until the bound
	// is raised; beyond it questions are refused as NOT_SERVING, and a node that
	// speaks for its ranges must subscribe anew. Default 65536.
	MaxHeld int
	// MaxAborted bounds the aborted owners remembered for one session of a
	// node; beyond it the session is ended, which ends its owners too. Default
	// 65536.
	MaxAborted int
	// WakeTicks is after how many ticks S wakes the replicas of an active
	// range again that nobody leads. Default 10.
	WakeTicks int
	// SplitTicks is for how many ticks a split waits for the range's leader to
	// register before it is refused as BUSY. Default 50.
	SplitTicks int
}

// EnsureDefaults fills zero fields.
func (c *Config) EnsureDefaults() {
	c.MinBoundStep = cmp.Or(c.MinBoundStep, 32)
	c.MaxBoundStep = max(cmp.Or(c.MaxBoundStep, 1<<20), c.MinBoundStep)
	c.MaxHeld = cmp.Or(c.MaxHeld, 1<<16)
	c.MaxAborted = cmp.Or(c.MaxAborted, 1<<16)
	c.WakeTicks = cmp.Or(c.WakeTicks, 10)
	c.SplitTicks = cmp.Or(c.SplitTicks, 50)
}

// Envelope is a message and the node it goes to.
type Envelope struct {
	NodeID  uint64
	Message *placementpb.FromSequencer
}

// Output is what the driver has to do. Its slices are valid until the next
// call of a method of the Sequencer. Messages to one node must stay in order.
type Output struct {
	// Proposals go into the meta group's log in this order, each exactly once
	// (R0). If raft drops one, the driver must call StepDown and give up
	// leadership: all later judgements rest on it.
	Proposals []*placementpb.MetaCommand
	// Round is the confirmation round to begin now, 0 for none (R1). The
	// driver calls Confirmed with it when a quorum has confirmed that S still
	// leads, by an exchange that began after this.
	Round uint64
	// Messages to nodes.
	Messages []Envelope
	// CutsDue: some node's newest cut is older than what S has said since.
	// The driver calls Cut soon (R6).
	CutsDue bool
}

// Empty says that there is nothing to do.
func (o *Output) Empty() bool {
	return len(o.Proposals) == 0 && o.Round == 0 && len(o.Messages) == 0
}

// phase of S in one term.
type phase uint8

const (
	// idle: not leader, or gave up in this term.
	idle phase = iota
	// starting: leads; bootstrap or the first raise of the bound is not
	// applied yet (R2).
	starting
	// serving.
	serving
	// handingOver: HandOver is proposed; nothing is granted, answered or cut.
	handingOver
	// handedOver: HandOver is applied.
	handedOver
)

func (p phase) String() string {
	return [...]string{"idle", "starting", "serving", "handing over", "handed over"}[p]
}

// Sequencer is S. It is not safe for concurrent use.
//
// Everything it judges by is its state with all entries proposed in this term
// already applied (R0); what a committed entry is needed for has "committed" in
// its name.
type Sequencer struct {
	cfg   Config
	epoch uint64 // e; 0: not leading
	phase phase
	sole  bool

	clusterID uint64
	// next revision to assign; next-1 is R. Always next-1 <= committedBound.
	next           int64
	committedBound int64
	proposedBound  int64
	// step by which the bound is raised; granted counts since the last tick.
	step    int64
	granted int64

	compacted          int64
	committedCompacted int64
	nextRangeID        uint64

	ledgers   ledgerTable
	directory directory
	// directoryBarrier is the number of the newest proposal that changes the
	// directory, compactBarrier of the newest that compacts.
	directoryBarrier uint64
	compactBarrier   uint64

	nodes     map[uint64]*node
	nodeOrder []*node
	// newest is the node that spoke last.
	newest *node

	// Rounds (R1) count from 1. nextRound has not begun.
	nextRound      uint64
	wantRound      bool
	confirmedRound uint64

	// Proposals of this term count from 1; they are applied in order. A number
	// that something waits for is called a barrier.
	proposed  uint64     // number of the newest
	applied   uint64     // number of the newest that is applied
	proposals []proposal // proposed-applied of them
	unsent    int        // the last ones, not yet given out by Ready

	// owners of transactions that are proposed and not applied.
	owners map[ownerID]uint64

	// Where something waits: the table of waiting rooms in ../DESIGN.md.
	held      []*placementpb.ToSequencer // wait for serving, or for the bound
	byRound   replyQueue                 // replies that wait for a round
	byBarrier []reply                    // replies that wait for a barrier, too
	waiting   []*ledger                  // ledgers whose outbox is not empty
	lonely    map[uint64]int             // active and not open -> ticks since
	splitting []*ledger                  // ledgers with split requests that wait, and some without

	// changes orders the ledgers by when cuts last had something new on them.
	changes   changeList
	changeSeq uint64
	cutSeq    uint64
	cutNow    bool

	// grants is memory for the next grant messages.
	grants []grantMessage
	ready  []Envelope // may leave at the next Ready
	out    Output
}

// New returns a Sequencer that does not lead.
func New(cfg Config) *Sequencer {
	cfg.EnsureDefaults()
	s := &Sequencer{cfg: cfg}
	s.reset()
	return s
}

func (s *Sequencer) reset() {
	*s = Sequencer{
		cfg:       s.cfg,
		sole:      s.sole,
		nodes:     map[uint64]*node{},
		owners:    map[ownerID]uint64{},
		lonely:    map[uint64]int{},
		nextRound: 1,
		step:      s.cfg.MinBoundStep,
	}
	s.directory.init()
	s.changes.init()
}

// SetSoleVoter says whether this node is the only voter of the meta group:
// then no other can lead it, every round is confirmed before it begins, and
// answers leave at once. It must be false from before a change of the voters
// is proposed.
func (s *Sequencer) SetSoleVoter(sole bool) {
	s.sole = sole
	if sole && s.phase != idle {
		if s.wantRound {
			s.nextRound++
			s.wantRound = false
		}
		s.confirmedRound = s.nextRound - 1
	}
}

// Lead makes S the sequencer of epoch term: this node was elected in it and has
// applied the first entry of its own term, and all entries before it, to st.
// S keeps nothing of st that changes. Must not be called twice for a term.
func (s *Sequencer) Lead(term uint64, st *meta.State) {
	if term <= s.epoch || term == 0 {
		panic(fmt.Sprintf("sequencer: lead in term %d after %d", term, s.epoch))
	}
	s.reset()
	s.epoch, s.phase = term, starting
	s.load(st)
	if s.clusterID == 0 {
		if s.cfg.Bootstrap != nil {
			s.propose(&placementpb.MetaCommand{Command: &placementpb.MetaCommand_Bootstrap{Bootstrap: s.cfg.Bootstrap}}, proposal{})
		}
		return
	}
	s.raiseBound(1)
}

func (s *Sequencer) load(st *meta.State) {
	s.clusterID = st.ClusterID
	s.committedBound, s.proposedBound, s.next = st.Bound, st.Bound, st.Bound+1
	s.compacted, s.committedCompacted = st.Compacted, st.Compacted
	s.nextRangeID = st.NextRangeID
	for _, r := range st.Ranges() {
		x := newLedger(r.Desc)
		x.committed = r.Desc
		x.active = r.Active
		// R2, section 3: an active range may have been granted anything up to
		// the old bound.
		x.last = r.Mark
		if r.Active {
			x.last = st.Bound
			s.lonely[x.id] = 0
		}
		for _, d := range r.Decided {
			x.decided = append(x.decided, decided{entry: d})
		}
		s.ledgers.put(x)
		s.directory.insert(x)
		s.touch(x)
	}
}

// StepDown ends S in this term: it lost leadership or gives it up. What was
// proposed may still be committed; nothing leaves any more.
func (s *Sequencer) StepDown() {
	epoch := s.epoch
	s.reset()
	s.epoch = epoch
}

// Leading says whether S leads (serving or not).
func (s *Sequencer) Leading() bool { return s.phase != idle }

// Serving says whether S grants and answers.
func (s *Sequencer) Serving() bool { return s.phase == serving }

// Confirmed says that the round is confirmed, and with it all before it (R1).
func (s *Sequencer) Confirmed(round uint64) {
	if s.phase == idle || round <= s.confirmedRound {
		return
	}
	if round >= s.nextRound {
		panic(fmt.Sprintf("sequencer: round %d confirmed, but the next to begin is %d", round, s.nextRound))
	}
	s.confirmedRound = round
}

// roundNeeded returns the round that must be confirmed before what is judged
// now may leave: one that has not begun (R1), or 0 for a sole voter.
func (s *Sequencer) roundNeeded() uint64 {
	if s.sole {
		return 0
	}
	s.wantRound = true
	return s.nextRound
}

// Cut makes the next Ready bring every node's cut up to date (R6). Drivers
// call it soon after Ready said that cuts are due; calls coalesce.
func (s *Sequencer) Cut() { s.cutNow = true }

// HandOver stops S on purpose without leaving a gap (R2): from now on nothing
// is granted, answered or cut; when HandedOver says so, the bound is the last
// revision handed out and leadership may move or the process may end.
func (s *Sequencer) HandOver() {
	switch s.phase {
	case starting, serving:
		if s.clusterID == 0 {
			s.phase = handedOver
			return
		}
		s.phase = handingOver
		// What waits is refused first: answers about a range keep the order of
		// its requests (R4).
		s.release()
		s.proposedBound = s.next - 1
		s.propose(&placementpb.MetaCommand{Command: &placementpb.MetaCommand_HandOver{
			HandOver: &placementpb.HandOver{Last: s.next - 1}}}, proposal{})
	}
}

// HandedOver says that nothing is left to do for a hand-over: S does not lead,
// or HandOver is applied.
func (s *Sequencer) HandedOver() bool { return s.phase == idle || s.phase == handedOver }

// Resume makes S serve again after a hand-over that did not happen: it raises
// the bound first.
func (s *Sequencer) Resume() {
	if s.phase == handedOver {
		s.phase = starting
		s.raiseBound(1)
	}
}

// Tick passes one tick (the driver's heartbeat interval): the step of the bound
// follows the rate, unconfirmed rounds are begun again, ranges that nobody
// leads are woken again.
func (s *Sequencer) Tick() {
	if s.phase == idle {
		return
	}
	// Half a tick's worth of revisions, falling slowly.
	s.step = min(max(s.granted/2, s.step*7/8, s.cfg.MinBoundStep), s.cfg.MaxBoundStep)
	s.granted = 0
	// A round may have been lost with a message; a later one confirms it.
	if s.confirmedRound+1 < s.nextRound && !s.sole {
		s.wantRound = true
	}
	if s.phase == serving {
		s.tickLonely()
		s.tickSplits()
	}
}

// Ready returns what is to do. Call it after every other call, until it
// returns an empty Output.
func (s *Sequencer) Ready() Output {
	s.out.Proposals = s.out.Proposals[:0]
	s.out.Messages, s.ready = s.ready, s.out.Messages[:0]
	s.out.Round, s.out.CutsDue = 0, false
	if s.phase == idle {
		return s.out
	}
	if s.unsent > 0 {
		for _, p := range s.proposals[len(s.proposals)-s.unsent:] {
			s.out.Proposals = append(s.out.Proposals, p.command)
		}
		s.unsent = 0
	}
	if s.wantRound {
		s.out.Round = s.nextRound
		s.nextRound++
		s.wantRound = false
	}
	s.flushOutboxes()
	s.flushCuts()
	s.flushReplies()
	s.out.Messages = append(s.out.Messages, s.ready...)
	s.ready = s.ready[:0]
	return s.out
}
