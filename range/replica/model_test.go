package replica_test

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math/rand"
	randv2 "math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/mvcc/counts"
	"github.com/hawser-kv/hawser/placement/client"
	"github.com/hawser-kv/hawser/placement/meta"
	"github.com/hawser-kv/hawser/placement/sequencer"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/range/replica"
)

// TestRandomOperationsAgainstAPlainModel runs one node with some ranges against the
// real sequencer over a network that delays, breaks and loses sessions, and
// lets the node and the sequencer die at random points. At the end, and along
// the way, everything that clients saw is checked against one serial history
// ordered by revision (I3, I4, I5), and everything that began has ended.
func TestRandomOperationsAgainstAPlainModel(t *testing.T) {
	seeds := 25
	if testing.Short() {
		seeds = 8
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(t, 1, int64(seed), 0)
			defer w.close()
			for range 400 {
				w.step()
			}
			w.recover()
			w.check()
		})
	}
}

// TestRandomOperationsOnThreeNodes is the same with three replicas of each range:
// leaders are deposed and do not know, and any replica serves reads.
func TestRandomOperationsOnThreeNodes(t *testing.T) {
	seeds := 8
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(t, 3, int64(seed), 0)
			defer w.close()
			for range 600 {
				w.step()
			}
			w.recover()
			w.check()
		})
	}
}

// TestTheProcessMayDieAtEveryEngineWrite runs the same operations again and again;
// each time the process dies one commit later, and loses all, nothing or some
// of what was not synced.
func TestTheProcessMayDieAtEveryEngineWrite(t *testing.T) {
	seeds := 2
	if testing.Short() {
		seeds = 1
	}
	for seed := range seeds {
		for dieAt := 1; ; dieAt++ {
			w := newWorld(t, 1, int64(seed), dieAt)
			for range 60 {
				w.calmStep()
			}
			w.quiet(12) // asleep
			w.write(w.nodes[0])
			w.recover()
			w.check()
			died := w.nodes[0].commits >= dieAt
			w.close()
			if t.Failed() {
				t.Fatalf("seed %d, died at commit %d", seed, dieAt)
			}
			if !died {
				break
			}
		}
	}
}

// world is some nodes, a sequencer, and clients.
type world struct {
	t     *testing.T
	rng   *rand.Rand
	nodes []*process
	net   *network

	// The meta group: state is what is committed, log what is proposed.
	state *meta.State
	index uint64
	term  uint64
	seq   *sequencer.Sequencer
	log   []*placementpb.MetaCommand
	round uint64 // begun and not confirmed

	// What clients know.
	values int   // given out; every written value is unique
	acked  int64 // highest revision that was acknowledged
	writes []*modelWrite
	reads  []modelRead
	trace  bytes.Buffer
}

// process is a node and its end of the conversation with the sequencer.
type process struct {
	*node
	w         *world
	client    *client.Client
	toS       []*placementpb.ToSequencer
	fromS     []*placementpb.FromSequencer
	number    uint64 // of processes started on the node
	dying     bool
	pending   int // operations without an answer
	directory map[uint64]*rangepb.RangeDescriptor
	marks     map[uint64]int64
}

// modelWrite is a write or transaction whose fate must agree with the history.
type modelWrite struct {
	name     string
	puts     map[string]string // key -> unique value
	compare  map[string]string // key -> value that it must have had, "" for none
	deletes  [2]string         // a span
	revision int64             // acknowledged at
	after    int64             // highest revision acknowledged before it was sent
	refused  bool              // proved not to be applied
}

// modelRead is a state that was seen at a revision.
type modelRead struct {
	start, end string
	revision   int64
	got        string
}

