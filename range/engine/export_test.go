package engine

import (
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// LogBlock is the size of a block of the engine's log.
const LogBlock = logBlock

// CheckLog checks the log of a data directory that nobody has open.
func CheckLog(fs vfs.FS, dir string) error {
	d := &dataDir{fs: fs, path: dir}
	return d.checkLog()
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
