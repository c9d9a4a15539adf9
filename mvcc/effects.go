package mvcc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// Effect is one change of a write: a new version of a key, or its end. The
// revision is that of the write, which is not known when effects are made.
type Effect struct {
	Key   []byte
	Value []byte
	// Sub is the place of the change within its revision, in etcd's order, from
	// 0; unique over all ranges that the write touches.
	Sub uint32
	// CreateRevision of the key; 0 means the revision of the write. 0 in a
	// tombstone.
	CreateRevision int64
	Version        int64 // changes since the key was created, from 1; 0 in a tombstone
	Lease          int64 // the lease the key is attached to now, 0 if none
	OldLease       int64 // the lease it was attached to before, 0 if none
	Tombstone      bool
	// Prior is the version that the change supersedes: what a compaction removes.
	// None for a creation, or if the evaluation did not learn it.
	Prior Place
	// Count is set for the deletion of a span: of all keys of [Key, End) that lived
	// before the revision, which are so many. Nothing else of the revision that has a
	// smaller Sub touches the span. They have the subs from Sub on, in the order of
	// their keys. Nothing else is set but Tombstone.
	Count int64
	// End of a span, excluded; nil: to the end of the keyspace.
	End []byte
}

// IsSpan says whether the effect is the deletion of a span.
func (e *Effect) IsSpan() bool { return e.Count != 0 }

// subs is how many changes the effect is.
func (e *Effect) subs() int64 { return max(e.Count, 1) }

// Place is where a version of a key stands in the order of all changes. The zero
// Place is none.
type Place struct {
	Revision int64
	Sub      uint32
}

// Encoded effects: a format byte, the number of effects, then for each
//
//	flags | sub | key length, key | [create revision] | version | [lease] | [old lease] | [prior revision, sub] | value length, value
//
// all numbers uvarints; what stands in brackets is there if flagged, and a
// tombstone has neither version nor value. The deletion of a span is
//
//	flags | sub | key length, key | count | [end length, end]
//
// Format 1 knew no prior, format 2 no spans. Effects without a span are written in
// format 2.
const (
	spanEffectsFormat   byte = 3
	effectsFormat       byte = 2
	effectsFormatBefore byte = 1
)

const (
	effectTombstone byte = 1 << iota
	effectOldCreate      // a create revision is given
	effectLease
	effectOldLease
	effectPrior
	effectSpan
	effectSpanEnd

	spanEffectFlags  = effectSpan | effectSpanEnd
	knownEffectFlags = effectTombstone | effectOldCreate | effectLease | effectOldLease | effectPrior | spanEffectFlags
)

// minEffectBytes is the size of the smallest effect; it bounds what a decoder
// allocates for a given input.
const minEffectBytes = 3

// ErrCorruptEffects is returned by DecodeEffects.
var ErrCorruptEffects = errors.New("mvcc: corrupt effects")

// EffectsSize returns an upper bound of the size of encoded effects.
func EffectsSize(effs []Effect) int {
	n := 1 + binary.MaxVarintLen64
	for i := range effs {
		n += 1 + 3*binary.MaxVarintLen32 + 6*binary.MaxVarintLen64 + len(effs[i].Key) + len(effs[i].Value) + len(effs[i].End)
	}
	return n
}

// AppendEffects appends the encoding of effects to dst.
func AppendEffects(dst []byte, effs []Effect) []byte {
	format := effectsFormat
	if HasSpan(effs) {
		format = spanEffectsFormat
	}
	dst = append(dst, format)
	dst = binary.AppendUvarint(dst, uint64(len(effs)))
	for i := range effs {
		e := &effs[i]
		if e.IsSpan() {
			dst = e.appendSpan(dst)
			continue
		}
		var flags byte
		if e.Tombstone {
			flags |= effectTombstone
		}
		if e.CreateRevision != 0 {
			flags |= effectOldCreate
		}
		if e.Lease != 0 {
			flags |= effectLease
		}
		if e.OldLease != 0 {
			flags |= effectOldLease
		}
		if e.Prior.Revision != 0 {
			flags |= effectPrior
		}
		dst = append(dst, flags)
		dst = binary.AppendUvarint(dst, uint64(e.Sub))
		dst = binary.AppendUvarint(dst, uint64(len(e.Key)))
		dst = append(dst, e.Key...)
		if e.CreateRevision != 0 {
			dst = binary.AppendUvarint(dst, uint64(e.CreateRevision))
		}
		if !e.Tombstone {
			dst = binary.AppendUvarint(dst, uint64(e.Version))
		}
		if e.Lease != 0 {
			dst = binary.AppendUvarint(dst, uint64(e.Lease))
		}
		if e.OldLease != 0 {
			dst = binary.AppendUvarint(dst, uint64(e.OldLease))
		}
		if e.Prior.Revision != 0 {
			dst = binary.AppendUvarint(dst, uint64(e.Prior.Revision))
			dst = binary.AppendUvarint(dst, uint64(e.Prior.Sub))
		}
		if !e.Tombstone {
			dst = binary.AppendUvarint(dst, uint64(len(e.Value)))
			dst = append(dst, e.Value...)
		}
	}
	return dst
}

