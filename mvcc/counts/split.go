package counts

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
)

// ErrUnsettled is returned by EnsureBoundary when changes were applied whose
// batch is not committed: the keys do not show yet what the counts say.
var ErrUnsettled = errors.New("counts: applied changes are not committed")

// maxSplitAttempts bounds how often one call of Maintain looks at the keys of
// runs that turn out to be unsettled.
const maxSplitAttempts = 2

func (x *Index) enqueue(r *run) {
	x.splits.Lock()
	defer x.splits.Unlock()
	x.splits.queue = append(x.splits.queue, r)
	x.splitCount.Add(1)
}

func (x *Index) dequeue() *run {
	x.splits.Lock()
	defer x.splits.Unlock()
	if len(x.splits.queue) == 0 {
		return nil
	}
	r := x.splits.queue[0]
	x.splits.queue[0] = nil
	x.splits.queue = x.splits.queue[1:]
	x.splitCount.Add(-1)
	return r
}

// NeedsMaintenance says, at the price of one atomic load, whether Maintain has
// something to do.
func (x *Index) NeedsMaintenance() bool { return x.splitCount.Load() > 0 }

// Maintain splits at most limit runs that have become too large. Counts are
// exact without it, but the edges of a count cost more. It may be called at any
// time; a run with changes that are not committed yet stays as it is and is
// tried again by a later call.
func (x *Index) Maintain(scan Scanner, limit int) error {
	for attempts := 0; limit > 0 && attempts < maxSplitAttempts; {
		r := x.dequeue()
		if r == nil {
			return nil
		}
		done, err := x.splitRun(r, nil, false, scan)
		if err != nil {
			x.enqueue(r)
			return err
		}
		if done {
			limit--
			continue
		}
		attempts++
		x.enqueue(r)
	}
	return nil
}

// location is a run's place: page and position in it.
type location struct{ page, run int }

// locateLocked finds r, which may have gone.
func (x *Index) locateLocked(r *run) (at location, end []byte, ok bool) {
	if r.gone {
		return at, nil, false
	}
	at.page = x.findPageLocked(r.start)
	p := x.mu.pages[at.page]
	at.run = p.find(r.start)
	if p.runs[at.run] != r {
		panic(fmt.Sprintf("counts: run %q is not in its place", r.start))
	}
	if at.run+1 < len(p.runs) {
		return at, p.runs[at.run+1].start, true
	}
	return at, x.pageEndLocked(at.page), true
}

// splitRun cuts a run: at the key, where a range begins if boundary is set, or, if
// it is nil, into pieces of a third of the wanted size. It reports false if the keys do not show yet what was applied.
//
// The keys are read without any lock. They lack changes whose batch is not
// committed, so what they say is put together with the changes recorded since the
// split was wanted, if it shows all the others (shownBy). The result must be the
// history that the run has.
func (x *Index) splitRun(r *run, at []byte, boundary bool, scan Scanner) (done bool, err error) {
	x.mu.RLock()
	_, end, ok := x.locateLocked(r)
	forgotten := x.mu.forgotten
	x.mu.RUnlock()
	if !ok {
		return true, nil
	}
	scanned, err := scanChanges(scan, r.start, end, forgotten)
	if err != nil {
		return false, err
	}

	x.checkpointMu.RLock()
	defer x.checkpointMu.RUnlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	loc, nowEnd, ok := x.locateLocked(r)
	if !ok {
		return true, nil
	}
	if !sameEnd(end, nowEnd) {
		return false, nil
	}
	if !r.shownBy(scanned, forgotten) {
		return false, nil
	}
	changes := scanned
	if s := r.split; s != nil {
		// What the keys say as of the forgotten revision is not taken apart.
		cut := max(s.after, forgotten)
		changes = slices.DeleteFunc(changes, func(c keyChange) bool { return c.rev > cut })
		for _, c := range s.recent {
			if c.rev > cut {
				changes = append(changes, c)
			}
		}
	}
	byKey := func(a, b keyChange) int { return bytes.Compare(a.key, b.key) }
	if !slices.IsSortedFunc(changes, byKey) { // it is, without recent ones
		slices.SortStableFunc(changes, byKey)
	}
	var parts []part
	if at != nil {
		left, right := cutChanges(changes, at)
		parts = []part{{nil, left}, {at, right}}
	} else {
		parts = x.partition(changes, splitParts)
	}
	x.foldRunLocked(x.mu.pages[loc.page], r)
	if !x.agrees(r, parts) {
		return false, nil
	}
	if at == nil && len(parts) < 2 {
		// One key that was created very often: wait until it is worth a look.
		r.split = nil
		r.splitAt = 2 * r.weight
		return true, nil
	}
	var runs []*run
	for i, part := range parts {
		n := x.runOf(part)
		switch {
		case i == 0:
			n.start, n.boundary = r.start, r.boundary
		case at != nil:
			n.boundary = boundary
		}
		n.inherit(r)
		runs = append(runs, n)
	}
	x.replaceLocked(loc.page, loc.run, loc.run+1, runs...)
	return true, nil
}

func sameEnd(a, b []byte) bool {
	return (a == nil) == (b == nil) && bytes.Equal(a, b)
}

// scanChanges collects what the keys of a span say of their history.
func scanChanges(scan Scanner, start, end []byte, after int64) ([]keyChange, error) {
	out := make([]keyChange, 0, DefaultRunKeys)
	var copies keyCopies
	err := scan.History(start, end, after, func(key []byte, rev int64, delta int) error {
		c := keyChange{rev: rev, delta: int64(delta)}
		if n := len(out); n > 0 && bytes.Equal(out[n-1].key, key) {
			c.key = out[n-1].key
		} else {
			c.key = copies.add(key)
		}
		out = append(out, c)
		return nil
	})
	return out, err
}

