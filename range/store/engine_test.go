package store

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// A write to the engine's log that fails while nobody waits for a sync is found
// by a commit that comes later, within the engine's locks: the engine panics with
// the disk's error. For the store that is a fault as any other, and who closes
// the engine is told not to wait for those locks.
func TestCommitAfterAFailedWriteIsAFault(t *testing.T) {
	var broken atomic.Bool
	db := openDB(t, errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if broken.Load() && op.Kind == errorfs.OpFileWrite && strings.HasSuffix(op.Path, ".log") {
			return errorfs.ErrInjected
		}
		return nil
	})))
	r := newRig(t, db, nil)
	broken.Store(true)
	// More than the engine gathers before it writes, and nothing for its memtable: to
	// begin another is to begin another log, which would be found broken first.
	large := make([]byte, 100<<10)
	var err error
	for i := 0; err == nil; i++ {
		if i == 10_000 {
			t.Fatal("the engine does not see that its log cannot be written")
		}
		b := db.NewBatch()
		if err := b.LogData(large, nil); err != nil {
			t.Fatal(err)
		}
		err = r.store.shards[0].write(b, false)
	}
	var fatal *FatalError
	if !errors.As(err, &fatal) || !fatal.Locked || !errors.Is(err, errorfs.ErrInjected) {
		t.Errorf("%v, want a fault with the disk's error and the engine locked", err)
	}
}

// A bug in what writes is not taken for a fault of the engine.
func TestGuardLetsBugsThrough(t *testing.T) {
	for _, bug := range []func() error{
		func() error { panic("broken invariant") },
		func() error { var none []int; none[len(none)]++; return nil },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			_ = Guard(bug) // panics
		}()
	}
	if err := Guard(func() error { return pebble.ErrClosed }); err != pebble.ErrClosed {
		t.Errorf("an error becomes %v", err)
	}
}
