package mvcc

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/hawser-kv/hawser/mvcc/keys"
)

// Comparer orders the whole engine bytewise and splits version keys, and only
// those, into user key and revision. Its name is part of every sstable: a
// change of order or Split needs a new name and a migration.
//
// Why Split may look at one byte: rows outside 0x03 may end with anything, so
// the first byte decides that they have no suffix. Inside 0x03 a key is a full
// version key (ends with the suffix length), a prefix (ends with the
// terminator) or a separator that Pebble made here (below), which ends with
// the terminator byte, too. No prefix of a full version key is a proper prefix
// of another key's, so bytewise order is (prefix, suffix) order.
var Comparer = &pebble.Comparer{
	Name: "hawser.v1",

	Compare:              bytes.Compare,
	Equal:                bytes.Equal,
	ComparePointSuffixes: bytes.Compare,
	CompareRangeSuffixes: bytes.Compare,
	Split:                splitKey,
	AbbreviatedKey:       abbreviatedKey,
	Separator:            separator,
	Successor:            successor,
	ImmediateSuccessor:   immediateSuccessor,
	FormatKey:            formatKey,
}

// splitKey returns the length of k without its revision suffix.
func splitKey(k []byte) int {
	n := len(k)
	if n > suffixLen && k[0] == keys.VersionPrefix && k[n-1] == suffixLen {
		return n - suffixLen
	}
	return n
}

func abbreviatedKey(k []byte) uint64 {
	if len(k) >= 8 {
		return binary.BigEndian.Uint64(k)
	}
	var v uint64
	for _, b := range k {
		v = v<<8 | uint64(b)
	}
	return v << uint(8*(8-len(k)))
}

// separator appends a short key in [a, b). Between two versions of one user key
// there is none shorter than a. Otherwise the first byte that differs lies in
// the prefixes, and anything that starts with that byte of a plus one, if b's
// is larger still, will do; the terminator byte at its end keeps Split right.
func separator(dst, a, b []byte) []byte {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	if i >= len(a) || i >= len(b) || i >= splitKey(a) || i >= splitKey(b) {
		return append(dst, a...)
	}
	if a[i] < b[i] && a[i]+1 < b[i] {
		dst = append(dst, a[:i]...)
		return closeShort(append(dst, a[i]+1), a[0])
	}
	// b's byte is the very next one: a[:i+1] must stay, so that the separator
	// is below b; grow the first later byte of a's prefix that can grow.
	for j := i + 1; j < splitKey(a); j++ {
		if a[j] != 0xff {
			dst = append(dst, a[:j]...)
			return closeShort(append(dst, a[j]+1), a[0])
		}
	}
	return append(dst, a...)
}

// successor appends a short key >= a.
func successor(dst, a []byte) []byte {
	for i := 0; i < splitKey(a); i++ {
		if a[i] != 0xff {
			dst = append(dst, a[:i]...)
			return closeShort(append(dst, a[i]+1), a[0])
		}
	}
	return append(dst, a...)
}

// closeShort makes a shortened version key one without suffix.
func closeShort(k []byte, first byte) []byte {
	if first == keys.VersionPrefix && k[len(k)-1] == suffixLen {
		return append(k, terminatorByte)
	}
	return k
}

// immediateSuccessor appends the smallest prefix above the prefix a. For the
// prefix of a user key that is one with the byte after the terminator: a key
// with one more byte has 0x00 0xff or more in that place. Iterators seek to it
// in NextPrefix.
func immediateSuccessor(dst, a []byte) []byte {
	dst = append(dst, a...)
	n := len(a)
	if n >= 3 && a[0] == keys.VersionPrefix && a[n-2] == escapeByte && a[n-1] == terminatorByte {
		dst[len(dst)-1]++
		return dst
	}
	return append(dst, 0x00)
}

type formattedKey []byte

func formatKey(k []byte) fmt.Formatter { return formattedKey(k) }

// Format prints a version key as "key"@revision.sub and anything else in hex.
func (k formattedKey) Format(s fmt.State, _ rune) {
	if prefix, rev, sub, ok := splitVersionKey(k); ok {
		if key, err := appendUserKey(nil, prefix); err == nil {
			fmt.Fprintf(s, "%q@%d.%d", key, rev, sub)
			return
		}
	}
	fmt.Fprintf(s, "%x", []byte(k))
}
