package rangepb

import (
	"math/rand"
	"testing"
)

// keysOf returns which of the keys "a" to "h" are in a span, by its definition.
func keysOf(s Span) (in [8]bool) {
	for i := range in {
		key := string(rune('a' + i))
		in[i] = string(s.Start) <= key && (len(s.End) == 0 || key < string(s.End))
	}
	return in
}

// randomSpan returns a span that is not empty, with its ends among the keys.
func randomSpan(rnd *rand.Rand) Span {
	var s Span
	from := rnd.Intn(8)
	if from > 0 || rnd.Intn(2) == 0 {
		s.Start = []byte{byte('a' + from)}
	}
	switch to := from + 1 + rnd.Intn(8-from); {
	case to < 8:
		s.End = []byte{byte('a' + to)}
	case rnd.Intn(2) == 0:
		s.End = []byte{}
	}
	return s
}

// What a span says is what the sets of its keys say, whichever way the end of the
// keyspace is written.
func TestSpansAreSetsOfKeys(t *testing.T) {
	rnd := rand.New(rand.NewSource(1))
	for range 20_000 {
		a, b := randomSpan(rnd), randomSpan(rnd)
		inA, inB, both := keysOf(a), keysOf(b), [8]bool{}
		covers, overlaps := true, false
		for i := range inA {
			if key := []byte{byte('a' + i)}; a.Contains(key) != inA[i] {
				t.Fatalf("%v contains %q: %v", a, key, !inA[i])
			}
			both[i] = inA[i] && inB[i]
			covers = covers && (inA[i] || !inB[i])
			overlaps = overlaps || both[i]
		}
		// The keys do not tell an end at "i" from that of the keyspace, a start at "" from
		// one at "a".
		if len(a.Start) > 0 && len(b.Start) == 0 {
			covers = false
		}
		if got := a.Covers(b); got != covers {
			t.Fatalf("%v covers %v: %v", a, b, got)
		}
		if got := a.Overlaps(b); got != overlaps {
			t.Fatalf("%v overlaps %v: %v", a, b, got)
		}
		clip := a.Clip(b)
		if clip.IsEmpty() == overlaps || overlaps && keysOf(clip) != both {
			t.Fatalf("%v clipped to %v: %v", b, a, clip)
		}
		if a.IsEmpty() {
			t.Fatalf("%v is empty", a)
		}
	}
}

func TestEmptySpans(t *testing.T) {
	for _, s := range []Span{{Start: []byte("b"), End: []byte("b")}, {Start: []byte("c"), End: []byte("b")}} {
		if !s.IsEmpty() || s.Contains([]byte("b")) || s.Contains([]byte("c")) {
			t.Errorf("%v is not empty", s)
		}
	}
}

func TestTiles(t *testing.T) {
	span := func(start, end string) Span { return Span{Start: []byte(start), End: []byte(end)} }
	for _, tc := range []struct {
		whole Span
		parts []Span
		want  bool
	}{
		{Span{}, []Span{{}}, true},
		{Span{}, []Span{span("", "c"), span("c", "")}, true},
		{span("b", "f"), []Span{span("b", "c"), span("c", "d"), span("d", "f")}, true},
		{Span{}, nil, false},
		{Span{}, []Span{span("", "c")}, false},
		{Span{}, []Span{span("a", "")}, false},
		{Span{}, []Span{span("", "c"), span("d", "")}, false},             // a gap
		{Span{}, []Span{span("", "d"), span("c", "")}, false},             // an overlap
		{Span{}, []Span{span("", ""), span("", "")}, false},               // twice
		{Span{}, []Span{span("c", ""), span("", "c")}, false},             // the order
		{span("b", "f"), []Span{span("b", "b"), span("b", "f")}, false},   // empty
		{span("b", "f"), []Span{span("b", "g"), span("g", "f")}, false},   // backwards
		{span("b", "f"), []Span{span("b", "d"), span("d", "")}, false},    // too far
		{span("b", ""), []Span{span("b", "d"), span("d", "zzzz")}, false}, // not far enough
	} {
		if got := tc.whole.Tiles(tc.parts...); got != tc.want {
			t.Errorf("%v tile %v: %v", tc.parts, tc.whole, got)
		}
	}
}

func TestSpanOfARangeHasNoEmptyEnd(t *testing.T) {
	d := &RangeDescriptor{Start: []byte("a"), End: []byte{}}
	if s := d.Span(); s.End != nil || s.String() != `["a", end)` {
		t.Errorf("%v, end %v", s, s.End)
	}
	d.End = []byte("b\xff")
	if s := d.Span(); s.String() != `["a", "b\xff")` {
		t.Errorf("%v", s)
	}
}
