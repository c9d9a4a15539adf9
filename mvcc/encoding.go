package mvcc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"

	"github.com/hawser-kv/hawser/mvcc/keys"

	"github.com/cockroachdb/pebble/v2"
)

// The rows of this package in the engine.
//
//	version  0x03 | escaped user key 0x00 0x01 | ^revision (8) | ^sub (4) | 0x0d
//	           -> 0x1f: format (high nibble) and flags (low nibble)
//	              | revision - create revision | version | lease (if flagged), uvarints
//	              | value
//	event    0x04 | revision (8) | sub (4) | user key
//	           -> 0x1k: format (high nibble) and kind (low nibble)
//	              or 0x2k | revision - prior revision | prior sub, uvarints
//	lease    0x07 | lease (8) | user key
//	           -> 0x10: format. The key's newest version is attached to the lease.
//
// In a user key every 0x00 is written as 0x00 0xff and the end as 0x00 0x01, so
// escaped keys sort as the keys do and none is a prefix of another. The suffix
// is inverted: the newest version of a key comes first. Everything compares
// bytewise. The last byte of a version key, the length of the suffix, tells
// Split (comparer.go) that there is one.
//
// A key can have two versions in one revision: etcd lets sibling nested
// transactions put and then delete the same key. Hence sub in the version key;
// the larger sub is the state at that revision.

const (
	escapeByte     byte = 0x00
	escapedZero    byte = 0xff
	terminatorByte byte = 0x01

	// suffixLen is the length of a version key's suffix and the value of its
	// last byte.
	suffixLen = 8 + 4 + 1

	// minVersionKeyLen is prefix byte, terminator and suffix of an empty key.
	minVersionKeyLen = 1 + 2 + suffixLen

	eventKeyHeaderLen = 1 + 8 + 4

	leaseKeyHeaderLen = 1 + 8
)

// rowFormat is the format of version and event rows, the high nibble of their
// first byte, and priorFormat that of event rows which name a prior. Rows of
// another format are an error (errRowFormat).
const (
	rowFormat   byte = 1
	priorFormat byte = 2
)

const (
	flagTombstone byte = 1 << iota
	flagLease

	knownFlags = flagTombstone | flagLease
)

// eventKind says what an event did to the live keys.
type eventKind byte

const (
	eventCreate eventKind = 1 // a key came to life: live count +1
	eventPut    eventKind = 2 // a live key got a new version
	eventDelete eventKind = 3 // a live key died: live count -1
)

var (
	errCorruptRow = fmt.Errorf("mvcc: corrupt row: %w", pebble.ErrCorruption)
	errRowFormat  = errors.New("mvcc: row format not known to this version")
)

// appendVersionPrefix appends the part of a version key that names the user
// key. It is the prefix that Split finds, and sorts before all versions of the
// key: good as an iterator bound.
func appendVersionPrefix(dst, key []byte) []byte {
	dst = append(dst, keys.VersionPrefix)
	for {
		i := bytes.IndexByte(key, escapeByte)
		if i < 0 {
			break
		}
		dst = append(dst, key[:i+1]...)
		dst = append(dst, escapedZero)
		key = key[i+1:]
	}
	dst = append(dst, key...)
	return append(dst, escapeByte, terminatorByte)
}

// appendVersionSuffix completes a prefix to the key of one version.
func appendVersionSuffix(dst []byte, rev int64, sub uint32) []byte {
	dst = binary.BigEndian.AppendUint64(dst, ^uint64(rev))
	dst = binary.BigEndian.AppendUint32(dst, ^sub)
	return append(dst, suffixLen)
}

func appendVersionKey(dst, key []byte, rev int64, sub uint32) []byte {
	return appendVersionSuffix(appendVersionPrefix(dst, key), rev, sub)
}

// splitVersionKey cuts a version key into prefix, revision and sub-revision.
// ok is false for anything that is not the key of a version. The user key in
// the prefix is not checked: appendUserKey does.
func splitVersionKey(k []byte) (prefix []byte, rev int64, sub uint32, ok bool) {
	n := len(k) - suffixLen
	if len(k) < minVersionKeyLen || k[0] != keys.VersionPrefix || k[len(k)-1] != suffixLen ||
		k[n-2] != escapeByte || k[n-1] != terminatorByte {
		return nil, 0, 0, false
	}
	rev = int64(^binary.BigEndian.Uint64(k[n:]))
	sub = ^binary.BigEndian.Uint32(k[n+8:])
	return k[:n:n], rev, sub, rev >= 0
}

