package txn

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// errMisfit: what should take the place of participants does not cover the same
// keys in the same order. A range that was merged with one that is latched
// already is such a case; the attempt begins again.
var errMisfit = errors.New("txn: newer ranges do not fit")

// Recut takes the answer to ActRecut: the ranges, in key order, that hold now
// what the refused participant and those after it covered. They may be the same
// ones again. If they do not cover exactly the same accesses, or lie before what
// is latched, the attempt ends with Again.
func (c *Coordinator) Recut(parts []Participant) []Action {
	if c.cancelled {
		return nil
	}
	c.expect(stateRecutting, "Recut")
	var last *Participant
	if c.next > 0 {
		last = &c.parts[c.next-1]
	}
	err := checkOrder(last, parts)
	if err == nil {
		err = checkSameAccesses(c.parts[c.next:], parts)
	}
	if err != nil {
		return c.end(c.unlatch(c.next), Outcome{Verdict: Again, Err: err})
	}
	// A new array: the driver may still hold participants of the old one.
	c.parts = slices.Concat(c.parts[:c.next], parts)
	c.state = stateLatching
	return []Action{c.latchNext()}
}

// checkOrder checks that participants come one after the other, the first after
// last if that is not nil.
func checkOrder(last *Participant, parts []Participant) error {
	if len(parts) == 0 {
		return fmt.Errorf("%w: no participants", errMisfit)
	}
	for i := range parts {
		p := &parts[i]
		if last != nil && last.span().Overlaps(rangepb.Span{Start: p.Start}) {
			return fmt.Errorf("%w: %v does not come after %v", errMisfit, p, last)
		}
		last = p
	}
	return nil
}

// checkSameAccesses checks that what the participants touch is the same, however
// it is cut: a key that only one side has would be evaluated without a latch, or
// latched in vain.
func checkSameAccesses(old, parts []Participant) error {
	for _, write := range []bool{true, false} {
		if a, b := touched(old, write), touched(parts, write); !slices.EqualFunc(a, b, sameSpan) {
			return fmt.Errorf("%w: %d spans (write: %v) became %d others", errMisfit, len(a), write, len(b))
		}
	}
	return nil
}

func sameSpan(a, b mvcc.Access) bool {
	return bytes.Equal(a.Start, b.Start) && bytes.Equal(a.End, b.End) && (a.End == nil) == (b.End == nil)
}

// touched returns the keys that participants write, or read, as the fewest spans
// in key order.
func touched(parts []Participant, write bool) (spans []mvcc.Access) {
	for i := range parts {
		for _, s := range parts[i].Spans {
			if s.Write == write {
				spans = append(spans, s)
			}
		}
	}
	slices.SortFunc(spans, func(a, b mvcc.Access) int { return bytes.Compare(a.Start, b.Start) })
	joined := spans[:0]
	for _, s := range spans {
		if n := len(joined); n > 0 {
			last := &joined[n-1]
			if last.End == nil || bytes.Compare(s.Start, last.End) <= 0 {
				if last.End != nil && (s.End == nil || bytes.Compare(s.End, last.End) > 0) {
					last.End = s.End
				}
				continue
			}
		}
		joined = append(joined, s)
	}
	return joined
}
