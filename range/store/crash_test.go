package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// crashRun is a random history of puts to three groups, driven by hand, that
// the disk may be copied out of before any engine write.
type crashRun struct {
	rig   *rig
	rng   *rand.Rand
	acked map[uint64][]string // in the order of answers
	sent  map[uint64]int
}

const crashGroups = 3

func (c *crashRun) step() error {
	s := c.rig.store
	switch c.rng.IntN(9) {
	case 0, 1, 2:
		id := c.rng.Uint64N(crashGroups)
		c.sent[id]++
		s.Post(id, &put{text: fmt.Sprint(c.sent[id]), done: func(p *put) {
			if p.err == nil {
				c.acked[id] = append(c.acked[id], p.text)
			}
		}})
	case 3:
		if c.rng.IntN(6) == 0 { // the engine writes its tables, and drops its log
			return c.rig.db.Flush()
		}
		s.Post(c.rng.Uint64N(crashGroups), errAsleep)
	case 4, 5:
		_, err := s.SyncNext(0)
		return err
	case 6: // its end is reported later, or not before the crash
		return s.SyncLog()
	default:
		_, err := s.RunRound(0)
		return err
	}
	return nil
}

var errCrash = errors.New("crash")

// runUntilCommit runs a seed's history until its n-th engine commit and returns
// the disk as it was before that, with some of what was not synced, and what
// had been acknowledged. done: there is no n-th commit.
func runUntilCommit(t *testing.T, seed uint64, n int) (disk *vfs.MemFS, acked map[uint64][]string, done bool) {
	fs := vfs.NewCrashableMem()
	db := openDB(t, fs)
	begin(t, db, 0, 1, 2)
	rng := rand.New(rand.NewPCG(seed, uint64(n)))
	commits := 0
	c := &crashRun{rng: rand.New(rand.NewPCG(seed, 0)), acked: make(map[uint64][]string), sent: make(map[uint64]int)}
	c.rig = newRig(t, db, func(cfg *Config) {
		cfg.BeforeCommit = func(int, *pebble.Batch, bool) error {
			if commits++; commits == n {
				disk = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 50, 100}[rng.IntN(3)], RNG: rng})
				acked = cloneAcked(c.acked)
				return errCrash
			}
			return nil
		}
	})
	for range 300 {
		if err := c.step(); err != nil {
			if !errors.Is(err, errCrash) {
				t.Fatal(err)
			}
			break
		}
	}
	c.rig.store.Stop()
	must(t, db.Close())
	return disk, acked, disk == nil
}

func cloneAcked(m map[uint64][]string) map[uint64][]string {
	c := make(map[uint64][]string)
	for id, texts := range m {
		c[id] = append([]string(nil), texts...)
	}
	return c
}

// The node may crash between any two engine writes, with any part of what was
// not synced on the disk. Afterwards every group starts, its state is that of
// its log, everything acknowledged is there, in order, and it goes on.
func TestCrashBetweenAnyTwoEngineWrites(t *testing.T) {
	seeds := uint64(4)
	if testing.Short() {
		seeds = 1
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			for n := 1; ; n++ {
				disk, acked, done := runUntilCommit(t, seed, n)
				if done {
					if n < 20 {
						t.Errorf("only %d engine writes", n)
					}
					return
				}
				checkAfterCrash(t, disk, acked, fmt.Sprintf("crash before write %d", n))
			}
		})
	}
}

func checkAfterCrash(t *testing.T, disk vfs.FS, acked map[uint64][]string, what string) {
	t.Helper()
	db := openDB(t, disk)
	defer func() { must(t, db.Close()) }()
	r := newRig(t, db, nil)
	defer r.store.Stop()
	for id := range uint64(crashGroups) {
		readLedger(t, db, id) // applied state and effects are of one moment
		r.store.Load(id)
	}
	r.run() // the logs are replayed
	for id := range uint64(crashGroups) {
		got := readLedger(t, db, id)
		if len(got) < len(acked[id]) || strings.Join(got[:len(acked[id])], " ") != strings.Join(acked[id], " ") {
			t.Fatalf("%s: group %d has %v, acknowledged were %v", what, id, got, acked[id])
		}
		// Each put of the history is its number: none twice, none left out.
		for i, text := range got {
			if text != fmt.Sprint(i+1) {
				t.Fatalf("%s: group %d has %v", what, id, got)
			}
		}
		p := r.put(id, fmt.Sprint(len(got)+1))
		r.run()
		if p.calls != 1 || p.err != nil {
			t.Fatalf("%s: group %d does not go on: %d answers, %v", what, id, p.calls, p.err)
		}
	}
}