// appendUserKey appends the user key named by a version prefix.
func appendUserKey(dst, prefix []byte) ([]byte, error) {
	if len(prefix) < 3 || prefix[0] != keys.VersionPrefix {
		return dst, fmt.Errorf("%w: version prefix %x", errCorruptRow, prefix)
	}
	rest := prefix[1:]
	for {
		i := bytes.IndexByte(rest, escapeByte)
		if i < 0 || i+1 >= len(rest) {
			return dst, fmt.Errorf("%w: version prefix %x has no end", errCorruptRow, prefix)
		}
		switch rest[i+1] {
		case escapedZero:
			dst = append(dst, rest[:i+1]...)
			rest = rest[i+2:]
		case terminatorByte:
			if i+2 != len(rest) {
				return dst, fmt.Errorf("%w: version prefix %x goes on after its end", errCorruptRow, prefix)
			}
			return append(dst, rest[:i]...), nil
		default:
			return dst, fmt.Errorf("%w: version prefix %x: escape 0x%02x", errCorruptRow, prefix, rest[i+1])
		}
	}
}

// VersionSpan returns the engine bounds [lower, upper) of all versions of the
// user keys in [start, end). A nil or empty start is the begin of the keyspace,
// a nil end its end.
func VersionSpan(start, end []byte) (lower, upper []byte) {
	if len(start) == 0 {
		lower = []byte{keys.VersionPrefix}
	} else {
		lower = appendVersionPrefix(make([]byte, 0, len(start)+8), start)
	}
	if end == nil {
		upper = []byte{keys.VersionPrefix + 1}
	} else {
		upper = appendVersionPrefix(make([]byte, 0, len(end)+8), end)
	}
	return lower, upper
}

// version is a decoded version row without its key.
type version struct {
	createRevision int64
	version        int64
	lease          int64
	tombstone      bool
	value          []byte // aliases the row
}

// appendVersionValue appends the row of a version written at rev.
func appendVersionValue(dst []byte, v *version, rev int64) []byte {
	head := rowFormat << 4
	if v.tombstone {
		return append(dst, head|flagTombstone)
	}
	if v.lease != 0 {
		head |= flagLease
	}
	dst = append(dst, head)
	dst = binary.AppendUvarint(dst, uint64(rev-v.createRevision))
	dst = binary.AppendUvarint(dst, uint64(v.version))
	if v.lease != 0 {
		dst = binary.AppendUvarint(dst, uint64(v.lease))
	}
	return append(dst, v.value...)
}

// versionValueLen is the length of what appendVersionValue appends.
func versionValueLen(v *version, rev int64) int {
	if v.tombstone {
		return 1
	}
	n := 1 + uvarintLen(uint64(rev-v.createRevision)) + uvarintLen(uint64(v.version)) + len(v.value)
	if v.lease != 0 {
		n += uvarintLen(uint64(v.lease))
	}
	return n
}

func uvarintLen(x uint64) int { return (bits.Len64(x|1) + 6) / 7 }

// decodeVersionValue decodes the row of the version written at rev.
func decodeVersionValue(row []byte, rev int64) (v version, err error) {
	if len(row) == 0 {
		return v, fmt.Errorf("%w: empty version row", errCorruptRow)
	}
	head := row[0]
	if head>>4 != rowFormat || head&0xf&^knownFlags != 0 {
		return v, fmt.Errorf("%w: version row starts with 0x%02x", errRowFormat, head)
	}
	if head&flagTombstone != 0 {
		if len(row) != 1 || head&flagLease != 0 {
			return v, fmt.Errorf("%w: tombstone row %x", errCorruptRow, row)
		}
		v.tombstone = true
		return v, nil
	}
	rest := row[1:]
	age, n := binary.Uvarint(rest)
	if n <= 0 || age > uint64(rev) {
		return v, fmt.Errorf("%w: create revision of a version at %d", errCorruptRow, rev)
	}
	rest = rest[n:]
	ver, n := binary.Uvarint(rest)
	if n <= 0 || int64(ver) <= 0 {
		return v, fmt.Errorf("%w: version number at revision %d", errCorruptRow, rev)
	}
	rest = rest[n:]
	if head&flagLease != 0 {
		lease, n := binary.Uvarint(rest)
		if n <= 0 || lease == 0 {
			return v, fmt.Errorf("%w: lease of a version at %d", errCorruptRow, rev)
		}
		rest = rest[n:]
		v.lease = int64(lease)
	}
	v.createRevision = rev - int64(age)
	v.version = int64(ver)
	v.value = rest
	return v, nil
}

