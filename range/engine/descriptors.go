package engine

import (
	"io"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/range/shortage"
)

const (
	// spareDescriptors are kept open for nothing. An operation that the engine cannot
	// do without takes them when the process or the machine has none left: to make a
	// log and a table, to sync the directory after each, to note both in the manifest.
	spareDescriptors = 8
	// spareForTables are those that logs do not take: the flush of a table is what
	// makes a log end and gives its descriptor back.
	spareForTables = 3
	// logRetryPause is between two attempts to begin a log.
	logRetryPause = 10 * time.Millisecond
	// makingRetryPause slows down what the engine does again and again, at once, while
	// it cannot make a table.
	makingRetryPause = 50 * time.Millisecond
	// shortageEnds is how long nothing must have been refused for a shortage to have
	// ended.
	shortageEnds = 10 * time.Second
)

// spareFS is a file system that does not let the engine run out of file descriptors
// where that would end the process: when a file cannot be made, it closes one of the
// spare ones and makes it with that. When there is none of these either, the next
// log, without which the engine ends the process, waits: so do those who write, until
// somebody gives a descriptor back. The reading of a table fails, as it does not end
// anything. Every shortage is logged once when it begins, and once when it has ended.
type spareFS struct {
	vfs.FS
	path string // what the spare descriptors are of: the data directory
	log  *zap.Logger
	now  func() time.Time
	mu   struct {
		sync.Mutex
		spare []io.Closer
		// refused operations of this shortage, 0 if there is none; last is the time of
		// the last one.
		refused int
		last    time.Time
		closed  bool
		// patient: the engine is open, and logs wait for a descriptor.
		patient bool
	}
}

// newSpareFS returns fs with spare descriptors of the directory at path.
func newSpareFS(fs vfs.FS, path string, log *zap.Logger) *spareFS {
	s := &spareFS{FS: fs, path: path, log: log, now: time.Now}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fillLocked()
	return s
}

// fillLocked takes spare descriptors until there are enough, or none is to be had.
func (s *spareFS) fillLocked() {
	for len(s.mu.spare) < spareDescriptors && !s.mu.closed {
		d, err := s.FS.OpenDir(s.path)
		if err != nil {
			return // taken with the next file that can be made, or by look
		}
		s.mu.spare = append(s.mu.spare, d)
	}
}

// close gives the spare descriptors back.
func (s *spareFS) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.closed = true
	for _, d := range s.mu.spare {
		_ = d.Close() // a directory that is only open
	}
	s.mu.spare = nil
}

// opened lets logs wait for a descriptor from now on. An engine that is being opened
// fails for want of one instead.
func (s *spareFS) opened() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.patient = true
}

func (s *spareFS) isPatient() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.patient && !s.mu.closed
}

// making makes a file, with a spare descriptor if need be and more than keep are
// left.
func (s *spareFS) making(keep int, try func() error) error {
	err := try()
	for shortage.OfDescriptors(err) && s.useSpare(keep) {
		err = try()
	}
	return s.told(err)
}

// useSpare closes a spare descriptor, so that its place is free, if there are more
// than keep.
func (s *spareFS) useSpare(keep int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.spare) <= keep {
		return false
	}
	last := len(s.mu.spare) - 1
	_ = s.mu.spare[last].Close() // a directory that is only open
	s.mu.spare = s.mu.spare[:last]
	return true
}

// told notes what became of an operation, and returns it.
func (s *spareFS) told(err error) error {
	short := shortage.Is(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case short:
		if s.mu.refused == 0 {
			s.log.Warn("a shortage begins: requests that meet it are refused", zap.Error(err))
		}
		s.mu.refused++
		s.mu.last = s.now()
	case err == nil:
		s.fillLocked()
	}
	return err
}

// look notes the end of a shortage: nothing has been refused for some time, and all
// spare descriptors are to be had. Who meets none any more need not do anything, so
// it is to be called again and again.
func (s *spareFS) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.refused == 0 || s.now().Sub(s.mu.last) < shortageEnds {
		return
	}
	if s.fillLocked(); len(s.mu.spare) == spareDescriptors {
		s.log.Info("the shortage has ended", zap.Int("refused-operations", s.mu.refused))
		s.mu.refused = 0
	}
}

func (s *spareFS) Create(name string, c vfs.DiskWriteCategory) (f vfs.File, err error) {
	create := func() (err error) { f, err = s.FS.Create(name, c); return err }
	if isLog(name) {
		for err = s.making(spareForTables, create); shortage.OfDescriptors(err) && s.isPatient(); {
			time.Sleep(logRetryPause)
			err = s.making(spareForTables, create)
		}
		return f, err
	}
	if err = s.making(0, create); shortage.Is(err) {
		time.Sleep(makingRetryPause)
	}
	return f, err
}

// ReuseForWrite is not tried again: the file may have its new name already.
func (s *spareFS) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := s.FS.ReuseForWrite(oldname, newname, c)
	return f, s.told(err)
}

func (s *spareFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (f vfs.File, err error) {
	err = s.making(0, func() (err error) { f, err = s.FS.OpenReadWrite(name, c, opts...); return err })
	return f, err
}

func (s *spareFS) OpenDir(name string) (f vfs.File, err error) {
	err = s.making(0, func() (err error) { f, err = s.FS.OpenDir(name); return err })
	return f, err
}

func (s *spareFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := s.FS.Open(name, opts...)
	return f, s.told(err)
}
