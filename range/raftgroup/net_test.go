package raftgroup

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

const netGroup = 5

// network is a group with a replica on each of some nodes, messages between
// them, and each node's own disk. Nothing happens by itself.
type network struct {
	t     testing.TB
	nodes map[uint64]*node
	msgs  []*raftpb.Message
	cut   map[[2]uint64]bool
	// history is what was applied anywhere, by index: all must agree.
	history map[uint64]string
	// leaders is who led each term.
	leaders map[uint64]uint64
}

type node struct {
	net     *network
	id      uint64
	fs      *vfs.MemFS
	db      *pebble.DB
	g       *Group
	j       *journal
	pending []Work // not reported durable, oldest first
	covered int    // the first of them, which a sync covers
	onDisk  uint64 // applied, as of the newest sync
	reads   []string
	down    bool
}

func newNetwork(t testing.TB, voters ...uint64) *network {
	n := &network{
		t: t, nodes: make(map[uint64]*node), cut: make(map[[2]uint64]bool),
		history: make(map[uint64]string), leaders: make(map[uint64]uint64),
	}
	for _, id := range voters {
		nd := &node{net: n, id: id, fs: vfs.NewCrashableMem()}
		nd.db = openDB(t, nd.fs)
		begin(t, nd.db, netGroup, voters...)
		n.nodes[id] = nd
		nd.start()
	}
	return n
}

func (n *network) close() {
	for _, id := range n.ids() {
		must(n.t, n.nodes[id].db.Close())
	}
}

