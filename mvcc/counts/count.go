package counts

import (
	"bytes"
	"fmt"
)

// Count returns the number of keys in [start, end) that are live at rev; end nil
// is the end of the keyspace. All changes up to rev have been applied. It looks
// at the keys of one run at most at each edge. ErrForgotten if rev is below the
// forgotten revision.
func (x *Index) Count(start, end []byte, rev int64, scan Scanner) (int64, error) {
	if end != nil && bytes.Compare(start, end) >= 0 {
		return 0, nil
	}
	n, edges, err := x.sum(start, end, rev)
	if err != nil {
		return 0, err
	}
	for _, e := range edges {
		m, err := scan.CountAt(e.start, e.end, rev)
		if err != nil {
			return 0, err
		}
		n += m
	}
	return n, nil
}

// sum adds up the runs that lie in [start, end) and returns the spans that are
// left to count.
func (x *Index) sum(start, end []byte, rev int64) (n int64, edges []span, err error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if rev < x.mu.forgotten {
		return 0, nil, fmt.Errorf("%w: %d is below %d", ErrForgotten, rev, x.mu.forgotten)
	}
	pieces := []span{{start, end}}
	if len(x.mu.invalid) > 0 {
		pieces, edges = x.validPiecesLocked(span{start, end})
	}
	for _, s := range pieces {
		m, e := x.sumPieceLocked(s, rev)
		n += m
		edges = append(edges, e...)
	}
	return n, edges, nil
}

func (x *Index) sumPieceLocked(s span, rev int64) (n int64, edges []span) {
	for pi := x.findPageLocked(s.start); pi < len(x.mu.pages); pi++ {
		p := x.mu.pages[pi]
		first := p.runs[0].start
		if s.end != nil && bytes.Compare(first, s.end) >= 0 {
			break
		}
		pageEnd := x.pageEndLocked(pi)
		whole := bytes.Compare(s.start, first) <= 0 && !endBefore(s.end, pageEnd)
		p.mu.Lock()
		if whole {
			n += p.countAt(rev)
		} else {
			for i := p.find(s.start); i < len(p.runs); i++ {
				r := p.runs[i]
				runEnd := pageEnd
				if i+1 < len(p.runs) {
					runEnd = p.runs[i+1].start
				}
				if s.end != nil && bytes.Compare(r.start, s.end) >= 0 {
					break
				}
				switch r.within(s, runEnd) {
				case allOf:
					n += r.countAt(rev)
				case someOf:
					lo, hi := s.start, s.end
					if bytes.Compare(lo, r.start) < 0 {
						lo = r.start
					}
					if endBefore(runEnd, hi) {
						hi = runEnd
					}
					edges = append(edges, span{lo, hi})
				}
			}
		}
		p.mu.Unlock()
	}
	return n, edges
}

func (x *Index) pageEndLocked(pi int) []byte {
	if pi+1 == len(x.mu.pages) {
		return nil
	}
	return x.mu.pages[pi+1].runs[0].start
}

// endBefore compares ends of spans; nil is the end of the keyspace.
func endBefore(a, b []byte) bool {
	switch {
	case a == nil:
		return false
	case b == nil:
		return true
	}
	return bytes.Compare(a, b) < 0
}

type portion int

const (
	noneOf portion = iota
	someOf
	allOf
)

// within says how much of what the run knows lies in s.
func (r *run) within(s span, runEnd []byte) portion {
	if r.maxKey == nil {
		return noneOf
	}
	if bytes.Compare(s.start, r.maxKey) > 0 || s.end != nil && bytes.Compare(s.end, r.minKey) <= 0 {
		return noneOf
	}
	if bytes.Compare(s.start, r.minKey) <= 0 && (s.end == nil || bytes.Compare(r.maxKey, s.end) < 0) {
		return allOf
	}
	return someOf
}

func (p *page) countAt(rev int64) int64 {
	if p.asOf <= rev {
		return p.count
	}
	var n int64
	for _, r := range p.runs {
		n += r.countAt(rev)
	}
	return n
}

func (r *run) countAt(rev int64) int64 {
	if r.asOf <= rev {
		return r.count
	}
	return r.count - r.hist.after(rev)
}
