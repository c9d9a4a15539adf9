package counts

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// blockEntries is the number of entries after which a history notes where it
// is: a count decodes at most this many entries.
const blockEntries = 32

// history is what happened to the live-key count of one run: a list of
// (revision, change of the count), in growing revisions, one entry per
// revision, no entry that changes nothing (but for the newest). The newest
// entry is kept decoded, because more changes of its revision may come; the
// others are packed:
//
//	uvarint(revision difference << 2 | code)     code 0: +1   code 1: -1
//	code 2: followed by varint(change)
//
// so that a key that is created costs one or two bytes.
type history struct {
	packed []byte
	// marks[i] describes the state before entry (i+1)*blockEntries of packed.
	marks []mark
	// entries is the number of entries in packed; packedRev the revision of the
	// last of them, origin the number that the first difference is taken from.
	entries   int
	packedRev int64
	origin    int64
	// sum is the sum of all changes, the newest entry included.
	sum int64
	// tailRev and tailDelta are the newest entry; none if tailRev is 0.
	tailRev   int64
	tailDelta int64
}

type mark struct {
	offset int   // into packed
	rev    int64 // revision of the entry before
	sum    int64 // sum of the changes before
}

// add records a change at rev, which is not below the newest revision.
func (h *history) add(rev, delta int64) {
	if rev < h.tailRev {
		panic(fmt.Sprintf("counts: revision %d after %d in one history", rev, h.tailRev))
	}
	if rev > h.tailRev {
		h.packTail()
		h.tailRev, h.tailDelta = rev, 0
	}
	h.tailDelta += delta
	h.sum += delta
}

// packTail packs the newest entry, so that another can take its place.

func (h *history) packTail() {
	if h.tailRev == 0 || h.tailDelta == 0 {
		return
	}
	if h.entries == 0 {
		h.origin, h.packedRev = h.tailRev, h.tailRev
	} else if h.entries%blockEntries == 0 {
		h.marks = append(h.marks, mark{offset: len(h.packed), rev: h.packedRev, sum: h.sum - h.tailDelta})
	}
	diff := uint64(h.tailRev-h.packedRev) << 2
	switch h.tailDelta {
	case 1:
		h.packed = binary.AppendUvarint(h.packed, diff)
	case -1:
		h.packed = binary.AppendUvarint(h.packed, diff|1)
	default:
		h.packed = binary.AppendUvarint(h.packed, diff|2)
		h.packed = binary.AppendVarint(h.packed, h.tailDelta)
	}
	h.packedRev = h.tailRev
	h.entries++
	h.tailRev, h.tailDelta = 0, 0
}

// newest returns the revision of the newest entry, 0 if there is none.
func (h *history) newest() int64 {
	if h.tailRev != 0 {
		return h.tailRev
	}
	return h.packedRev
}

// after returns the sum of the changes after rev.
func (h *history) after(rev int64) int64 {
	if h.tailRev == 0 || rev >= h.tailRev {
		return 0
	}
	if rev >= h.packedRev {
		return h.tailDelta
	}
	offset, at, upTo := 0, h.origin, int64(0)
	// The last mark whose entry before is at or below rev.
	i, _ := slices.BinarySearchFunc(h.marks, rev, func(m mark, rev int64) int {
		if m.rev <= rev {
			return -1
		}
		return 1
	})
	if i > 0 {
		m := h.marks[i-1]
		offset, at, upTo = m.offset, m.rev, m.sum
	}
	for offset < len(h.packed) {
		d, n, ok := unpack(h.packed[offset:], &at)
		if !ok {
			panic("counts: unreadable history in memory")
		}
		if at > rev {
			break
		}
		upTo += d
		offset += n
	}
	return h.sum - upTo
}

