package engine

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// diskBytes is the size of the engine's files.
func diskBytes(t *testing.T, fs vfs.FS) (n int64) {
	t.Helper()
	names, err := fs.List("data/engine")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		info, err := fs.Stat(fs.PathJoin("data/engine", name))
		if err != nil {
			t.Fatal(err)
		}
		n += info.Size()
	}
	return n
}

// TestSizeIsThatOfTheFiles: with the open log and with those that are kept, and
// what is in use stays at what a defragmentation leaves, within a tenth.
func TestSizeIsThatOfTheFiles(t *testing.T) {
	fs := vfs.NewMem()
	// Nothing is written while files are counted.
	e := openSmall(t, fs, func(o *pebble.Options) { o.DisableAutomaticCompactions = true })
	defer func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	check := func(when string) Size {
		t.Helper()
		e.DB.TestOnlyWaitForCleaning()
		s, files := e.Size(), diskBytes(t, fs)
		// Beside tables and logs there are files of a few bytes that are not counted.
		if s.Total < files-4<<10 || s.Total > files+4<<10 {
			t.Errorf("%s: %+v, and the files have %d bytes", when, s, files)
		}
		if s.InUse > s.Total {
			t.Errorf("%s: more is in use than there is: %+v", when, s)
		}
		return s
	}
	check("new")
	value := make([]byte, 4<<10)
	fill := func(from, to int) {
		for i := from; i < to; i++ {
			for j := range value {
				value[j] = byte(i * j >> 3) // not to be compressed to nothing
			}
			if err := e.DB.Set(fmt.Appendf(nil, "%06d", i), value, pebble.Sync); err != nil {
				t.Fatal(err)
			}
		}
	}
	fill(0, 590)
	if err := e.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	fill(590, 600) // in the open log
	if s := check("filled"); s.Garbage != 0 {
		t.Errorf("nothing was deleted, and %d bytes are garbage", s.Garbage)
	}
	if err := e.Defragment(t.Context()); err != nil {
		t.Fatal(err)
	}
	full := check("filled and defragmented")
	for i := range 600 {
		if err := e.DB.Delete(fmt.Appendf(nil, "%06d", i), pebble.NoSync); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := e.Defragment(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Whoever still reads the old tables, as the engine does for its estimates, keeps
	// them for that long.
	for end := time.Now().Add(time.Minute); e.Size().Total > full.Total/10; runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("emptied it takes %+v, full it took %+v", e.Size(), full)
		}
	}
	check("emptied and defragmented")
}

// What is deleted in tables is not in use, before any merge.
func TestGarbageIsNotInUse(t *testing.T) {
	var m pebble.Metrics
	m.Table.Local.LiveSize, m.WAL.Size, m.WAL.PhysicalSize, m.WAL.ObsoletePhysicalSize = 1000, 50, 5000, 7000
	m.Table.Local.ObsoleteSize, m.Table.Local.ZombieSize, m.Compact.InProgressBytes = 100, 200, 400
	m.Table.Garbage.PointDeletionsBytesEstimate, m.Table.Garbage.RangeDeletionsBytesEstimate = 600, 50
	if got, want := sizeOf(&m, 80), (Size{Total: 1780, InUse: 400, Garbage: 650}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	// An estimate may be more than there is.
	m.Table.Garbage.PointDeletionsBytesEstimate = 1 << 40
	if got, want := sizeOf(&m, 80), (Size{Total: 1780, InUse: 50, Garbage: 1000}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
