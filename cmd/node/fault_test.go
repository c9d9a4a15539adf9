package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// faultyDisk is a disk whose writes to the engine's log fail while it is broken.
// It notes what is written while it is watched.
type faultyDisk struct {
	vfs.FS
	broken, watched atomic.Bool
	mu              struct {
		sync.Mutex
		written []string
	}
}

// ReuseForWrite: errorfs would hand out a file that never fails.
func (d *faultyDisk) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := d.Rename(old, name); err != nil {
		return nil, err
	}
	return d.OpenReadWrite(name, c)
}

// GetDiskUsage says that there is room: what is kept from a full disk is done.
func (d *faultyDisk) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: 1 << 40, TotalBytes: 1 << 40}, nil
}

func newFaultyDisk(disk vfs.FS) *faultyDisk {
	d := new(faultyDisk)
	d.FS = errorfs.Wrap(disk, errorfs.InjectorFunc(func(op errorfs.Op) error {
		switch op.Kind {
		case errorfs.OpFileWrite, errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo, errorfs.OpFileFlush, errorfs.OpCreate:
		default:
			return nil
		}
		if d.watched.Load() {
			d.mu.Lock()
			d.mu.written = append(d.mu.written, fmt.Sprint(op.Kind, " ", op.Path))
			d.mu.Unlock()
		}
		if d.broken.Load() && strings.HasSuffix(op.Path, ".log") {
			return errorfs.ErrInjected
		}
		return nil
	}))
	return d
}

// startOnFaultyDisk starts a node that has stored a key.
func startOnFaultyDisk(t *testing.T, tune ...func(*CoreConfig)) (*Node, *faultyDisk) {
	t.Helper()
	disk := newFaultyDisk(vfs.NewMem())
	cfg := testConfig(disk)
	for _, f := range tune {
		cfg.Tune = f
	}
	n, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, n)
	if _, err := c.Put(t.Context(), "a", "1"); err != nil {
		t.Fatal(err)
	}
	return n, disk
}

// await returns the error of a step that must neither panic nor hang.
func await(t *testing.T, what string, step func(ctx context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- step(ctx) }()
	select {
	case err := <-done:
		return err
	case <-time.After(60 * time.Second):
		t.Fatalf("%s does not end", what)
		return nil
	}
}

// TestStopAfterFaultOfTheDiskReportsIt: whether the disk works again or not,
// nothing is written to an engine that has lost a write, and the stop says why
// the node ended.
func TestStopAfterFaultOfTheDiskReportsIt(t *testing.T) {
	for _, again := range []bool{false, true} {
		n, disk := startOnFaultyDisk(t)
		disk.broken.Store(true)
		if _, err := dial(t, n).Put(t.Context(), "b", "1"); err == nil {
			t.Fatal("a put on a broken disk was acknowledged")
		}
		fault := <-n.Err()
		if !errors.Is(fault, errorfs.ErrInjected) {
			t.Fatalf("fault: %v", fault)
		}
		disk.watched.Store(true)
		disk.broken.Store(!again)
		if err := await(t, "the stop", n.Close); !errors.Is(err, fault) {
			t.Errorf("close: %v, want %v", err, fault)
		}
		if len(disk.mu.written) > 0 {
			t.Errorf("works again: %v: the stop writes: %v", again, disk.mu.written)
		}
	}
}

// TestStopAfterFaultWritesNothing: a fault of the store need not be one of the
// engine, which would refuse by itself. What a stop in order adds is not written
// all the same: what the store knows and what the engine has may differ.
func TestStopAfterFaultWritesNothing(t *testing.T) {
	errFault := errors.New("fault of the store")
	var broken atomic.Bool
	n, disk := startOnFaultyDisk(t, func(c *CoreConfig) {
		c.Store.BeforeCommit = func(int, *pebble.Batch, bool) error {
			if broken.Load() {
				return errFault
			}
			return nil
		}
	})
	broken.Store(true)
	if _, err := dial(t, n).Put(t.Context(), "b", "1"); err == nil {
		t.Fatal("a put that was not committed was acknowledged")
	}
	<-n.Err()
	before := allRows(t, n.core.DB)
	if err := await(t, "the stop", n.Close); !errors.Is(err, errFault) {
		t.Errorf("close: %v, want %v", err, errFault)
	}
	if after := rows(t, disk); after != before {
		t.Errorf("the engine has changed:\n%s\nbefore:\n%s", after, before)
	}
}

// TestStartOnDiskThatFails: the start writes, too, once the engine is open. What
// the engine makes of a failed write is an error there as well.
func TestStartOnDiskThatFails(t *testing.T) {
	crashed, _ := filled(t, "m")
	for name, disk := range map[string]*faultyDisk{"new": newFaultyDisk(vfs.NewMem()), "used": newFaultyDisk(crashed)} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(disk)
			cfg.Tune = func(c *CoreConfig) {
				c.Engine.Tune = func(o *pebble.Options) {
					o.EventListener.WALCreated = func(pebble.WALCreateInfo) { disk.broken.Store(true) }
				}
			}
			err := await(t, "the start", func(ctx context.Context) error {
				n, err := Start(ctx, cfg)
				if err == nil {
					err = errors.Join(errors.New("it serves"), n.Kill())
				}
				return err
			})
			if !errors.Is(err, errorfs.ErrInjected) {
				t.Errorf("start: %v, want %v", err, errorfs.ErrInjected)
			}
		})
	}
}

