package raftgroup

import (
	"fmt"

	"go.etcd.io/raft/v3"
)

// ID returns the group's id.
func (g *Group) ID() uint64 { return g.id }

// Term returns raft's term as of the last Ready. This replica cannot become the
// leader of a later term without one.
func (g *Group) Term() uint64 { return g.term }

// Committed returns the committed index, as of the last Ready.
func (g *Group) Committed() uint64 { return g.committed }

// Leader returns the replica id of the leader as of the last Ready, 0 if none is
// known.
func (g *Group) Leader() uint64 { return g.lead }

// IsLeader says whether this replica is the leader of Term, as far as it knew at
// the last Ready.
func (g *Group) IsLeader() bool { return g.state == raft.StateLeader }

// Serving says whether this replica is leader and has applied an entry of its
// own term: from here its applied state and log are the newest there are.
func (g *Group) Serving() bool {
	_, term := g.log.Applied()
	return g.state == raft.StateLeader && term == g.term
}

// SoleVoter says whether this replica is the whole configuration.
func (g *Group) SoleVoter() bool { return g.soleVoter }

// Applied returns index and term of the last entry applied, staged or committed.
func (g *Group) Applied() (index, term uint64) { return g.log.Applied() }

// DurableApplied returns the highest index that is known to be applied durably:
// a sync that covers it was reported to Durable. It lags while nothing is
// appended, and after New, until the next sync.
func (g *Group) DurableApplied() uint64 { return g.durableApplied }

// Quiet says whether nothing is outstanding: the whole log is applied, no
// append waits for its sync, raft has nothing to say. What is applied may not
// be durable yet: see DurableApplied.
func (g *Group) Quiet() bool {
	index, _ := g.log.Applied()
	last, _ := g.log.LastIndex()
	return index == last && g.unsynced == 0 && !g.HasReady()
}

// Failed returns the fault that stopped the group, nil if none did.
func (g *Group) Failed() error { return g.failed }

// Status is what there is to know about a group, for operators and metrics.
type Status struct {
	ID, Replica, Term, Leader uint64
	State                     raft.StateType
	Committed, Applied        uint64
	FirstIndex, LastIndex     uint64
	DurableApplied, LogBytes  uint64
	Voters, Learners          []uint64
	SoleVoter                 bool
}

// Status returns a copy of the group's status. It allocates.
func (g *Group) Status() Status {
	st := g.rn.BasicStatus()
	applied, _ := g.log.Applied()
	first, _ := g.log.FirstIndex()
	last, _ := g.log.LastIndex()
	_, cs, _ := g.log.InitialState()
	return Status{
		ID: g.id, Replica: g.replica, Term: st.HardState.GetTerm(), Leader: st.Lead,
		State: st.RaftState, Committed: st.HardState.GetCommit(), Applied: applied,
		FirstIndex: first, LastIndex: last, DurableApplied: g.durableApplied, LogBytes: g.log.Bytes(),
		Voters: cs.GetVoters(), Learners: cs.GetLearners(), SoleVoter: g.soleVoter,
	}
}

func (s Status) String() string {
	return fmt.Sprintf("group %d replica %d: %s term=%d leader=%d committed=%d applied=%d durable=%d last=%d voters=%v",
		s.ID, s.Replica, s.State, s.Term, s.Leader, s.Committed, s.Applied, s.DurableApplied, s.LastIndex, s.Voters)
}
