package engine

import (
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// limitedFS is the files of a process with a limit of descriptors. While it is
// crowded, others take each descriptor that is free, but for those of a directory,
// which are taken again so soon that nobody sees them.
type limitedFS struct {
	vfs.FS
	limit, open atomic.Int64
	crowded     atomic.Bool
}

func (fs *limitedFS) take(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &limitedFile{File: f, fs: fs}, nil
}

// full reports that there is no descriptor left, and takes one if there is.
func (fs *limitedFS) full() bool {
	if fs.open.Add(1) <= fs.limit.Load() {
		return false
	}
	fs.open.Add(-1)
	return true
}

func (fs *limitedFS) limited(open func() (vfs.File, error)) (vfs.File, error) {
	if fs.full() {
		return nil, fmt.Errorf("open: %w", syscall.EMFILE)
	}
	f, err := open()
	if err != nil {
		fs.open.Add(-1)
	}
	return fs.take(f, err)
}

func (fs *limitedFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return fs.limited(func() (vfs.File, error) { return fs.FS.Create(name, c) })
}

// ReuseForWrite renames the file and then lacks a descriptor to open it, as a disk.
func (fs *limitedFS) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := fs.Rename(oldname, newname); err != nil {
		return nil, err
	}
	return fs.OpenReadWrite(newname, c)
}

func (fs *limitedFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	return fs.limited(func() (vfs.File, error) { return fs.FS.Open(name, opts...) })
}

func (fs *limitedFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return fs.limited(func() (vfs.File, error) { return fs.FS.OpenReadWrite(name, c, opts...) })
}

func (fs *limitedFS) OpenDir(name string) (vfs.File, error) {
	f, err := fs.limited(func() (vfs.File, error) { return fs.FS.OpenDir(name) })
	if err == nil {
		f.(*limitedFile).dir = true
	}
	return f, err
}

type limitedFile struct {
	vfs.File
	fs     *limitedFS
	dir    bool
	closed atomic.Bool
}

func (f *limitedFile) Close() error {
	if !f.closed.Swap(true) {
		if f.fs.crowded.Load() && !f.dir {
			f.fs.limit.Add(-1)
		}
		f.fs.open.Add(-1)
	}
	return f.File.Close()
}