func newWorld(t *testing.T, nodes int, seed int64, dieAt int) *world {
	w := &world{t: t, rng: rand.New(rand.NewSource(seed)), state: meta.New()}
	w.net = &network{nodes: map[uint64]*node{}, queues: map[[2]uint64][]sentMessage{}}
	var ids []uint64
	var replicas []*rangepb.Replica
	for id := uint64(1); id <= uint64(nodes); id++ {
		ids = append(ids, id)
		replicas = append(replicas, &rangepb.Replica{NodeId: id, ReplicaId: id})
	}
	w.seq = sequencer.New(sequencer.Config{MinBoundStep: 8, WakeTicks: 2,
		Bootstrap: meta.NewBootstrap(77, [][]byte{[]byte("g"), []byte("p")}, replicas)})
	w.elect()
	for _, id := range ids {
		p := &process{w: w}
		p.node = &node{tb: t, id: id, counts: counts.Options{RunKeys: 3}, logger: warnings(&w.trace), limits: replica.Limits{
			IdleTicks: 6, SilentTicks: 4, RetryTicks: 2, WaitTicks: 60, TargetEntryBytes: 200, MaxInflightBytes: 4000,
		}}
		p.link, p.dieAt, p.transport = processLink{p}, dieAt, networkEnd{w.net, id}
		p.open()
		for id, span := range [][2]string{{"", "g"}, {"g", "p"}, {"p", ""}} {
			p.bootstrap(descriptor(uint64(id+1), span[0], span[1], 1, ids...), meta.FirstRevision)
		}
		w.nodes = append(w.nodes, p)
		w.net.nodes[id] = p.node
		p.start()
	}
	return w
}

func (w *world) close() {
	if w.t.Failed() {
		w.t.Log(w.trace.String())
	}
	for _, p := range w.nodes {
		p.node.close()
	}
}

// any is a node at random.
func (w *world) any() *process { return w.nodes[w.rng.Intn(len(w.nodes))] }

// leader is the node that leads a range, as far as it knows itself.
func (w *world) leader(rangeID uint64) *process {
	best, term := w.any(), uint64(0)
	for _, p := range w.nodes {
		if r := p.loaded[rangeID]; r != nil {
			if st := r.Status().Raft; st.State == raft.StateLeader && st.Term > term {
				best, term = p, st.Term
			}
		}
	}
	return best
}

// processLink is the replicas' link, of the current process.
type processLink struct{ p *process }

func (l processLink) Session() (uint64, uint64, bool) { return l.p.client.Session() }
func (l processLink) Send(m *placementpb.ToSequencer) { l.p.client.Send(m) }

// Receive implements client.Link.
func (p *process) Receive(m *placementpb.ToSequencer) { p.toS = append(p.toS, m) }

// Query implements client.Link: never at once, so that rounds and delays count.
func (p *process) Query(uint64, uint64, []*placementpb.RangeEpoch, []int64) (int64, int64, bool) {
	return 0, 0, false
}

// start begins the node's end of the conversation, as a process does.
func (p *process) start() {
	p.number++
	c, err := client.New(client.Config{
		ClusterID: 77, NodeID: p.id, FirstSession: p.number * 1000, Link: p,
		Range: func(id uint64, m *placementpb.FromSequencer) { p.store.Post(id, m) },
		Cut:   p.takeCut,
		NewSession: func(uint64, uint64) {
			for _, id := range loadedIDs(p.node) {
				p.store.Post(id, replica.SessionChanged{})
			}
		},
	})
	if err != nil {
		p.tb.Fatal(err)
	}
	p.client = c
	p.toS, p.fromS = nil, nil
	c.Start()
}

func (p *process) takeCut(c *placementpb.Cut) {
	if c.First {
		p.directory, p.marks = map[uint64]*rangepb.RangeDescriptor{}, map[uint64]int64{}
	}
	for _, d := range c.Descriptors {
		p.directory[d.RangeId] = d
	}
	for _, m := range c.Marks {
		p.marks[m.RangeId] = m.Revision
	}
}

// elect makes a new sequencer in the next term. What the old one had proposed is
// committed up to some point, and lost from there.
func (w *world) elect() {
	for n := w.rng.Intn(len(w.log) + 1); n > 0; n-- {
		w.commitMeta()
	}
	w.log, w.round = nil, 0
	w.seq.StepDown()
	w.term++
	w.index++ // the entry with which it begins its term
	w.seq.Lead(w.term, w.state)
	if hello := w.seq.Hello(); hello != nil {
		for _, p := range w.nodes {
			p.fromS = append(p.fromS, hello)
		}
	}
	w.drain()
}

// commitMeta commits the first proposed entry of the meta group.
func (w *world) commitMeta() bool {
	if len(w.log) == 0 {
		return false
	}
	cmd := w.log[0]
	w.log = w.log[1:]
	w.index++
	if _, err := w.state.Apply(w.index, w.term, cmd); err != nil {
		w.t.Fatal(err)
	}
	w.seq.Applied(w.index, cmd)
	w.drain()
	return true
}

