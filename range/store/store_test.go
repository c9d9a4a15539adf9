package store

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/hawser-kv/hawser/range/keys"
	"github.com/hawser-kv/hawser/range/raftlog"
)

func TestRangesShareOneBatchAndOneSync(t *testing.T) {
	db := openDB(t, vfs.NewMem())
	defer db.Close()
	var ids []uint64
	for id := range uint64(50) {
		ids = append(ids, id)
	}
	begin(t, db, ids...)
	r := newRig(t, db, nil)
	defer r.store.Stop()
	for _, id := range ids {
		r.store.Load(id)
	}
	r.run() // elected
	before := r.store.Stats()
	var puts []*put
	for _, id := range ids {
		puts = append(puts, r.put(id, fmt.Sprint("v", id)))
	}
	r.run()
	for i, p := range puts {
		if p.calls != 1 || p.err != nil {
			t.Errorf("put %d: %d answers, %v", i, p.calls, p.err)
		}
	}
	after := r.store.Stats()
	if after.Syncs-before.Syncs != 1 {
		t.Errorf("%d syncs for one write to each of %d ranges", after.Syncs-before.Syncs, len(ids))
	}
	if n := after.Commits - before.Commits; n != 2 { // appends, effects
		t.Errorf("%d commits", n)
	}
}

// An answer leaves only when what it rests on is durable, and a round runs
// while the sync of the one before it is in flight.
func TestAnswersWaitForTheSyncAndRoundsDoNot(t *testing.T) {
	db := openDB(t, vfs.NewMem())
	defer db.Close()
	begin(t, db, 1, 2)
	r := newRig(t, db, nil)
	defer r.store.Stop()
	r.store.Load(1)
	r.store.Load(2)
	r.run()
	rounds := func() {
		for {
			if worked, err := r.store.RunRound(0); err != nil || !worked {
				must(t, err)
				return
			}
		}
	}
	a := r.put(1, "a")
	rounds()
	b := r.put(2, "b")
	rounds()
	if n := r.store.Stats().Syncing; n != 2 || a.calls+b.calls != 0 {
		t.Fatalf("%d syncs in flight, answers %d and %d", n, a.calls, b.calls)
	}
	if _, err := r.store.SyncNext(0); err != nil {
		t.Fatal(err)
	}
	rounds()
	if a.calls != 1 || b.calls != 0 {
		t.Errorf("after the first sync: answers %d and %d", a.calls, b.calls)
	}
	r.run()
	if b.calls != 1 {
		t.Errorf("after the second sync: %d answers", b.calls)
	}
}

// With many proposals at once, entries are few and large: while MaxSyncs are in
// flight, what comes waits for the next one.
func TestConcurrentProposalsShareEntries(t *testing.T) {
	db := openDB(t, vfs.NewMem())
	defer db.Close()
	begin(t, db, 1)
	r := newRig(t, db, nil)
	defer r.store.Stop()
	r.store.Load(1)
	r.run()
	var puts []*put
	for i := range 256 {
		puts = append(puts, r.put(1, fmt.Sprint(i)))
		_, err := r.store.RunRound(0) // the worst case: a round for each
		must(t, err)
	}
	r.run()
	for i, p := range puts {
		if p.calls != 1 || p.err != nil {
			t.Fatalf("put %d: %d answers, %v", i, p.calls, p.err)
		}
	}
	if n := r.ledgers[1].proposed; n != 3 {
		t.Errorf("256 puts became %d entries", n)
	}
}

func TestMetaGroupGoesFirst(t *testing.T) {
	db := openDB(t, vfs.NewMem())
	defer db.Close()
	begin(t, db, 0, 1, 2, 3)
	r := newRig(t, db, nil)
	defer r.store.Stop()
	for _, id := range []uint64{3, 1, 2, 0} {
		r.store.Load(id)
	}
	r.run()
	if fmt.Sprint(r.visits) != "[0 3 1 2]" {
		t.Errorf("order of visits %v", r.visits)
	}
}

