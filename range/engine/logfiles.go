package engine

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// logStepBytes is how far ahead of what is written room is taken for a log.
	// Pebble asks for a whole memtable and a tenth, which an idle store would hold
	// for nothing.
	logStepBytes = 1 << 20
	// maxSpareLogs is how many logs that are no longer needed are kept for the next
	// ones: to overwrite a file is quicker to sync than to let one grow. Under load
	// one is written while the one before waits for its flush.
	maxSpareLogs = 2
)

// logFiles is a file system that knows the sizes of the engine's write-ahead
// logs, and the cleaner that is given those which are no longer needed. Left to
// itself Pebble would keep more of them than there can be memtables, each as large
// as it ever was, and give none up.
type logFiles struct {
	vfs.FS
	// maxSpareBytes bounds what is kept: one huge write must not leave a huge file.
	maxSpareBytes int64
	mu            struct {
		sync.Mutex
		// sizes has all logs by path, with the room that is taken for them ahead.
		sizes map[string]*int64
		// spares are the paths of those that are no longer needed.
		spares []string
		// drops is how many want none to be kept now. After the last, dropped has none
		// kept before the next log begins: Pebble gives them up some time after the flush.
		drops   int
		dropped bool
	}
}

func isLog(name string) bool { return strings.HasSuffix(name, ".log") }

// newLogFiles returns fs with an eye on the logs in dir, which may not exist.
func newLogFiles(fs vfs.FS, dir string, maxSpareBytes int64) (*logFiles, error) {
	l := &logFiles{FS: fs, maxSpareBytes: maxSpareBytes}
	l.mu.sizes = make(map[string]*int64)
	names, err := fs.List(dir)
	if errors.Is(err, os.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the engine's files: %w", err)
	}
	for _, name := range names {
		if !isLog(name) {
			continue
		}
		path := fs.PathJoin(dir, name)
		info, err := fs.Stat(path)
		if err != nil {
			return nil, fmt.Errorf("size of a log: %w", err)
		}
		size := info.Size()
		l.mu.sizes[path] = &size
	}
	return l, nil
}

// bytes returns the size of all logs.
func (l *logFiles) bytes() (sum int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, size := range l.mu.sizes {
		sum += *size
	}
	return sum
}

// cleaner is how Pebble gets rid of files. It embeds Pebble's archiving one for
// what that says of itself: it wants the logs that are no longer needed, so none is
// kept for reuse. FileType is Pebble's, which has no name outside of it.
type cleaner[FileType any] struct {
	pebble.ArchiveCleaner
	logs *logFiles
}

// newCleaner is called with a method of a cleaner for the type of its argument: Pebble
// has FileType in an internal package, so that only the compiler can name it, and it
// does so by the type of a function that has it.
func newCleaner[FileType any](_ func(pebble.ArchiveCleaner, vfs.FS, FileType, string) error, logs *logFiles) cleaner[FileType] {
	return cleaner[FileType]{logs: logs}
}

// String is what the engine's OPTIONS file says.
func (cleaner[FileType]) String() string { return pebble.DeleteCleaner{}.String() }

// Clean deletes a file, or keeps it for the next log.
func (c cleaner[FileType]) Clean(fs vfs.FS, _ FileType, path string) error {
	if isLog(path) && c.logs.keep(path) {
		return nil
	}
	return fs.Remove(path)
}

func (l *logFiles) keep(path string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	size := l.mu.sizes[path]
	if size == nil || l.mu.drops > 0 || l.mu.dropped || *size > l.maxSpareBytes || len(l.mu.spares) >= maxSpareLogs {
		return false
	}
	l.mu.spares = append(l.mu.spares, path)
	return true
}

// dropSpares deletes the logs that are no longer needed. Until done is called, and
// from then until another log begins, none is kept.
func (l *logFiles) dropSpares() (done func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.drops++
	l.mu.dropped = true
	done = func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.mu.drops--
	}
	for len(l.mu.spares) > 0 {
		path := l.mu.spares[0]
		if err := l.FS.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return done, fmt.Errorf("remove a log that is not needed: %w", err)
		}
		l.mu.spares = l.mu.spares[1:]
		delete(l.mu.sizes, path)
	}
	return done, nil
}

// Create makes a file; a log from one that is no longer needed, if there is one.
func (l *logFiles) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if !isLog(name) {
		return l.FS.Create(name, c)
	}
	// Without the lock: to begin a log may wait for a file descriptor.
	if spare, size := l.takeSpare(); spare != "" {
		if f, err := l.FS.ReuseForWrite(spare, name, c); err == nil {
			l.began(name, size)
			return &openLog{File: f, files: l, size: size, taken: *size}, nil
		}
		// Somebody removed it, or there was no descriptor: it may have either name, and
		// Create, which tells what is wrong, empties it under the new one.
		_ = l.FS.Remove(spare)
	}
	f, err := l.FS.Create(name, c)
	if err != nil {
		return nil, err
	}
	size := new(int64)
	l.began(name, size)
	return &openLog{File: f, files: l, size: size}, nil
}

// takeSpare returns a log that is no longer needed, for a new one, and what it
// takes; "" if there is none.
func (l *logFiles) takeSpare() (path string, size *int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.dropped = l.mu.drops > 0
	if len(l.mu.spares) == 0 {
		return "", nil
	}
	path = l.mu.spares[0]
	l.mu.spares = l.mu.spares[1:]
	size = l.mu.sizes[path]
	delete(l.mu.sizes, path)
	return path, size
}

func (l *logFiles) began(name string, size *int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.sizes[name] = size
}

// Remove deletes a file.
func (l *logFiles) Remove(name string) error {
	err := l.FS.Remove(name)
	if isLog(name) && (err == nil || errors.Is(err, os.ErrNotExist)) {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.mu.sizes, name)
	}
	return err
}

// openLog is a log that is written, from its beginning to its end.
type openLog struct {
	vfs.File
	files *logFiles
	size  *int64 // guarded by files.mu
	// written is where the next write begins, taken the end of the room that the
	// file has.
	written, taken int64
	// ahead: the file system takes room when it is asked to.
	ahead bool
}

// Preallocate says that more is to come. Room is taken in steps instead, as it is
// needed.
func (f *openLog) Preallocate(_, _ int64) error {
	f.ahead = true
	return nil
}

// Write appends.
func (f *openLog) Write(p []byte) (int, error) {
	if end := f.written + int64(len(p)); f.ahead && end > f.taken {
		length := max(end-f.taken, logStepBytes)
		if err := f.File.Preallocate(f.taken, length); err == nil {
			f.grow(f.taken + length)
		} else {
			f.ahead = false // the write itself tells what is wrong
		}
	}
	n, err := f.File.Write(p)
	f.written += int64(n)
	f.grow(f.written)
	return n, err
}

func (f *openLog) grow(to int64) {
	if to <= f.taken {
		return
	}
	f.taken = to
	f.files.mu.Lock()
	*f.size = to
	f.files.mu.Unlock()
}
