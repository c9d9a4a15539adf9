package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
)

// syncedFile stands beside the engine's files and says of each of its logs how
// many bytes are known to be synced. The engine itself does not note that, so that
// it takes damage at the end of its newest log for what a crash leaves of writes
// that nobody was told of.
//
// A slot is written in place after each sync of a log, before the sync is
// answered, and the file is synced when a log ends, not with each write. So after
// the end of the process it is exact, and after the end of the machine it may be as
// old as the system lets unwritten pages become, but never says more than was
// synced.
const syncedFile = "SYNCED"

// The file is a header and slots of one size, which no sector's border cuts: a
// crash leaves a slot as it was or as it is.
const (
	syncedFormat   = 1
	syncedSlotSize = 32
	// syncedSlots is more than the logs that can be there at once: one for each
	// memtable, of which the engine has at most MemTableStopWritesThreshold.
	syncedSlots = 31
)

var syncedMagic = [8]byte{'H', 'W', 'S', 'Y', 'N', 'C', 'E', 'D'}

// syncedSlot says that the first length bytes of a log are synced.
type syncedSlot struct{ number, length uint64 }

func (s syncedSlot) encode() []byte {
	b := make([]byte, 0, syncedSlotSize)
	b = binary.BigEndian.AppendUint64(b, s.number)
	b = binary.BigEndian.AppendUint64(b, s.length)
	return sealSlot(b)
}

// sealSlot fills a slot up, its last four bytes with a checksum.
func sealSlot(b []byte) []byte {
	b = append(b, make([]byte, syncedSlotSize-4-len(b))...)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// openSlot returns what a slot holds, and whether it is what sealSlot made.
func openSlot(b []byte) ([]byte, bool) {
	return b[:syncedSlotSize-4], crc32.Checksum(b[:syncedSlotSize-4], castagnoli) == binary.BigEndian.Uint32(b[syncedSlotSize-4:])
}

func syncedHeader() []byte {
	return sealSlot(binary.BigEndian.AppendUint32(bytes.Clone(syncedMagic[:]), syncedFormat))
}

// readSynced reads the file of a directory, by the number of the log. What cannot
// be read of it is left out and counted: it proves nothing, and the logs may be
// good. Without a file it is empty, with an error that wraps os.ErrNotExist.
func readSynced(fs vfs.FS, dir string) (slots []syncedSlot, unreadable int, err error) {
	f, err := fs.Open(fs.PathJoin(dir, syncedFile))
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = f.Close() }() // read only
	b, err := io.ReadAll(io.LimitReader(f, syncedSlotSize*(1+syncedSlots)))
	if err != nil {
		return nil, 0, err
	}
	if len(b) < syncedSlotSize {
		return nil, 1, nil
	}
	header, whole := openSlot(b[:syncedSlotSize])
	if !whole || [8]byte(header) != syncedMagic {
		unreadable++ // the slots have checksums of their own
	} else if format := binary.BigEndian.Uint32(header[8:]); format > syncedFormat {
		return nil, 0, fmt.Errorf("the file %s has format %d, this release knows %d: %w", syncedFile, format, syncedFormat, ErrNewerFormat)
	}
	for b = b[syncedSlotSize:]; len(b) >= syncedSlotSize; b = b[syncedSlotSize:] {
		slot, whole := openSlot(b[:syncedSlotSize])
		if !whole {
			if !bytes.Equal(b[:syncedSlotSize], make([]byte, syncedSlotSize)) {
				unreadable++
			}
			continue
		}
		if s := (syncedSlot{binary.BigEndian.Uint64(slot), binary.BigEndian.Uint64(slot[8:])}); s.number > 0 {
			slots = append(slots, s)
		}
	}
	return slots, unreadable, nil
}