// A range with an endless inbox does not keep others from their turn.
func TestBusyRangeDoesNotStarveOthers(t *testing.T) {
	db := openDB(t, vfs.NewMem())
	defer db.Close()
	begin(t, db, 1, 2)
	r := newRig(t, db, func(c *Config) { c.MaxItems = 10; c.MaxPasses = 3 })
	defer r.store.Stop()
	r.store.Load(1)
	r.store.Load(2)
	r.run()
	for i := range 1000 {
		r.put(1, fmt.Sprint(i))
	}
	p := r.put(2, "x")
	before := r.store.Stats().Rounds
	for p.calls == 0 {
		_, err := r.store.RunRound(0)
		must(t, err)
		_, err = r.store.SyncNext(0)
		must(t, err)
	}
	if n := r.store.Stats().Rounds - before; n > 3 {
		t.Errorf("the other range waited for %d rounds", n)
	}
	r.run()
	if n := len(readLedger(t, db, 1)); n != 1000 {
		t.Errorf("%d puts in the busy range", n)
	}
}

// A round ends when its batch is large, and goes on where it ended.
func TestLargeBatchEndsTheRound(t *testing.T) {
	db := openDB(t, vfs.NewMem())
	defer db.Close()
	ids := []uint64{0, 1, 2, 3, 4, 5}
	begin(t, db, ids...)
	var largest int
	r := newRig(t, db, func(c *Config) {
		c.MaxBatchBytes = 1000
		c.BeforeCommit = func(_ int, b *pebble.Batch, _ bool) error {
			largest = max(largest, b.Len())
			return nil
		}
	})
	defer r.store.Stop()
	for _, id := range ids {
		r.store.Load(id)
	}
	r.run()
	var puts []*put
	for _, id := range ids {
		puts = append(puts, r.put(id, strings.Repeat("x", 800)))
	}
	r.run()
	for i, p := range puts {
		if p.calls != 1 || p.err != nil {
			t.Errorf("put %d: %d answers, %v", i, p.calls, p.err)
		}
	}
	if largest > 3000 {
		t.Errorf("a batch of %d bytes", largest)
	}
}

func TestUnloadedMemberComesBackOnDemand(t *testing.T) {
	db := openDB(t, vfs.NewMem())
	defer db.Close()
	begin(t, db, 1)
	r := newRig(t, db, nil)
	defer r.store.Stop()
	r.put(1, "a")
	r.store.Post(1, errAsleep)
	r.run()
	if s := r.store.Stats(); s.Loaded != 0 || s.Unloads != 1 {
		t.Fatalf("%+v", s)
	}
	if l := r.ledgers[1]; l.closed != nil {
		t.Errorf("closed with %v", l.closed)
	}
	p := r.put(1, "b")
	r.run()
	if p.calls != 1 || p.err != nil {
		t.Errorf("%d answers, %v", p.calls, p.err)
	}
	if got := readLedger(t, db, 1); fmt.Sprint(got) != "[a b]" {
		t.Errorf("ledger %v", got)
	}
}

// A member that asks to be unloaded while its appends are not durable stays: one
// loaded anew would take the rows for durable.
func TestMemberIsNotUnloadedWithSyncsInFlight(t *testing.T) {
	db := openDB(t, vfs.NewMem())
	defer db.Close()
	begin(t, db, 1)
	r := newRig(t, db, nil)
	defer r.store.Stop()
	r.store.Load(1)
	r.run()
	r.put(1, "a")
	r.store.Post(1, func(r *Round) { r.Unload() })
	for {
		worked, err := r.store.RunRound(0)
		must(t, err)
		if !worked {
			break
		}
	}
	if s := r.store.Stats(); s.Syncing != 1 || s.Loaded != 1 {
		t.Errorf("%+v", s)
	}
	r.run()
	if got := readLedger(t, db, 1); fmt.Sprint(got) != "[a]" {
		t.Errorf("ledger %v", got)
	}
}