// TestNoDescriptorLeft: when others have taken every file descriptor, the engine
// still begins logs, and goes on as before when there are descriptors again.
func TestNoDescriptorLeft(t *testing.T) {
	fs := &limitedFS{FS: vfs.NewMem()}
	fs.limit.Store(1 << 20)
	seen, logs := observer.New(zap.DebugLevel)
	var rotations atomic.Int64
	e, err := Open(Config{
		FS: fs, Dir: "data", NewIDs: func() (uint64, uint64) { return 1, 2 }, MemTableBytes: 256 << 10, Logger: zap.New(seen),
		Tune: func(o *pebble.Options) {
			o.EventListener.WALCreated = func(pebble.WALCreateInfo) { rotations.Add(1) }
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	write := func(n int) {
		t.Helper()
		for i := range n {
			err := e.Fault.Write(func() error { return e.DB.Set(fmt.Appendf(nil, "%d", i), make([]byte, 4<<10), pebble.NoSync) })
			if err != nil {
				t.Fatalf("write %d: %v", i, err)
			}
		}
	}
	write(1)
	if err := e.DB.Flush(); err != nil {
		t.Fatal(err)
	}
	e.DB.TestOnlyWaitForCleaning()
	fs.crowded.Store(true)
	fs.limit.Store(fs.open.Load())
	before := rotations.Load()
	for rotations.Load() < before+2 {
		write(1)
	}
	fs.crowded.Store(false)
	fs.limit.Store(1 << 20)
	write(1000)
	if err := e.DB.Flush(); err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		_, closer, err := e.DB.Get(fmt.Appendf(nil, "%d", i))
		if err != nil {
			t.Fatal(err)
		}
		_ = closer.Close()
	}
	e.spare.mu.Lock()
	if n := len(e.spare.mu.spare); n != spareDescriptors {
		t.Errorf("%d spare descriptors after the shortage", n)
	}
	e.spare.mu.Unlock()
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if n := fs.open.Load(); n > 1 { // the lock is not counted
		t.Errorf("%d files are left open", n)
	}
	if n := len(logs.FilterMessageSnippet("a shortage begins").All()); n > 1 {
		t.Errorf("the shortage is logged %d times", n)
	}
}

// TestShortageIsLoggedOnce also when the engine meets it again and again, and its end
// when nobody does anything any more.
func TestShortageIsLoggedOnce(t *testing.T) {
	fs := &limitedFS{FS: vfs.NewMem()}
	seen, logs := observer.New(zap.DebugLevel)
	s := newSpareFS(fs, "", zap.New(seen))
	defer s.close()
	now := time.Unix(0, 0)
	s.now = func() time.Time { return now }
	for range 100 {
		s.look()
		if _, err := s.Open("a"); !strings.Contains(err.Error(), "too many open files") {
			t.Fatal(err)
		}
	}
	wantLines := func(n int) {
		t.Helper()
		if got := logs.Len(); got != n {
			t.Fatalf("%d lines, want %d: %v", got, n, logs.All())
		}
	}
	wantLines(1)
	now = now.Add(2 * shortageEnds)
	s.look() // nothing is refused, but there are no spare descriptors
	wantLines(1)
	fs.limit.Store(100)
	s.look()
	wantLines(2)
	if last := logs.All()[1]; last.Message != "the shortage has ended" || last.ContextMap()["refused-operations"] != int64(100) {
		t.Errorf("%v", last)
	}
	s.look()
	wantLines(2)
	// The next one is told again, and has not ended at once.
	fs.limit.Store(0)
	if _, err := s.Open("a"); err == nil {
		t.Error("opened without a descriptor")
	}
	fs.limit.Store(100)
	s.look()
	wantLines(3)
}

// TestLogWaitsForADescriptor when the engine is open and all spare ones are taken; an
// engine that is being opened fails.
func TestLogWaitsForADescriptor(t *testing.T) {
	fs := &limitedFS{FS: vfs.NewMem()}
	seen, logs := observer.New(zap.DebugLevel)
	s := newSpareFS(fs, "", zap.New(seen))
	if _, err := s.Create("1.log", "wal"); err == nil {
		t.Fatal("a log without a descriptor")
	}
	if logs.Len() != 1 {
		t.Fatalf("%v", logs.All())
	}
	s.opened()
	made := make(chan error)
	go func() {
		f, err := s.Create("1.log", "wal")
		if err == nil {
			err = f.Close()
		}
		made <- err
	}()
	select {
	case err := <-made:
		t.Fatalf("it did not wait: %v", err)
	default:
	}
	fs.limit.Store(1)
	if err := <-made; err != nil {
		t.Fatal(err)
	}
}

// TestLogsLeaveTablesSomeDescriptors: else no log would ever end.
func TestLogsLeaveTablesSomeDescriptors(t *testing.T) {
	fs := &limitedFS{FS: vfs.NewMem()}
	fs.limit.Store(spareDescriptors)
	s := newSpareFS(fs, "", zap.NewNop())
	logs := 0
	for ; ; logs++ {
		if _, err := s.Create(fmt.Sprintf("%d.log", logs), "wal"); err != nil {
			break
		}
	}
	if _, err := s.Create("1.sst", "sst"); err != nil {
		t.Errorf("no table after %d logs: %v", logs, err)
	}
}

// TestLogUsedAgainWithoutADescriptor: that it has its new name already is no error,
// and nothing is remembered of the old one.
func TestLogUsedAgainWithoutADescriptor(t *testing.T) {
	fs := &limitedFS{FS: vfs.NewMem()}
	fs.limit.Store(spareDescriptors)
	l, err := newLogFiles(newSpareFS(fs, "", zap.NewNop()), "", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	create := func(name string) {
		t.Helper()
		f, err := l.Create(name, "wal")
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	create("1.log")
	if !l.keep("1.log") {
		t.Fatal("it is not kept")
	}
	fs.limit.Store(spareDescriptors - 1)
	create("2.log")
	if len(l.mu.spares) != 0 || len(l.mu.sizes) != 1 || l.mu.sizes["2.log"] == nil {
		t.Errorf("spares %v, sizes %v", l.mu.spares, l.mu.sizes)
	}
}