func (w *world) confirm() bool {
	if w.round == 0 {
		return false
	}
	w.seq.Confirmed(w.round)
	w.round = 0
	w.drain()
	return true
}

// drain takes what the sequencer wants.
func (w *world) drain() {
	for {
		out := w.seq.Ready()
		if out.CutsDue && w.rng.Intn(3) == 0 {
			w.seq.Cut()
		}
		if out.Empty() {
			return
		}
		w.log = append(w.log, out.Proposals...)
		if out.Round != 0 {
			w.round = out.Round
		}
		for _, e := range out.Messages {
			if i := int(e.NodeID) - 1; i < len(w.nodes) {
				w.nodes[i].fromS = append(w.nodes[i].fromS, e.Message)
			}
		}
	}
}

// toSequencer and fromSequencer deliver one message.
func (p *process) toSequencer() bool {
	if len(p.toS) == 0 {
		return false
	}
	m := p.toS[0]
	p.toS = p.toS[1:]
	p.w.seq.Receive(m)
	p.w.drain()
	return true
}

func (p *process) fromSequencer() bool {
	if len(p.fromS) == 0 {
		return false
	}
	m := p.fromS[0]
	p.fromS = p.fromS[1:]
	p.client.Deliver(m)
	return true
}

// step does one thing at random.
func (w *world) step() {
	p := w.any()
	switch n := w.rng.Intn(100); {
	case n < 22:
		w.write(p)
	case n < 27:
		w.txn(p)
	case n < 35:
		w.read(p)
	case n < 37:
		w.split(p)
	case n < 50:
		for range w.rng.Intn(6) {
			p.toSequencer()
		}
	case n < 63:
		for range w.rng.Intn(6) {
			p.fromSequencer()
		}
	case n < 70:
		w.commitMeta()
	case n < 76:
		w.confirm()
	case n < 81:
		if _, err := p.store.RunRound(0); err != nil {
			w.t.Fatal(err)
		}
	case n < 84:
		w.net.deliver(func(uint64, uint64) bool { return w.rng.Intn(3) > 0 })
	case n < 86:
		p.syncLog()
	case n < 91:
		p.run()
		p.sync()
	case n < 94:
		w.tick()
	case n < 95:
		w.quiet(40) // long enough to fall asleep
	case n < 96:
		p.breakSession()
	case n < 97:
		w.elect()
	case n < 98:
		w.crash(p)
	default:
		w.settle()
	}
	if len(w.nodes) > 1 && w.rng.Intn(25) == 0 {
		w.depose(uint64(1+w.rng.Intn(5)), w.any())
	}
}

// depose lets another node lead a range; the old leader may not hear of it.
func (w *world) depose(rangeID uint64, p *process) {
	r := p.loaded[rangeID]
	if r == nil {
		return
	}
	term, from := r.Status().Raft.Term, p.id%3+1
	p.store.Post(rangeID, &raftpb.Message{Type: raftpb.MsgTimeoutNow.Enum(), From: &from, To: &p.id, Term: &term})
}

// settle lets the nodes do what they can do without the sequencer.
func (w *world) settle() (worked bool) {
	for again := true; again; worked = worked || again {
		again = false
		for _, p := range w.nodes {
			again = p.settle() || again
		}
		again = w.net.deliver(func(uint64, uint64) bool { return true }) || again
	}
	return worked
}

// calmStep does one thing at random, and no faults.
func (w *world) calmStep() {
	p := w.any()
	switch n := w.rng.Intn(20); {
	case n < 9:
		w.write(p)
	case n < 11:
		w.txn(p)
	case n < 13:
		w.read(p)
	case n < 14:
		w.split(p)
	default:
		w.quiet(1)
	}
	w.mayDie()
}

// mayDie starts a new process where the old one has died.
func (w *world) mayDie() {
	for _, p := range w.nodes {
		if p.dead {
			w.crash(p)
		}
	}
}

func (w *world) tick() {
	w.seq.Tick()
	w.drain()
	for _, p := range w.nodes {
		p.store.Tick()
		p.readers.Tick(100)
		for id := uint64(1); id < 40; id++ {
			// Whoever reads nudges (R5).
			if p.pending > 0 && w.rng.Intn(8) == 0 && p.directory[id] != nil {
				p.store.Post(id, replica.Nudge{})
			}
		}
	}
}

