package replica

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
)

// handleDecided takes an entry that the meta log has decided, in order with the
// grants (R0, R7).
func (l *leader) handleDecided(d *placementpb.Decided) {
	if l.proposals.has(d) {
		l.distrust("a decided entry does not grow (I1)", zap.Int64("revision", d.Revision))
		return
	}
	if t := d.GetTxn(); t != nil && l.requests.givenLatch(ownerOf(t.Owner)) == nil {
		// Its effects are decided and come again with the registration, before
		// which everything is dropped that was evaluated without them.
		l.distrust("a decided transaction without a latch (I8)", zap.Any("owner", ownerOf(t.Owner)))
		return
	}
	l.takeDecided(d)
	l.sleep.idleTicks = 0
}

// takeDecided stages a decided entry that the log lacks.
func (l *leader) takeDecided(d *placementpb.Decided) {
	if s := d.GetSplit(); s != nil {
		l.takeSplit(d, s)
		return
	}
	t := d.GetTxn()
	effects, err := mvcc.DecodeEffects(t.GetEffects())
	if err != nil || len(effects) == 0 {
		l.fail(fmt.Errorf("%w: decided transaction at %d with %d effects: %v", ErrCorrupt, d.Revision, len(effects), err))
		return
	}
	l.proposals.stage(command{kind: commandTxn, revision: d.Revision, metaIndex: d.MetaIndex, effects: t.Effects}, proposed{decided: &decided{metaIndex: d.MetaIndex, effects: effects}})
	if q := l.requests.latches[ownerOf(t.Owner)]; q != nil {
		l.requests.refuse(q, ErrAborted)
	}
}

// takeSplit stages a split (R11). From here on the log belongs to the left
// range: what was meant for the keys that move is refused with the new
// descriptor. Writes that are granted came before the split.
func (l *leader) takeSplit(d *placementpb.Decided, s *placementpb.DecidedSplit) {
	if d.Revision < l.proposals.revision || s.Left == nil || s.Right == nil || s.Left.RangeId != l.rangeID {
		l.distrust("a split that does not fit", zap.Stringer("split", d))
		return
	}
	l.proposals.stage(command{kind: commandSplit, revision: d.Revision, metaIndex: d.MetaIndex, split: s}, proposed{decided: &decided{metaIndex: d.MetaIndex, left: s.Left}})
	for q := l.requests.live.first; q != nil; {
		next := q.next
		switch q.stage {
		case stageWaiting, stageSettling:
			// A latch must name the epoch it is given under.
			if q.latch != nil && q.epoch() < s.Left.Epoch || !q.within(s.Left.Span()) {
				l.requests.refuse(q, staleEpoch(l.rangeID, s.Left))
			}
		case stageAsked:
			// The sequencer (S) refuses its grant, which names the old epoch; on keys that stay
			// the refusal comes from there.
			if !q.within(s.Left.Span()) {
				l.requests.refuse(q, staleEpoch(l.rangeID, s.Left))
			}
		case stageLatched:
			if !q.within(s.Left.Span()) {
				l.requests.leave(q)
			}
		}
		q = next
	}
	l.requests.moveEarly()
}

// reportIfVisible reports a decided entry whose place in the log is committed;
// others are reported when they are applied.
func (l *leader) reportIfVisible(d *placementpb.Decided) {
	visible := d.Revision <= l.state.visibleState().resolved
	if s := d.GetSplit(); s != nil {
		visible = l.state.visibleState().desc.Epoch >= s.Left.GetEpoch()
	}
	if visible {
		l.reg.report(d.MetaIndex)
	}
}
