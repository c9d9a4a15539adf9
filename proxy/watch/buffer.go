package watch

import (
	"cmp"
	"iter"
	"slices"
)

// buffer holds the events that were applied here and are not dispatched to
// every group yet, by revision.
//
// Revisions are nearly dense, but a fail-over or a restore may leave a gap of
// any width (revisions.md, section 1). So the slots of neighbouring revisions
// share a page, and only pages with events exist: memory and time follow the
// events, whatever lies between them.
type buffer struct {
	// base: nothing below it is held.
	base int64
	// pages are in ascending order.
	pages []*page
	// bytes is the sum of the sizes of the events held, n their number.
	bytes, n int
	// newest is the highest revision that was added.
	newest int64
}

// pageSlots is the number of revisions of a page: small enough that a lone
// event costs little, large enough that there are few pages to search and move.
const pageSlots = 64

// page holds the events of the revisions number*pageSlots and following.
type page struct {
	number int64
	slots  [pageSlots]slot
}

type slot struct {
	events []*event
	sorted bool
}

// find returns the place of the first page with at least the number.
func (b *buffer) find(number int64) int {
	if n := len(b.pages); n == 0 || b.pages[n-1].number < number {
		return n // the newest events come last, mostly
	}
	i, _ := slices.BinarySearchFunc(b.pages, number, func(p *page, number int64) int { return cmp.Compare(p.number, number) })
	return i
}

// add puts an event in and says so; one below base is dropped: who needs it reads
// history.
func (b *buffer) add(e *event) bool {
	if e.revision < b.base {
		return false
	}
	number := e.revision / pageSlots
	i := b.find(number)
	if i == len(b.pages) || b.pages[i].number != number {
		b.pages = slices.Insert(b.pages, i, &page{number: number})
	}
	s := &b.pages[i].slots[e.revision%pageSlots]
	s.events = append(s.events, e)
	s.sorted = len(s.events) == 1
	b.bytes += e.size
	b.n++
	b.newest = max(b.newest, e.revision)
	return true
}

// between visits the revisions from <= r <= to that have events, in ascending
// order, and gives the events of each in sub-revision order. The revisions must
// be complete: nothing is added to them any more.
func (b *buffer) between(from, to int64) iter.Seq[[]*event] {
	return func(yield func([]*event) bool) {
		from := max(from, b.base)
		for _, p := range b.pages[b.find(from/pageSlots):] {
			first := p.number * pageSlots
			if first > to {
				return
			}
			for i := max(from-first, 0); i <= min(to-first, pageSlots-1); i++ {
				s := &p.slots[i]
				if len(s.events) == 0 {
					continue
				}
				if !s.sorted {
					slices.SortStableFunc(s.events, func(x, y *event) int { return cmp.Compare(x.sub, y.sub) })
					s.sorted = true
				}
				if !yield(s.events) {
					return
				}
			}
		}
	}
}

// half returns the revision below which half of what is held lies, in bytes.
func (b *buffer) half() int64 {
	bytes := 0
	for _, p := range b.pages {
		for i := range p.slots {
			for _, e := range p.slots[i].events {
				bytes += e.size
			}
			if bytes > 0 && 2*bytes >= b.bytes {
				return p.number*pageSlots + int64(i) + 1
			}
		}
	}
	return b.base
}

// trim drops everything below revision. Its cost is that of what it drops.
func (b *buffer) trim(revision int64) {
	if revision <= b.base {
		return
	}
	b.base = revision
	n := 0
	for n < len(b.pages) && b.pages[n].number*pageSlots < revision {
		p := b.pages[n]
		below := min(revision-p.number*pageSlots, pageSlots)
		for i := range p.slots[:below] {
			for _, e := range p.slots[i].events {
				b.bytes -= e.size
				b.n--
			}
			p.slots[i] = slot{}
		}
		if below < pageSlots {
			break
		}
		b.pages[n] = nil
		n++
	}
	b.pages = b.pages[n:]
}
