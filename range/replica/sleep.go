package replica

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/hawser-kv/hawser/proto/placementpb"
)

// A range without writes goes to sleep (R10):
//
//	registered ──idle──► applied state on disk ──► Deactivate sent ──accepted──► asleep, unloaded
//	    ▲                                               │
//	    └───────────────── refused ◄────────────────────┘
//
// While Deactivate is on its way nothing is evaluated: S accepts it only if the
// range has resolved everything that was ever assigned to it, and a registration
// after it waits for its fate. A write that comes meanwhile waits for the answer
// and registers again.

// maybeDeactivate asks S to put an idle range to sleep.
func (r *Replica) maybeDeactivate(b *pebble.Batch, round Round) {
	l := &r.lead
	if l.reg.phase != regOpen || l.deactivating || l.idleTicks < r.limits.IdleTicks ||
		r.live.count != 0 || l.queue.len() != 0 || l.inflight.len() != 0 || l.building != nil || len(l.full) != 0 ||
		r.applier.visible.resolved != l.logRevision || !r.group.SoleVoter() {
		// A range with several voters stays awake: nothing tells its followers
		// to sleep yet.
		return
	}
	// A replica that restarts asleep serves reads from what is on disk.
	applied, _ := r.group.Applied()
	if r.group.DurableApplied() < applied && l.durableAt < applied {
		// An empty record: the sync covers every batch before it.
		if err := b.LogData(nil, nil); err != nil {
			round.FailStore(fmt.Errorf("replica of range %d: %w", r.cfg.RangeID, err))
			return
		}
		round.NeedSync()
		term := l.term
		round.OnDurable(func() {
			if r.lead.term == term {
				r.lead.durableAt = max(r.lead.durableAt, applied)
			}
		})
		return
	}
	l.deactivating = true
	r.send(&placementpb.ToSequencer{Body: &placementpb.ToSequencer_Deactivate{Deactivate: &placementpb.Deactivate{
		RangeId: r.cfg.RangeID, Term: l.term, Resolved: l.logRevision}}})
}

// handleDeactivated is S's word on the fate of a deactivation.
func (r *Replica) handleDeactivated(m *placementpb.Deactivated) {
	l := &r.lead
	if !l.deactivating || m.Term != l.term {
		return
	}
	l.deactivating = false
	l.idleTicks = 0
	if m.Refused {
		return
	}
	// Closed: whoever wants to write registers again.
	r.dropRegistration()
	if r.live.count == 0 {
		r.asleep = true
		r.needed = false
		r.log.Debug("asleep")
	}
}

// wake ends the sleep of a replica that is still loaded.
func (r *Replica) wake() {
	if r.asleep {
		r.asleep = false
		r.lead.idleTicks = 0
	}
}
