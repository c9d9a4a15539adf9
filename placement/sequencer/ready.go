package sequencer

import "github.com/hawser-kv/hawser/proto/placementpb"

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

// Envelope is a message and the node it goes to.
type Envelope struct {
	NodeID  uint64
	Message *placementpb.FromSequencer
}

// Ready returns what is to do. Call it after every other call, until it
// returns an empty Output.
func (s *Sequencer) Ready() Output {
	s.out.Proposals = s.out.Proposals[:0]
	s.out.Messages = s.speech.swap(s.out.Messages)
	s.out.Round, s.out.CutsDue = 0, false
	if s.phase == idle {
		return s.out
	}
	s.out.Proposals = s.proposals.send(s.out.Proposals)
	s.out.Round = s.speech.rounds.begin()
	s.speech.flushOutboxes()
	s.flushCuts()
	s.speech.flushReplies()
	s.out.Messages = s.speech.drain(s.out.Messages)
	return s.out
}