// syncedTable writes the file. Nothing depends on it while the engine is open: who
// cannot write it goes on, and it stays at what it was. Safe for concurrent use.
type syncedTable struct {
	f   vfs.File
	log *zap.Logger
	mu  struct {
		sync.Mutex
		// at is the place of a log's slot; next is the one that is taken next, the
		// oldest.
		at     map[uint64]int
		owner  [syncedSlots]uint64
		next   int
		failed bool
	}
}

// openSynced makes the file of an engine that is about to be opened anew, with
// what it said of logs that are still needed: those with a number of min or more.
func openSynced(fs vfs.FS, dir string, min uint64, log *zap.Logger) (*syncedTable, error) {
	old, _, err := readSynced(fs, dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	t := &syncedTable{log: log}
	t.mu.at = make(map[uint64]int)
	b := syncedHeader()
	for _, s := range old {
		if s.number >= min && t.mu.next < syncedSlots-1 {
			b = append(b, s.encode()...)
			t.take(s.number)
		}
	}
	b = append(b, make([]byte, syncedSlotSize*(1+syncedSlots)-len(b))...)
	if err := replaceFile(fs, dir, syncedFile, b); err != nil {
		return nil, err
	}
	t.f, err = fs.OpenReadWrite(fs.PathJoin(dir, syncedFile), vfs.WriteCategoryUnspecified)
	return t, err
}

// take gives a log the next place.
func (t *syncedTable) take(number uint64) int {
	i := t.mu.next
	delete(t.mu.at, t.mu.owner[i])
	t.mu.at[number], t.mu.owner[i] = i, number
	t.mu.next = (i + 1) % syncedSlots
	return i
}

// note says that the first length bytes of a log are synced.
func (t *syncedTable) note(number, length uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, ok := t.mu.at[number]
	if !ok {
		i = t.take(number)
	}
	_, err := t.f.WriteAt(syncedSlot{number, length}.encode(), int64(syncedSlotSize*(1+i)))
	t.noticed(err)
}

// sync makes what was noted durable.
func (t *syncedTable) sync() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.noticed(t.f.SyncData())
}

// noticed logs the first of errors that follow each other.
func (t *syncedTable) noticed(err error) {
	if err != nil && !t.mu.failed {
		t.log.Warn("cannot note how far the engine's log is synced: damage at its end may not be noticed", zap.Error(err))
	}
	t.mu.failed = err != nil
}

func (t *syncedTable) close() error { return t.f.Close() }

// notingFS notes how far the engine's logs are synced.
type notingFS struct {
	vfs.FS
	table *syncedTable
}

func (fs notingFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, c)
	return fs.wrap(f, name, err)
}

func (fs notingFS) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.ReuseForWrite(oldname, newname, c)
	return fs.wrap(f, newname, err)
}

func (fs notingFS) wrap(f vfs.File, name string, err error) (vfs.File, error) {
	number, isLog := logNumber(fs.PathBase(name))
	if err != nil || !isLog {
		return f, err
	}
	return &notingFile{File: f, table: fs.table, number: number}, nil
}

// notingFile is a log, which is written from its beginning to its end.
type notingFile struct {
	vfs.File
	table           *syncedTable
	number          uint64
	written, synced atomic.Uint64
	failed          atomic.Bool
}

func (f *notingFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	f.written.Add(uint64(n))
	if err != nil {
		f.failed.Store(true)
	}
	return n, err
}

func (f *notingFile) Sync() error { return f.note(f.File.Sync) }

func (f *notingFile) SyncData() error { return f.note(f.File.SyncData) }

func (f *notingFile) note(sync func() error) error {
	written := f.written.Load()
	if err := sync(); err != nil {
		f.failed.Store(true)
		return err
	}
	if written > f.synced.Swap(written) {
		f.table.note(f.number, written)
	}
	return nil
}

// Close is called when a log has ended, which is synced then, unless the disk has
// failed: nothing more is written after that.
func (f *notingFile) Close() error {
	if err := f.File.Close(); err != nil {
		return err
	}
	if !f.failed.Load() {
		f.table.sync()
	}
	return nil
}
