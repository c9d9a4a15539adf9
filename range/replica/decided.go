package replica

import (
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
)

// handleDecided takes an entry that the meta log has decided, in order with the
// grants (R0, R7).
func (r *Replica) handleDecided(d *placementpb.Decided) {
	l := &r.lead
	if r.inLog(d) {
		r.distrust("a decided entry does not grow (I1)", zap.Int64("revision", d.Revision))
		return
	}
	if t := d.GetTxn(); t != nil && r.givenLatch(ownerOf(t.Owner)) == nil {
		// Its effects are decided and come again with the registration, before
		// which everything is dropped that was evaluated without them.
		r.distrust("a decided transaction without a latch (I8)", zap.Any("owner", ownerOf(t.Owner)))
		return
	}
	r.takeDecided(d)
	l.idleTicks = 0
}

// inLog reports that the log, uncommitted tail included, has the entry: a
// transaction if its highest revision is not below it, a split if its epoch is
// past it (R3 c).
func (r *Replica) inLog(d *placementpb.Decided) bool {
	if s := d.GetSplit(); s != nil {
		return r.lead.logDesc.Epoch >= s.Left.GetEpoch()
	}
	return d.Revision <= r.lead.logRevision
}

// takeDecided stages a decided entry that the log lacks.
func (r *Replica) takeDecided(d *placementpb.Decided) {
	if s := d.GetSplit(); s != nil {
		r.takeSplit(d, s)
		return
	}
	t := d.GetTxn()
	effects, err := mvcc.DecodeEffects(t.GetEffects())
	if err != nil || len(effects) == 0 {
		r.fail(fmt.Errorf("%w: decided transaction at %d with %d effects: %v", ErrCorrupt, d.Revision, len(effects), err))
		return
	}
	r.stage(command{kind: commandTxn, revision: d.Revision, metaIndex: d.MetaIndex, effects: t.Effects}, proposed{decided: &decided{metaIndex: d.MetaIndex, effects: effects}})
	if q := r.latches[ownerOf(t.Owner)]; q != nil {
		r.refuse(q, ErrAborted)
	}
}

// takeSplit stages a split (R11). From here on the log belongs to the left
// range: what was meant for the keys that move is refused with the new
// descriptor. Writes that are granted came before the split.
func (r *Replica) takeSplit(d *placementpb.Decided, s *placementpb.DecidedSplit) {
	l := &r.lead
	if d.Revision < l.logRevision || s.Left == nil || s.Right == nil || s.Left.RangeId != r.cfg.RangeID {
		r.distrust("a split that does not fit", zap.Stringer("split", d))
		return
	}
	r.stage(command{kind: commandSplit, revision: d.Revision, metaIndex: d.MetaIndex, split: s}, proposed{decided: &decided{metaIndex: d.MetaIndex, left: s.Left}})
	for q := r.live.first; q != nil; {
		next := q.next
		switch q.stage {
		case stageWaiting, stageSettling:
			// A latch must name the epoch it is given under.
			if q.latch != nil && q.epoch() < s.Left.Epoch || !q.within(s.Left.Start, s.Left.End) {
				r.refuse(q, r.staleEpoch(s.Left))
			}
		case stageAsked:
			// S refuses its grant, which names the old epoch; on keys that stay
			// the refusal comes from there.
			if !q.within(s.Left.Start, s.Left.End) {
				r.refuse(q, r.staleEpoch(s.Left))
			}
		case stageLatched:
			if !q.within(s.Left.Start, s.Left.End) {
				r.leave(q)
			}
		}
		q = next
	}
	r.moveEarly()
}

// moveEarly lets requests go on that waited for a newer epoch.
func (r *Replica) moveEarly() {
	early := r.early
	r.early = nil
	for _, q := range early {
		r.free.push(q)
	}
}

// forgetEarly drops early requests that are answered: they have waited for too
// long, or another replica leads. So there are no more of them than live requests.
func (r *Replica) forgetEarly() {
	if len(r.early) > r.live.count {
		r.early = slices.DeleteFunc(r.early, func(q *request) bool { return q.stage == stageGone })
	}
}

// reportIfVisible reports a decided entry whose place in the log is committed;
// others are reported when they are applied.
func (r *Replica) reportIfVisible(d *placementpb.Decided) {
	visible := d.Revision <= r.applier.visible.resolved
	if s := d.GetSplit(); s != nil {
		visible = r.applier.visible.desc.Epoch >= s.Left.GetEpoch()
	}
	if visible {
		r.report(d.MetaIndex)
	}
}

// report tells S that a decided entry is committed in the log (R7).
func (r *Replica) report(metaIndex uint64) {
	r.send(&placementpb.ToSequencer{Body: &placementpb.ToSequencer_Report{Report: &placementpb.Report{
		RangeId: r.cfg.RangeID, MetaIndex: metaIndex}}})
}
