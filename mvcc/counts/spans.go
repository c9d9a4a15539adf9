package counts

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// spanAnchor is the anchor of a run whose newest change is the death of a span,
// which names no key: any deletion at that revision shows it. Whoever applies such
// a change has committed all that was before it in the range.
const spanAnchor = 0

// applySpan applies the death of all keys of a span: the runs that lie in it lose
// what they have, and of a run at an edge the keys in the span are counted. Its
// cost is that of the runs.
func (x *Index) applySpan(b *pebble.Batch, rev int64, c Change) error {
	for {
		edges := x.spanEdges(c, rev, b == nil)
		live := make([]int64, len(edges))
		for i, e := range edges {
			var err error
			if live[i], err = c.Live(e.start, e.end); err != nil {
				return err
			}
		}
		done, lateRuns := x.endSpan(c, rev, b == nil, edges, live)
		if !done {
			continue // runs were split meanwhile
		}
		for _, start := range lateRuns {
			if err := x.note(b, lateKey(rev, start), noteRow); err != nil {
				return err
			}
		}
		return nil
	}
}

// spanEdges returns the parts of runs in the span that have to be counted.
func (x *Index) spanEdges(c Change, rev int64, replay bool) (edges []span) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	x.eachRunLocked(span{c.Key, c.End}, func(p *page, r *run, part span) {
		if part.start != nil && !x.skipsLocked(r, rev, replay) {
			edges = append(edges, part)
		}
	})
	return edges
}

// skipsLocked says whether a run knows of a change already.
func (x *Index) skipsLocked(r *run, rev int64, replay bool) bool {
	late := rev < x.checkpoint.floor
	return rev <= r.ignoreUpTo || replay && late && (r.lateFrom == 0 || rev < r.lateFrom)
}

// eachRunLocked visits the runs that have keys in a span, but invalid ones: with
// the part of the run that lies in it, or a part without start for all that the
// run knows.
func (x *Index) eachRunLocked(s span, fn func(p *page, r *run, part span)) {
	valid, _ := x.validPiecesLocked(s)
	for _, s := range valid {
		for pi := x.findPageLocked(s.start); pi < len(x.mu.pages); pi++ {
			p := x.mu.pages[pi]
			for i := p.find(s.start); i < len(p.runs); i++ {
				r := p.runs[i]
				if s.end != nil && bytes.Compare(r.start, s.end) >= 0 {
					break
				}
				runEnd := x.pageEndLocked(pi)
				if i+1 < len(p.runs) {
					runEnd = p.runs[i+1].start
				}
				p.mu.Lock()
				within := r.within(s, runEnd)
				p.mu.Unlock()
				switch within {
				case allOf:
					fn(p, r, span{})
				case someOf:
					part := s
					if bytes.Compare(part.start, r.start) < 0 {
						part.start = r.start
					}
					if endBefore(runEnd, part.end) {
						part.end = runEnd
					}
					fn(p, r, part)
				}
			}
			if end := x.pageEndLocked(pi); end == nil || s.end != nil && bytes.Compare(end, s.end) >= 0 {
				break
			}
		}
	}
}

// endSpan takes from each run what dies. It reports false if the edges are no longer
// those that were counted, and the starts of the runs whose first late change it is.
func (x *Index) endSpan(c Change, rev int64, replay bool, edges []span, live []int64) (done bool, lateRuns [][]byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	type ending struct {
		p    *page
		r    *run
		dies int64
	}
	var endings []ending
	n := 0
	same := true
	x.eachRunLocked(span{c.Key, c.End}, func(p *page, r *run, part span) {
		switch {
		case x.skipsLocked(r, rev, replay):
		case part.start == nil:
			endings = append(endings, ending{p, r, r.count})
		case n < len(edges) && bytes.Equal(edges[n].start, part.start) && sameEnd(edges[n].end, part.end):
			endings = append(endings, ending{p, r, live[n]})
			n++
		default:
			same = false
		}
	})
	if !same || n != len(edges) {
		return false, nil
	}
	late := rev < x.checkpoint.floor
	for _, e := range endings {
		r, p := e.r, e.p
		if e.dies == 0 {
			continue
		}
		if rev < r.asOf {
			panic(fmt.Sprintf("counts: revision %d of a span from %q after %d in run %q", rev, c.Key, r.asOf, r.start))
		}
		if late && !replay && r.lateSeq != x.checkpoint.seq {
			r.lateSeq = x.checkpoint.seq
			lateRuns = append(lateRuns, slices.Clone(r.start))
		}
		r.end(rev, e.dies)
		r.below = !replay && rev <= x.mu.forgotten
		p.count -= e.dies
		p.asOf = max(p.asOf, rev)
		p.dirty = true
	}
	return true, lateRuns
}

// end takes the death of keys in, whose names the run is not told.
func (r *run) end(rev, dies int64) {
	if r.count -= dies; r.count < 0 {
		panic(fmt.Sprintf("counts: run %q has %d live keys after the end of %d at revision %d", r.start, r.count, dies, rev))
	}
	r.hist.add(rev, -dies)
	if rev != r.asOf {
		r.asOf, r.anchor = rev, spanAnchor
	}
	r.dirty = true
	if s := r.split; s != nil && rev > s.after {
		// What was recorded is committed by now.
		s.after, s.anchor, s.recent = rev, r.anchor, nil
	}
}
