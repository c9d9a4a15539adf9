package placement_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/placement/client"
	"github.com/hawser-kv/hawser/placement/meta"
	"github.com/hawser-kv/hawser/placement/sequencer"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// TestRandomHistoriesKeepTheInvariants runs the real sequencer, meta state and
// client against a model of everything else: Raft groups of S and of ranges
// whose deposed leaders do not know it, connections that break, readers,
// writers and coordinators. It checks I1 to I4 and I6 to I8 of revisions.md on
// the way, and that everything moves on once nothing fails any more.
//
// A failure prints the seed; the same seed replays it.
func TestRandomHistoriesKeepTheInvariants(t *testing.T) {
	seeds, steps := 32, 40000
	if testing.Short() {
		seeds = 8
	}
	var total counts
	for seed := range seeds {
		s := newSim(t, uint64(seed))
		for range steps {
			s.step()
		}
		s.heal()
		total.add(s.counts)
		if t.Failed() {
			return
		}
	}
	t.Logf("%+v", total)
	// A simulation in which nothing happens proves nothing.
	for name, n := range map[string]int{
		"writes": total.writes, "reads": total.reads, "transactions": total.txns, "splits": total.splits,
		"deactivations": total.sleeps, "sequencers": total.elections, "aborts": total.aborts, "hand-overs": total.handovers,
		"hand-overs of decided entries": total.handed, "lost grants": total.lostGrants, "grants after a later registration": total.late,
		"transactions decided while a new leader registers": total.racing, "refused stale queries": total.stale,
	} {
		if n < max(1, seeds/8) {
			t.Errorf("only %d %s in %d seeds", n, name, seeds)
		}
	}
}

type counts struct {
	writes, reads, txns, splits, sleeps, elections, aborts, handovers, handed, lostGrants, late, racing, stale int
}

func (c *counts) add(o counts) {
	c.writes += o.writes
	c.reads += o.reads
	c.txns += o.txns
	c.splits += o.splits
	c.sleeps += o.sleeps
	c.elections += o.elections
	c.aborts += o.aborts
	c.handovers += o.handovers
	c.handed += o.handed
	c.lostGrants += o.lostGrants
	c.late += o.late
	c.racing += o.racing
	c.stale += o.stale
}

const (
	simCluster = 7
	simVoters  = 3
	simNodes   = 3
)

// sim is the whole system. One step is one thing that happens somewhere.
type sim struct {
	t      *testing.T
	seed   uint64
	rng    *rand.Rand
	counts counts

	// The meta group: its committed log, and who truly leads it.
	log    []logged
	voters []*simVoter
	leader *simVoter
	term   uint64

	nodes  []*simNode
	slow   *simNode // applies little
	healed bool
	ranges map[uint64]*simRange
	order  []uint64 // ids of ranges, in the order of creation

	// History.
	acked     int64            // highest revision acknowledged to a writer
	grantedBy map[int64]uint64 // revision -> epoch that let it out
	firstWord map[uint64]bool  // epochs that answered something
	newest    uint64           // highest epoch that answered something
	txns      map[int64]*simTxn
	reads     []servedRead
	waiting   []*simRead
	latched   []*simTxn
}

type logged struct {
	term uint64
	cmd  *placementpb.MetaCommand
}

// simVoter is a voter of the meta group with its S.
type simVoter struct {
	id      int
	seq     *sequencer.Sequencer
	state   *meta.State
	applied int
	led     uint64
	// pending are proposals in this leader's log that are not committed.
	pending []*placementpb.MetaCommand
	rounds  []simRound
	links   map[uint64]*simLink
}

type simRound struct {
	id    uint64
	acked bool
}

// simLink is the connection of a node to the voter it takes for S.
type simLink struct {
	voter *simVoter
	up    []*placementpb.ToSequencer
	down  []*placementpb.FromSequencer
}

