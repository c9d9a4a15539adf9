package engine

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// checkLog refuses an engine whose newest write-ahead log is damaged before its
// end. The engine takes an unreadable record for what a crash leaves of writes
// that were not synced, unless a later record says otherwise, and that one is
// told only of the part of what was synced that did not fill whole blocks: under
// load nearly nothing. Raft knows better. An entry is applied only when it is
// durable; so where an entry, and behind it the applied state that covers it,
// can both be read behind an unreadable place, that place was durable, too.
func (d *dataDir) checkLog() error {
	names, err := d.fs.List(d.enginePath())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", d.path, err)
	}
	var newest uint64
	var name string
	for _, n := range names {
		text, isLog := strings.CutSuffix(n, ".log")
		if number, err := strconv.ParseUint(text, 10, 64); isLog && err == nil && number >= newest {
			newest, name = number, n
		}
	}
	if name == "" {
		return nil
	}
	f, err := d.fs.Open(d.fs.PathJoin(d.enginePath(), name))
	if err != nil {
		return fmt.Errorf("%s: %w", d.path, err)
	}
	defer func() { _ = f.Close() }() // read only
	s := logScan{number: uint32(newest), entries: map[uint64]uint64{}}
	block := make([]byte, logBlock)
	for offset := int64(0); ; offset += logBlock {
		n, err := io.ReadFull(f, block)
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return fmt.Errorf("%s: read the log %s: %w", d.path, name, err)
		}
		s.scan(block[:n], offset)
		if s.proven {
			return fmt.Errorf("%s: the log %s is unreadable at byte %d, before records that were synced: %w", d.path, name, s.unreadable, ErrDamaged)
		}
		if err != nil {
			return nil
		}
	}
}
