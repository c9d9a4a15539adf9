package engine

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
)

// logFile is one of the engine's logs.
type logFile struct {
	number uint64
	name   string
}

// logNumber returns the number of the log of that name.
func logNumber(name string) (number uint64, isLog bool) {
	text, isLog := strings.CutSuffix(name, ".log")
	number, err := strconv.ParseUint(text, 10, 64)
	return number, isLog && err == nil
}

// logs returns the engine's logs, oldest first.
func (d *dataDir) logs() ([]logFile, error) {
	names, err := d.fs.List(d.enginePath())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.path, err)
	}
	var logs []logFile
	for _, n := range names {
		if number, isLog := logNumber(n); isLog {
			logs = append(logs, logFile{number, n})
		}
	}
	slices.SortFunc(logs, func(a, b logFile) int { return int(int64(a.number) - int64(b.number)) })
	return logs, nil
}

// checkLogs refuses an engine that lacks something of its write-ahead logs that was
// synced. The engine takes an unreadable record of its newest log for what a crash
// leaves of writes that were not synced, and a log that is not there for one that
// never was. Two things tell more: the notes of what was synced, and Raft. min is
// the number of the first log that is needed.
func (d *dataDir) checkLogs(min uint64) error {
	logs, err := d.logs()
	if err != nil {
		return err
	}
	notes, unreadable, err := readSynced(d.fs, d.enginePath())
	switch {
	case errors.Is(err, os.ErrNotExist):
		if d.id.Notes && !d.isNew {
			return fmt.Errorf("%s: the file %s is missing, without which nobody knows whether the end of the engine's log is whole: "+
				"put it back; if it is lost, and writes that were acknowledged last may be lost, too, make an empty file in its place: %w",
				d.path, d.fs.PathJoin(d.enginePath(), syncedFile), ErrDamaged)
		}
		// An older release did not write it, nor does --unsafe-no-fsync.
	case err != nil:
		return fmt.Errorf("%s: %w", d.path, err)
	case unreadable > 0:
		d.log.Warn("the notes of what was synced are damaged: damage at the end of the engine's log may not be noticed",
			zap.String("file", syncedFile), zap.Int("parts", unreadable))
	}
	for _, note := range notes {
		if note.number >= min {
			if err := d.checkSynced(logs, note); err != nil {
				return err
			}
		}
	}
	if len(logs) == 0 {
		return nil
	}
	return d.checkEvidence(logs[len(logs)-1])
}

// checkSynced refuses a log of which less can be read than was synced.
func (d *dataDir) checkSynced(logs []logFile, note syncedSlot) error {
	i := slices.IndexFunc(logs, func(l logFile) bool { return l.number == note.number })
	if i < 0 {
		return fmt.Errorf("%s: the log %06d.log is missing, of which %d bytes were synced: %w", d.path, note.number, note.length, ErrDamaged)
	}
	s := logScan{number: uint32(note.number)}
	if err := d.scanLog(logs[i], &s, func() bool { return s.bad }); err != nil {
		return err
	}
	if s.readable < int64(note.length) {
		return fmt.Errorf("%s: the log %s is unreadable at byte %d, and was synced up to byte %d: %w",
			d.path, logs[i].name, s.readable, note.length, ErrDamaged)
	}
	return nil
}

// checkEvidence refuses the newest log if it is damaged before something that
// proves that the damaged place was synced. The engine itself knows of the part of
// what was synced that did not fill whole blocks: under load nearly nothing. Raft
// knows better. An entry is applied only when it is durable; so where an entry, and
// behind it the applied state that covers it, can both be read behind an unreadable
// place, that place was durable, too.
func (d *dataDir) checkEvidence(log logFile) error {
	s := logScan{number: uint32(log.number), entries: map[uint64]uint64{}}
	if err := d.scanLog(log, &s, func() bool { return s.proven }); err != nil {
		return err
	}
	if s.proven {
		return fmt.Errorf("%s: the log %s is unreadable at byte %d, before records that were synced: %w", d.path, log.name, s.unreadable, ErrDamaged)
	}
	return nil
}

// scanLog reads a log up to its end, or until enough of it is read.
func (d *dataDir) scanLog(log logFile, s *logScan, enough func() bool) error {
	f, err := d.fs.Open(d.fs.PathJoin(d.enginePath(), log.name), vfs.SequentialReadsOption)
	if err != nil {
		return fmt.Errorf("%s: %w", d.path, err)
	}
	defer func() { _ = f.Close() }() // read only
	block := make([]byte, logBlock)
	for offset := int64(0); ; offset += logBlock {
		n, err := io.ReadFull(f, block)
		end := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !end {
			return fmt.Errorf("%s: read the log %s: %w", d.path, log.name, err)
		}
		s.scan(block[:n], offset)
		if end || enough() {
			return nil
		}
	}
}