func (n *network) ids() []uint64 {
	var ids []uint64
	for id := range n.nodes {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (nd *node) start() {
	nd.g, nd.j = load(nd.net.t, nd.db, netGroup, nd.id)
	nd.onDisk, _ = nd.g.Applied()
	nd.j.onApply = nd.applied
}

func (nd *node) applied(index, term uint64, data []byte) {
	says := fmt.Sprintf("%d %s", term, data)
	if was, ok := nd.net.history[index]; ok && was != says {
		nd.net.t.Fatalf("replica %d applies %q at %d, elsewhere it was %q", nd.id, says, index, was)
	}
	nd.net.history[index] = says
}

// ready does one Ready, written and not synced.
func (nd *node) ready() (w Work, worked bool) {
	if !nd.g.HasReady() {
		return Work{}, false
	}
	t := nd.net.t
	b := nd.db.NewBatch()
	w, err := nd.g.Ready(b)
	must(t, err)
	must(t, nd.db.Apply(b, pebble.NoSync))
	must(t, b.Close())
	nd.net.send(w.Send)
	for _, rs := range w.ReadStates {
		nd.reads = append(nd.reads, fmt.Sprintf("%s@%d", rs.RequestCtx, rs.Index))
	}
	if nd.g.IsLeader() {
		if was := nd.net.leaders[nd.g.Term()]; was != 0 && was != nd.id {
			t.Fatalf("replicas %d and %d lead term %d", was, nd.id, nd.g.Term())
		}
		nd.net.leaders[nd.g.Term()] = nd.id
	}
	switch {
	case !w.NeedsSync && len(w.WhenDurable) == 0:
	case !w.NeedsSync && len(nd.pending) == 0:
		nd.durable(w)
	default:
		nd.pending = append(nd.pending, w)
	}
	nd.checkDurable()
	return w, true
}

// syncLog syncs what is written so far. The group does not hear of it before
// sync; what is written until then is not covered.
func (nd *node) syncLog() {
	must(nd.net.t, nd.db.LogData(nil, pebble.Sync))
	nd.covered = len(nd.pending)
	nd.onDisk, _ = nd.g.Applied()
}

// sync reports the oldest work durable, and those after it that wait for nothing
// else; it syncs first if that did not happen yet.
func (nd *node) sync() bool {
	if len(nd.pending) == 0 {
		return false
	}
	if nd.covered == 0 {
		nd.syncLog()
	}
	for first := true; len(nd.pending) > 0 && (first || !nd.pending[0].NeedsSync); first = false {
		w := nd.pending[0]
		nd.pending = nd.pending[1:]
		nd.covered = max(nd.covered-1, 0)
		nd.durable(w)
	}
	nd.checkDurable()
	return true
}

// checkDurable checks that the group takes nothing for durably applied, and cuts
// nothing off its log, that the disk does not have applied.
func (nd *node) checkDurable() {
	if cut := firstIndex(nd.g) - 1; cut > nd.onDisk || nd.g.DurableApplied() > nd.onDisk {
		nd.net.t.Fatalf("replica %d: cut to %d, durably applied %d, the disk has applied %d", nd.id, cut, nd.g.DurableApplied(), nd.onDisk)
	}
}

func (nd *node) durable(w Work) {
	msgs, err := nd.g.Durable(w)
	must(nd.net.t, err)
	nd.net.send(msgs)
}

// crash loses what was not synced, but the given percentage of it.
func (nd *node) crash(cfg vfs.CrashCloneCfg) {
	fs := nd.fs.CrashClone(cfg)
	must(nd.net.t, nd.db.Close())
	nd.fs, nd.pending, nd.covered, nd.reads = fs, nil, 0, nil
	nd.db = openDB(nd.net.t, fs)
	nd.start()
}

func (n *network) send(msgs []*raftpb.Message) {
	for _, m := range msgs {
		if raft.IsLocalMsgTarget(m.GetTo()) || m.GetTo() == m.GetFrom() {
			n.t.Fatalf("local message leaves: %v", m)
		}
		// As a transport would: the receiver shares nothing with the sender.
		n.msgs = append(n.msgs, proto.Clone(m).(*raftpb.Message))
	}
}

// deliver gives the i-th message to its receiver.
func (n *network) deliver(i int) {
	m := n.msgs[i]
	n.msgs = slices.Delete(n.msgs, i, i+1)
	to := n.nodes[m.GetTo()]
	if to == nil || to.down || n.cut[[2]uint64{m.GetFrom(), m.GetTo()}] {
		return
	}
	if err := to.g.Step(m); err != nil && !errors.Is(err, raft.ErrStepPeerNotFound) && !errors.Is(err, ErrNotLeader) && !errors.Is(err, ErrSnapshot) {
		n.t.Fatalf("replica %d: step %v: %v", m.GetTo(), m, err)
	}
}

// stabilize goes on until nothing happens any more.
func (n *network) stabilize() {
	for again := true; again; {
		again = false
		for _, id := range n.ids() {
			nd := n.nodes[id]
			if nd.down {
				continue
			}
			if _, worked := nd.ready(); worked {
				again = true
			}
			if nd.sync() {
				again = true
			}
		}
		for len(n.msgs) > 0 {
			n.deliver(0)
			again = true
		}
	}
}

// elect makes a replica campaign, and all others that are up willing to vote.
func (n *network) elect(id uint64) {
	for _, other := range n.ids() {
		if nd := n.nodes[other]; other != id && !nd.down {
			for {
				if _, worked := nd.ready(); !worked {
					break
				}
			}
			if !nd.g.IsLeader() {
				must(n.t, nd.g.ForgetLeader())
			}
		}
	}
	must(n.t, n.nodes[id].g.Campaign())
}

func (nd *node) status() string {
	st := nd.g.Status()
	s := fmt.Sprintf("%d: %s term=%d leader=%d committed=%d applied=%d last=%d", nd.id,
		strings.TrimPrefix(st.State.String(), "State"), st.Term, st.Leader, st.Committed, st.Applied, st.LastIndex)
	if nd.g.Serving() {
		s += " serving"
	}
	if len(nd.pending) > 0 {
		s += fmt.Sprintf(" unsynced=%d", len(nd.pending))
	}
	return s
}

func describe(m *raftpb.Message) string {
	s := fmt.Sprintf("%d>%d %s term=%d", m.GetFrom(), m.GetTo(), m.GetType(), m.GetTerm())
	if m.GetFrom() == raft.LocalAppendThread {
		s = fmt.Sprintf("disk>%d %s", m.GetTo(), m.GetType())
	}
	if m.GetIndex() != 0 {
		s += fmt.Sprintf(" index=%d", m.GetIndex())
	}
	if m.GetType() == raftpb.MsgApp || m.GetType() == raftpb.MsgHeartbeat {
		s += fmt.Sprintf(" commit=%d", m.GetCommit())
	}
	for _, e := range m.GetEntries() {
		s += fmt.Sprintf(" [%d/%d %s]", e.GetIndex(), e.GetTerm(), e.GetData())
	}
	if m.GetReject() {
		s += " rejected"
	}
	return s
}

func (w Work) describe() string {
	var out []string
	for _, m := range w.Send {
		out = append(out, "send "+describe(m))
	}
	for _, m := range w.WhenDurable {
		out = append(out, "when durable "+describe(m))
	}
	if w.NeedsSync {
		out = append(out, "needs sync")
	}
	if w.Applied {
		out = append(out, fmt.Sprintf("applied to %d", w.appliedIndex))
	}
	for _, rs := range w.ReadStates {
		out = append(out, fmt.Sprintf("read %s at %d", rs.RequestCtx, rs.Index))
	}
	if len(out) == 0 {
		return "nothing"
	}
	return strings.Join(out, "\n")
}