// quiet lets everything happen that wants to, for some ticks.
func (w *world) quiet(ticks int) {
	for range ticks {
		for again := true; again; {
			again = w.commitMeta() || w.confirm()
			for _, p := range w.nodes {
				again = p.toSequencer() || p.fromSequencer() || again
			}
			again = w.settle() || again
		}
		w.mayDie()
		w.seq.Cut()
		w.drain()
		w.tick()
	}
}

// breakSession loses what is on the stream.
func (p *process) breakSession() {
	p.toS, p.fromS = nil, nil
	p.client.Start()
}

// crash kills a process: what was not synced is lost in part.
func (w *world) crash(p *process) {
	p.dying = true // it answers nobody that counts
	p.client.Stop()
	p.node.crash(vfs.CrashCloneCfg{UnsyncedDataPercent: w.rng.Intn(101), RNG: randv2.New(randv2.NewPCG(w.rng.Uint64(), 1))})
	p.dying, p.pending = false, 0
	p.start()
}

func (w *world) key() string { return string(rune('a' + w.rng.Intn(26))) }

func (w *world) value() string {
	w.values++
	return fmt.Sprintf("v%d", w.values)
}

// rangeOf looks a key up in the node's directory.
func (p *process) rangeOf(key string) *rangepb.RangeDescriptor {
	for _, d := range p.directory {
		if key >= string(d.Start) && (len(d.End) == 0 || key < string(d.End)) {
			return d
		}
	}
	return nil
}

// alive reports that the process in which an operation began still runs: after a
// crash its client hears nothing.
func (p *process) alive(number uint64) bool { return number == p.number && !p.dying }

// ended counts an operation's end.
func (p *process) ended(number uint64) {
	if number == p.number {
		p.pending--
	}
}

// write sends a put, a delete or a compare-and-swap to one range.
func (w *world) write(p *process) {
	key := w.key()
	d := p.rangeOf(key)
	if d == nil {
		return
	}
	m := &modelWrite{name: fmt.Sprintf("write %d", len(w.writes)), after: w.acked}
	var req *mvcc.Request
	switch w.rng.Intn(5) {
	case 0:
		end := string(d.End)
		if end == "" {
			end = "~"
		}
		m.deletes = [2]string{key, end}
		req = del(key, end)
	case 1:
		old := ""
		if kv := p.get(key, newest); kv != "-" {
			old, _, _ = strings.Cut(kv, " ")
		}
		value := w.value()
		m.compare, m.puts = map[string]string{key: old}, map[string]string{key: value}
		req = cas(key, old, value)
	default:
		value := w.value()
		m.puts = map[string]string{key: value}
		req = put(key, value)
	}
	w.writes = append(w.writes, m)
	p.pending++
	number := p.number
	to := p
	if w.rng.Intn(4) > 0 {
		to = w.leader(d.RangeId)
	}
	to.store.Post(d.RangeId, &replica.Write{Epoch: d.Epoch, Req: req, Done: func(_ *mvcc.Result, r rangepb.WriteAnswer) {
		p.ended(number)
		// An answer of a dying process may be wrong: its disk was lost before.
		if !p.alive(number) || to.dying {
			return
		}
		switch {
		case r.NoEffect:
			m.refused = true
		case r.Err != nil:
			m.refused = replica.NotApplied(r.Err)
		default:
			m.revision = r.Revision
			w.acked = max(w.acked, r.Revision)
		}
	}})
}

