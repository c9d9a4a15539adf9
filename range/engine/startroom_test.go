package engine

import (
	"errors"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Without room for what its logs hold an engine is not opened: Pebble would try for
// ever. Nothing is changed, and with room it is opened as it was.
func TestStartWithoutRoomIsRefused(t *testing.T) {
	fs := vfs.NewMem()
	cfg := Config{FS: fs, Dir: "data", NewIDs: func() (uint64, uint64) { return 7, 1 }}
	e, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Complete(); err != nil {
		t.Fatal(err)
	}
	if err := e.DB.Set([]byte{0x7f, 1}, make([]byte, 100<<10), pebble.Sync); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	for _, free := range []uint64{0, startRoom, startRoom + 100<<10} {
		fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: free, TotalBytes: 1 << 30})
		e, err := Open(cfg)
		if !errors.Is(err, syscall.ENOSPC) || errors.Is(err, ErrDamaged) {
			t.Errorf("%d bytes free: %v, want %v", free, err, syscall.ENOSPC)
		}
		if err == nil {
			_ = e.Close()
		}
	}
	fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 100 << 20, TotalBytes: 1 << 30})
	if e, err = Open(cfg); err != nil {
		t.Fatal(err)
	}
	value, closer, err := e.DB.Get([]byte{0x7f, 1})
	if err != nil || len(value) != 100<<10 {
		t.Errorf("%d bytes, %v", len(value), err)
	} else {
		_ = closer.Close()
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}
