package store

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/hawser-kv/hawser/range/engine"
)

// fillLog returns an engine whose log is broken, which a commit has not found yet,
// and what commits to it, without a sync, until one does.
func fillLog(t *testing.T) (db *pebble.DB, fill func() error) {
	t.Helper()
	var broken atomic.Bool
	db = openDB(t, errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if broken.Load() && op.Kind == errorfs.OpFileWrite && strings.HasSuffix(op.Path, ".log") {
			return errorfs.ErrInjected
		}
		return nil
	})))
	return db, func() error {
		broken.Store(true)
		// More than the engine gathers before it writes, and nothing for its memtable: to
		// begin another is to begin another log, which would be found broken first.
		large := make([]byte, 100<<10)
		for range 10_000 {
			if err := db.LogData(large, pebble.NoSync); err != nil {
				return err
			}
		}
		return errors.New("the engine does not see that its log cannot be written")
	}
}

func isLocked(f *engine.Fault) bool {
	select {
	case <-f.Locked():
		return true
	default:
		return false
	}
}

// A write to the engine's log that fails while nobody waits for a sync is found
// by a commit that comes later, within the engine's locks: the engine panics with
// the disk's error. For the store that is a fault as any other, wherever on the
// worker the commit comes, and who closes the engine is told not to wait for those
// locks.
func TestCommitAfterAFailedWriteIsAFault(t *testing.T) {
	for name, during := range map[string]func(fill func(), r *Round){
		"flush":     func(fill func(), _ *Round) { fill() },
		"committed": func(fill func(), r *Round) { r.OnCommitted(fill) },
		"durable":   func(fill func(), r *Round) { r.OnDurable(fill) },
	} {
		t.Run(name, func(t *testing.T) {
			db, fill := fillLog(t)
			s := scripts(t, func(c *Config) { c.DB = db })
			refused := make(chan error, 1)
			s.Post(1, func(r *Round) { during(func() { must(t, fill()) }, r) })
			var err error
			for worked := true; worked && err == nil; {
				worked, err = s.RunRound(0)
			}
			if !errors.Is(err, errorfs.ErrInjected) || !errors.Is(s.Err(), errorfs.ErrInjected) || !isLocked(s.cfg.Fault) {
				t.Errorf("%v, the store's fault %v, want one with the disk's error and the engine locked", err, s.Err())
			}
			s.Post(1, &put{done: func(p *put) { refused <- p.err }})
			if err := <-refused; !errors.Is(err, errorfs.ErrInjected) {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

// What others find who write to the engine stops the store, and a later error that
// left locks held is told even if it is not the fault.
func TestFaultIsShared(t *testing.T) {
	fault := engine.NewFault()
	db, fill := fillLog(t)
	s := scripts(t, func(c *Config) { c.DB, c.Fault = db, fault })
	bad := errors.New("bad")
	if err := fault.Write(func() error {
		fault.Set(bad)
		return fill()
	}); !errors.Is(err, errorfs.ErrInjected) {
		t.Errorf("write: %v", err)
	}
	if !errors.Is(s.Err(), bad) || !isLocked(fault) {
		t.Errorf("fault: %v, locked %v", s.Err(), isLocked(fault))
	}
	if _, err := s.RunRound(0); !errors.Is(err, bad) {
		t.Errorf("round: %v", err)
	}
	if err := fault.Write(func() error { panic("written after a fault") }); !errors.Is(err, bad) {
		t.Errorf("write afterwards: %v", err)
	}
}