func (e *Effect) appendSpan(dst []byte) []byte {
	flags := effectTombstone | effectSpan
	if e.End != nil {
		flags |= effectSpanEnd
	}
	dst = append(dst, flags)
	dst = binary.AppendUvarint(dst, uint64(e.Sub))
	dst = binary.AppendUvarint(dst, uint64(len(e.Key)))
	dst = append(dst, e.Key...)
	dst = binary.AppendUvarint(dst, uint64(e.Count))
	if e.End != nil {
		dst = binary.AppendUvarint(dst, uint64(len(e.End)))
		dst = append(dst, e.End...)
	}
	return dst
}

// DecodeEffects decodes what AppendEffects made. Keys and values alias b.
func DecodeEffects(b []byte) ([]Effect, error) {
	d := effectDecoder{rest: b, known: knownEffectFlags}
	if format := d.byte(); d.bad || format < effectsFormatBefore || format > spanEffectsFormat {
		return nil, fmt.Errorf("%w: format %d of %d bytes", ErrCorruptEffects, format, len(b))
	}
	switch b[0] {
	case effectsFormatBefore:
		d.known &^= effectPrior | spanEffectFlags
	case effectsFormat:
		d.known &^= spanEffectFlags
	}
	n := d.uvarint()
	if d.bad || n > uint64(len(d.rest)/minEffectBytes) {
		return nil, fmt.Errorf("%w: %d effects in %d bytes", ErrCorruptEffects, n, len(b))
	}
	effs := make([]Effect, n)
	for i := range effs {
		if d.effect(&effs[i]); d.bad {
			return nil, fmt.Errorf("%w: effect %d of %d", ErrCorruptEffects, i, n)
		}
	}
	if len(d.rest) != 0 {
		return nil, fmt.Errorf("%w: %d bytes too many", ErrCorruptEffects, len(d.rest))
	}
	return effs, nil
}

// effectDecoder reads from rest; after the first fault bad stays set.
type effectDecoder struct {
	rest  []byte
	known byte // flags of the format
	bad   bool
}

func (d *effectDecoder) effect(e *Effect) {
	flags := d.byte()
	sub := d.uvarint()
	e.Sub = uint32(sub)
	e.Key = d.bytes()
	e.Tombstone = flags&effectTombstone != 0
	if flags&effectSpan != 0 {
		d.span(e, flags)
		d.bad = d.bad || flags&^d.known != 0 || len(e.Key) == 0
		return
	}
	if flags&effectOldCreate != 0 {
		e.CreateRevision = d.nonZero()
		d.bad = d.bad || e.Tombstone || e.CreateRevision < 0
	}
	if !e.Tombstone {
		e.Version = d.nonZero()
		d.bad = d.bad || e.Version < 0
	}
	if flags&effectLease != 0 {
		e.Lease = d.nonZero()
		d.bad = d.bad || e.Tombstone
	}
	if flags&effectOldLease != 0 {
		e.OldLease = d.nonZero()
	}
	if flags&effectPrior != 0 {
		e.Prior.Revision = d.nonZero()
		priorSub := d.uvarint()
		e.Prior.Sub = uint32(priorSub)
		d.bad = d.bad || e.Version == 1 || e.Prior.Revision < 0 || e.Prior.Revision == ownRevision || priorSub > math.MaxUint32
	}
	if !e.Tombstone {
		e.Value = d.bytes()
	}
	d.bad = d.bad || flags&^d.known != 0 || flags&effectSpanEnd != 0 || sub > math.MaxUint32 || len(e.Key) == 0
}

func (d *effectDecoder) span(e *Effect, flags byte) {
	e.Count = d.nonZero()
	if flags&effectSpanEnd != 0 {
		e.End = d.bytes()
	}
	d.bad = d.bad || flags&^spanEffectFlags != effectTombstone || e.Count < 0 || emptyInterval(e.Key, e.End) ||
		e.Count > math.MaxUint32-int64(e.Sub)
}

func (d *effectDecoder) byte() byte {
	if len(d.rest) == 0 {
		d.bad = true
		return 0
	}
	c := d.rest[0]
	d.rest = d.rest[1:]
	return c
}

func (d *effectDecoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 {
		d.bad = true
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *effectDecoder) nonZero() int64 {
	v := int64(d.uvarint())
	d.bad = d.bad || v == 0
	return v
}

func (d *effectDecoder) bytes() []byte {
	n := d.uvarint()
	if n > uint64(len(d.rest)) {
		d.bad = true
		return nil
	}
	b := d.rest[:n:n]
	d.rest = d.rest[n:]
	return b
}
