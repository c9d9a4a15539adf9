package counts

import (
	"bytes"
	"slices"
	"sort"

	"github.com/cockroachdb/pebble/v2"
)

// When the keys of a span are replaced under the index, by a snapshot of a range
// or by the removal of a replica, its counts are made again from the keys:
//
//	1. Invalidate(b, start, end); b is committed and synced
//	2. the keys change (ingest, delete)
//	3. Reset(start, end)
//
// From 1 to 3 counts in the span are taken from the keys and changes are not
// followed. The mark of step 1 goes with the first checkpoint after step 3; if
// the process dies before that, the next start does step 3.

// Invalidate says that the keys of [start, end) are about to change by other
// means than Apply. start and end are boundaries (EnsureBoundary), or the index
// knows of no keys in the runs around them.
func (x *Index) Invalidate(b *pebble.Batch, start, end []byte) error {
	s := span{slices.Clone(start), slices.Clone(end)}
	x.checkpointMu.RLock()
	defer x.checkpointMu.RUnlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	same := func(o span) bool { return bytes.Equal(o.start, s.start) && sameEnd(o.end, s.end) }
	x.mu.wasInvalid = slices.DeleteFunc(x.mu.wasInvalid, same)
	if !slices.ContainsFunc(x.mu.invalid, same) {
		x.mu.invalid = append(x.mu.invalid, s)
	}
	return b.Set(invalidKey(s), noteRow, nil)
}

func (x *Index) invalidLocked(key []byte) bool {
	for _, s := range x.mu.invalid {
		if bytes.Compare(s.start, key) <= 0 && (s.end == nil || bytes.Compare(key, s.end) < 0) {
			return true
		}
	}
	return false
}

// validPiecesLocked cuts s along the invalid spans.
func (x *Index) validPiecesLocked(s span) (valid, invalid []span) {
	list := slices.Clone(x.mu.invalid)
	slices.SortFunc(list, func(a, b span) int { return bytes.Compare(a.start, b.start) })
	at := s.start
	for _, o := range list {
		lo, hi := o.start, o.end
		if bytes.Compare(lo, at) < 0 {
			lo = at
		}
		if endBefore(s.end, hi) {
			hi = s.end
		}
		if hi != nil && bytes.Compare(lo, hi) >= 0 || s.end != nil && bytes.Compare(lo, s.end) >= 0 {
			continue
		}
		if bytes.Compare(at, lo) < 0 {
			valid = append(valid, span{at, lo})
		}
		invalid = append(invalid, span{lo, hi})
		if hi == nil || sameEnd(hi, s.end) {
			return valid, invalid
		}
		at = hi
	}
	return append(valid, span{at, s.end}), invalid
}

// Reset makes the counts of [start, end) again from the keys and ends their
// invalidity; start and end are boundaries from then on, and no others lie
// between them. Nothing is applied to the span meanwhile, and everything that
// was is committed.
func (x *Index) Reset(start, end []byte, scan Scanner) error {
	start, end = slices.Clone(start), slices.Clone(end)
	// The runs at the edges may reach further: what lies outside is made again, too.
	x.mu.RLock()
	lo, hi := x.runsAroundLocked(start, end)
	forgotten := x.mu.forgotten
	x.mu.RUnlock()
	changes, err := scanChanges(scan, lo, hi, forgotten)
	if err != nil {
		return err
	}
	before, inside := cutChanges(changes, start)
	var after []keyChange
	if end != nil {
		inside, after = cutChanges(inside, end)
	}

	x.checkpointMu.RLock()
	defer x.checkpointMu.RUnlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	var runs []*run
	if bytes.Compare(lo, start) < 0 {
		runs = x.runsOf(lo, before)
		p := x.mu.pages[x.findPageLocked(lo)]
		runs[0].boundary = p.runs[p.find(lo)].boundary
	}
	inner := x.runsOf(start, inside)
	inner[0].boundary = true
	runs = append(runs, inner...)
	if endBefore(end, hi) {
		outer := x.runsOf(end, after)
		outer[0].boundary = true
		runs = append(runs, outer...)
	}
	x.replaceSpanLocked(lo, hi, runs)
	x.mu.invalid = slices.DeleteFunc(x.mu.invalid, func(s span) bool {
		done := bytes.Compare(start, s.start) <= 0 && !endBefore(end, s.end)
		if done {
			x.mu.wasInvalid = append(x.mu.wasInvalid, s)
		}
		return done
	})
	return nil
}