// appendEventKey appends the key of an event row.
func appendEventKey(dst []byte, rev int64, sub uint32, key []byte) []byte {
	dst = append(dst, keys.EventPrefix)
	dst = binary.BigEndian.AppendUint64(dst, uint64(rev))
	dst = binary.BigEndian.AppendUint32(dst, sub)
	return append(dst, key...)
}

// splitEventKey decodes the key of an event row; key aliases k.
func splitEventKey(k []byte) (rev int64, sub uint32, key []byte, err error) {
	if len(k) <= eventKeyHeaderLen || k[0] != keys.EventPrefix {
		return 0, 0, nil, fmt.Errorf("%w: event key %x", errCorruptRow, k)
	}
	rev = int64(binary.BigEndian.Uint64(k[1:]))
	sub = binary.BigEndian.Uint32(k[9:])
	if rev < 0 {
		return 0, 0, nil, fmt.Errorf("%w: event key %x: negative revision", errCorruptRow, k)
	}
	return rev, sub, k[eventKeyHeaderLen:], nil
}

// eventValue is what an event row says beside its key.
type eventValue struct {
	kind eventKind
	// prior is the version of the key before the event; zero if there is none, or
	// it is not known.
	prior Place
}

const maxEventValueLen = 1 + binary.MaxVarintLen64 + binary.MaxVarintLen32

// appendEventValue appends the value of the event row of an event at rev:
//
//	format, kind | [rev - prior revision | prior sub]
func appendEventValue(dst []byte, rev int64, v eventValue) []byte {
	if v.prior == (Place{}) {
		return append(dst, rowFormat<<4|byte(v.kind))
	}
	dst = append(dst, priorFormat<<4|byte(v.kind))
	dst = binary.AppendUvarint(dst, uint64(rev-v.prior.Revision))
	return binary.AppendUvarint(dst, uint64(v.prior.Sub))
}

// decodeEventValue decodes the value of the event row of an event at rev.
func decodeEventValue(row []byte, rev int64) (v eventValue, err error) {
	if len(row) == 0 {
		return v, fmt.Errorf("%w: empty event row", errCorruptRow)
	}
	v.kind = eventKind(row[0] & 0xf)
	ok := v.kind >= eventCreate && v.kind <= eventDelete
	rest := row[1:]
	switch row[0] >> 4 {
	case rowFormat:
	case priorFormat:
		age, n := binary.Uvarint(rest)
		ok = ok && n > 0 && 0 < age && age < uint64(rev) && v.kind != eventCreate
		rest = rest[max(n, 0):]
		sub, n := binary.Uvarint(rest)
		ok = ok && n > 0 && sub <= math.MaxUint32
		rest = rest[max(n, 0):]
		v.prior = Place{rev - int64(age), uint32(sub)}
	default:
		return v, fmt.Errorf("%w: event row starts with 0x%02x", errRowFormat, row[0])
	}
	if !ok || len(rest) > 0 {
		return eventValue{}, fmt.Errorf("%w: event row %x", errCorruptRow, row)
	}
	return v, nil
}

// appendLeaseKey appends the key of a row of the lease index.
func appendLeaseKey(dst []byte, lease int64, key []byte) []byte {
	dst = append(dst, keys.LeasePrefix)
	dst = binary.BigEndian.AppendUint64(dst, uint64(lease))
	return append(dst, key...)
}

// EventSpan returns the engine bounds [lower, upper) of the event rows of the
// revisions first..last, both included.
func EventSpan(first, last int64) (lower, upper []byte) {
	lower = binary.BigEndian.AppendUint64([]byte{keys.EventPrefix}, uint64(max(first, 0)))
	upper = binary.BigEndian.AppendUint64([]byte{keys.EventPrefix}, uint64(last)+1)
	return lower, upper
}