// read asks for R and m of all ranges that hold a span, waits, and looks.
func (w *world) read(p *process) {
	start, end := w.key(), w.key()
	if start >= end {
		end = "~"
	}
	var ds []*rangepb.RangeDescriptor
	for _, d := range p.directory {
		if (len(d.End) == 0 || start < string(d.End)) && string(d.Start) < end {
			ds = append(ds, d)
		}
	}
	slices.SortFunc(ds, func(a, b *rangepb.RangeDescriptor) int { return bytes.Compare(a.Start, b.Start) })
	if len(ds) == 0 {
		return
	}
	after := w.acked
	number := p.number
	var epochs []*placementpb.RangeEpoch
	for _, d := range ds {
		epochs = append(epochs, &placementpb.RangeEpoch{RangeId: d.RangeId, Epoch: d.Epoch})
	}
	p.pending++
	p.client.Query(epochs, func(a *placementpb.QueryAnswer, err error) {
		if err != nil || a.Refused || !p.alive(number) {
			p.ended(number)
			return
		}
		if a.Revision < after {
			w.t.Errorf("a read sees %d, but %d was acknowledged before it was sent (I3)", a.Revision, after)
		}
		left := len(ds)
		var failed error
		for i, d := range ds {
			p.readers.Await(d.RangeId, d.Epoch, a.Marks[i], func(err error) {
				failed = cmp.Or(failed, err)
				if left--; left > 0 {
					return
				}
				p.ended(number)
				if failed == nil && p.alive(number) {
					w.look(p, ds, a, start, end)
				}
			})
		}
	})
}

func (w *world) look(p *process, ds []*rangepb.RangeDescriptor, a *placementpb.QueryAnswer, start, end string) {
	var pieces []rangepb.Piece
	for i, d := range ds {
		piece := rangepb.Piece{RangeID: d.RangeId, Epoch: d.Epoch, Start: []byte(max(start, string(d.Start))), End: []byte(end), Resolve: a.Marks[i]}
		if len(d.End) > 0 {
			piece.End = []byte(min(end, string(d.End)))
		}
		pieces = append(pieces, piece)
	}
	s, err := p.readers.View(a.Revision, pieces...)
	if err != nil {
		var re *rangepb.Error
		if !errors.As(err, &re) {
			w.t.Errorf("view after await: %v", err)
		}
		return // split meanwhile: the whole read starts again with a new query
	}
	defer s.Close()
	resp, err := mvcc.EvaluateRange(s, &pb.RangeRequest{Key: []byte(start), RangeEnd: []byte(end)}, nil)
	if err != nil {
		w.t.Error(err)
		return
	}
	if n, err := s.Count([]byte(start), []byte(end)); err != nil || n != int64(len(resp.Kvs)) {
		w.t.Errorf("%d keys of [%s,%s) are counted at %d (%v), %d are there", n, start, end, a.Revision, err, len(resp.Kvs))
	}
	var got strings.Builder
	for _, kv := range resp.Kvs {
		fmt.Fprintf(&got, "%s=%s create=%d mod=%d version=%d\n", kv.Key, kv.Value, kv.CreateRevision, kv.ModRevision, kv.Version)
	}
	w.reads = append(w.reads, modelRead{start, end, a.Revision, got.String()})
}

// txn moves values between two keys, in two ranges if they are, through latches.
// Its coordinator may die at any step.
func (w *world) txn(p *process) {
	a, b := w.key(), w.key()
	if a > b {
		a, b = b, a
	}
	da, db := p.rangeOf(a), p.rangeOf(b)
	if a == b || da == nil || db == nil || da.RangeId == db.RangeId {
		return
	}
	x := &modelTxn{w: w, p: p, owner: p.client.NewOwner(), keys: []string{a, b}, ds: []*rangepb.RangeDescriptor{da, db}, number: p.number, dies: w.rng.Intn(12)}
	x.m = &modelWrite{name: fmt.Sprintf("txn %d of %s and %s", len(w.writes), a, b), after: w.acked, puts: map[string]string{a: w.value(), b: w.value()}}
	w.writes = append(w.writes, x.m)
	p.pending++
	x.latch(0)
}

type modelTxn struct {
	w      *world
	p      *process
	m      *modelWrite
	owner  *placementpb.TxnID
	keys   []string
	ds     []*rangepb.RangeDescriptor
	at     []*process // that gave the latches
	got    []rangepb.LatchAnswer
	number uint64
	dies   int // step at which the coordinator dies, if there are so many
}

// dead reports that the coordinator is no more; whatever comes is not seen.
func (x *modelTxn) dead(step int) bool {
	if !x.p.alive(x.number) || step == x.dies {
		x.p.ended(x.number)
		x.m.refused = x.m.refused || step < 3 // no commit was sent, and none will be
		return true
	}
	return false
}

