package placement_test

import (
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/placement"
	"github.com/hawser-kv/hawser/placement/client"
	"github.com/hawser-kv/hawser/placement/meta"
	"github.com/hawser-kv/hawser/placement/sequencer"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/range/keys"
	"github.com/hawser-kv/hawser/range/raftgroup"
	"github.com/hawser-kv/hawser/range/raftlog"
)

// metaGroup is a meta group of real Raft groups, services and engines, one a
// node, and one client. Everything happens in order on the test's goroutine, and
// each batch is durable at once: what Raft promises before a sync is tested in
// raftgroup.
type metaGroup struct {
	t     *testing.T
	nodes []*metaNode
	msgs  []*raftpb.Message
	c     *client.Client
	// s is the node that the client takes for S's.
	s *metaNode
	// epochs are those of the client's sessions.
	epochs []uint64
}

type metaNode struct {
	net    *metaGroup
	id     uint64
	db     *pebble.DB
	svc    *placement.Service
	group  *raftgroup.Group
	member *placement.Member
	down   bool
	// refuse makes proposals fail as if raft had dropped them.
	refuse bool
}

// droppingGroup is a node's group whose proposals may be dropped.
type droppingGroup struct {
	*raftgroup.Group
	node *metaNode
}

func (g droppingGroup) Propose(data []byte) error {
	if g.node.refuse {
		return raftgroup.ErrNotLeader
	}
	return g.Group.Propose(data)
}

// newMetaGroup starts the nodes; the first leads, and S serves.
func newMetaGroup(t *testing.T, voters int) *metaGroup {
	t.Helper()
	n := &metaGroup{t: t}
	var ids []uint64
	for i := range voters {
		ids = append(ids, uint64(i+1))
	}
	for _, id := range ids {
		nd := &metaNode{net: n, id: id, db: memDB(t)}
		b := nd.db.NewBatch()
		n.must(raftlog.Bootstrap(nd.db, b, keys.MetaGroupID, ids, nil))
		n.must(b.Commit(pebble.NoSync))
		n.must(b.Close())
		var err error
		nd.svc, err = placement.Open(nd.db, placement.Config{
			Sequencer: sequencer.Config{Bootstrap: meta.NewBootstrap(7, nil, []*rangepb.Replica{{NodeId: 1, ReplicaId: 1}})},
			Wake:      func() {}, // run drives everybody
		})
		n.must(err)
		log, err := raftlog.Load(nd.db, keys.MetaGroupID)
		n.must(err)
		nd.group, err = raftgroup.New(raftgroup.Config{ID: keys.MetaGroupID, ReplicaID: id, Log: log, Machine: nd.svc})
		n.must(err)
		nd.member = placement.NewMember(nd.svc, droppingGroup{nd.group, nd})
		n.nodes = append(n.nodes, nd)
	}
	n.s = n.nodes[0]
	var err error
	n.c, err = client.New(client.Config{
		ClusterID: 7, NodeID: 1, FirstSession: 1, Link: n,
		Range:      func(uint64, *placementpb.FromSequencer) {},
		NewSession: func(epoch, _ uint64) { n.epochs = append(n.epochs, epoch) },
		Cut:        func(*placementpb.Cut) {},
	})
	n.must(err)
	for _, nd := range n.nodes {
		nd.svc.Attach(1, func(m *placementpb.FromSequencer) {
			n.s = nd
			n.c.Deliver(m)
		})
	}
	n.c.Start()
	if voters > 1 {
		n.must(n.nodes[0].group.Campaign())
	}
	n.run()
	if nd := n.serving(); nd != n.nodes[0] {
		t.Fatalf("the first node does not serve: %v", n.nodes[0].group.Status())
	}
	return n
}

func (n *metaGroup) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *metaGroup) Receive(m *placementpb.ToSequencer) { n.s.svc.Receive(m) }

func (n *metaGroup) Query(node, session uint64, ranges []*placementpb.RangeEpoch, marks []int64) (int64, int64, bool) {
	return n.s.svc.Query(node, session, ranges, marks)
}

// run goes on until nobody has anything to do.
func (n *metaGroup) run() {
	n.t.Helper()
	for range 1000 {
		for _, nd := range n.nodes {
			if !nd.down {
				nd.flush()
			}
		}
		if len(n.msgs) == 0 {
			return
		}
		msgs := n.msgs
		n.msgs = nil
		for _, m := range msgs {
			if to := n.nodes[m.GetTo()-1]; !to.down && !n.nodes[m.GetFrom()-1].down {
				_ = to.group.Step(m) // what does not fit is dropped
			}
		}
	}
	n.t.Fatal("it does not come to rest")
}

// flush is what the store and cmd/node's member of the meta group do.
func (nd *metaNode) flush() {
	t := nd.net
	t.t.Helper()
	for {
		nd.member.Drive()
		if !nd.group.HasReady() {
			return
		}
		b := nd.db.NewBatch()
		w, err := nd.group.Ready(b)
		t.must(err)
		t.must(b.Commit(pebble.NoSync))
		t.must(b.Close())
		for _, rs := range w.ReadStates {
			nd.member.Confirmed(rs.RequestCtx)
		}
		nd.send(w.Send)
		if w.NeedsSync || len(w.WhenDurable) > 0 {
			msgs, err := nd.group.Durable(w)
			t.must(err)
			nd.send(msgs)
		}
	}
}

