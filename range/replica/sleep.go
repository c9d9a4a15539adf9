package replica

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/hawser-kv/hawser/proto/placementpb"
)

// sleep is how idle a range is. A range without writes goes to sleep (R10):
//
//	registered ──idle──► applied state on disk ──► Deactivate sent ──accepted──► asleep, unloaded
//	    ▲                                               │
//	    └───────────────── refused ◄────────────────────┘
//
// While Deactivate is on its way nothing is evaluated: the sequencer (S) accepts it only if the
// range has resolved everything that was ever assigned to it, and a registration
// after it waits for its fate. A write that comes meanwhile waits for the answer
// and registers again.
type sleep struct {
	// asleep: the sequencer has put the range to sleep.
	asleep       bool
	idleTicks    int
	deactivating bool
	// durableAt is the applied index that is known to be on disk because a sync
	// was asked for it before going to sleep.
	durableAt uint64
}

// wake ends the sleep of a replica that is still loaded.
func (s *sleep) wake() {
	if s.asleep {
		s.asleep = false
		s.idleTicks = 0
	}
}

// maybeDeactivate asks S to put an idle range to sleep.
func (l *leader) maybeDeactivate(b *pebble.Batch, round Round) {
	if l.reg.phase != regOpen || l.sleep.deactivating || l.sleep.idleTicks < l.limits.IdleTicks ||
		l.requests.live.count != 0 || l.grants.queue.len() != 0 || !l.proposals.none() ||
		l.state.visibleState().resolved != l.proposals.revision || !l.group.SoleVoter() {
		// A range with several voters stays awake: nothing tells its followers
		// to sleep yet.
		return
	}
	// A replica that restarts asleep serves reads from what is on disk.
	applied, _ := l.group.Applied()
	if l.group.DurableApplied() < applied && l.sleep.durableAt < applied {
		// An empty record: the sync covers every batch before it.
		if err := b.LogData(nil, nil); err != nil {
			round.FailStore(fmt.Errorf("replica of range %d: %w", l.rangeID, err))
			return
		}
		round.NeedSync()
		term := l.term
		round.OnDurable(func() {
			if l.term == term {
				l.sleep.durableAt = max(l.sleep.durableAt, applied)
			}
		})
		return
	}
	l.sleep.deactivating = true
	l.reg.deactivate(l.proposals.revision)
}

// handleDeactivated is S's word on the fate of a deactivation.
func (l *leader) handleDeactivated(m *placementpb.Deactivated) {
	if !l.sleep.deactivating || m.Term != l.term {
		return
	}
	l.sleep.deactivating = false
	l.sleep.idleTicks = 0
	if m.Refused {
		return
	}
	// Closed: whoever wants to write registers again.
	l.dropRegistration()
	if l.requests.live.count == 0 {
		l.sleep.asleep = true
		l.election.needed = false
		l.log.Debug("asleep")
	}
}