func (x *modelTxn) latch(i int) {
	w := x.w
	if i == len(x.keys) {
		x.commit()
		return
	}
	key := []byte(x.keys[i])
	at := w.leader(x.ds[i].RangeId)
	x.at = append(x.at, at)
	at.store.Post(x.ds[i].RangeId, &replica.Latch{Owner: x.owner, Epoch: x.ds[i].Epoch,
		Spans: []mvcc.Access{{Start: key, End: append(bytes.Clone(key), 0), Write: true}},
		Done: func(r rangepb.LatchAnswer) {
			if x.dead(i) {
				return
			}
			if at.dying && r.Err == nil {
				r.Err = errDied // the dead give no latches
			}
			if r.Err != nil {
				for j, d := range x.ds[:i] {
					x.at[j].store.Post(d.RangeId, &replica.Unlatch{Owner: x.owner})
				}
				x.m.refused = true
				x.p.ended(x.number)
				return
			}
			x.got = append(x.got, r)
			x.latch(i + 1)
		}})
}

func (x *modelTxn) commit() {
	w := x.w
	x.m.compare = map[string]string{}
	txn := &placementpb.TxnCommit{Owner: x.owner}
	sub := uint32(0)
	for i, key := range x.keys {
		kv := x.at[i].keyValue(key)
		e := mvcc.Effect{Key: []byte(key), Value: []byte(x.m.puts[key]), Sub: sub, Version: 1}
		x.m.compare[key] = ""
		if kv != nil {
			// Whatever is latched is committed and does not change.
			x.m.compare[key] = string(kv.Value)
			e.CreateRevision, e.Version = kv.CreateRevision, kv.Version+1
		}
		sub++
		txn.Participants = append(txn.Participants, &placementpb.Participant{
			RangeId: x.ds[i].RangeId, Epoch: x.got[i].Epoch, Term: x.got[i].Term, Session: x.got[i].Session,
			Effects: mvcc.AppendEffects(nil, []mvcc.Effect{e}),
		})
	}
	if x.dead(2) {
		return
	}
	x.p.client.Commit(txn, func(r *placementpb.TxnResult, err error) {
		if x.dead(3) {
			return
		}
		x.p.ended(x.number)
		switch {
		case err != nil: // unknown
		case r.Refused:
			x.m.refused = true
		default:
			x.m.revision = r.Revision
			w.acked = max(w.acked, r.Revision)
		}
	})
}

func (w *world) split(p *process) {
	key := w.key()
	if len(p.directory) > 12 {
		return
	}
	p.client.Split([]byte(key), func(*placementpb.SplitResult, error) {})
}

// recover ends all faults and waits for everything that began.
func (w *world) recover() {
	pending := 0
	for range 20 {
		w.quiet(20)
		pending = 0
		for _, p := range w.nodes {
			pending += p.pending
			for id, m := range p.marks {
				if got, _ := p.readers.Resolved(id); got < m {
					pending++
				}
			}
		}
		if pending == 0 {
			break
		}
	}
	for _, p := range w.nodes {
		if pending != 0 {
			w.t.Errorf("node %d: %d operations never ended", p.id, p.pending)
			for _, id := range loadedIDs(p.node) {
				w.t.Logf("%s %+v", p.loaded[id], p.loaded[id].Status())
			}
		}
		// Nothing that S promises is missing: every range resolves its m (I2).
		for id, m := range p.marks {
			if got, ok := p.readers.Resolved(id); !ok || got < m {
				w.t.Errorf("node %d: range %d has resolved %d, m is %d: %v", p.id, id, got, m, p.loaded[id])
			}
		}
		if got, want := p.dump(newest), w.nodes[0].dump(newest); got != want {
			w.t.Errorf("node %d has\n%snode 1 has\n%s", p.id, got, want)
		}
	}
}