func (nd *metaNode) send(msgs []*raftpb.Message) {
	for _, m := range msgs {
		nd.net.msgs = append(nd.net.msgs, proto.CloneOf(m))
	}
}

func (n *metaGroup) tick() {
	for _, nd := range n.nodes {
		if !nd.down {
			n.must(nd.group.Tick())
			nd.member.Tick()
		}
	}
	n.run()
}

// serving returns the node whose S serves, nil if none does.
func (n *metaGroup) serving() *metaNode {
	var found *metaNode
	for _, nd := range n.nodes {
		if !nd.down && nd.svc.Stats().Phase == "serving" {
			if found != nil {
				n.t.Fatalf("S serves on node %d and on node %d", found.id, nd.id)
			}
			found = nd
		}
	}
	return found
}

// A proposal of S that raft drops ends S in this term. The node then gives up
// leadership, too: as long as it leads nobody else can, and it can begin a new
// reign only in a new term, for a term is S's epoch. So S serves again, whoever
// is elected, and what it said in the term before is over.
func TestSequencerServesAgainAfterADroppedProposal(t *testing.T) {
	for _, tc := range []struct {
		name   string
		voters int
		// drop makes raft drop the next proposal of the first node; mend ends that.
		drop, mend func(n *metaGroup)
		// elect lets time pass.
		elect func(n *metaGroup)
		first bool // the first node must lead again
	}{
		{
			name: "one voter", voters: 1,
			drop:  func(n *metaGroup) { n.nodes[0].refuse = true },
			mend:  func(n *metaGroup) { n.nodes[0].refuse = false },
			elect: func(*metaGroup) {}, // nobody to wait for
			first: true,
		}, {
			name: "three voters, the heir is away, the same node is elected", voters: 3,
			drop:  transferToDeadHeir,
			mend:  func(*metaGroup) {},
			elect: func(n *metaGroup) { n.campaign(1) },
			first: true,
		}, {
			name: "three voters, the heir is away, election timeouts", voters: 3,
			drop: transferToDeadHeir,
			mend: func(*metaGroup) {},
			elect: func(n *metaGroup) {
				for range 1000 {
					if n.tick(); n.serving() != nil {
						return
					}
				}
			},
		}, {
			name: "three voters, one proposal is dropped, another node is elected", voters: 3,
			drop:  func(n *metaGroup) { n.nodes[0].refuse = true },
			mend:  func(n *metaGroup) { n.nodes[0].refuse = false },
			elect: func(n *metaGroup) { n.campaign(3) },
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newMetaGroup(t, tc.voters)
			first := n.nodes[0]
			epoch := first.svc.Stats().Epoch
			tc.drop(n)
			var lost error
			answered := false
			n.c.Split([]byte("m"), func(_ *placementpb.SplitResult, err error) { answered, lost = true, err })
			n.nodes[0].member.Drive()
			tc.mend(n)
			if st := first.svc.Stats(); st.Phase != "idle" {
				t.Fatalf("S goes on after a dropped proposal: %+v", st)
			}
			n.run()
			if tc.voters > 1 {
				if st := first.svc.Stats(); st.Phase != "idle" || first.group.IsLeader() {
					t.Fatalf("before an election: S is %+v, %v", st, first.group.Status())
				}
			}
			tc.elect(n)
			s := n.serving()
			if s == nil {
				t.Fatalf("S does not serve: %+v, %v", first.svc.Stats(), first.group.Status())
			}
			if tc.first && s != first {
				t.Fatalf("node %d leads", s.id)
			}
			if st := s.svc.Stats(); st.Epoch <= epoch || st.Epoch != s.group.Term() {
				t.Errorf("epoch %d in term %d, the last was %d", st.Epoch, s.group.Term(), epoch)
			}
			if !answered || !errors.Is(lost, client.ErrSessionOver) {
				t.Errorf("the split that was dropped: answered %v, %v", answered, lost)
			}
			if last := n.epochs[len(n.epochs)-1]; last != s.svc.Stats().Epoch {
				t.Errorf("sessions of the epochs %v, S is %d", n.epochs, s.svc.Stats().Epoch)
			}
			var compacted *placementpb.CompactResult
			n.c.Compact(1, func(r *placementpb.CompactResult, err error) { compacted = r })
			n.run()
			if compacted == nil || compacted.Refused {
				t.Errorf("a proposal of the new reign: %v", compacted)
			}
		})
	}
}

// transferToDeadHeir makes the first node hand leadership to one that is away:
// raft drops proposals meanwhile.
func transferToDeadHeir(n *metaGroup) {
	n.nodes[1].down = true
	n.must(n.nodes[0].group.TransferLeader(2))
	n.run()
}

// campaign lets a node be elected: the others have not heard of a leader for
// long.
func (n *metaGroup) campaign(id int) {
	for _, nd := range n.nodes {
		if !nd.down && !nd.group.IsLeader() {
			n.must(nd.group.ForgetLeader())
		}
	}
	n.must(n.nodes[id-1].group.Campaign())
	n.run()
}
