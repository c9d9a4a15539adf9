package node

import (
	"fmt"
	"sync/atomic"

	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/placement"
	"github.com/hawser-kv/hawser/range/keys"
	"github.com/hawser-kv/hawser/range/raftgroup"
	"github.com/hawser-kv/hawser/range/raftlog"
	"github.com/hawser-kv/hawser/range/store"
)

// metaReplicaID is the Raft id of this node in the meta group: the first of a
// cluster.
const metaReplicaID = 1

// metaMember is the meta group's member as the store drives it: the Raft group
// on one side, the placement service on the other.
type metaMember struct {
	core   *Core
	group  *raftgroup.Group
	raft   *raftgroup.Driver
	member *placement.Member
	failed error
}

// metaPart names the meta group's rows in errors.
const metaPart = "meta group"

// openMeta opens the meta group before the store does: without it nothing can
// be ordered, and the node does not start.
func (c *Core) openMeta() (*metaMember, error) {
	log, err := raftlog.Load(c.DB, keys.MetaGroupID)
	if err != nil {
		return nil, err
	}
	g, err := raftgroup.New(c.metaConfig(log))
	if err != nil {
		return nil, err
	}
	return &metaMember{core: c, group: g, raft: raftgroup.NewDriver(g), member: placement.NewMember(c.Placement, g)}, nil
}

func (c *Core) metaConfig(log *raftlog.Log) raftgroup.Config {
	return raftgroup.Config{
		ID: keys.MetaGroupID, ReplicaID: metaReplicaID, Log: log, Machine: c.Placement, Logger: c.log,
		ElectionTicks: c.cfg.ElectionTicks,
	}
}

// Handle takes Raft messages; what the service wants is seen in Flush.
func (m *metaMember) Handle(ev any) {
	if msg, ok := ev.(*raftpb.Message); ok {
		if err := m.group.Step(msg); err != nil {
			m.core.log.Debug("meta group: message dropped", zap.Error(err))
		}
		return
	}
	if ev != nil {
		panic(fmt.Sprintf("node: meta group: inbox item %T", ev))
	}
}

// Flush gives the service and the group their turns until neither wants more.
func (m *metaMember) Flush(r *store.Round) {
	if err := m.raft.Begin(r); err != nil {
		m.failed = err
	}
	for m.failed == nil {
		if r.Batch.Len() >= raftgroup.MaxBatchBytes {
			r.Again() // the rest belongs to another batch
			break
		}
		m.member.Drive()
		if !m.group.HasReady() {
			break
		}
		work, err := m.raft.Advance(r.Batch, r)
		if err != nil {
			m.failed = err
			break
		}
		for _, rs := range work.ReadStates {
			m.member.Confirmed(rs.RequestCtx)
		}
	}
	if m.failed != nil {
		// Without the meta group nothing can be ordered: the node stops.
		r.FailStore(m.core.explain(metaPart, m.failed))
		return
	}
	m.core.meta.set(m.group)
}

// Tick passes one tick.
func (m *metaMember) Tick() {
	if err := m.group.Tick(); err != nil {
		m.failed = err
	}
	m.member.Tick()
}

// WantsTicks is always true: the meta group never sleeps.
func (m *metaMember) WantsTicks() bool { return true }

// Close has nothing to answer: what waits for S waits in the client.
func (m *metaMember) Close(error) {}

// metaStatus is what others read of the meta group.
type metaStatus struct {
	term, leader, committed, applied atomic.Uint64
}

func (s *metaStatus) set(g *raftgroup.Group) {
	applied, _ := g.Applied()
	s.term.Store(g.Term())
	s.leader.Store(g.Leader())
	s.committed.Store(g.Committed())
	s.applied.Store(applied)
}
