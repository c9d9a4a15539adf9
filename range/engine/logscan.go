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
	// record is what is there of the record that the next chunk goes on with;
	// nil if none is known.
	record []byte
	// entries has the lowest index of each group's entries behind unreadable.
	entries map[uint64]uint64
	proven  bool
}

func (s *logScan) scan(block []byte, offset int64) {
	for at := 0; at+logHeader <= len(block); {
		b := block[at:]
		kind, header := b[6], logHeader
		if kind >= firstSyncType {
			header = logHeaderSync
		}
		if kind == 0 && len(b) < logHeaderSync {
			return // the end of a block is left out
		}
		end := header + int(binary.LittleEndian.Uint16(b[4:]))
		if kind < firstLogType || kind >= beyondSyncType || end > len(b) ||
			binary.LittleEndian.Uint32(b[7:]) != s.number || binary.LittleEndian.Uint32(b) != masked(b[6:end]) {
			if !s.bad {
				s.bad, s.unreadable = true, offset+int64(at)
			}
			s.record = nil
			at++ // the next chunk may be anywhere: number and checksum tell
			continue
		}
		if s.bad {
			s.chunk((kind-firstLogType)%4, b[header:end])
		}
		at += end
	}
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
