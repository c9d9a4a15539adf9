package mvcc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"google.golang.org/protobuf/encoding/protowire"
)

// HashKV as etcd 3.7 computes it (etcd/MA4): CRC-32C over a name and
// then, in the order of (revision, sub), over the row of each version as etcd
// stores it. Our versions lie in key order in many ranges on many nodes, so each
// version is summed up alone and the sums are put together in order: the sum of
// a concatenation follows from the sums and the lengths of its parts (Hasher).
//
// Which versions count, for a hash at rev of a keyspace compacted at compactRev:
//
//	revision > compactRev    all, tombstones included, up to rev
//	revision <= compactRev   those that are live at rev
//
// With one exception, in etcd too: if no key at all is live at rev, the second
// line does not hold, and what the compaction has left counts: the versions live
// at compactRev. Whether a compaction has removed its garbage yet makes no
// difference.

// HashEntry is one version in the hash of a keyspace.
type HashEntry struct {
	Revision int64
	Sub      uint32
	// CRC is the CRC-32C of the version's row in etcd, Len its length in bytes.
	CRC uint32
	Len uint32
	// Live: the key is live at the revision of the hash, with this version.
	Live bool
	// OnlyIfEmpty: the version counts only if no key of the keyspace is live.
	OnlyIfEmpty bool
}

const (
	// hashName is what etcd's sum begins with: the name of its bucket.
	hashName = "key"

	hashTombstoneMark = 't'
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// HashVersions gives h the versions of the keys of [start, end), end nil for the
// end of the keyspace, that may count in the hash at rev of a keyspace compacted
// at compactRev, 0 or less if it never was. Everything up to rev is applied. The
// order is none. ErrPending while a deletion of these keys at or below rev is not written
// out;
// ErrCompacted if a revision above compactRev is forgotten, or rev is; and the error
// of h.Pause.
func (s *Store) HashVersions(start, end []byte, rev, compactRev int64, h *Hasher) error {
	if emptyInterval(start, end) {
		return nil
	}
	lower, upper := VersionSpan(start, end)
	c, err := s.openCursor(lower, upper, false)
	if err != nil {
		return err
	}
	if c.pending.from(start, end, 0) <= rev {
		err = ErrPending
	} else if s.forgotten.Load() > max(compactRev, 0) || rev < compactRev {
		err = ErrCompacted
	} else {
		err = c.hashVersions(rev, compactRev, h)
	}
	return errors.Join(err, s.release(c))
}

func (c *cursor) hashVersions(rev, compactRev int64, h *Hasher) error {
	var key, row []byte
	started, seen := false, false // of the key: begun, its newest version at or below rev was met
	for ok := c.it.First(); ok; {
		if err := h.step(); err != nil {
			return err
		}
		prefix, at, sub, isVersion := splitVersionKey(c.it.Key())
		if !isVersion {
			return fmt.Errorf("%w: version key %x", errCorruptRow, c.it.Key())
		}
		if !started || !bytes.Equal(prefix, c.prefix) {
			started, seen = true, false
			c.prefix = append(c.prefix[:0], prefix...)
			var err error
			if key, err = appendUserKey(key[:0], prefix); err != nil {
				return err
			}
		}
		if at > rev {
			ok = c.it.Next()
			continue
		}
		newest := !seen
		seen = true
		if h.wants(at, sub) {
			value, err := c.it.ValueAndErr()
			if err != nil {
				return fmt.Errorf("mvcc: hash: %w", err)
			}
			v, err := decodeVersionValue(value, at)
			if err != nil {
				return err
			}
			e := HashEntry{Revision: at, Sub: sub, Live: newest && !v.tombstone}
			e.OnlyIfEmpty = at <= compactRev && !e.Live
			if at > compactRev || !v.tombstone {
				row = appendHashedRow(row[:0], key, &v, at, sub)
				e.CRC, e.Len = crc32.Checksum(row, castagnoli), uint32(len(row))
				h.Add(e)
			}
		}
		if at <= compactRev {
			ok = c.it.NextPrefix() // what is older is garbage
		} else {
			ok = c.it.Next()
		}
	}
	if err := c.it.Error(); err != nil {
		return fmt.Errorf("mvcc: hash: %w", err)
	}
	return nil
}

// appendHashedRow appends key and value of a version as they are in etcd's
// bucket: revision '_' sub, both eight bytes, a mark for a tombstone; and the
// encoded KeyValue, of a tombstone only its key.
func appendHashedRow(dst, key []byte, v *version, rev int64, sub uint32) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(rev))
	dst = append(dst, '_')
	dst = binary.BigEndian.AppendUint64(dst, uint64(sub))
	if v.tombstone {
		dst = append(dst, hashTombstoneMark)
	}
	bytesField := func(num protowire.Number, b []byte) {
		if len(b) > 0 {
			dst = protowire.AppendTag(dst, num, protowire.BytesType)
			dst = protowire.AppendBytes(dst, b)
		}
	}
	intField := func(num protowire.Number, n int64) {
		if n != 0 {
			dst = protowire.AppendTag(dst, num, protowire.VarintType)
			dst = protowire.AppendVarint(dst, uint64(n))
		}
	}
	bytesField(1, key)
	if v.tombstone {
		return dst
	}
	intField(2, v.createRevision)
	intField(3, rev)
	intField(4, v.version)
	bytesField(5, v.value)
	intField(6, v.lease)
	return dst
}
