// Package keys is the map of the engine: every key that a node stores in its
// one Pebble engine starts with one of the bytes below. Those of mvcc, which does
// not know who shares the engine with it, are named in mvcc/keys.
//
//	0x01  node       identity of the engine: format version, cluster, node, store ids
//	0x02  group      per Raft group: 0x02 | group id (8, big endian) | kind (1) | ...
//	0x03  version    MVCC versions: 0x03 | escaped user key | revision, inverted (mvcc)
//	0x04  event      revision index: 0x04 | revision (8) | sub (4) | user key      (mvcc)
//	0x05  count      checkpoints of the live-key counts                           (mvcc/counts)
//	0x06  mvcc meta  forgotten revision, compaction progress, count checkpoint     (mvcc)
//	0x07  lease      keys attached to a lease: 0x07 | lease id (8) | user key      (mvcc)
//
// Versions and events carry no group id, so a split moves no data
// (revisions.md R11).
package keys

import "encoding/binary"

// Prefixes of the engine's key space, one byte each.
const (
	NodePrefix  byte = 0x01
	GroupPrefix byte = 0x02
)

// Kinds of per-group keys, the byte after the group id.
const (
	// KindDescriptor holds the range descriptor as this replica has applied it.
	KindDescriptor byte = 'd'
	// KindHardState holds raft's HardState.
	KindHardState byte = 'h'
	// KindLog is followed by an 8-byte big-endian log index.
	KindLog byte = 'l'
	// KindApplied holds the applied state: index, term, resolved revision.
	KindApplied byte = 'a'
	// KindTruncated holds the index and term of the last truncated entry.
	KindTruncated byte = 't'
	// KindConfState holds raft's ConfState as applied.
	KindConfState byte = 'c'
	// KindState is followed by a state machine's own keys (the meta group's rows).
	KindState byte = 's'
)

// MetaGroupID is the Raft group of the placement service. Ranges have ids from 1.
const MetaGroupID uint64 = 0

// Group returns the key of a group's row of the given kind.
func Group(id uint64, kind byte) []byte {
	return AppendGroup(make([]byte, 0, 10), id, kind)
}

// AppendGroup appends Group(id, kind) to dst.
func AppendGroup(dst []byte, id uint64, kind byte) []byte {
	dst = append(dst, GroupPrefix)
	dst = binary.BigEndian.AppendUint64(dst, id)
	return append(dst, kind)
}

// LogEntry returns the key of one entry of a group's Raft log.
func LogEntry(id, index uint64) []byte {
	k := AppendGroup(make([]byte, 0, 18), id, KindLog)
	return binary.BigEndian.AppendUint64(k, index)
}

// Node returns the key of a row about the engine itself.
func Node(name string) []byte {
	return append([]byte{NodePrefix}, name...)
}