// 1,000 ranges that nobody uses cost neither a goroutine nor a slot nor memory.
func TestInactiveRangesCostNothing(t *testing.T) {
	db := openDB(t, vfs.NewMem())
	defer db.Close()
	const n = 1000
	var ids []uint64
	for id := range uint64(n) {
		ids = append(ids, id+1)
	}
	begin(t, db, ids...)
	r := newRig(t, db, nil)
	defer r.store.Stop()
	r.put(1, "warm up")
	r.run()
	goroutines, heap := runtime.NumGoroutine(), heapInUse()
	for _, id := range ids {
		r.put(id, "x")
	}
	r.run()
	if s := r.store.Stats(); s.Loaded != n {
		t.Fatalf("%d loaded", s.Loaded)
	}
	for _, id := range ids {
		r.store.Post(id, errAsleep)
	}
	r.run()
	clear(r.ledgers)
	r.visits = nil
	sh := r.store.shards[0]
	if s := r.store.Stats(); s.Loaded != 0 || len(sh.mu.slots) != 0 || len(sh.loaded) != 0 {
		t.Errorf("%+v, %d slots", s, len(sh.mu.slots))
	}
	if got := runtime.NumGoroutine(); got > goroutines {
		t.Errorf("%d goroutines, before %d", got, goroutines)
	}
	// The engine's memory table has grown; a tenth of what the members had is
	// far more than that.
	if grown := heapInUse() - heap; grown > 600<<10 {
		t.Errorf("%d inactive ranges hold %d bytes", n, grown)
	}
}

