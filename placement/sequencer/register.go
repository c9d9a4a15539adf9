package sequencer

import (
	"slices"

	"github.com/hawser-kv/hawser/proto/placementpb"
)

// register opens the range for its leader (R3): at once, or when nothing
// proposed for it is undecided any more and it is active.
func (s *Sequencer) register(n *node, r *placementpb.Register) {
	x := s.ledgers.get(r.RangeId)
	if x == nil {
		s.refuseRegister(n, r, "unknown range")
		return
	}
	if r.Epoch > x.desc.Epoch {
		s.refuseRegister(n, r, "unknown epoch")
		return
	}
	reg := registration{n.id, n.session, r.Term}
	if reg.below(x.reg) || x.asking != nil && reg.below(*x.asking) {
		s.refuseRegister(n, r, "a newer leader is known")
		return
	}
	if x.asking != nil && *x.asking != reg {
		s.refuseAsking(x)
	}
	x.asking = &reg
	s.maybeOpen(x)
}

// maybeOpen takes the step of R3 b for a registration that waits, if it can. A
// sleeping range is made active first, also for a split that waits for it.
func (s *Sequencer) maybeOpen(x *ledger) {
	if x.asking == nil && len(x.splits) == 0 || x.barrier > s.applied || s.phase != serving {
		return
	}
	if !x.active {
		s.activate(x)
		return
	}
	if x.asking == nil {
		return
	}
	reg := *x.asking
	n := s.nodes[reg.node]
	if reg.below(x.reg) || n.session != reg.session {
		s.refuseAsking(x)
		return
	}
	x.asking = nil
	// From here every other registration is closed.
	x.reg, x.open = reg, true
	delete(s.lonely, x.id)

	answer := &placementpb.Registered{RangeId: x.id, Term: reg.term, R0: x.last, Epoch: x.desc.Epoch}
	for _, d := range x.decided {
		if !d.reporting {
			answer.Decided = append(answer.Decided, d.entry)
		}
	}
	m := s.to(n)
	m.Body = &placementpb.FromSequencer_Registered{Registered: answer}
	s.say(x, n, m, 0)

	splits := x.splits
	x.splits = nil
	for _, r := range splits {
		s.split(x, r)
	}
}

// refuseAsking refuses the registration that waits: a newer one is known.
func (s *Sequencer) refuseAsking(x *ledger) {
	reg := *x.asking
	x.asking = nil
	n := s.nodes[reg.node]
	m := s.to(n)
	m.Session = reg.session
	m.Body = &placementpb.FromSequencer_Registered{Registered: &placementpb.Registered{
		RangeId: x.id, Term: reg.term, Refused: true, Reason: "a newer leader is known", Epoch: x.desc.Epoch}}
	s.say(x, n, m, 0)
}

func (s *Sequencer) refuseRegister(n *node, r *placementpb.Register, reason string) {
	m := s.to(n)
	answer := &placementpb.Registered{RangeId: r.RangeId, Term: r.Term, Refused: true, Reason: reason}
	m.Body = &placementpb.FromSequencer_Registered{Registered: answer}
	if x := s.ledgers.get(r.RangeId); x != nil {
		answer.Epoch = x.desc.Epoch
		s.say(x, n, m, 0)
	} else {
		s.reply(n, m, 0, 0)
	}
}

// close ends the open registration; the range stays active.
func (s *Sequencer) close(x *ledger) {
	x.open = false
	s.lonely[x.id] = 0
}

// activate proposes to mark the range active; activations of one Ready share
// an entry.
func (s *Sequencer) activate(x *ledger) {
	x.active = true
	s.lonely[x.id] = 0
	if s.unsent > 0 {
		last := &s.proposals[len(s.proposals)-1]
		if a, ok := last.command.Command.(*placementpb.MetaCommand_Activate); ok {
			a.Activate.RangeIds = append(a.Activate.RangeIds, x.id)
			last.ledgers = append(last.ledgers, x)
			x.barrier = s.proposed
			return
		}
	}
	s.propose(&placementpb.MetaCommand{Command: &placementpb.MetaCommand_Activate{
		Activate: &placementpb.Activate{RangeIds: []uint64{x.id}}}}, proposal{ledgers: []*ledger{x}})
	x.barrier = s.proposed
}

// wake asks the nodes of all replicas that have a session to load the range.
// Nodes without one are told when their session begins.
func (s *Sequencer) wake(x *ledger) {
	if x.committed == nil {
		return
	}
	for _, r := range x.committed.Replicas {
		if n := s.nodes[r.NodeId]; n != nil && n.began {
			s.wakeOn(n, x)
		}
	}
}

func (s *Sequencer) wakeOn(n *node, x *ledger) {
	m := s.to(n)
	m.Body = &placementpb.FromSequencer_Wake{Wake: &placementpb.Wake{RangeId: x.id}}
	s.emit(n, m)
}

// tickLonely wakes again what is active and not open for too long: the Wake or
// the registration may be lost, or the range may have had no leader.
func (s *Sequencer) tickLonely() {
	var due []uint64
	// In any order: sorted below.
	for id := range s.lonely {
		s.lonely[id]++
		if s.lonely[id] >= s.cfg.WakeTicks {
			s.lonely[id] = 0
			due = append(due, id)
		}
	}
	slices.Sort(due)
	for _, id := range due {
		s.wake(s.ledgers.get(id))
	}
}

// report notes that a decided entry is committed in the range's log (R7).
func (s *Sequencer) report(r *placementpb.Report) {
	x := s.ledgers.get(r.RangeId)
	if x == nil {
		return
	}
	for i := range x.decided {
		d := &x.decided[i]
		if d.entry.MetaIndex != r.MetaIndex || d.entry.MetaIndex == 0 || d.reporting {
			continue
		}
		d.reporting = true
		// Nothing that S says of the range rests on the report, so its outbox
		// does not wait for it.
		s.propose(&placementpb.MetaCommand{Command: &placementpb.MetaCommand_Reported{
			Reported: &placementpb.Reported{RangeId: x.id, MetaIndex: r.MetaIndex}}}, proposal{ledgers: []*ledger{x}})
		return
	}
}

// deactivate puts a range to sleep (R10).
func (s *Sequencer) deactivate(n *node, d *placementpb.Deactivate) {
	x := s.ledgers.get(d.RangeId)
	if x == nil || !x.openFor(n, n.session, d.Term) || x.last != d.Resolved ||
		x.unreported() || x.barrier > s.applied || x.asking != nil || len(x.splits) > 0 {
		s.refuseDeactivate(n, d)
		return
	}
	s.close(x)
	delete(s.lonely, x.id)
	x.active = false
	s.propose(&placementpb.MetaCommand{Command: &placementpb.MetaCommand_Deactivate{
		Deactivate: &placementpb.DeactivateRange{RangeId: x.id, Mark: x.last}}}, proposal{ledgers: []*ledger{x}})
	x.barrier = s.proposed
	s.sayDeactivated(x, n, d, false)
}

func (s *Sequencer) refuseDeactivate(n *node, d *placementpb.Deactivate) {
	s.sayDeactivated(s.ledgers.get(d.RangeId), n, d, true)
}

func (s *Sequencer) sayDeactivated(x *ledger, n *node, d *placementpb.Deactivate, refused bool) {
	m := s.to(n)
	m.Body = &placementpb.FromSequencer_Deactivated{Deactivated: &placementpb.Deactivated{
		RangeId: d.RangeId, Term: d.Term, Refused: refused}}
	if x == nil {
		s.reply(n, m, 0, 0)
		return
	}
	s.say(x, n, m, 0)
}
