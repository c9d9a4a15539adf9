package engine

import (
	"encoding/binary"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"

	"github.com/hawser-kv/hawser/range/keys"
	"github.com/hawser-kv/hawser/range/raftlog"
)

// logScan reads the blocks of a log in order.
type logScan struct {
	number uint32
	// bad: some place could not be read, the first at unreadable.
	bad        bool
	unreadable int64
	// readable is up to where everything could be read.
	readable int64
	// record is what is there of the record that the next chunk goes on with;
	// nil if none is known.
	record []byte
	// entries has the lowest index of each group's entries behind unreadable; nil:
	// nobody asks for evidence.
	entries map[uint64]uint64
	proven  bool
}

func (s *logScan) scan(block []byte, offset int64) {
	for at := 0; at < len(block); {
		b := block[at:]
		if len(b) < logHeaderSync && allZero(b) {
			s.good(offset + int64(len(block))) // the end of a block is left out
			return
		}
		if len(b) < logHeader {
			s.unread(offset + int64(at))
			return
		}
		if s.trailer(b[:logHeader]) {
			// What follows is of a log that was here before.
			s.good(offset + int64(at+logHeader))
			s.unread(offset + int64(at+logHeader))
			at += logHeader
			continue
		}
		kind, header := b[6], logHeader
		if kind >= firstSyncType {
			header = logHeaderSync
		}
		end := header + int(binary.LittleEndian.Uint16(b[4:]))
		if kind < firstLogType || kind >= beyondSyncType || end > len(b) ||
			binary.LittleEndian.Uint32(b[7:]) != s.number || binary.LittleEndian.Uint32(b) != masked(b[6:end]) {
			s.unread(offset + int64(at))
			at++ // the next chunk may be anywhere: number and checksum tell
			continue
		}
		if s.bad && s.entries != nil {
			s.chunk((kind-firstLogType)%4, b[header:end])
		}
		at += end
		s.good(offset + int64(at))
	}
}

// good says that all is readable up to an offset, unless something before is not.
func (s *logScan) good(offset int64) {
	if !s.bad {
		s.readable = offset
	}
}

// unread says that nothing can be read at an offset.
func (s *logScan) unread(offset int64) {
	if !s.bad {
		s.bad, s.unreadable = true, offset
	}
	s.record = nil
}

// trailer reports whether b is the end of a log that was closed: a whole chunk with
// nothing in it, of the next log.
func (s *logScan) trailer(b []byte) bool {
	return b[6] == firstLogType && binary.LittleEndian.Uint32(b[7:]) == s.number+1 && allZero(b[:6])
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// chunk takes a chunk behind what is unreadable.
func (s *logScan) chunk(position byte, payload []byte) {
	const first, middle, last = 1, 2, 3
	switch {
	case position == middle && s.record != nil:
		s.record = append(s.record, payload...)
	case position == last && s.record != nil:
		s.batch(append(s.record, payload...))
		s.record = nil
	case position == first:
		s.record = append(make([]byte, 0, 2*logBlock), payload...)
	case position == 0:
		s.batch(payload)
		s.record = nil
	}
}

// batch looks for entries, and for what covers earlier ones.
func (s *logScan) batch(repr []byte) {
	if len(repr) < batchrepr.HeaderLen {
		return
	}
	applied := map[uint64]uint64{}
	found := map[uint64]uint64{}
	for r := batchrepr.Read(repr); ; {
		kind, key, value, ok, err := r.Next()
		if !ok || err != nil {
			break
		}
		if kind != pebble.InternalKeyKindSet || len(key) < 10 || key[0] != keys.GroupPrefix {
			continue // what is deleted is old
		}
		group := binary.BigEndian.Uint64(key[1:])
		switch key[9] {
		case keys.KindLog:
			if len(key) == 18 {
				index := binary.BigEndian.Uint64(key[10:])
				if low, ok := found[group]; !ok || index < low {
					found[group] = index
				}
			}
		case keys.KindApplied:
			if a, err := raftlog.DecodeApplied(key, value); err == nil {
				applied[group] = a.Index
			}
		}
	}
	// Of one batch nothing can be said: its own entries were not durable yet.
	for group, index := range applied {
		if low, ok := s.entries[group]; ok && low <= index {
			s.proven = true
		}
	}
	for group, index := range found {
		if low, ok := s.entries[group]; !ok || index < low {
			s.entries[group] = index
		}
	}
}
