package watch

import (
	"cmp"
	"slices"
)

// A range that has not resolved its m after a while may have lost a grant, or may
// sleep and not know that its last entries are committed; nobody who waits for
// the frontier asks it anything. So it is nudged, as a reader does (R5, R6).

const (
	// maxNudges bounds the ranges that are nudged in one tick: a nudge may load a
	// replica and elect it.
	maxNudges = 64
	// maxPatience: a range is nudged again after twice the time of the nudge
	// before, so many times doubled at most. A range that cannot answer, for its
	// shard waits for the disk or it has no majority, does not gather nudges.
	maxPatience = 6
)

// patience with the oldest unsatisfied cut of a range.
type patience struct {
	waited int // ticks, since it became that or the range was nudged
	nudges int // for this cut
}

// overdue says for how many ticks the range should have been nudged.
func (p patience) overdue(after int) int { return p.waited - after<<min(p.nudges, maxPatience) }

// Tick passes one tick and returns the ids of the ranges to nudge now, in
// ascending order: those whose oldest unsatisfied cut has waited for after ticks,
// at least 1. While that cut stays it is nudged again after 2*after more, then
// 4*after and so on. At most 64 are returned; the others have their turn in the next
// ticks, the longest overdue first.
func (f *Frontier) Tick(after int) []uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	var due []*mark
	for _, x := range f.mu.pending {
		if x.patience.waited++; x.patience.overdue(after) >= 0 {
			due = append(due, x)
		}
	}
	if len(due) > maxNudges {
		slices.SortFunc(due, func(x, y *mark) int {
			return cmp.Or(cmp.Compare(y.patience.overdue(after), x.patience.overdue(after)), cmp.Compare(x.id, y.id))
		})
		due = due[:maxNudges]
	}
	ids := make([]uint64, len(due))
	for i, x := range due {
		ids[i] = x.id
		x.patience = patience{nudges: x.patience.nudges + 1}
	}
	slices.Sort(ids)
	return ids
}
