package sequencer

import "slices"

// splitting is the requests to split ranges that are not open: they wait for
// the range's leader to register, for so many ticks.
//
// A ledger with requests is listed once; one without may be, until the next
// tick. The requests of a range stay in the order in which they came.
type splitting struct {
	ledgers []*ledger
	after   int
}

// splitRequest is a split that someone asked for.
type splitRequest struct {
	node    *node
	session uint64
	id      uint64
	key     []byte
	ticks   int // waited
}

// add makes a request wait for the range.
func (q *splitting) add(x *ledger, r *splitRequest) {
	x.splits = append(x.splits, r)
	if !x.listedSplits {
		x.listedSplits = true
		q.ledgers = append(q.ledgers, x)
	}
}

// take returns the requests that wait for the range; they wait no more.
func (q *splitting) take(x *ledger) []*splitRequest {
	splits := x.splits
	x.splits = nil
	return splits
}

// tick returns the requests that waited too long; they wait no more.
func (q *splitting) tick() (late []*splitRequest) {
	q.ledgers = slices.DeleteFunc(q.ledgers, func(x *ledger) bool {
		x.splits = slices.DeleteFunc(x.splits, func(r *splitRequest) bool {
			if r.ticks++; r.ticks < q.after {
				return false
			}
			late = append(late, r)
			return true
		})
		x.listedSplits = len(x.splits) > 0
		return !x.listedSplits
	})
	return late
}
