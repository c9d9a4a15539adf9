package sequencer

import (
	"github.com/hawser-kv/hawser/proto/placementpb"
)

// register opens the range for its leader (R3): at once, or when nothing
// proposed for it is undecided any more and it is active.
func (s *Sequencer) register(n *node, r *placementpb.Register) {
	x := s.directory.get(r.RangeId)
	if x == nil {
		s.speech.refuseRegister(x, n, r, "unknown range")
		return
	}
	if r.Epoch > x.desc.Epoch {
		s.speech.refuseRegister(x, n, r, "unknown epoch")
		return
	}
	reg := registration{n.id, n.session, r.Term}
	if reg.below(x.reg) || x.asking != nil && reg.below(*x.asking) {
		s.speech.refuseRegister(x, n, r, newerLeader)
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
	if x.asking == nil && len(x.splits) == 0 || !s.speech.settled(x.outbox.barrier) || s.phase != serving {
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
	n := s.sessions.get(reg.node)
	if reg.below(x.reg) || n.session != reg.session {
		s.refuseAsking(x)
		return
	}
	x.asking = nil
	// From here every other registration is closed.
	x.reg, x.open = reg, true
	s.wakes.remove(x)

	answer := &placementpb.Registered{RangeId: x.id, Term: reg.term, R0: x.last, Epoch: x.desc.Epoch}
	for _, d := range x.decided {
		if !d.reporting {
			answer.Decided = append(answer.Decided, d.entry)
		}
	}
	s.speech.registered(x, n, reg.session, answer)

	for _, r := range s.splitting.take(x) {
		s.split(x, r)
	}
}

// refuseAsking refuses the registration that waits: a newer one is known.
func (s *Sequencer) refuseAsking(x *ledger) {
	reg := *x.asking
	x.asking = nil
	s.speech.registered(x, s.sessions.get(reg.node), reg.session, &placementpb.Registered{
		RangeId: x.id, Term: reg.term, Refused: true, Reason: newerLeader, Epoch: x.desc.Epoch})
}

// newerLeader is why a registration is refused, for people.
const newerLeader = "a newer leader is known"

// activate proposes to mark the range active; activations of one Ready share
// an entry.
func (s *Sequencer) activate(x *ledger) {
	x.active = true
	s.wakes.add(x)
	if last := s.proposals.open(); last != nil {
		if a, ok := last.command.Command.(*placementpb.MetaCommand_Activate); ok {
			a.Activate.RangeIds = append(a.Activate.RangeIds, x.id)
			last.ledgers = append(last.ledgers, x)
			x.outbox.barrier = s.proposals.newest
			return
		}
	}
	s.proposals.propose(&placementpb.MetaCommand{Command: &placementpb.MetaCommand_Activate{
		Activate: &placementpb.Activate{RangeIds: []uint64{x.id}}}}, proposal{ledgers: []*ledger{x}})
	x.outbox.barrier = s.proposals.newest
}

// report notes that a decided entry is committed in the range's log (R7).
func (s *Sequencer) report(r *placementpb.Report) {
	x := s.directory.get(r.RangeId)
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
		s.proposals.propose(&placementpb.MetaCommand{Command: &placementpb.MetaCommand_Reported{
			Reported: &placementpb.Reported{RangeId: x.id, MetaIndex: r.MetaIndex}}}, proposal{ledgers: []*ledger{x}})
		return
	}
}

// deactivate puts a range to sleep (R10).
func (s *Sequencer) deactivate(n *node, d *placementpb.Deactivate) {
	x := s.directory.get(d.RangeId)
	if x == nil || !x.openFor(n, n.session, d.Term) || x.last != d.Resolved ||
		x.unreported() || !s.speech.settled(x.outbox.barrier) || x.asking != nil || len(x.splits) > 0 {
		s.speech.deactivated(x, n, d, true)
		return
	}
	x.active, x.open = false, false
	s.proposals.propose(&placementpb.MetaCommand{Command: &placementpb.MetaCommand_Deactivate{
		Deactivate: &placementpb.DeactivateRange{RangeId: x.id, Mark: x.last}}}, proposal{ledgers: []*ledger{x}})
	x.outbox.barrier = s.proposals.newest
	s.speech.deactivated(x, n, d, false)
}