// Recover ends a load, after the replay: it resets what was invalid and makes
// the boundaries that were noted. No checkpoint is taken before. b, which the
// caller commits, gets what the index must remember.
func (x *Index) Recover(b *pebble.Batch, scan Scanner) error {
	x.mu.Lock()
	invalid, boundaries := slices.Clone(x.mu.invalid), x.mu.unmade
	x.mu.unmade = nil
	x.mu.Unlock()
	for _, s := range invalid {
		if err := x.Reset(s.start, s.end, scan); err != nil {
			return err
		}
	}
	for _, key := range boundaries {
		// Noted anew, even if it is there: the next checkpoint removes the note.
		if err := x.note(b, boundaryKey(key), noteRow); err != nil {
			return err
		}
		if err := x.EnsureBoundary(b, key, scan); err != nil {
			return err
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, p := range x.mu.pages {
		for _, r := range p.runs {
			r.ignoreUpTo = r.asOf // what was replayed may be applied once more
		}
	}
	return nil
}

// runsAroundLocked returns the start of the run that holds start and the end of
// the one that holds what is just before end.
func (x *Index) runsAroundLocked(start, end []byte) (lo, hi []byte) {
	p := x.mu.pages[x.findPageLocked(start)]
	lo = p.runs[p.find(start)].start
	if end == nil {
		return lo, nil
	}
	pi := x.findPageLocked(end)
	p = x.mu.pages[pi]
	i := p.find(end)
	switch {
	case bytes.Equal(p.runs[i].start, end):
		return lo, p.runs[i].start
	case i+1 < len(p.runs):
		return lo, p.runs[i+1].start
	}
	return lo, x.pageEndLocked(pi)
}

// cutChanges cuts changes in key order at key.
func cutChanges(changes []keyChange, key []byte) (below, rest []keyChange) {
	i := sort.Search(len(changes), func(i int) bool { return bytes.Compare(changes[i].key, key) >= 0 })
	return changes[:i:i], changes[i:]
}

// runsOf makes runs of a good size of changes in key order, the first beginning
// at start.
func (x *Index) runsOf(start []byte, changes []keyChange) []*run {
	var runs []*run
	for _, p := range x.partition(changes, 1) {
		runs = append(runs, x.runOf(p))
	}
	runs[0].start = start
	return runs
}

// replaceSpanLocked puts runs in place of those from the one that starts at lo
// to the one that ends at hi.
func (x *Index) replaceSpanLocked(lo, hi []byte, runs []*run) {
	from := x.findPageLocked(lo)
	to := len(x.mu.pages) // exclusive
	if hi != nil {
		to = sort.Search(len(x.mu.pages), func(i int) bool { return bytes.Compare(x.mu.pages[i].runs[0].start, hi) >= 0 })
	}
	var all []*run
	for _, p := range x.mu.pages[from:to] {
		for _, r := range p.runs {
			switch {
			case bytes.Compare(r.start, lo) < 0:
				all = append(all, r)
			case hi == nil || bytes.Compare(r.start, hi) < 0:
				if runs != nil {
					all = append(all, runs...)
					runs = nil
				}
				x.discardLocked(r)
			default:
				all = append(all, r)
			}
		}
	}
	x.adoptLocked(all)
	x.mu.pages = slices.Replace(x.mu.pages, from, to, paged(all)...)
}
