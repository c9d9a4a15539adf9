package replica

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/proto/placementpb"
)

// lookAtSession follows the node's session with the sequencer: a new one ends everything
// that the old one promised, and the leader registers at once (R3).
func (l *leader) lookAtSession() {
	if l.term == 0 {
		return
	}
	e, session, ok := l.link.Session()
	if !ok {
		if l.reg.phase != regNone {
			l.dropRegistration()
		}
		l.election.maybeAbdicate(l.tick)
		return
	}
	l.election.reachedAt = l.tick
	if l.reg.e != e || l.reg.session != session {
		if e < l.reg.e {
			panic(fmt.Sprintf("replica: range %d: sequencer epoch falls from %d to %d", l.rangeID, l.reg.e, e))
		}
		l.dropRegistration()
		l.held = nil
		l.reg = newRegistration(l.link, l.rangeID, l.term, e, session)
	}
	if l.reg.phase == regNone && !l.sleep.asleep && l.tick >= l.reg.notBefore {
		l.reg.register(l.logDescriptor().Epoch)
	}
}

// dropRegistration gives up what rests on the registration: the queue, which is
// not granted and will not be (R3 a). What is granted goes on: it was taken
// while the registration was good. Latches stay until the sequencer speaks again.
func (l *leader) dropRegistration() {
	l.reg.phase = regNone
	l.sleep.deactivating = false
	for l.grants.queue.len() > 0 {
		if q := l.grants.pop(); q.stage == stageAsked {
			l.requests.refuse(q, ErrDropped)
		}
	}
	l.grants.unasked = 0
}

// distrust gives the registration up because the sequencer said what cannot be, and
// registers anew after a pause: that ends whatever was wrong between the two
// with a Resolve. It is loud.
func (l *leader) distrust(why string, fields ...zap.Field) {
	l.log.Error("registering anew: "+why, append(fields, zap.Stringer("state", l))...)
	l.dropRegistration()
	l.reg.notBefore = l.tick + uint64(l.limits.RetryTicks)
}

// handleSequencer takes a message of the sequencer about this range.
func (l *leader) handleSequencer(m *placementpb.FromSequencer) {
	if l.fault != nil {
		return
	}
	if _, ok := m.Body.(*placementpb.FromSequencer_Wake); ok {
		l.need()
		return
	}
	// R3 a: what is of another registration is dropped, whenever it comes. The
	// link is asked too: a session that is over but not looked at yet is over.
	e, session, ok := l.link.Session()
	if l.term == 0 || !ok || m.Epoch != e || m.Session != session || m.Epoch != l.reg.e || m.Session != l.reg.session {
		return
	}
	if !l.serving {
		l.held = append(l.held, m)
		return
	}
	switch b := m.Body.(type) {
	case *placementpb.FromSequencer_Registered:
		l.handleRegistered(b.Registered)
	case *placementpb.FromSequencer_Grant:
		l.handleGrant(b.Grant)
	case *placementpb.FromSequencer_Decided:
		if l.reg.phase == regOpen {
			l.handleDecided(b.Decided)
		}
	case *placementpb.FromSequencer_Unlatch:
		l.handleSequencerUnlatch(m.Epoch, b.Unlatch)
	case *placementpb.FromSequencer_Deactivated:
		l.handleDeactivated(b.Deactivated)
	default:
		l.log.Warn("unexpected message of the sequencer", zap.String("body", fmt.Sprintf("%T", m.Body)))
	}
}

// handleRegistered is R3 c.
func (l *leader) handleRegistered(m *placementpb.Registered) {
	if l.reg.phase != regAsked || m.Term != l.term {
		return
	}
	if m.Refused {
		if !l.reg.refusedAlready {
			l.reg.refusedAlready = true
			l.log.Warn("registration refused", zap.String("reason", m.Reason), zap.Stringer("state", l))
		}
		l.reg.phase = regNone
		l.reg.notBefore = l.tick + uint64(l.limits.RetryTicks)
		return
	}
	if m.R0 < l.proposals.revision {
		// A meta group that was rolled back, or a bug: its grants would go
		// backwards (pitfalls: an agent refuses a revision that does not grow).
		l.distrust("r0 is below the log", zap.Int64("r0", m.R0))
		return
	}
	l.requests.voidLatches(l.reg.e)
	l.reg.phase = regOpen // decided entries are taken from here on
	for _, d := range m.Decided {
		if l.proposals.has(d) {
			l.reportIfVisible(d)
			continue
		}
		if l.takeDecided(d); l.reg.phase != regOpen || l.fault != nil {
			return
		}
	}
	if l.proposals.desc.Epoch != m.Epoch {
		l.distrust("the sequencer has another epoch", zap.Uint64("epoch", m.Epoch))
		return
	}
	if m.R0 < l.proposals.revision {
		l.distrust("r0 is below a decided entry", zap.Int64("r0", m.R0))
		return
	}
	p := l.proposals.stage(command{kind: commandResolve, revision: m.R0}, proposed{})
	l.reg.resolveIn = p.seq
	l.reg.firstSeq, l.reg.r0 = l.grants.nextSeq, m.R0
	l.reg.refusedAlready = false
	l.sleep.idleTicks = 0
	l.election.needed = false
	l.log.Debug("registered", zap.Int64("r0", m.R0), zap.Stringer("state", l))
}

// handleNudge wakes the range, or lets a leader that has nothing outstanding
// register again: the Resolve that follows lets go a reader who waits for a
// grant that is lost (R5).
func (l *leader) handleNudge() {
	l.need()
	if l.reg.phase == regOpen && l.grants.queue.len() == 0 && l.proposals.none() &&
		!l.sleep.deactivating && l.tick >= l.nextNudge {
		l.reg.phase = regNone
		l.nextNudge = l.tick + uint64(l.limits.RetryTicks)
		l.sleep.idleTicks = 0
	}
}