func heapInUse() int64 {
	runtime.GC()
	runtime.GC() // what sync.Pools hold goes with the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A group with damaged rows is refused and stays refused; others go on.
func TestDamagedGroupIsRefusedAndOthersGoOn(t *testing.T) {
	db := openDB(t, vfs.NewMem())
	defer db.Close()
	begin(t, db, 1, 2)
	must(t, db.Set(keys.Group(1, keys.KindHardState), []byte("nonsense"), pebble.NoSync))
	r := newRig(t, db, nil)
	defer r.store.Stop()
	a, b := r.put(1, "a"), r.put(2, "b")
	r.run()
	if a.calls != 1 || !errors.Is(a.err, raftlog.ErrCorrupt) {
		t.Errorf("damaged: %d answers, %v", a.calls, a.err)
	}
	if b.calls != 1 || b.err != nil {
		t.Errorf("other: %d answers, %v", b.calls, b.err)
	}
	// Refused without another look, which might find something else.
	must(t, db.Delete(keys.Group(1, keys.KindHardState), pebble.NoSync))
	c := r.put(1, "c")
	r.run()
	if c.calls != 1 || !errors.Is(c.err, raftlog.ErrCorrupt) {
		t.Errorf("again: %d answers, %v", c.calls, c.err)
	}
}

// What the store does not know to be damage the loader says: it is not asked
// again.
func TestGroupThatIsNotServedIsLoadedOnce(t *testing.T) {
	db := openDB(t, vfs.NewMem())
	defer db.Close()
	loads := 0
	r := newRig(t, db, func(c *Config) {
		c.Loader = func(id uint64) (Member, error) {
			loads++
			return nil, fmt.Errorf("descriptor: %w", ErrNotServed)
		}
	})
	defer r.store.Stop()
	for range 3 {
		p := r.put(1, "a")
		r.run()
		if p.calls != 1 || !errors.Is(p.err, ErrNotServed) {
			t.Errorf("%d answers, %v", p.calls, p.err)
		}
	}
	if loads != 1 {
		t.Errorf("loaded %d times", loads)
	}
}

func TestUnknownGroupRefusesItems(t *testing.T) {
	db := openDB(t, vfs.NewMem())
	defer db.Close()
	r := newRig(t, db, nil)
	defer r.store.Stop()
	p := r.put(9, "x")
	r.run()
	if p.calls != 1 || !errors.Is(p.err, raftlog.ErrNotFound) {
		t.Errorf("%d answers, %v", p.calls, p.err)
	}
	if n := len(r.store.shards[0].mu.slots); n != 0 {
		t.Errorf("%d slots", n)
	}
	begin(t, db, 9) // it may begin later
	p = r.put(9, "y")
	r.run()
	if p.calls != 1 || p.err != nil {
		t.Errorf("%d answers, %v", p.calls, p.err)
	}
}

func TestFailedMemberIsClosedAndOthersGoOn(t *testing.T) {
	db := openDB(t, vfs.NewMem())
	defer db.Close()
	begin(t, db, 1, 2)
	r := newRig(t, db, nil)
	defer r.store.Stop()
	r.store.Load(1)
	r.store.Load(2)
	r.run()
	broken := errors.New("broken")
	a := r.put(1, "a")
	r.store.Post(1, func(r *Round) { r.Fail(broken) })
	b := r.put(2, "b")
	r.run()
	if a.calls != 1 || a.err == nil || r.ledgers[1].closed != broken {
		t.Errorf("failed member: %d answers, %v; closed with %v", a.calls, a.err, r.ledgers[1].closed)
	}
	if c := r.put(1, "c"); c.calls != 0 {
		t.Error("refused by the caller of Post")
	} else if r.run(); c.calls != 1 || !errors.Is(c.err, broken) {
		t.Errorf("later: %d answers, %v", c.calls, c.err)
	}
	if b.calls != 1 || b.err != nil {
		t.Errorf("other: %d answers, %v", b.calls, b.err)
	}
}

// A broken invariant in a member is not hidden.
func TestPanicInMemberEndsTheRound(t *testing.T) {
	db := openDB(t, vfs.NewMem())
	defer db.Close()
	begin(t, db, 1)
	r := newRig(t, db, nil)
	r.store.Post(1, func(*Round) { panic("invariant") })
	defer func() {
		if p := recover(); p != "invariant" {
			t.Errorf("recovered %v", p)
		}
	}()
	r.run()
}

// Members post to each other, and what comes meanwhile is done in the same
// round, in its batch.
func TestItemsPostedMeanwhileAreInTheSameRound(t *testing.T) {
	db := openDB(t, vfs.NewMem())
	defer db.Close()
	begin(t, db, 0, 1)
	r := newRig(t, db, nil)
	defer r.store.Stop()
	r.store.Load(0)
	r.store.Load(1)
	r.run()
	before := r.store.Stats()
	p := &put{text: "back"}
	r.store.Post(1, func(*Round) {
		r.store.Post(0, func(*Round) { r.store.Post(1, p) })
	})
	_, err := r.store.RunRound(0)
	must(t, err)
	if s := r.store.Stats(); s.Rounds-before.Rounds != 1 || s.Syncs-before.Syncs != 1 {
		t.Errorf("%d rounds, %d syncs", s.Rounds-before.Rounds, s.Syncs-before.Syncs)
	}
	r.run()
	if p.calls != 1 || p.err != nil {
		t.Errorf("%d answers, %v", p.calls, p.err)
	}
}

func TestAgainFlushesAfterTheCommit(t *testing.T) {
	db := openDB(t, vfs.NewMem())
	defer db.Close()
	begin(t, db, 1)
	r := newRig(t, db, nil)
	defer r.store.Stop()
	r.store.Load(1)
	r.run()
	key := keys.Group(1, keys.KindDescriptor)
	var seen string
	r.store.Post(1, func(round *Round) {
		must(t, round.Batch.Set(key, []byte("row"), nil))
		round.Again()
		r.ledgers[1].onFlush = func(*Round) {
			v, closer, err := db.Get(key)
			must(t, err)
			seen = string(v)
			must(t, closer.Close())
		}
	})
	r.run()
	if seen != "row" {
		t.Errorf("the next flush saw %q", seen)
	}
}

func TestTicksReachWhoWantsThem(t *testing.T) {
	db := openDB(t, vfs.NewMem())
	defer db.Close()
	var ticked []string
	members := map[uint64]*clock{1: {name: "1", wants: true, log: &ticked}, 2: {name: "2", log: &ticked}, 3: {name: "3", wants: true, log: &ticked}}
	s, err := Open(Config{DB: db, ManualSync: true, Loader: func(id uint64) (Member, error) { return members[id], nil }})
	must(t, err)
	defer s.Stop()
	for _, id := range []uint64{3, 2, 1} {
		s.Load(id)
	}
	for range 4 {
		_, err := s.RunRound(0)
		must(t, err)
		s.Tick()
	}
	if got := strings.Join(ticked, " "); got != "1 3 1 3 1 3" {
		t.Errorf("ticks %s", got)
	}
	for range 100 { // a worker that was away
		s.Tick()
	}
	ticked = nil
	_, err = s.RunRound(0)
	must(t, err)
	if len(ticked) != 2*maxLateTicks {
		t.Errorf("%d late ticks", len(ticked))
	}
}

// script is a member that does what its items say.
type script struct {
	todo   []func(r *Round)
	closed bool
}

func (s *script) Handle(ev any) { s.todo = append(s.todo, ev.(func(*Round))) }
func (s *script) Flush(r *Round) {
	todo := s.todo
	s.todo = nil
	for _, fn := range todo {
		fn(r)
	}
}
func (s *script) Tick()            {}
func (s *script) WantsTicks() bool { return false }
func (s *script) Close(error)      { s.closed = true }

// scripts is a store whose members do what they are told.
func scripts(t *testing.T, change func(*Config)) *Store {
	t.Helper()
	db := openDB(t, vfs.NewMem())
	cfg := Config{DB: db, ManualSync: true, Loader: func(uint64) (Member, error) { return new(script), nil }}
	if change != nil {
		change(&cfg)
	}
	s, err := Open(cfg)
	must(t, err)
	t.Cleanup(func() { s.Stop(); must(t, db.Close()) })
	return s
}

func runRounds(t *testing.T, s *Store) {
	t.Helper()
	for {
		worked, err := s.RunRound(0)
		must(t, err)
		if !worked {
			return
		}
	}
}

// Without a need for a sync of its own, a callback waits for those in flight,
// and for nothing when there is none.
func TestDurableWithoutSyncWaitsForThoseBefore(t *testing.T) {
	s := scripts(t, nil)
	var log []string
	say := func(what string, sync bool) func(*Round) {
		return func(r *Round) {
			must(t, r.Batch.Set([]byte(what), nil, nil))
			if sync {
				r.NeedSync()
			}
			r.OnCommitted(func() { log = append(log, what+"-committed") })
			r.OnDurable(func() { log = append(log, what+"-durable") })
		}
	}
	check := func(want string) {
		t.Helper()
		if got := strings.Join(log, " "); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		log = nil
	}
	s.Post(1, say("a", false))
	runRounds(t, s)
	check("a-committed a-durable")
	s.Post(1, say("b", true))
	runRounds(t, s)
	s.Post(2, say("c", false))
	runRounds(t, s)
	s.Post(1, say("d", true))
	runRounds(t, s)
	check("b-committed c-committed d-committed")
	_, err := s.SyncNext(0)
	must(t, err)
	runRounds(t, s)
	check("b-durable c-durable")
	_, err = s.SyncNext(0)
	must(t, err)
	runRounds(t, s)
	check("d-durable")
}

// A sync covers what was committed when it began. Its end is reported later, and
// says nothing about what was committed meanwhile: not of a batch that needs a
// sync itself, nor of one that does not.
func TestSyncCoversOnlyWhatWasCommittedBeforeIt(t *testing.T) {
	fs := vfs.NewCrashableMem()
	db := openDB(t, fs)
	s, err := Open(Config{DB: db, ManualSync: true, Loader: func(uint64) (Member, error) { return new(script), nil }})
	must(t, err)
	defer func() { s.Stop(); must(t, db.Close()) }()
	var reported []string
	write := func(what string, sync bool) {
		s.Post(1, func(r *Round) {
			must(t, r.Batch.Set([]byte(what), nil, nil))
			if sync {
				r.NeedSync()
			}
			r.OnDurable(func() { reported = append(reported, what) })
		})
		runRounds(t, s)
	}
	check := func(when, wantReported, wantOnDisk string) {
		t.Helper()
		crashed := openDB(t, fs.CrashClone(vfs.CrashCloneCfg{}))
		defer func() { must(t, crashed.Close()) }()
		it, err := crashed.NewIter(nil)
		must(t, err)
		var onDisk []string
		for it.First(); it.Valid(); it.Next() {
			onDisk = append(onDisk, string(it.Key()))
		}
		must(t, it.Close())
		if got := strings.Join(reported, " "); got != wantReported {
			t.Errorf("%s: reported %q, want %q", when, got, wantReported)
		}
		if got := strings.Join(onDisk, " "); got != wantOnDisk {
			t.Errorf("%s: on the disk %q, want %q", when, got, wantOnDisk)
		}
	}
	next := func() {
		t.Helper()
		synced, err := s.SyncNext(0)
		must(t, err)
		if !synced {
			t.Error("no sync in flight")
		}
		runRounds(t, s)
	}
	write("a", true)
	check("a is committed", "", "")
	must(t, s.SyncLog())
	check("a is synced", "", "a")
	write("b", true)
	write("c", false)
	next()
	check("the sync of a is reported", "a", "a")
	next() // no sync has begun since b: this one covers c, too
	check("the sync of b is reported", "a b c", "a b c")

	write("d", true)
	write("e", true)
	next()
	check("a sync after d and e, reported for d", "a b c d", "a b c d e")
	write("f", false)
	next()
	check("the same sync, reported for e", "a b c d e f", "a b c d e")
}

// What an inbox has beyond its share comes after the others' turn, and comes.
func TestInboxBeyondItsShareHasAnotherTurn(t *testing.T) {
	s := scripts(t, func(c *Config) { c.MaxItems = 2 })
	var log []string
	for i := range 5 {
		s.Post(1, func(*Round) { log = append(log, fmt.Sprint("a", i)) })
	}
	s.Post(2, func(*Round) { log = append(log, "b") })
	_, err := s.RunRound(0)
	must(t, err)
	if got := strings.Join(log, " "); got != "a0 a1 b a2 a3 a4" {
		t.Error(got)
	}
}

// A fault that a member finds stops the store, and the batch is not committed.
func TestFailStoreCommitsNothing(t *testing.T) {
	s := scripts(t, nil)
	bad := errors.New("bad")
	called := false
	s.Post(1, func(r *Round) {
		must(t, r.Batch.Set([]byte("k"), nil, nil))
		r.OnCommitted(func() { called = true })
		r.FailStore(bad)
	})
	if _, err := s.RunRound(0); !errors.Is(err, bad) {
		t.Errorf("round: %v", err)
	}
	if _, _, err := s.cfg.DB.Get([]byte("k")); !errors.Is(err, pebble.ErrNotFound) || called {
		t.Errorf("row: %v, callback %v", err, called)
	}
}

type clock struct {
	name  string
	wants bool
	log   *[]string
}

func (c *clock) Handle(any)       {}
func (c *clock) Flush(*Round)     {}
func (c *clock) Tick()            { *c.log = append(*c.log, c.name) }
func (c *clock) WantsTicks() bool { return c.wants }
func (c *clock) Close(error)      {}

// NOSPACE: while the disk is nearly full new writes are to be refused, and it
// ends when there is room again, with a margin.
func TestLowSpaceBeginsAtTheReserveAndEndsWithAMargin(t *testing.T) {
	db := openDB(t, vfs.NewMem())
	defer db.Close()
	free := uint64(1000)
	s, err := Open(Config{
		DB: db, ManualSync: true, ReserveBytes: 100,
		Loader:    func(uint64) (Member, error) { return nil, errors.New("none") },
		FreeBytes: func() (uint64, error) { return free, nil },
	})
	must(t, err)
	defer s.Stop()
	for _, step := range []struct {
		free uint64
		low  bool
	}{{1000, false}, {100, false}, {99, true}, {110, true}, {124, true}, {125, false}, {110, false}, {0, true}} {
		free = step.free
		must(t, s.PollSpace())
		if s.LowSpace() != step.low {
			t.Errorf("%d bytes free: low is %v", free, s.LowSpace())
		}
	}
}

// A quota ends at itself, and puts begin again when a sixteenth of it is free;
// whether the disk has room is another matter.
func TestQuotaBeginsAtItselfAndEndsWithAMargin(t *testing.T) {
	db := openDB(t, vfs.NewMem())
	defer db.Close()
	for _, quota := range []int64{160, 100 << 20, 1 << 50} {
		core, logs := observer.New(zap.WarnLevel)
		free, used := uint64(1<<40), int64(0)
		s, err := Open(Config{
			DB: db, ManualSync: true, Logger: zap.New(core),
			Loader:     func(uint64) (Member, error) { return nil, errors.New("none") },
			FreeBytes:  func() (uint64, error) { return free, nil },
			QuotaBytes: quota,
			UsedBytes:  func() int64 { return used },
		})
		must(t, err)
		for _, step := range []struct {
			used int64
			low  bool
		}{{quota - 1, false}, {quota, true}, {2 * quota, true}, {quota - quota/16, true}, {quota - quota/16 - 1, false}, {quota - 1, false}} {
			used = step.used
			must(t, s.PollSpace())
			if s.LowSpace() != step.low {
				t.Errorf("quota %d, %d used: low is %v", quota, used, s.LowSpace())
			}
		}
		for _, entry := range logs.TakeAll() {
			if strings.Contains(entry.Message, "disk") {
				t.Errorf("the quota was used up, and the log says %q", entry.Message)
			}
		}
		used, free = quota, 0
		must(t, s.PollSpace())
		used = 0
		must(t, s.PollSpace())
		if !s.LowSpace() {
			t.Error("the disk is full: there is room under the quota, and puts go on")
		}
		if n := len(logs.TakeAll()); n != 3 {
			t.Errorf("%d lines for a full disk, a quota that is used up and one that is not", n)
		}
		s.Stop()
	}
}

func TestConfigIsChecked(t *testing.T) {
	_, err := Open(Config{Shards: -1, QuotaBytes: 1})
	for _, want := range []string{"a quota", "no engine", "no loader", "limits below 1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}

// Stop without Start drives what was posted to its end and closes the rest.
func TestStopLeavesNoItemWithoutAnswer(t *testing.T) {
	db := openDB(t, vfs.NewMem())
	defer db.Close()
	begin(t, db, 1, 2)
	r := newRig(t, db, nil)
	var puts []*put
	for i := range 10 {
		puts = append(puts, r.put(uint64(1+i%2), fmt.Sprint(i)))
	}
	r.store.Stop()
	late := r.put(1, "late")
	if !errors.Is(late.err, ErrStopped) {
		t.Errorf("after the stop: %v", late.err)
	}
	for i, p := range puts {
		if p.calls != 1 || p.err != nil {
			t.Errorf("put %d: %d answers, %v", i, p.calls, p.err)
		}
	}
	got := append(readLedger(t, db, 1), readLedger(t, db, 2)...)
	slices.Sort(got)
	if strings.Join(got, "") != "0123456789" {
		t.Errorf("ledgers %v", got)
	}
}