// check compares all that clients saw with the history of the engine.
func (w *world) check() {
	states := map[string]modelKV{} // at the revision that the walk has reached
	type change struct {
		rev  int64
		key  string
		kv   modelKV
		dead bool
	}
	var changes []change
	err := w.nodes[0].mvcc.Events(nil, nil, 0, newest, false, func(e mvcc.Event) (bool, error) {
		c := change{rev: e.Revision, key: string(e.Kv.Key), dead: e.Delete}
		c.kv = modelKV{string(e.Kv.Value), e.Kv.CreateRevision, e.Kv.ModRevision, e.Kv.Version}
		changes = append(changes, c)
		return true, nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	byRevision := map[int64]*modelWrite{}
	slices.SortFunc(w.reads, func(a, b modelRead) int { return cmp.Compare(a.revision, b.revision) })
	reads := w.reads
	writtenAt := map[string]int64{}
	for _, c := range changes {
		if !c.dead {
			writtenAt[c.kv.value] = c.rev
		}
	}
	for _, m := range w.writes {
		if m.revision != 0 {
			if other := byRevision[m.revision]; other != nil {
				w.t.Errorf("%s and %s have both revision %d (I4)", m.name, other.name, m.revision)
			}
			byRevision[m.revision] = m
			if m.revision <= m.after {
				w.t.Errorf("%s at %d was sent after %d was acknowledged (I3)", m.name, m.revision, m.after)
			}
		}
		for key, value := range m.puts {
			at, applied := writtenAt[value]
			switch {
			case m.refused && applied:
				w.t.Errorf("%s was refused and is applied at %d", m.name, at)
			case m.revision != 0 && at != m.revision:
				w.t.Errorf("%s was acknowledged at %d and %s=%s is applied at %d", m.name, m.revision, key, value, at)
			case applied && m.revision == 0:
				byRevision[at] = m // its fate was unknown
			}
		}
	}
	lookUntil := func(rev int64) {
		for len(reads) > 0 && reads[0].revision < rev {
			r := reads[0]
			reads = reads[1:]
			if want := dumpModel(states, r.start, r.end); r.got != want {
				w.t.Errorf("read of [%s,%s) at %d:\n%swant\n%s", r.start, r.end, r.revision, r.got, want)
			}
		}
	}
	for len(changes) > 0 {
		rev := changes[0].rev
		lookUntil(rev)
		m := byRevision[rev]
		if m == nil {
			// A delete whose answer was lost; its keys say nothing about who sent it.
			m = &modelWrite{name: fmt.Sprintf("delete at %d", rev)}
		}
		for key, old := range m.compare {
			if states[key].value != old {
				w.t.Errorf("%s at %d rests on %s=%q, which was %q", m.name, rev, key, old, states[key].value)
			}
		}
		n := 0
		for len(changes) > 0 && changes[0].rev == rev {
			c := changes[0]
			changes = changes[1:]
			n++
			old, lived := states[c.key]
			if c.dead {
				if !lived {
					w.t.Errorf("%s at %d deletes %s, which is not there", m.name, rev, c.key)
				}
				delete(states, c.key)
				continue
			}
			want := modelKV{c.kv.value, rev, rev, 1}
			if lived {
				want.create, want.version = old.create, old.version+1
			}
			if c.kv != want {
				w.t.Errorf("%s at %d: %s is %v, want %v", m.name, rev, c.key, c.kv, want)
			}
			if m.puts[c.key] != c.kv.value {
				w.t.Errorf("%s at %d puts %s=%s, want %s", m.name, rev, c.key, c.kv.value, m.puts[c.key])
			}
			states[c.key] = c.kv
		}
		if len(m.puts) > 0 && n != len(m.puts) {
			w.t.Errorf("%s at %d has %d changes of %d (atomic)", m.name, rev, n, len(m.puts))
		}
	}
	lookUntil(newest)
	if got, want := w.nodes[0].dump(newest), dumpModel(states, "", "~"); got != want {
		w.t.Errorf("the engine has\n%swant\n%s", got, want)
	}
	s, err := w.nodes[0].mvcc.Snapshot(newest)
	if err != nil {
		w.t.Fatal(err)
	}
	defer s.Close()
	if n, err := s.Count(nil, nil); err != nil || n != int64(len(states)) {
		w.t.Errorf("%d keys are counted (%v), %d live", n, err, len(states))
	}
	if text := w.trace.String(); strings.Contains(text, "error ") {
		w.t.Errorf("loud: %s", text)
	}
}

// modelKV is a key's state in the plain model.
type modelKV struct {
	value                string
	create, mod, version int64
}

func dumpModel(states map[string]modelKV, start, end string) string {
	var keys []string
	for k := range states {
		if k >= start && k < end {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	var b strings.Builder
	for _, k := range keys {
		v := states[k]
		fmt.Fprintf(&b, "%s=%s create=%d mod=%d version=%d\n", k, v.value, v.create, v.mod, v.version)
	}
	return b.String()
}
