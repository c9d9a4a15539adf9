package sequencer

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/hawser-kv/hawser/placement/meta"
	"github.com/hawser-kv/hawser/proto/placementpb"
)

// proposal is an entry that S proposed and that is not applied yet.
type proposal struct {
	command *placementpb.MetaCommand
	// ledgers it concerns.
	ledgers []*ledger
	// decided entries it makes; they get its index.
	decided []*placementpb.Decided
	// node and session that are answered, by owner or request.
	node    *node
	session uint64
	owner   *placementpb.TxnID
	request uint64
}

func (s *Sequencer) propose(cmd *placementpb.MetaCommand, p proposal) {
	cmd.Epoch = s.epoch
	p.command = cmd
	s.proposed++
	s.proposals = append(s.proposals, p)
	s.unsent++
}

// Applied says that the command of the entry at index of the meta log is
// applied to the meta state. All applied commands come here, in order; those of
// other terms are ignored. What waited for the entry may leave (R0 b).
func (s *Sequencer) Applied(index uint64, cmd *placementpb.MetaCommand) {
	if s.phase == idle || cmd.Epoch != s.epoch {
		return
	}
	if len(s.proposals) <= s.unsent {
		panic(fmt.Sprintf("sequencer: entry %d (%T) of epoch %d was never proposed", index, cmd.Command, cmd.Epoch))
	}
	p := s.proposals[0]
	s.proposals[0] = proposal{}
	s.proposals = s.proposals[1:]
	if reflect.TypeOf(p.command.Command) != reflect.TypeOf(cmd.Command) {
		panic(fmt.Sprintf("sequencer: entry %d is %T, proposed was %T", index, cmd.Command, p.command.Command))
	}
	s.applied++
	for _, d := range p.decided {
		d.MetaIndex = index
	}
	switch c := p.command.Command.(type) {
	case *placementpb.MetaCommand_Bootstrap:
		s.bootstrapped(c.Bootstrap)

	case *placementpb.MetaCommand_RaiseBound:
		s.committedBound = c.RaiseBound.Bound
		switch s.phase {
		case starting:
			s.serve()
		case serving:
			s.release()
		}

	case *placementpb.MetaCommand_HandOver:
		s.committedBound = c.HandOver.Last
		s.phase = handedOver

	case *placementpb.MetaCommand_Activate:
		for _, x := range p.ledgers {
			s.wake(x)
		}

	case *placementpb.MetaCommand_Transaction:
		delete(s.owners, owner(p.owner))
		m := s.to(p.node)
		m.Session = p.session
		m.Body = &placementpb.FromSequencer_Txn{Txn: &placementpb.TxnResult{Owner: p.owner, Revision: c.Transaction.Revision}}
		s.emit(p.node, m)

	case *placementpb.MetaCommand_Split:
		x, y := p.ledgers[0], p.ledgers[1]
		x.committed, y.committed = c.Split.Left, c.Split.Right
		s.describe(x)
		s.describe(y)
		m := s.to(p.node)
		m.Session = p.session
		m.Body = &placementpb.FromSequencer_Split{Split: &placementpb.SplitResult{
			Id: p.request, Left: c.Split.Left, Right: c.Split.Right}}
		s.emit(p.node, m)

	case *placementpb.MetaCommand_Reported:
		x := p.ledgers[0]
		x.decided = slices.DeleteFunc(x.decided, func(d decided) bool {
			return d.entry.MetaIndex == c.Reported.MetaIndex
		})

	case *placementpb.MetaCommand_Compact:
		s.committedCompacted = c.Compact.Revision
		s.changeSeq++
		// All nodes hear of it before the client does (etcd/S8).
		s.cutNow = true
		m := s.to(p.node)
		m.Session = p.session
		m.Body = &placementpb.FromSequencer_Compact{Compact: &placementpb.CompactResult{
			Id: p.request, Revision: s.next - 1}}
		s.byRound.replies = append(s.byRound.replies, reply{p.node, m, s.roundNeeded(), 0})
	}
	for _, x := range p.ledgers {
		s.maybeOpen(x)
	}
}

// bootstrapped begins with the first state of the cluster.
func (s *Sequencer) bootstrapped(b *placementpb.Bootstrap) {
	st := meta.New()
	if _, err := st.Apply(0, s.epoch, &placementpb.MetaCommand{Epoch: s.epoch,
		Command: &placementpb.MetaCommand_Bootstrap{Bootstrap: b}}); err != nil {
		// It was applied a moment ago.
		panic(fmt.Sprintf("sequencer: %v", err))
	}
	s.load(st)
	if s.phase == starting {
		s.raiseBound(1)
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

// describe notes that the committed descriptor of the range changed.
func (s *Sequencer) describe(x *ledger) {
	s.touch(x)
	x.described = x.changed
}
