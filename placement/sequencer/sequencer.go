// Package sequencer is the sequencer (S) of the revision protocol
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
	"fmt"

	"github.com/hawser-kv/hawser/placement/meta"
	"github.com/hawser-kv/hawser/proto/placementpb"
)

// Sequencer is the sequencer (S). It is not safe for concurrent use.
//
// It holds the rules; what they judge by, and what waits, is in the nouns below,
// each with its own invariant. Everything S judges by is its state with all
// entries proposed in this term already applied (R0); what a committed entry is
// needed for has "committed" in its name.
type Sequencer struct {
	cfg   Config
	epoch uint64 // e; 0: not leading
	phase phase

	clusterID uint64

	bound      bound
	compaction compaction
	directory  directory
	sessions   sessions
	proposals  proposals
	speech     speech
	changes    changes

	// owners of transactions that are proposed and not applied.
	owners map[ownerID]struct{}
	// held messages wait for S to serve, or for the bound.
	held      []*placementpb.ToSequencer
	wakes     wakes
	splitting splitting

	out Output
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
		bound:     newBound(&s.cfg),
		sessions:  newSessions(s.cfg.MaxAborted),
		speech:    speech{rounds: newRounds(s.speech.rounds.sole)},
		owners:    map[ownerID]struct{}{},
		wakes:     newWakes(s.cfg.WakeTicks),
		splitting: splitting{after: s.cfg.SplitTicks},
	}
	s.directory.init()
	s.changes.init()
}

// SetSoleVoter says whether this node is the only voter of the meta group:
// then no other can lead it, every round is confirmed before it begins, and
// answers leave at once. It must be false from before a change of the voters
// is proposed.
func (s *Sequencer) SetSoleVoter(sole bool) {
	s.speech.rounds.sole = sole
	if sole && s.phase != idle {
		s.speech.rounds.becomeSole()
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
	s.speech.epoch, s.proposals.epoch = term, term
	s.load(st)
	if s.clusterID == 0 {
		if s.cfg.Bootstrap != nil {
			s.proposals.propose(&placementpb.MetaCommand{Command: &placementpb.MetaCommand_Bootstrap{Bootstrap: s.cfg.Bootstrap}}, proposal{})
		}
		return
	}
	s.raise(s.bound.raise(1))
}

func (s *Sequencer) load(st *meta.State) {
	s.clusterID, s.speech.clusterID = st.ClusterID, st.ClusterID
	s.bound.load(st.Bound)
	s.compaction = compaction{proposed: st.Compacted, committed: st.Compacted}
	s.directory.nextID = st.NextRangeID
	for _, r := range st.Ranges() {
		x := newLedger(r.Desc)
		x.committed = r.Desc
		x.active = r.Active
		// R2, section 3: an active range may have been granted anything up to
		// the old bound.
		x.last = r.Mark
		if r.Active {
			x.last = st.Bound
			s.wakes.add(x)
		}
		for _, d := range r.Decided {
			x.decided = append(x.decided, decided{entry: d})
		}
		s.directory.insert(x)
		s.changes.touch(x)
	}
}

// serve begins to grant and answer: the first entry of this term and the first
// raise of the bound are applied (R2).
func (s *Sequencer) serve() {
	s.phase = serving
	// First cuts go before answers.
	s.flushCuts()
	s.release()
	// A range that opens may be split at once, which changes the directory.
	var ranges []*ledger
	s.directory.all(func(x *ledger) { ranges = append(ranges, x) })
	for _, x := range ranges {
		s.maybeOpen(x)
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
	if s.phase != idle {
		s.speech.rounds.confirm(round)
	}
}

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
		s.proposals.propose(&placementpb.MetaCommand{Command: &placementpb.MetaCommand_HandOver{
			HandOver: &placementpb.HandOver{Last: s.bound.handOver()}}}, proposal{})
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
		s.raise(s.bound.raise(1))
	}
}

// Tick passes one tick (the driver's heartbeat interval): the step of the bound
// follows the rate, unconfirmed rounds are begun again, ranges that nobody
// leads are woken again.
func (s *Sequencer) Tick() {
	if s.phase == idle {
		return
	}
	s.bound.tick()
	s.speech.rounds.tick()
	if s.phase != serving {
		return
	}
	for _, id := range s.wakes.tick() {
		s.speech.wakeAll(&s.sessions, s.directory.get(id))
	}
	for _, r := range s.splitting.tick() {
		s.speech.refuseSplit(r, placementpb.RefusalReason_REFUSAL_REASON_BUSY, s.directory.barrier)
	}
}
