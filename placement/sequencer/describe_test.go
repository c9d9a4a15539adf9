package sequencer

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

func describeCommand(c *placementpb.MetaCommand) string {
	switch b := c.Command.(type) {
	case *placementpb.MetaCommand_Bootstrap:
		return fmt.Sprintf("bootstrap %d ranges", len(b.Bootstrap.Ranges))
	case *placementpb.MetaCommand_RaiseBound:
		return fmt.Sprintf("bound %d", b.RaiseBound.Bound)
	case *placementpb.MetaCommand_HandOver:
		return fmt.Sprintf("hand-over at %d", b.HandOver.Last)
	case *placementpb.MetaCommand_Activate:
		return fmt.Sprintf("activate %v", b.Activate.RangeIds)
	case *placementpb.MetaCommand_Deactivate:
		return fmt.Sprintf("deactivate r%d mark=%d", b.Deactivate.RangeId, b.Deactivate.Mark)
	case *placementpb.MetaCommand_Transaction:
		return fmt.Sprintf("txn %s at %d %s", describeOwner(b.Transaction.Owner), b.Transaction.Revision, describeParts(b.Transaction.Participants))
	case *placementpb.MetaCommand_Split:
		return fmt.Sprintf("split %s %s at %d", describeRange(b.Split.Left), describeRange(b.Split.Right), b.Split.Revision)
	case *placementpb.MetaCommand_Reported:
		return fmt.Sprintf("reported r%d index=%d", b.Reported.RangeId, b.Reported.MetaIndex)
	case *placementpb.MetaCommand_Compact:
		return fmt.Sprintf("compact %d", b.Compact.Revision)
	}
	return fmt.Sprintf("%T", c.Command)
}

func describeParts(ps []*placementpb.Participant) string {
	var parts []string
	for _, p := range ps {
		parts = append(parts, fmt.Sprintf("r%d=%s", p.RangeId, p.Effects))
	}
	return strings.Join(parts, " ")
}

func describeOwner(o *placementpb.TxnID) string {
	return fmt.Sprintf("n%d/%d#%d", o.GetNodeId(), o.GetSession(), o.GetNumber())
}

func describeRange(d *rangepb.RangeDescriptor) string {
	return fmt.Sprintf("r%d@%d[%s,%s)", d.RangeId, d.Epoch, d.Start, d.End)
}

func describeDecided(d *placementpb.Decided) string {
	if sp := d.GetSplit(); sp != nil {
		return fmt.Sprintf("split r%d at %d index=%d key=%s %s %s", d.RangeId, d.Revision, d.MetaIndex, sp.Key, describeRange(sp.Left), describeRange(sp.Right))
	}
	return fmt.Sprintf("txn r%d at %d index=%d %s effects=%s", d.RangeId, d.Revision, d.MetaIndex, describeOwner(d.GetTxn().GetOwner()), d.GetTxn().GetEffects())
}

func reason(r placementpb.RefusalReason) string {
	return strings.TrimPrefix(r.String(), "REFUSAL_REASON_")
}

func describeMessage(m *placementpb.FromSequencer) string {
	switch b := m.Body.(type) {
	case nil:
		return "hello"
	case *placementpb.FromSequencer_Cut:
		c := b.Cut
		s := fmt.Sprintf("cut R=%d compacted=%d", c.Revision, c.Compacted)
		if c.First {
			s = "first " + s
		}
		for _, d := range c.Descriptors {
			s += " " + describeRange(d)
		}
		marks := slices.Clone(c.Marks)
		slices.SortFunc(marks, func(a, b *placementpb.Mark) int { return int(a.RangeId) - int(b.RangeId) })
		for _, k := range marks {
			s += fmt.Sprintf(" m(r%d)=%d", k.RangeId, k.Revision)
		}
		return s
	case *placementpb.FromSequencer_Registered:
		g := b.Registered
		if g.Refused {
			return fmt.Sprintf("registration of r%d term=%d refused: %s", g.RangeId, g.Term, g.Reason)
		}
		s := fmt.Sprintf("registered r%d@%d term=%d r0=%d", g.RangeId, g.Epoch, g.Term, g.R0)
		for _, d := range g.Decided {
			s += " {" + describeDecided(d) + "}"
		}
		return s
	case *placementpb.FromSequencer_Grant:
		g := b.Grant
		if g.Refused {
			return fmt.Sprintf("grant r%d term=%d seq=%d count=%d refused: %s", g.RangeId, g.Term, g.Seq, g.Count, reason(g.Reason))
		}
		return fmt.Sprintf("grant r%d term=%d seq=%d count=%d first=%d", g.RangeId, g.Term, g.Seq, g.Count, g.First)
	case *placementpb.FromSequencer_Query:
		q := b.Query
		if q.Refused {
			s := fmt.Sprintf("query %d refused: %s", q.Id, reason(q.Reason))
			for _, d := range q.Descriptors {
				s += " " + describeRange(d)
			}
			return s
		}
		return fmt.Sprintf("query %d R=%d m=%v compacted=%d", q.Id, q.Revision, q.Marks, q.Compacted)
	case *placementpb.FromSequencer_Txn:
		if b.Txn.Refused {
			return fmt.Sprintf("txn %s refused: %s", describeOwner(b.Txn.Owner), reason(b.Txn.Reason))
		}
		return fmt.Sprintf("txn %s decided at %d", describeOwner(b.Txn.Owner), b.Txn.Revision)
	case *placementpb.FromSequencer_Decided:
		return "decided " + describeDecided(b.Decided)
	case *placementpb.FromSequencer_Unlatch:
		return fmt.Sprintf("unlatch r%d %s", b.Unlatch.RangeId, describeOwner(b.Unlatch.Owner))
	case *placementpb.FromSequencer_Deactivated:
		if b.Deactivated.Refused {
			return fmt.Sprintf("deactivation of r%d term=%d refused", b.Deactivated.RangeId, b.Deactivated.Term)
		}
		return fmt.Sprintf("deactivated r%d term=%d", b.Deactivated.RangeId, b.Deactivated.Term)
	case *placementpb.FromSequencer_Wake:
		return fmt.Sprintf("wake r%d", b.Wake.RangeId)
	case *placementpb.FromSequencer_Split:
		if b.Split.Refused {
			return fmt.Sprintf("split %d refused: %s", b.Split.Id, reason(b.Split.Reason))
		}
		return fmt.Sprintf("split %d decided %s %s", b.Split.Id, describeRange(b.Split.Left), describeRange(b.Split.Right))
	case *placementpb.FromSequencer_Compact:
		if b.Compact.Refused {
			return fmt.Sprintf("compact %d refused: %s R=%d", b.Compact.Id, reason(b.Compact.Reason), b.Compact.Revision)
		}
		return fmt.Sprintf("compact %d done R=%d", b.Compact.Id, b.Compact.Revision)
	}
	return fmt.Sprintf("%T", m.Body)
}