// simNode is a node with the real client.
type simNode struct {
	s       *sim
	id      uint64
	c       *client.Client
	link    *simLink
	epoch   uint64 // of the session; ranges register in it
	session uint64
	dir     map[uint64]*rangepb.RangeDescriptor
	old     []*rangepb.RangeDescriptor // a directory of some time ago
	lastCut int64
	// data is what replicas on the node have applied: key, revision.
	data []version
}

type version struct {
	key byte
	rev int64
}

func newSim(t *testing.T, seed uint64) *sim {
	s := &sim{
		t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 1)),
		ranges: map[uint64]*simRange{}, grantedBy: map[int64]uint64{}, firstWord: map[uint64]bool{},
		txns: map[int64]*simTxn{},
	}
	var replicas []*rangepb.Replica
	for id := range simNodes {
		replicas = append(replicas, &rangepb.Replica{NodeId: uint64(id + 1), ReplicaId: uint64(id + 1)})
	}
	b := meta.NewBootstrap(simCluster, [][]byte{[]byte("h"), []byte("q")}, replicas)
	for id := range simVoters {
		s.voters = append(s.voters, &simVoter{
			id: id + 1, state: meta.New(), links: map[uint64]*simLink{},
			seq: sequencer.New(sequencer.Config{Bootstrap: b, MinBoundStep: 4, MaxBoundStep: 64, WakeTicks: 3, SplitTicks: 8}),
		})
	}
	s.elect(s.voters[0], 0)
	for len(s.leader.pending) > 0 || len(s.log) < 2 {
		s.commit()
		s.applyAll()
	}
	for _, d := range b.Ranges {
		s.addRange(d, meta.FirstRevision)
	}
	for id := range simNodes {
		n := &simNode{s: s, id: uint64(id + 1)}
		s.nodes = append(s.nodes, n)
		var err error
		n.c, err = client.New(client.Config{
			ClusterID: simCluster, NodeID: n.id, FirstSession: 1, Link: n,
			Range: n.fromSequencer, NewSession: n.newSession, Cut: n.cut,
		})
		if err != nil {
			t.Fatal(err)
		}
		s.connect(n, s.leader)
	}
	return s
}

func (s *sim) failf(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("seed %d: %s", s.seed, fmt.Sprintf(format, args...))
}

func (s *sim) one(n int) bool { return s.rng.IntN(n) == 0 }

func pick[T any](s *sim, from []T) T { return from[s.rng.IntN(len(from))] }

// step lets one thing happen. Some histories are calmer than others: faults
// come every few hundred to every few thousand steps.
func (s *sim) step() {
	if s.one(100 << (s.seed % 4)) {
		s.fault()
		return
	}
	switch p := s.rng.IntN(100); {
	case p < 30:
		s.deliver()
	case p < 38:
		s.commit()
	case p < 46:
		// A voter that still believes to lead is cut off from the log.
		if v := pick(s, s.voters); v == s.leader || !v.seq.Leading() {
			s.apply(v)
		}
	case p < 56:
		s.confirm()
	case p < 58:
		for _, v := range s.voters {
			v.seq.Tick()
			s.ready(v)
		}
	case p < 60:
		v := pick(s, s.voters)
		v.seq.Cut()
		s.ready(v)
	default:
		s.rangeStep()
	}
}

func (s *sim) fault() {
	switch s.rng.IntN(12) {
	case 0:
		s.elect(pick(s, s.voters), s.rng.IntN(4))
		for _, n := range s.nodes {
			if s.rng.IntN(3) > 0 {
				s.connect(n, s.leader)
			}
		}
	case 1: // a deposed S learns of it
		if v := pick(s, s.voters); v != s.leader {
			v.seq.StepDown()
			v.rounds = nil
		}
	case 2:
		s.connect(pick(s, s.nodes), pick(s, s.voters))
	case 3, 4: // some nodes find the S there is
		for _, n := range s.nodes {
			if n.link.voter != s.leader && s.one(2) {
				s.connect(n, s.leader)
			}
		}
	case 6:
		s.slow = pick(s, s.nodes)
	case 5:
		s.handOver()
	default:
		for range 3 {
			s.electRange(s.ranges[pick(s, s.order)], pick(s, s.nodes), s.rng.IntN(4))
		}
	}
}

