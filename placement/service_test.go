package placement_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hawser-kv/hawser/placement"
	"github.com/hawser-kv/hawser/placement/client"
	"github.com/hawser-kv/hawser/placement/meta"
	"github.com/hawser-kv/hawser/placement/sequencer"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// soleGroup is a meta group of one voter on an engine: what is proposed is
// committed when the driver says so.
type soleGroup struct {
	db      *pebble.DB
	svc     *placement.Service
	member  *placement.Member
	term    uint64
	index   uint64
	serving bool
	refuse  bool
	resigns int
	log     [][]byte
}

func (g *soleGroup) Term() uint64    { return g.term }
func (g *soleGroup) Serving() bool   { return g.serving }
func (g *soleGroup) SoleVoter() bool { return true }
func (g *soleGroup) Propose(data []byte) error {
	if g.refuse {
		return errors.New("leadership is being transferred")
	}
	g.log = append(g.log, data)
	return nil
}
func (g *soleGroup) ReadIndex([]byte) error { return errors.New("a sole voter needs no round") }
func (g *soleGroup) Resign() error {
	g.resigns++
	g.serving = false // the test says when the election is over
	return nil
}

// run drives the member until nothing is left, as the store's worker does.
func (g *soleGroup) run(t testing.TB) {
	t.Helper()
	for {
		g.member.Drive()
		if len(g.log) == 0 {
			return
		}
		b := g.db.NewBatch()
		for _, data := range g.log {
			g.index++
			if err := g.svc.Apply(b, g.index, g.term, data); err != nil {
				t.Fatal(err)
			}
		}
		g.log = nil
		if err := b.Commit(pebble.NoSync); err != nil {
			t.Fatal(err)
		}
	}
}

// testNode is a placement service of one node with its client.
type testNode struct {
	t      testing.TB
	group  *soleGroup
	svc    *placement.Service
	c      *client.Client
	woken  atomic.Int64
	ranges func(id uint64, m *placementpb.FromSequencer)

	mu       sync.Mutex
	cuts     []*placementpb.Cut
	sessions []uint64
}