// TestDiskThatFailsDuringTheStop: a stop that finds the fault itself reports it,
// too, at whatever step.
func TestDiskThatFailsDuringTheStop(t *testing.T) {
	for name, stop := range map[string]func(n *Node, ctx context.Context) error{
		"hand-over":  (*Node).Close,
		"checkpoint": func(n *Node, _ context.Context) error { return n.Kill() },
		"flush": func(n *Node, ctx context.Context) error {
			n.core.Store.Stop()
			n.flush(ctx)
			return errors.Join(n.core.Err(), n.Kill())
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, disk := startOnFaultyDisk(t)
			disk.broken.Store(true)
			err := await(t, "the stop", func(ctx context.Context) error { return stop(n, ctx) })
			if !errors.Is(err, errorfs.ErrInjected) {
				t.Errorf("stop: %v, want %v", err, errorfs.ErrInjected)
			}
		})
	}
}

// TestCompactorMeetsTheFault: the compactor may be the first that writes to a disk
// that fails. That is the node's fault, and not a panic of its goroutine.
func TestCompactorMeetsTheFault(t *testing.T) {
	n, disk := startOnFaultyDisk(t)
	disk.broken.Store(true)
	data := compacting{n.core}
	if err := data.SetForgotten(2); !errors.Is(err, errorfs.ErrInjected) {
		t.Errorf("first write: %v, want %v", err, errorfs.ErrInjected)
	}
	disk.broken.Store(false)
	disk.watched.Store(true)
	if _, err := data.CompactStep(100); !errors.Is(err, errorfs.ErrInjected) {
		t.Errorf("a step after the fault: %v, want %v", err, errorfs.ErrInjected)
	}
	if err := await(t, "the stop", n.Close); !errors.Is(err, errorfs.ErrInjected) {
		t.Errorf("close: %v, want %v", err, errorfs.ErrInjected)
	}
}

// fillLog writes to the engine, without a sync, until its log refuses. It does not
// return if another write has left the engine with locks held.
func fillLog(db *pebble.DB) error {
	for {
		b := db.NewBatch()
		// Nothing for the memtable: to begin another is to begin another log.
		if err := b.LogData(make([]byte, 100<<10), nil); err != nil {
			return err
		}
		if err := b.Commit(pebble.NoSync); err != nil {
			return err
		}
	}
}

// TestStopAfterFaultThatLeavesLocksHeld: a commit that finds the engine's log
// broken leaves locks held, on which every other commit and the closing of the
// engine wait for ever. Whoever finds it, and whatever fault was there before, the
// stop reports the fault and waits for nobody.
func TestStopAfterFaultThatLeavesLocksHeld(t *testing.T) {
	const (
		before = "a write beside the store, begun before the store has a fault, finds the locks"
		beside = "a write beside the store finds the fault, the store is about to commit"
		store  = "the store finds the fault, a write beside it is about to commit"
	)
	for _, name := range []string{before, beside, store} {
		t.Run(name, func(t *testing.T) {
			var armed atomic.Bool
			var onCommit func()
			n, disk := startOnFaultyDisk(t, func(c *CoreConfig) {
				c.Store.BeforeCommit = func(int, *pebble.Batch, bool) error {
					if armed.CompareAndSwap(true, false) {
						onCommit()
					}
					return nil
				}
			})
			c, client := n.core, dial(t, n)
			put := func() {
				// Its answer is an error, or none if the worker hangs.
				go func() { _, _ = client.Put(context.Background(), "b", "1") }()
			}
			began, goOn := make(chan struct{}), make(chan struct{})
			wait := func() { close(began); <-goOn }
			switch name {
			case before:
				n.background(func() {
					_ = c.engine.Fault.Write(func() error { wait(); return fillLog(c.DB) })
				})
				<-began
				disk.broken.Store(true)
				put()
				<-c.Store.Failed()
				close(goOn)
			case beside:
				onCommit = wait
				armed.Store(true)
				put()
				<-began
				disk.broken.Store(true)
				if err := c.engine.Fault.Write(func() error { return fillLog(c.DB) }); !errors.Is(err, errorfs.ErrInjected) {
					t.Errorf("write: %v, want %v", err, errorfs.ErrInjected)
				}
				close(goOn)
			case store:
				n.background(func() {
					_ = c.engine.Fault.Write(func() error { wait(); return fillLog(c.DB) })
				})
				<-began
				disk.broken.Store(true)
				onCommit = func() { _ = fillLog(c.DB) }
				armed.Store(true)
				put()
				<-c.Store.Failed()
				close(goOn)
			}
			if err := await(t, "the fault", func(ctx context.Context) error {
				select {
				case err := <-n.Err():
					return err
				case <-ctx.Done():
					return ctx.Err()
				}
			}); !errors.Is(err, errorfs.ErrInjected) {
				t.Errorf("fault: %v, want %v", err, errorfs.ErrInjected)
			}
			if err := await(t, "the stop", n.Close); !errors.Is(err, errorfs.ErrInjected) {
				t.Errorf("close: %v, want %v", err, errorfs.ErrInjected)
			}
		})
	}
}

// TestDefragmentOnDiskThatFails: a flush that is asked for finds the fault before it
// begins another log, where the engine would end the process.
func TestDefragmentOnDiskThatFails(t *testing.T) {
	n, disk := startOnFaultyDisk(t)
	disk.broken.Store(true)
	for range 2 {
		if err := await(t, "the defragmentation", n.core.Defragment); !errors.Is(err, errorfs.ErrInjected) {
			t.Errorf("defragment: %v, want %v", err, errorfs.ErrInjected)
		}
	}
	if err := await(t, "the stop", n.Close); !errors.Is(err, errorfs.ErrInjected) {
		t.Errorf("close: %v, want %v", err, errorfs.ErrInjected)
	}
}
