package rangepb

import (
	"bytes"
	"fmt"
)

// Span is the keys from Start up to End, which is not in it. An End without bytes, nil or
// not, is the end of the keyspace; an End at or below Start makes the span empty. The zero
// value is the whole keyspace.
type Span struct{ Start, End []byte }

// Span returns the keys of the range. Its End is nil for the end of the keyspace, as mvcc
// has it.
func (d *RangeDescriptor) Span() Span {
	if len(d.End) == 0 {
		return Span{Start: d.Start}
	}
	return Span{Start: d.Start, End: d.End}
}

// Span returns the keys of the piece.
func (p *Piece) Span() Span { return Span{Start: p.Start, End: p.End} }

// IsEmpty reports whether no key is in the span.
func (s Span) IsEmpty() bool { return len(s.End) != 0 && bytes.Compare(s.Start, s.End) >= 0 }

// endsAfter reports whether the key lies before the end of the span.
func (s Span) endsAfter(key []byte) bool {
	return len(s.End) == 0 || bytes.Compare(key, s.End) < 0
}

// Contains reports whether the key is in the span.
func (s Span) Contains(key []byte) bool {
	return bytes.Compare(s.Start, key) <= 0 && s.endsAfter(key)
}

// Covers reports whether other begins and ends within the span. An empty other that
// does not is not covered.
func (s Span) Covers(other Span) bool {
	return bytes.Compare(s.Start, other.Start) <= 0 && s.holdsEndOf(other)
}

// holdsEndOf reports whether other ends at or before the end of the span.
func (s Span) holdsEndOf(other Span) bool {
	return len(s.End) == 0 || len(other.End) != 0 && bytes.Compare(other.End, s.End) <= 0
}

// Overlaps reports whether a key is in both spans, neither of which is empty.
func (s Span) Overlaps(other Span) bool {
	return s.endsAfter(other.Start) && other.endsAfter(s.Start)
}

// Meets reports whether next begins where the span ends.
func (s Span) Meets(next Span) bool { return len(s.End) != 0 && bytes.Equal(s.End, next.Start) }

// Clip returns the part of other that lies in the span, empty if there is none.
func (s Span) Clip(other Span) Span {
	if bytes.Compare(other.Start, s.Start) < 0 {
		other.Start = s.Start
	}
	if !s.holdsEndOf(other) {
		other.End = s.End
	}
	return other
}

// Tiles reports whether the parts, in this order, cover the span without gap or overlap,
// and none is empty.
func (s Span) Tiles(parts ...Span) bool {
	n := len(parts)
	if n == 0 || !bytes.Equal(parts[0].Start, s.Start) || !bytes.Equal(parts[n-1].End, s.End) {
		return false
	}
	for i, p := range parts {
		if p.IsEmpty() || i > 0 && !parts[i-1].Meets(p) {
			return false
		}
	}
	return true
}

// String prints the span as ["a", "b"), and as ["a", end) if it goes to the end of the
// keyspace.
func (s Span) String() string {
	if len(s.End) == 0 {
		return fmt.Sprintf("[%q, end)", s.Start)
	}
	return fmt.Sprintf("[%q, %q)", s.Start, s.End)
}
