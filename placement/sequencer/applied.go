package sequencer

import (
	"fmt"
	"slices"

	"github.com/hawser-kv/hawser/placement/meta"
	"github.com/hawser-kv/hawser/proto/placementpb"
)

// Applied says that the command of the entry at index of the meta log is
// applied to the meta state. All applied commands come here, in order; those of
// other terms are ignored. What waited for the entry may leave (R0 b).
func (s *Sequencer) Applied(index uint64, cmd *placementpb.MetaCommand) {
	if s.phase == idle || cmd.Epoch != s.epoch {
		return
	}
	p := s.proposals.applied(index, cmd)
	s.speech.applied++
	switch c := p.command.Command.(type) {
	case *placementpb.MetaCommand_Bootstrap:
		s.load(bootstrapped(s.epoch, c.Bootstrap))
		if s.phase == starting {
			s.raise(s.bound.raise(1))
		}

	case *placementpb.MetaCommand_RaiseBound:
		s.bound.commit(c.RaiseBound.Bound)
		switch s.phase {
		case starting:
			s.serve()
		case serving:
			s.release()
		}

	case *placementpb.MetaCommand_HandOver:
		s.bound.commit(c.HandOver.Last)
		s.phase = handedOver

	case *placementpb.MetaCommand_Activate:
		for _, x := range p.ledgers {
			s.speech.wakeAll(&s.sessions, x)
		}

	case *placementpb.MetaCommand_Transaction:
		delete(s.owners, owner(p.owner))
		m := s.speech.to(p.node)
		m.Session = p.session
		m.Body = &placementpb.FromSequencer_Txn{Txn: &placementpb.TxnResult{Owner: p.owner, Revision: c.Transaction.Revision}}
		s.speech.emit(p.node, m)

	case *placementpb.MetaCommand_Split:
		x, y := p.ledgers[0], p.ledgers[1]
		x.committed, y.committed = c.Split.Left, c.Split.Right
		s.changes.describe(x)
		s.changes.describe(y)
		m := s.speech.to(p.node)
		m.Session = p.session
		m.Body = &placementpb.FromSequencer_Split{Split: &placementpb.SplitResult{
			Id: p.request, Left: c.Split.Left, Right: c.Split.Right}}
		s.speech.emit(p.node, m)

	case *placementpb.MetaCommand_Reported:
		x := p.ledgers[0]
		x.decided = slices.DeleteFunc(x.decided, func(d decided) bool {
			return d.entry.MetaIndex == c.Reported.MetaIndex
		})

	case *placementpb.MetaCommand_Compact:
		s.compaction.committed = c.Compact.Revision
		s.changes.elsewhere()
		// All nodes hear of it before the client does (etcd/S8).
		s.changes.now = true
		m := s.speech.to(p.node)
		m.Session = p.session
		m.Body = &placementpb.FromSequencer_Compact{Compact: &placementpb.CompactResult{
			Id: p.request, Revision: s.bound.revision()}}
		// Behind that cut, which the next flushCuts sends.
		s.speech.replyInOrder(p.node, m, s.speech.rounds.needed())
	}
	for _, x := range p.ledgers {
		s.maybeOpen(x)
	}
}

// bootstrapped returns the first state of the cluster.
func bootstrapped(epoch uint64, b *placementpb.Bootstrap) *meta.State {
	st := meta.New()
	if _, err := st.Apply(0, epoch, &placementpb.MetaCommand{Epoch: epoch,
		Command: &placementpb.MetaCommand_Bootstrap{Bootstrap: b}}); err != nil {
		// It was applied a moment ago.
		panic(fmt.Sprintf("sequencer: %v", err))
	}
	return st
}
