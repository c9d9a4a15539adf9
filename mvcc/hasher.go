package mvcc

import (
	"cmp"
	"hash/crc32"
	"math"
	"slices"
)

// DefaultHashEntries is how many versions a Hasher holds: 48 MiB of sums, which a
// keyspace of two million versions needs for one walk.
const DefaultHashEntries = 2 << 20

// Hasher makes etcd's hash from the versions of all spans of the keyspace, which
// come in any order (Store.HashVersions). The hash needs them in order, and there
// may be more than fit into memory. So it holds a bounded number: those that come
// first in the order, and of the others it remembers that they were there. They
// come in a further walk over all spans, which passes over what is summed up:
//
//	h := NewHasher(0)
//	for more := true; more; more = h.EndWalk() {
//		// HashVersions of every span
//	}
//	sum := h.Sum()
//
// A Hasher belongs to one goroutine.
type Hasher struct {
	// Pause, if not nil, is called now and then during a walk, which ends with its
	// error: the walk is long and waits for nothing, so whoever makes it lets others
	// run there, and looks whether anybody wants the hash still.
	Pause func() error

	limit   int
	entries []HashEntry
	// after: everything up to it is in crc. upTo: what is above it is for another
	// walk.
	after, upTo hashPlace
	crc         uint32
	shifts      map[uint32]uint32 // by length
	// walks that have ended. In the first it is found whether any key is live.
	walks int
	live  bool
	steps int
}

// hashPlace is the place of a version in the order.
type hashPlace struct {
	revision int64
	sub      uint32
}

func (p hashPlace) compare(q hashPlace) int {
	return cmp.Or(cmp.Compare(p.revision, q.revision), cmp.Compare(p.sub, q.sub))
}

func (e *HashEntry) place() hashPlace { return hashPlace{e.Revision, e.Sub} }

var lastHashPlace = hashPlace{math.MaxInt64, math.MaxUint32}

// NewHasher returns a Hasher that holds at most limit versions, at least 2; 0 means
// DefaultHashEntries.
func NewHasher(limit int) *Hasher {
	if limit <= 0 {
		limit = DefaultHashEntries
	}
	return &Hasher{
		limit: max(limit, 2), after: hashPlace{revision: -1}, upTo: lastHashPlace,
		crc: crc32.Checksum([]byte(hashName), castagnoli), shifts: make(map[uint32]uint32),
	}
}

// stepsWithoutPause take some tens of microseconds, or some hundreds with values of
// a few kilobytes.
const stepsWithoutPause = 64

func (h *Hasher) step() error {
	if h.steps++; h.steps%stepsWithoutPause == 0 && h.Pause != nil {
		return h.Pause()
	}
	return nil
}

// wants reports whether Add of the version would do anything in this walk.
func (h *Hasher) wants(revision int64, sub uint32) bool {
	at := hashPlace{revision, sub}
	// Whether a key is live must be known of all.
	return h.walks == 0 && !h.live || at.compare(h.after) > 0 && at.compare(h.upTo) <= 0
}

// Add takes a version of the walk under way.
func (h *Hasher) Add(e HashEntry) {
	h.live = h.live || e.Live
	if at := e.place(); at.compare(h.after) <= 0 || at.compare(h.upTo) > 0 || e.OnlyIfEmpty && h.live {
		return
	}
	if len(h.entries) == h.limit {
		h.makeRoom()
		if e.place().compare(h.upTo) > 0 {
			return
		}
	}
	if h.entries == nil {
		h.entries = make([]HashEntry, 0, min(h.limit, 1024))
	}
	h.entries = append(h.entries, e)
}

// makeRoom drops what does not count after all, and if that is little the upper
// half.
func (h *Hasher) makeRoom() {
	h.dropDead()
	if len(h.entries) <= h.limit/2 {
		return
	}
	h.sort()
	h.entries = h.entries[:h.limit/2]
	h.upTo = h.entries[len(h.entries)-1].place()
}

func (h *Hasher) dropDead() {
	if h.live {
		h.entries = slices.DeleteFunc(h.entries, func(e HashEntry) bool { return e.OnlyIfEmpty })
	}
}

func (h *Hasher) sort() {
	slices.SortFunc(h.entries, func(a, b HashEntry) int { return a.place().compare(b.place()) })
}

// EndWalk ends a walk over all spans. It reports whether there must be another.
func (h *Hasher) EndWalk() (again bool) {
	h.walks++
	h.dropDead()
	h.sort()
	for i := range h.entries {
		e := &h.entries[i]
		shift, ok := h.shifts[e.Len]
		if !ok {
			shift = crcShift(e.Len)
			if len(h.shifts) < maxHashShifts {
				h.shifts[e.Len] = shift
			}
		}
		h.crc = crcMultiply(shift, h.crc) ^ e.CRC
	}
	h.entries = h.entries[:0]
	again = h.upTo != lastHashPlace
	h.after, h.upTo = h.upTo, lastHashPlace
	return again
}

// maxHashShifts bounds the shifts that are kept, one for each length of a row.
const maxHashShifts = 1 << 16

// Sum returns the hash, when EndWalk has asked for no other walk.
func (h *Hasher) Sum() uint32 { return h.crc }

// A CRC is a polynomial over GF(2) modulo that of the code. The CRC of a||b is
// crc(a) * x^(8*len(b)) + crc(b). Bits are reflected: the highest is x^0.

// crcMultiply multiplies two polynomials.
func crcMultiply(a, b uint32) uint32 {
	var p uint32
	for m := uint32(1) << 31; a != 0; m >>= 1 {
		if a&m != 0 {
			p ^= b
			a &^= m
		}
		carry := b & 1
		b >>= 1
		if carry != 0 {
			b ^= crc32.Castagnoli
		}
	}
	return p
}

// crcShift returns x^(8*n).
func crcShift(n uint32) uint32 {
	result, square := uint32(1)<<31, uint32(1)<<30 // 1, x
	for range 3 {
		square = crcMultiply(square, square) // x^8
	}
	for ; n > 0; n >>= 1 {
		if n&1 != 0 {
			result = crcMultiply(result, square)
		}
		square = crcMultiply(square, square)
	}
	return result
}