func open(t testing.TB, db *pebble.DB, term, session uint64, boundaries ...string) *testNode {
	t.Helper()
	var keys [][]byte
	for _, b := range boundaries {
		keys = append(keys, []byte(b))
	}
	n := &testNode{t: t, ranges: func(uint64, *placementpb.FromSequencer) {}}
	var err error
	n.svc, err = placement.Open(db, placement.Config{
		Sequencer: sequencer.Config{Bootstrap: meta.NewBootstrap(7, keys, []*rangepb.Replica{{NodeId: 1, ReplicaId: 1}})},
		Wake:      func() { n.woken.Add(1) },
	})
	if err != nil {
		t.Fatal(err)
	}
	n.group = &soleGroup{db: db, svc: n.svc, term: term, index: term * 1000, serving: true}
	n.group.member = placement.NewMember(n.svc, n.group)
	n.c, err = client.New(client.Config{
		ClusterID: 7, NodeID: 1, FirstSession: session, Link: n.svc,
		Range: func(id uint64, m *placementpb.FromSequencer) { n.ranges(id, m) },
		NewSession: func(_, session uint64) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.sessions = append(n.sessions, session)
		},
		Cut: func(c *placementpb.Cut) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.cuts = append(n.cuts, c)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	n.svc.Attach(1, n.c.Deliver)
	n.c.Start()
	return n
}

func memDB(t testing.TB) *pebble.DB {
	t.Helper()
	db, err := pebble.Open("", &pebble.Options{FS: vfs.NewMem(), Logger: quiet{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

type quiet struct{}

func (quiet) Infof(string, ...any)           {}
func (quiet) Errorf(string, ...any)          {}
func (quiet) Fatalf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }

// register registers the leader of a range and returns r0.
func (n *testNode) register(id, term uint64) int64 {
	n.t.Helper()
	r0 := int64(-1)
	n.ranges = func(got uint64, m *placementpb.FromSequencer) {
		if r := m.GetRegistered(); got == id && r != nil && !r.Refused {
			r0 = r.R0
		}
	}
	n.c.Send(&placementpb.ToSequencer{Body: &placementpb.ToSequencer_Register{
		Register: &placementpb.Register{RangeId: id, Epoch: 1, Term: term}}})
	n.group.run(n.t)
	if r0 < 0 {
		n.t.Fatalf("r%d is not registered", id)
	}
	return r0
}

// grant asks for revisions and returns the first; it must come before Send
// returns.
func (n *testNode) grant(id, term uint64, count uint32) int64 {
	n.t.Helper()
	first := int64(-1)
	n.ranges = func(_ uint64, m *placementpb.FromSequencer) {
		if g := m.GetGrant(); g != nil && !g.Refused {
			first = g.First
		}
	}
	n.c.Send(&placementpb.ToSequencer{Body: &placementpb.ToSequencer_Grant{
		Grant: &placementpb.GrantRequest{RangeId: id, Epoch: 1, Term: term, Seq: 1, Count: count}}})
	if first < 0 {
		n.t.Fatalf("r%d: not granted at once", id)
	}
	return first
}

func (n *testNode) query(ids ...uint64) *placementpb.QueryAnswer {
	n.t.Helper()
	var ranges []*placementpb.RangeEpoch
	for _, id := range ids {
		ranges = append(ranges, &placementpb.RangeEpoch{RangeId: id, Epoch: 1})
	}
	var answer *placementpb.QueryAnswer
	n.c.Query(ranges, func(a *placementpb.QueryAnswer, err error) {
		if err != nil {
			n.t.Fatal(err)
		}
		answer = a
	})
	if answer == nil {
		n.t.Fatal("query not answered at once")
	}
	return answer
}

// A sole voter grants and answers before the call returns.
func TestSoleVoterAnswersInline(t *testing.T) {
	n := open(t, memDB(t), 2, 1, "m")
	n.group.run(t)
	if a := n.query(1, 2); a.Revision != 1 || a.Marks[0] != 1 || a.Marks[1] != 1 {
		t.Fatalf("%v", a)
	}
	if r0 := n.register(1, 5); r0 != 1 {
		t.Fatalf("r0=%d", r0)
	}
	before := n.woken.Load()
	if first := n.grant(1, 5, 3); first != 2 {
		t.Fatalf("first=%d", first)
	}
	if a := n.query(1, 2); a.Revision != 4 || a.Marks[0] != 4 || a.Marks[1] != 1 {
		t.Fatalf("%v", a)
	}
	// Cuts come with the next turn of the worker, which is woken once.
	if n.woken.Load() != before+1 {
		t.Fatalf("woken %d times", n.woken.Load()-before)
	}
	n.group.run(t)
	last := n.cuts[len(n.cuts)-1]
	if !n.cuts[0].First || last.First || last.Revision != 4 || len(last.Marks) != 1 || last.Marks[0].Revision != 4 {
		t.Fatalf("cuts %v", n.cuts)
	}
}

// R2: a planned stop leaves no gap; a crash leaves one that the bound limits.
func TestPlannedStopLeavesNoGap(t *testing.T) {
	db := memDB(t)
	n := open(t, db, 2, 1)
	n.group.run(t)
	n.register(1, 5)
	n.grant(1, 5, 10)
	done := false
	n.svc.HandOver(func() { done = true })
	if done {
		t.Fatal("handed over before it is committed")
	}
	n.group.run(t)
	if !done {
		t.Fatal("not handed over")
	}

	n = open(t, db, 3, 100)
	n.group.run(t)
	if r0 := n.register(1, 6); r0 != 11 {
		t.Fatalf("r0=%d", r0)
	}
	if first := n.grant(1, 6, 1); first != 12 {
		t.Fatalf("first=%d after a planned stop at 11", first)
	}

	n = open(t, db, 4, 200)
	n.group.run(t)
	n.register(1, 7)
	if first := n.grant(1, 7, 1); first <= 12 || first > 12+2*32 {
		t.Fatalf("first=%d after a crash at 12", first)
	}
}

func TestHandOverIsDoneAtOnceWhereNobodyLeads(t *testing.T) {
	n := open(t, memDB(t), 2, 1)
	done := false
	n.svc.HandOver(func() { done = true })
	if !done {
		t.Fatal("waits for nothing")
	}
}

// A node that is stopped before it leads does not begin to: that would raise the
// bound, and the stop would leave a gap (R2).
func TestNobodyBeginsToLeadAfterAHandOver(t *testing.T) {
	db := memDB(t)
	n := open(t, db, 2, 1)
	n.group.run(t)
	n.svc.HandOver(func() {})
	n.group.run(t)

	n = open(t, db, 3, 100)
	n.group.serving = false // the election is not over
	n.group.run(t)
	done := false
	n.svc.HandOver(func() { done = true })
	n.group.serving = true
	n.group.run(t)
	if st := n.svc.Stats(); !done || st.Epoch != 0 {
		t.Fatalf("done %v, %+v", done, st)
	}
	n.svc.Resume()
	n.group.run(t)
	n.register(1, 5)
	if first := n.grant(1, 5, 1); first != 2 {
		t.Fatalf("first=%d, nothing was granted before", first)
	}
}

// A hand-over that does not happen: S serves again.
func TestResumeAfterHandOver(t *testing.T) {
	n := open(t, memDB(t), 2, 1)
	n.group.run(t)
	n.register(1, 5)
	n.svc.HandOver(func() {})
	n.group.run(t)
	n.svc.Resume()
	n.group.run(t)
	if first := n.grant(1, 5, 1); first != 2 {
		t.Fatalf("first=%d", first)
	}
}

// A proposal that raft drops makes everything judged since wrong: S gives up in
// this term and says nothing more; in the next it begins anew.
func TestDroppedProposalEndsTheTerm(t *testing.T) {
	n := open(t, memDB(t), 2, 1)
	n.group.run(t)
	n.group.refuse = true
	failed := false
	n.c.Split([]byte("m"), func(_ *placementpb.SplitResult, err error) { failed = errors.Is(err, client.ErrSessionOver) })
	n.group.run(t)
	if st := n.svc.Stats(); st.Phase != "idle" || n.group.resigns != 1 {
		t.Fatalf("%+v, leadership was given up %d times", st, n.group.resigns)
	}
	n.group.refuse = false
	n.group.serving = true // raft has not come to it yet
	n.group.run(t)
	if st := n.svc.Stats(); st.Phase != "idle" || n.group.resigns != 1 {
		t.Fatalf("leads again in the same term: %+v, leadership was given up %d times", st, n.group.resigns)
	}
	n.group.term++
	n.group.run(t)
	if st := n.svc.Stats(); st.Phase != "serving" || !failed {
		t.Fatalf("%+v, split failed=%v", st, failed)
	}
	if len(n.sessions) != 2 {
		t.Fatalf("sessions %v", n.sessions)
	}
}

// A hand-over whose entry raft drops is over at once: S has stopped and the node
// gives leadership up. It leads again when it is told to stay.
func TestDroppedHandOverEndsIt(t *testing.T) {
	n := open(t, memDB(t), 2, 1)
	n.group.run(t)
	n.group.refuse = true
	done := false
	n.svc.HandOver(func() { done = true })
	n.group.run(t)
	if st := n.svc.Stats(); !done || st.Phase != "idle" || n.group.resigns != 1 {
		t.Fatalf("done %v, %+v, leadership was given up %d times", done, st, n.group.resigns)
	}
	n.group.refuse, n.group.serving = false, true
	n.group.term++
	n.group.run(t)
	if st := n.svc.Stats(); st.Phase != "idle" {
		t.Fatalf("leads although it leaves: %+v", st)
	}
	n.svc.Resume()
	n.group.run(t)
	if st := n.svc.Stats(); st.Phase != "serving" || st.Epoch != 3 {
		t.Fatalf("%+v", st)
	}
}

// What a callback asks, it is answered: no lock is held while S's words are
// delivered.
func TestCallbacksMayCallTheService(t *testing.T) {
	n := open(t, memDB(t), 2, 1)
	n.group.run(t)
	var revision int64
	n.c.Compact(1, func(r *placementpb.CompactResult, err error) {
		n.svc.Receive(&placementpb.ToSequencer{ClusterId: 8})
		revision = n.query(1).Compacted
	})
	n.group.run(t)
	if revision != 1 {
		t.Fatalf("compacted %d", revision)
	}
}

// A damaged row stops the start with an error that names it.
func TestOpenRefusesDamagedRows(t *testing.T) {
	db := memDB(t)
	n := open(t, db, 2, 1)
	n.group.run(t)
	it, err := db.NewIter(nil)
	if err != nil {
		t.Fatal(err)
	}
	it.First()
	key := append([]byte(nil), it.Key()...)
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
	if err := db.Set(key, []byte("damaged"), pebble.NoSync); err != nil {
		t.Fatal(err)
	}
	var corrupt *meta.CorruptError
	if _, err := placement.Open(db, placement.Config{Wake: func() {}}); !errors.As(err, &corrupt) {
		t.Fatal(err)
	}
}

// Entries of the log that are no commands are faults.
func TestApplyRefusesWhatIsNoCommand(t *testing.T) {
	db := memDB(t)
	n := open(t, db, 2, 1)
	n.group.run(t)
	b := db.NewBatch()
	var corrupt *meta.CorruptError
	if err := n.svc.Apply(b, 99, 2, []byte{0xff}); !errors.As(err, &corrupt) {
		t.Fatal(err)
	}
	bad := meta.EncodeCommand(&placementpb.MetaCommand{Epoch: 2, Command: &placementpb.MetaCommand_Compact{
		Compact: &placementpb.Compact{Revision: 1 << 40}}})
	if err := n.svc.Apply(b, 99, 2, bad); !errors.Is(err, meta.ErrInvalidCommand) {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

// Many goroutines ask while one grants and cuts: R never falls for anyone, and
// no query sees less than what was granted before it.
func TestConcurrentQueriesNeverFall(t *testing.T) {
	n := open(t, memDB(t), 2, 1)
	n.group.run(t)
	n.register(1, 5)
	var granted atomic.Int64
	n.ranges = func(_ uint64, m *placementpb.FromSequencer) {
		if g := m.GetGrant(); g != nil {
			granted.Store(g.First)
		}
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		wg.Go(func() {
			last := int64(0)
			for {
				select {
				case <-stop:
					return
				default:
				}
				atLeast := granted.Load()
				n.c.Query([]*placementpb.RangeEpoch{{RangeId: 1, Epoch: 1}}, func(a *placementpb.QueryAnswer, err error) {
					if err != nil || a.Revision < last || a.Revision < atLeast || a.Marks[0] != a.Revision {
						t.Errorf("%v, %v after R=%d, granted %d", a, err, last, atLeast)
						return
					}
					last = a.Revision
				})
			}
		})
	}
	for seq := range uint64(20_000) {
		n.c.Send(&placementpb.ToSequencer{Body: &placementpb.ToSequencer_Grant{
			Grant: &placementpb.GrantRequest{RangeId: 1, Epoch: 1, Term: 5, Seq: seq + 1, Count: 1}}})
		if n.woken.Swap(0) > 0 {
			n.group.run(t)
		}
	}
	close(stop)
	wg.Wait()
	if granted.Load() < 20_000 {
		t.Fatalf("granted up to %d", granted.Load())
	}
}

// A start with many active ranges is one cut, one wake and one registration for
// each, and no entry of the meta log beyond the first raise.
func TestStartWithManyRanges(t *testing.T) {
	db := memDB(t)
	var boundaries []string
	const ranges = 2000
	for i := 1; i < ranges; i++ {
		boundaries = append(boundaries, fmt.Sprintf("%06d", i))
	}
	registerAll := func(n *testNode) (registered, entries int) {
		n.ranges = func(id uint64, m *placementpb.FromSequencer) {
			if r := m.GetRegistered(); r != nil && !r.Refused {
				registered++
			}
		}
		n.group.run(t)
		before := n.group.index
		for id := range uint64(ranges) {
			n.c.Send(&placementpb.ToSequencer{Body: &placementpb.ToSequencer_Register{
				Register: &placementpb.Register{RangeId: id + 1, Epoch: 1, Term: 1}}})
		}
		n.group.run(t)
		return registered, int(n.group.index - before)
	}
	if got, _ := registerAll(open(t, db, 2, 1, boundaries...)); got != ranges {
		t.Fatalf("%d registered", got)
	}
	n := open(t, db, 3, 100)
	wakes := 0
	n.ranges = func(_ uint64, m *placementpb.FromSequencer) {
		if m.GetWake() != nil {
			wakes++
		}
	}
	n.group.run(t)
	if len(n.cuts) != 1 || len(n.cuts[0].Descriptors) != ranges || wakes != ranges {
		t.Fatalf("%d cuts, %d wakes", len(n.cuts), wakes)
	}
	if got, entries := registerAll(n); got != ranges || entries != 0 {
		t.Fatalf("%d registered, %d entries", got, entries)
	}
}

// BenchmarkQuery is a read's question through client and service, as many
// goroutines ask it: the target is 1,000,000 a second on one core.
func BenchmarkQuery(b *testing.B) {
	n := open(b, memDB(b), 2, 1, "m")
	n.group.run(b)
	ranges := []*placementpb.RangeEpoch{{RangeId: 1, Epoch: 1}}
	b.ReportAllocs()
	before := cpuSeconds(b)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			n.c.Query(ranges, func(a *placementpb.QueryAnswer, err error) {
				if err != nil {
					b.Error(err)
				}
			})
		}
	})
	b.ReportMetric(float64(b.N)/(cpuSeconds(b)-before), "queries/cpu-s")
}

// cpuSeconds is the processor time used by the process: a rate per second of it
// does not depend on what else the machine does.
func cpuSeconds(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// BenchmarkGrantInline is one grant of one revision through client and service
// and back to the range.
func BenchmarkGrantInline(b *testing.B) {
	n := open(b, memDB(b), 2, 1, "m")
	n.group.run(b)
	n.register(1, 5)
	granted := 0
	n.ranges = func(uint64, *placementpb.FromSequencer) { granted++ }
	b.ReportAllocs()
	before := cpuSeconds(b)
	for b.Loop() {
		n.c.Send(&placementpb.ToSequencer{Body: &placementpb.ToSequencer_Grant{
			Grant: &placementpb.GrantRequest{RangeId: 1, Epoch: 1, Term: 5, Seq: 1, Count: 1}}})
		if n.woken.Load() > 0 {
			n.woken.Store(0)
			n.group.run(b)
		}
		if granted%(1<<14) == 0 {
			n.group.member.Tick()
		}
	}
	b.ReportMetric(float64(granted)/(cpuSeconds(b)-before), "grants/cpu-s")
}