// faultyDisk fails writes and syncs of the engine's log once armed.
type faultyDisk struct {
	armed atomic.Bool
	err   error
}

func (f *faultyDisk) inject(op errorfs.Op) error {
	if !f.armed.Load() || !strings.HasSuffix(op.Path, ".log") {
		return nil
	}
	switch op.Kind {
	case errorfs.OpFileWrite, errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo, errorfs.OpFileFlush, errorfs.OpFileWriteAt, errorfs.OpFilePreallocate:
		return f.err
	}
	return nil
}

// A disk that fails stops the node's store: everything outstanding is answered,
// once, nothing that was not durable is acknowledged, and what comes later is
// refused. A full disk is told from other faults.
func TestFailingDiskStopsTheStore(t *testing.T) {
	for _, tc := range []struct {
		name    string
		err     error
		noSpace bool
	}{
		{"io error", errorfs.ErrInjected, false},
		{"disk full", syscall.ENOSPC, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			fault := &faultyDisk{err: tc.err}
			mem := vfs.NewCrashableMem()
			db := openDB(t, errorfs.Wrap(mem, errorfs.InjectorFunc(fault.inject)))
			begin(t, db, 0, 1, 2)
			r := newRig(t, db, func(c *Config) { c.ManualSync = false; c.Shards = 1 })
			r.store.Start(t.Context())
			var mu sync.Mutex
			acked := make(map[uint64][]string)
			next := make(map[uint64]int)
			var puts []*put
			var answered, twice int
			post := func(id uint64, wg *sync.WaitGroup) {
				next[id]++
				wg.Add(1)
				p := &put{text: fmt.Sprint(next[id])}
				p.done = func(p *put) {
					mu.Lock()
					defer mu.Unlock()
					answered++
					if p.calls > 1 {
						twice++
						return
					}
					if p.err == nil {
						acked[id] = append(acked[id], p.text)
					}
					wg.Done()
				}
				puts = append(puts, p)
				r.store.Post(id, p)
			}
			var before, after sync.WaitGroup
			for i := range 30 {
				post(uint64(i%crashGroups), &before)
			}
			before.Wait()
			fault.armed.Store(true)
			for i := range 30 {
				post(uint64(i%crashGroups), &after)
			}
			<-r.store.Failed()
			after.Wait()
			r.store.Stop()
			if err := r.store.Err(); !errors.Is(err, tc.err) || errors.Is(err, ErrNoSpace) != tc.noSpace {
				t.Errorf("fault %v", err)
			}
			mu.Lock()
			if answered != len(puts) || twice != 0 {
				t.Errorf("%d puts, %d answers, %d twice", len(puts), answered, twice)
			}
			mu.Unlock()
			late := &put{text: "late"}
			r.store.Post(1, late)
			if late.calls != 1 || !errors.Is(late.err, tc.err) {
				t.Errorf("after the fault: %d answers, %v", late.calls, late.err)
			}
			// What the disk has synced explains every answer.
			checkAfterCrash(t, mem.CrashClone(vfs.CrashCloneCfg{}), acked, tc.name)
		})
	}
}

// The hook's error is a fault like the engine's.
func TestErrorBeforeCommitIsAFault(t *testing.T) {
	db := openDB(t, vfs.NewMem())
	defer db.Close()
	begin(t, db, 1)
	boom := errors.New("boom")
	r := newRig(t, db, func(c *Config) { c.BeforeCommit = func(int, *pebble.Batch, bool) error { return boom } })
	p := r.put(1, "a")
	if _, err := r.store.RunRound(0); !errors.Is(err, boom) {
		t.Errorf("round: %v", err)
	}
	select {
	case <-r.store.Failed():
	default:
		t.Error("not failed")
	}
	if p.calls != 1 || p.err == nil {
		t.Errorf("%d answers, %v", p.calls, p.err)
	}
	if got := readLedger(t, db, 1); len(got) != 0 {
		t.Errorf("committed %v", got)
	}
}