// elect makes the voter the leader of the meta group in a new term. Of what the
// old leader proposed, the first survivors entries are in its log.
func (s *sim) elect(v *simVoter, survivors int) {
	if old := s.leader; old != nil {
		s.counts.elections++
		n := min(survivors, len(old.pending))
		for _, cmd := range old.pending[:n] {
			s.append(old.led, cmd)
		}
		// The rest never commits. old does not know, and goes on.
		old.pending = nil
	}
	v.seq.StepDown()
	v.rounds, v.pending = nil, nil
	s.leader = v
	s.term++
	v.led = s.term
	for v.applied < len(s.log) {
		s.apply(v)
	}
	v.seq.Lead(s.term, v.state)
	s.ready(v)
	for _, n := range s.nodes {
		if l := v.links[n.id]; l != nil {
			l.down = append(l.down, v.seq.Hello())
		}
	}
}

// handOver moves S on purpose; the next one must start without a gap (R2).
func (s *sim) handOver() {
	v := s.leader
	if !v.seq.Serving() {
		return
	}
	v.seq.HandOver()
	s.ready(v)
	for len(v.pending) > 0 {
		s.commit()
	}
	for v.applied < len(s.log) {
		s.apply(v)
	}
	if !v.seq.HandedOver() {
		s.failf("hand-over: everything is applied, S is %+v", v.seq.Stats())
	}
	if s.one(4) {
		v.seq.Resume()
		s.ready(v)
		return
	}
	last := v.seq.Stats().Revision
	next := s.voters[v.id%simVoters]
	s.elect(next, 0)
	s.counts.handovers++
	if got := next.seq.Stats().Revision; got != last {
		s.failf("hand-over at %d: the next S is at %d", last, got)
	}
}

func (s *sim) append(term uint64, cmd *placementpb.MetaCommand) {
	// The log holds bytes.
	c, err := meta.DecodeCommand(meta.EncodeCommand(cmd))
	if err != nil {
		s.failf("%v", err)
	}
	s.log = append(s.log, logged{term, c})
}

// commit commits the next proposal of the leader.
func (s *sim) commit() {
	v := s.leader
	if len(v.pending) == 0 {
		return
	}
	s.append(v.led, v.pending[0])
	v.pending = v.pending[1:]
}

// apply applies the next committed entry on one voter.
func (s *sim) apply(v *simVoter) {
	if v.applied == len(s.log) {
		return
	}
	// A deposed leader's log may differ where its term's entries are lost, so
	// what it applies must not be of a later term while it believes to lead.
	e := s.log[v.applied]
	if e.term > v.led && v.seq.Leading() {
		v.seq.StepDown()
		v.rounds = nil
	}
	v.applied++
	ch, err := v.state.Apply(uint64(v.applied), e.term, e.cmd)
	if err != nil {
		s.failf("voter %d: %v", v.id, err)
	}
	if !ch.Ignored {
		v.seq.Applied(uint64(v.applied), e.cmd)
	}
	s.ready(v)
}

func (s *sim) applyAll() {
	for _, v := range s.voters {
		for v.applied < len(s.log) {
			s.apply(v)
		}
	}
}

// confirm lets a round be acknowledged by a quorum, if its S truly leads, or an
// acknowledgement arrive.
func (s *sim) confirm() {
	for i := range s.leader.rounds {
		if s.one(2) {
			s.leader.rounds[i].acked = true
		}
	}
	v := pick(s, s.voters)
	if v != s.leader && !s.one(20) {
		return // its network is slow
	}
	for i, r := range v.rounds {
		if r.acked {
			v.rounds = slices.Delete(v.rounds, i, i+1)
			v.seq.Confirmed(r.id)
			s.ready(v)
			return
		}
	}
}