// unpack reads one packed entry, moves at to its revision and returns its
// change and length. It fails on bytes that no history writes.
func unpack(p []byte, at *int64) (delta int64, n int, ok bool) {
	u, n := binary.Uvarint(p)
	if n <= 0 || u>>2 > uint64(1<<62) {
		return 0, 0, false
	}
	next := *at + int64(u>>2)
	if next < *at {
		return 0, 0, false
	}
	*at = next
	switch u & 3 {
	case 0:
		return 1, n, true
	case 1:
		return -1, n, true
	case 2:
		d, m := binary.Varint(p[n:])
		if m <= 0 || d == 0 {
			return 0, 0, false
		}
		return d, n + m, true
	}
	return 0, 0, false
}

// each visits all entries in growing revisions, those without a change left out.
func (h *history) each(fn func(rev, delta int64)) {
	at := h.origin
	for p := h.packed; len(p) > 0; {
		d, n, ok := unpack(p, &at)
		if !ok {
			panic("counts: unreadable history in memory")
		}
		fn(at, d)
		p = p[n:]
	}
	if h.tailRev != 0 && h.tailDelta != 0 {
		fn(h.tailRev, h.tailDelta)
	}
}

// oldest returns the revision of the oldest entry, 0 if there is none.
func (h *history) oldest() int64 {
	if h.entries > 0 {
		return h.origin
	}
	return h.tailRev
}

// folded returns the history without its entries at or below rev, and the sum
// of the positive changes that remain. h is not changed.
func (h *history) folded(rev int64) (history, int64) {
	var out history
	var created int64
	h.each(func(r, d int64) {
		if r > rev {
			out.add(r, d)
			created += max(d, 0)
		}
	})
	// The sum of the history is no longer the count of its run, which is why
	// a run keeps its count apart.
	out.packed = slices.Clip(out.packed)
	return out, created
}

// merged returns the history of two runs taken together.
func merged(a, b *history) history {
	type entry struct{ rev, delta int64 }
	var list []entry
	collect := func(rev, delta int64) { list = append(list, entry{rev, delta}) }
	a.each(collect)
	b.each(collect)
	slices.SortStableFunc(list, func(x, y entry) int {
		switch {
		case x.rev < y.rev:
			return -1
		case x.rev > y.rev:
			return 1
		}
		return 0
	})
	var out history
	for _, e := range list {
		out.add(e.rev, e.delta)
	}
	return out
}

// equal says whether two histories say the same.
func (h *history) equal(o *history) bool {
	type entry struct{ rev, delta int64 }
	var a, b []entry
	h.each(func(rev, delta int64) { a = append(a, entry{rev, delta}) })
	o.each(func(rev, delta int64) { b = append(b, entry{rev, delta}) })
	return slices.Equal(a, b)
}

// appendTo appends the encoded history: uvarint(origin), uvarint(length of the
// packed entries), the packed entries, the newest among them.
func (h *history) appendTo(dst []byte) []byte {
	var all history
	h.each(all.add)
	all.packTail()
	dst = binary.AppendUvarint(dst, uint64(all.origin))
	dst = binary.AppendUvarint(dst, uint64(len(all.packed)))
	return append(dst, all.packed...)
}

// decodeHistory reads what appendTo wrote and returns the rest.
func decodeHistory(p []byte) (h history, rest []byte, ok bool) {
	origin, n := binary.Uvarint(p)
	if n <= 0 || origin > 1<<62 {
		return history{}, nil, false
	}
	p = p[n:]
	length, n := binary.Uvarint(p)
	if n <= 0 || length > uint64(len(p)-n) {
		return history{}, nil, false
	}
	p = p[n:]
	packed, rest := p[:length], p[length:]
	at, last := int64(origin), int64(0)
	for len(packed) > 0 {
		d, n, ok := unpack(packed, &at)
		if !ok || at <= last {
			return history{}, nil, false
		}
		h.add(at, d)
		last = at
		packed = packed[n:]
	}
	h.packed = slices.Clip(h.packed)
	return h, rest, true
}
