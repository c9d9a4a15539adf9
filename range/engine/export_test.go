package engine

import (
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
)

// LogBlock is the size of a block of the engine's log.
const LogBlock = logBlock

// SyncedFile is the name of the notes of what is synced.
const SyncedFile = syncedFile

// CheckLog checks the logs of a data directory that nobody has open.
func CheckLog(fs vfs.FS, dir string) error {
	d := &dataDir{fs: fs, path: dir, log: zap.NewNop()}
	_, firstLog, err := d.checkManifest()
	if err != nil {
		return err
	}
	return d.checkLogs(firstLog)
}

// Synced returns how much of a log is noted to be synced, 0 if nothing is.
func Synced(fs vfs.FS, dir string, number uint64) (length int64, err error) {
	slots, unreadable, err := readSynced(fs, fs.PathJoin(dir, engineDir))
	if err != nil || unreadable > 0 {
		return 0, fmt.Errorf("%d unreadable, %w", unreadable, err)
	}
	for _, s := range slots {
		if s.number == number {
			length = int64(s.length)
		}
	}
	return length, nil
}

// ScanLog reads a log with a number, as if a place before it were unreadable if bad
// says so. It returns the first unreadable place, -1 if there is none, and whether
// what is behind it proves that it was durable.
func ScanLog(log []byte, number uint32, bad bool) (unreadable int64, proven bool) {
	s := &logScan{number: number, bad: bad, entries: map[uint64]uint64{}}
	offset := int64(0)
	for block := range slices.Chunk(log, logBlock) {
		s.scan(block, offset)
		offset += int64(len(block))
	}
	if !s.bad {
		return -1, s.proven
	}
	return s.unreadable, s.proven
}