// keyCopies copies keys into few large slices: a split looks at a thousand keys
// and keeps two.
type keyCopies struct{ room []byte }

const keyCopiesBytes = 16 << 10

func (k *keyCopies) add(key []byte) []byte {
	if cap(k.room)-len(k.room) < len(key) {
		k.room = make([]byte, 0, max(keyCopiesBytes, len(key)))
	}
	from := len(k.room)
	k.room = append(k.room, key...)
	return k.room[from:len(k.room):len(k.room)]
}

// part is what belongs to one run to be.
type part struct {
	start   []byte // nil for the first one
	changes []keyChange
}

// splitParts is into how many parts a run is cut that is full. With k parts each
// key is looked at k/(k-1) times for each that is added. Four would be small
// enough to be merged again.
const splitParts = 3

// partition cuts changes in key order into at least so many parts, more if one
// would have above a third of the weight that a run may have. There are fewer when
// there are not enough keys.
func (x *Index) partition(changes []keyChange, atLeast int64) []part {
	var total int64
	for _, c := range changes {
		total += max(c.delta, 0)
	}
	n := max(atLeast, total*splitParts/int64(x.runKeys))
	target := (total + n - 1) / n
	var parts []part
	var weight int64
	from := 0
	for i := 0; i < len(changes); {
		j := i + 1
		for j < len(changes) && bytes.Equal(changes[j].key, changes[i].key) {
			j++
		}
		for _, c := range changes[i:j] {
			weight += max(c.delta, 0)
		}
		if weight >= target || j == len(changes) {
			p := part{nil, changes[from:j]}
			if from > 0 {
				p.start = changes[from].key
			}
			parts = append(parts, p)
			from, weight = j, 0
		}
		i = j
	}
	if parts == nil {
		parts = []part{{}}
	}
	return parts
}

// runOf makes the run of a part. Changes at or below the forgotten revision are
// only counted.
func (x *Index) runOf(p part) *run {
	r := x.newRun(slices.Clone(p.start)) // its array holds many keys
	r.count, r.hist = x.fold(p.changes)
	for _, c := range p.changes {
		if c.rev > x.mu.forgotten {
			r.weight += max(c.delta, 0)
		}
	}
	r.weight += r.count - r.hist.sum
	for _, c := range p.changes {
		if c.rev > x.mu.forgotten && c.rev > r.asOf {
			r.asOf, r.anchor = c.rev, keySum(c.key)
		}
	}
	if n := len(p.changes); n > 0 {
		r.minKey = slices.Clone(p.changes[0].key)
		r.maxKey = slices.Clone(p.changes[n-1].key)
	}
	return r
}

// fold puts changes in any order together to a count and its history.
func (x *Index) fold(changes []keyChange) (count int64, h history) {
	byRev := make([]keyChange, 0, len(changes))
	for _, c := range changes {
		count += c.delta
		if c.rev > x.mu.forgotten {
			byRev = append(byRev, c)
		}
	}
	slices.SortStableFunc(byRev, func(a, b keyChange) int {
		switch {
		case a.rev < b.rev:
			return -1
		case a.rev > b.rev:
			return 1
		}
		return 0
	})
	for _, c := range byRev {
		h.add(c.rev, c.delta)
	}
	return count, h
}

// shownBy says whether a look at the keys, with the changes after forgotten,
// shows all changes of the run that are not recorded for its split.
func (r *run) shownBy(scanned []keyChange, forgotten int64) bool {
	rev, anchor := r.asOf, r.anchor
	if s := r.split; s != nil {
		rev, anchor = s.after, s.anchor
	}
	if rev <= forgotten {
		return !r.below
	}
	return slices.ContainsFunc(scanned, func(c keyChange) bool {
		return c.rev == rev && (keySum(c.key) == anchor || anchor == spanAnchor && c.delta < 0)
	})
}

// agrees says whether parts, taken together, are what r says.
func (x *Index) agrees(r *run, parts []part) bool {
	var all []keyChange
	for _, p := range parts {
		all = append(all, p.changes...)
	}
	count, h := x.fold(all)
	return count == r.count && h.equal(&r.hist)
}

// merge puts small neighbours together, and small pages.
func (x *Index) merge() {
	x.checkpointMu.RLock()
	defer x.checkpointMu.RUnlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	var runs []*run
	for _, p := range x.mu.pages {
		runs = append(runs, p.runs...)
	}
	small := int64(x.runKeys) / 2
	out := runs[:1]
	for _, r := range runs[1:] {
		last := out[len(out)-1]
		if r.boundary || last.weight+r.weight > small || last.split != nil || r.split != nil {
			out = append(out, r)
			continue
		}
		last.takeOver(r)
		x.discardLocked(r)
	}
	if len(out) == len(runs) && len(x.mu.pages) <= 1+4*len(runs)/maxPageRuns {
		return
	}
	x.mu.pages = paged(out)
}

// paged cuts runs into pages that have room to grow.
func paged(runs []*run) []*page {
	var pages []*page
	for rest := runs; len(rest) > 0; {
		n := min(len(rest), maxPageRuns/2)
		p := &page{runs: slices.Clone(rest[:n])}
		p.sum()
		pages = append(pages, p)
		rest = rest[n:]
	}
	return pages
}