// ready does what S wants done.
func (s *sim) ready(v *simVoter) {
	for {
		out := v.seq.Ready()
		if out.Empty() {
			return
		}
		for _, cmd := range out.Proposals {
			if cmd.Epoch != v.led {
				s.failf("proposal of epoch %d in term %d", cmd.Epoch, v.led)
			}
			if v == s.leader {
				s.accepted(cmd)
			}
			v.pending = append(v.pending, cmd)
		}
		if out.Round != 0 && s.rng.IntN(20) > 0 { // some are lost
			v.rounds = append(v.rounds, simRound{id: out.Round})
		}
		for _, e := range out.Messages {
			s.letOut(v, e)
			if l := v.links[e.NodeID]; l != nil {
				l.down = append(l.down, e.Message)
			}
		}
	}
}

// connect makes a node take the voter for S, over a new connection.
func (s *sim) connect(n *simNode, v *simVoter) {
	if n.link != nil {
		delete(n.link.voter.links, n.id)
	}
	n.link = &simLink{voter: v}
	v.links[n.id] = n.link
	n.c.Start()
}

// deliver delivers one message in one direction.
func (s *sim) deliver() {
	n := pick(s, s.nodes)
	l := n.link
	if s.one(2) {
		if len(l.up) > 0 {
			m := l.up[0]
			l.up = l.up[1:]
			l.voter.seq.Receive(m)
			s.ready(l.voter)
		}
	} else if len(l.down) > 0 {
		m := l.down[0]
		l.down = l.down[1:]
		n.c.Deliver(m)
	}
}

// letOut checks what S lets out: I4, I6, I7.
func (s *sim) letOut(v *simVoter, e sequencer.Envelope) {
	m := e.Message
	committed := func(index uint64) *placementpb.MetaCommand {
		if index == 0 || index > uint64(len(s.log)) {
			s.failf("I6: S %d lets out entry %d, the log ends at %d: %v", v.led, index, len(s.log), m)
		}
		return s.log[index-1].cmd
	}
	checkDecided := func(d *placementpb.Decided) {
		cmd := committed(d.MetaIndex)
		if sp := d.GetSplit(); sp != nil {
			if !proto.Equal(cmd.GetSplit().GetLeft(), sp.Left) || !proto.Equal(cmd.GetSplit().GetRight(), sp.Right) || cmd.GetSplit().Revision != d.Revision {
				s.failf("I6: split %v let out, decided was %v", d, cmd)
			}
			return
		}
		if cmd.GetTransaction().GetRevision() != d.Revision {
			s.failf("I6: %v let out, decided was %v", d, cmd)
		}
	}
	descriptor := func(d *rangepb.RangeDescriptor) {
		for i := len(s.log) - 1; i >= 0; i-- {
			if sp := s.log[i].cmd.GetSplit(); sp != nil && (proto.Equal(sp.Left, d) || proto.Equal(sp.Right, d)) {
				return
			}
			for _, b := range s.log[i].cmd.GetBootstrap().GetRanges() {
				if proto.Equal(b, d) {
					return
				}
			}
		}
		s.failf("I6: S %d lets out a descriptor that is not committed: %v", v.led, d)
	}
	answers := true
	switch b := m.Body.(type) {
	case *placementpb.FromSequencer_Grant:
		g := b.Grant
		if g.Refused {
			break
		}
		for r := g.First; r < g.First+int64(g.Count); r++ {
			if by, ok := s.grantedBy[r]; ok {
				s.failf("I4: revision %d granted by S %d and by S %d", r, by, m.Epoch)
			}
			s.grantedBy[r] = m.Epoch
		}
		if x := v.state.Range(g.RangeId); !x.Active {
			s.failf("I7: r%d is granted %d and is not active", g.RangeId, g.First)
		}
		if v.state.Bound < g.First+int64(g.Count)-1 {
			s.failf("R2: granted %v over the bound %d", g, v.state.Bound)
		}
		s.openIs(m.Epoch, g.RangeId, e.NodeID, m.Session, g.Term)
	case *placementpb.FromSequencer_Registered:
		g := b.Registered
		if g.Refused {
			break
		}
		for _, d := range g.Decided {
			checkDecided(d)
		}
		if x := v.state.Range(g.RangeId); !x.Active {
			s.failf("I7: r%d is registered and not active", g.RangeId)
		}
		x := s.ranges[g.RangeId]
		x.opened = openRegistration{m.Epoch, e.NodeID, m.Session, g.Term}
	case *placementpb.FromSequencer_Decided:
		checkDecided(b.Decided)
	case *placementpb.FromSequencer_Txn:
		if !b.Txn.Refused {
			s.decided(b.Txn)
		}
	case *placementpb.FromSequencer_Cut:
		for _, d := range b.Cut.Descriptors {
			descriptor(d)
		}
	case *placementpb.FromSequencer_Query:
		for _, d := range b.Query.Descriptors {
			descriptor(d)
		}
		if b.Query.Refused {
			s.counts.stale++
		} else if _, ok := s.grantedBy[b.Query.Revision+1]; ok && s.grantedBy[b.Query.Revision+1] < m.Epoch {
			s.failf("I4: S %d answers R=%d, but %d was let out by S %d", m.Epoch, b.Query.Revision, b.Query.Revision+1, s.grantedBy[b.Query.Revision+1])
		}
	case *placementpb.FromSequencer_Split:
		if !b.Split.Refused {
			descriptor(b.Split.Left)
			descriptor(b.Split.Right)
		}
	default:
		answers = false
	}
	if answers && v == s.leader {
		s.newest = max(s.newest, m.Epoch)
	}
}

