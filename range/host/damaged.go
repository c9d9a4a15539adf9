package host

import (
	"slices"
	"sync"
)

// DamagedRanges are the ranges whose replica on this node was found damaged and is not
// served any more. Each range that is not damaged goes on. The set lasts until the end
// of the process; the next one finds the damage again, at the latest when the damaged
// data is read. All methods are safe for concurrent use.
type DamagedRanges struct {
	mu struct {
		sync.Mutex
		// ranges are in ascending order.
		ranges []uint64
		// untold are those of them that Take has not returned yet.
		untold []uint64
		// changed is closed, and replaced, when a range is added.
		changed chan struct{}
	}
}

func newDamagedRanges() *DamagedRanges {
	d := &DamagedRanges{}
	d.mu.changed = make(chan struct{})
	return d
}

// add notes a damaged range.
func (d *DamagedRanges) add(id uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	at, found := slices.BinarySearch(d.mu.ranges, id)
	if found {
		return
	}
	d.mu.ranges = slices.Insert(d.mu.ranges, at, id)
	d.mu.untold = append(d.mu.untold, id)
	close(d.mu.changed)
	d.mu.changed = make(chan struct{})
}

// Has reports whether a range is damaged.
func (d *DamagedRanges) Has(id uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, found := slices.BinarySearch(d.mu.ranges, id)
	return found
}

// List returns the damaged ranges, ascending, and a channel that is closed when
// there is another.
func (d *DamagedRanges) List() (ids []uint64, changed <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.mu.ranges), d.mu.changed
}

// Take returns those of the damaged ranges that known accepts, each once.
func (d *DamagedRanges) Take(known func(id uint64) bool) (ids []uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.untold = slices.DeleteFunc(d.mu.untold, func(id uint64) bool {
		if !known(id) {
			return false
		}
		ids = append(ids, id)
		return true
	})
	return ids
}

// failed takes what the replicas' reading side says of a damaged range.
func (h *Host) failed(id uint64) {
	h.Damaged.add(id)
	if h.cfg.Failed != nil {
		h.cfg.Failed()
	}
}
