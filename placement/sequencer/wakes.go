package sequencer

import "slices"

// wakes are the active ranges that are not open, which S asks their nodes again
// and again to load: a Wake or a registration may be lost, or the range may have
// had no leader. A range is in it exactly while it is active and not open.
type wakes struct {
	ticks map[uint64]int // by range, since it came or was woken
	after int
}

func newWakes(after int) wakes { return wakes{map[uint64]int{}, after} }

func (w *wakes) add(x *ledger)    { w.ticks[x.id] = 0 }
func (w *wakes) remove(x *ledger) { delete(w.ticks, x.id) }

// tick returns the ids of the ranges that are due, in order.
func (w *wakes) tick() (due []uint64) {
	// In any order: sorted below.
	for id := range w.ticks {
		w.ticks[id]++
		if w.ticks[id] >= w.after {
			w.ticks[id] = 0
			due = append(due, id)
		}
	}
	slices.Sort(due)
	return due
}