// openRegistration is the registration that S last opened a range for.
type openRegistration struct {
	epoch, node, session, term uint64
}

// openIs checks that a grant goes to the registration that its epoch opened
// last (I7).
func (s *sim) openIs(epoch, id, node, session, term uint64) {
	o := s.ranges[id].opened
	if o.epoch == epoch && o != (openRegistration{epoch, node, session, term}) {
		s.failf("I7: r%d is open for %+v, a grant goes to node %d session %d term %d", id, o, node, session, term)
	}
}

// Receive makes a simNode the client's way to S.
func (n *simNode) Receive(m *placementpb.ToSequencer) {
	n.link.up = append(n.link.up, proto.CloneOf(m))
}

// Query never answers at once: S has other voters.
func (n *simNode) Query(uint64, uint64, []*placementpb.RangeEpoch, []int64) (int64, int64, bool) {
	return 0, 0, false
}

func (n *simNode) cut(c *placementpb.Cut) {
	if c.First {
		n.dir = map[uint64]*rangepb.RangeDescriptor{}
	}
	if c.Revision < n.lastCut {
		n.s.failf("R6: node %d: cut at %d after one at %d", n.id, c.Revision, n.lastCut)
	}
	n.lastCut = c.Revision
	for _, d := range c.Descriptors {
		n.dir[d.RangeId] = d
	}
	// The descriptors tile the keyspace after every cut.
	ds := n.directory()
	for i, d := range ds {
		if i == 0 && len(d.Start) > 0 || i+1 < len(ds) && string(d.End) != string(ds[i+1].Start) || i+1 == len(ds) && len(d.End) > 0 {
			n.s.failf("R6: node %d: directory after a cut: %v", n.id, ds)
		}
	}
}

// directory is what the node knows, in the order of spans.
func (n *simNode) directory() []*rangepb.RangeDescriptor {
	var ds []*rangepb.RangeDescriptor
	for _, d := range n.dir {
		ds = append(ds, d)
	}
	slices.SortFunc(ds, func(a, b *rangepb.RangeDescriptor) int { return slices.Compare(a.Start, b.Start) })
	return ds
}
