package replica

import (
	"slices"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/range/raftgroup"
)

// election is what a replica does for its group to have a leader: it campaigns when one
// is needed, and as leader hands over to another when it cannot reach the sequencer (S).
type election struct {
	nodeID                    uint64
	retryTicks, abdicateTicks int
	log                       *zap.Logger
	group                     *raftgroup.Group
	state                     rangeState

	// needed: something waits for the range to have a leader that is registered.
	needed     bool
	campaignAt uint64 // tick before which no new election is started
	// reachedAt is the tick at which this leader had a session with S last, or offered
	// leadership for want of one to the heirs-th voter after this.
	reachedAt uint64
	heirs     int
}

// need notes that the range must have a registered leader. S wakes all replicas
// of a range at once, and if all of them campaigned at once none would win, now and at
// every repetition: they take turns, in the order of the descriptor.
func (e *election) need(tick uint64) {
	if e.needed {
		return
	}
	e.needed = true
	e.campaignAt = max(e.campaignAt, tick+uint64(e.turn()*e.retryTicks))
}

// maybeCampaign starts an election, if a leader is needed and it is time.
func (e *election) maybeCampaign(tick uint64) {
	if !e.needed || e.group.SoleVoter() || tick < e.campaignAt {
		return
	}
	// Each replica has another period, so that two which collide part again.
	e.campaignAt = tick + uint64(e.retryTicks*(len(e.replicas())+e.turn()))
	if err := e.group.Campaign(); err != nil {
		e.log.Warn("cannot campaign", zap.Error(err))
	}
}

// won says that this replica leads.
func (e *election) won(tick uint64) { e.reachedAt, e.heirs = tick, 0 }

// maybeAbdicate gives leadership to the next voter when S cannot be reached for
// an election timeout: another node may reach it (R3). A sole voter waits.
func (e *election) maybeAbdicate(tick uint64) {
	if e.group.SoleVoter() || tick < e.reachedAt+uint64(e.abdicateTicks) {
		return
	}
	e.reachedAt = tick // else to the one after it
	voters := e.replicas()
	e.heirs++
	heir := voters[(e.position()+e.heirs)%len(voters)]
	if heir.NodeId == e.nodeID {
		return
	}
	e.log.Warn("no sequencer: handing leadership over", zap.Uint64("to", heir.ReplicaId))
	if err := e.group.TransferLeader(heir.ReplicaId); err != nil {
		e.log.Warn("cannot hand leadership over", zap.Error(err))
	}
}

// level is the log level of what elections decide. A sole voter leads
// whenever it is awake: thousands of them do when a node starts, and it says
// nothing.
func (e *election) level() zapcore.Level {
	if e.group.SoleVoter() {
		return zap.DebugLevel
	}
	return zap.InfoLevel
}

func (e *election) replicas() []*rangepb.Replica { return e.state.visibleState().desc.Replicas }

// position is the place of this replica in the descriptor, -1 if it has none.
func (e *election) position() int {
	return slices.IndexFunc(e.replicas(), func(rep *rangepb.Replica) bool { return rep.NodeId == e.nodeID })
}

// turn is the place of this replica when all campaign.
func (e *election) turn() int { return max(0, e.position()) }
