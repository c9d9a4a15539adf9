package host

import "slices"

// maxAwaited bounds the ranges that are awaited: a split begins one at a time,
// and beyond it the sequencer's own reminder does.
const maxAwaited = 1024

// awaited are ranges that something arrived for before the split that begins
// their replica was applied here: they are loaded when it is. One that never
// comes is pushed out by those that are asked for later.
type awaited struct {
	ids []uint64 // in the order in which they were added
}

func (a *awaited) add(id uint64) {
	if slices.Contains(a.ids, id) {
		return
	}
	if len(a.ids) == maxAwaited {
		a.ids = slices.Delete(a.ids, 0, 1)
	}
	a.ids = append(a.ids, id)
}

// take reports whether the range was awaited; it is not any more.
func (a *awaited) take(id uint64) bool {
	i := slices.Index(a.ids, id)
	if i < 0 {
		return false
	}
	a.ids = slices.Delete(a.ids, i, i+1)
	return true
}
