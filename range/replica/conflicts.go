package replica

import (
	"bytes"
	"slices"
)

// conflicts orders the requests of a range that touch the same keys.
//
// A request enters when it arrives, with every span it may touch, and leaves
// when what it does is known: a write when its revision is granted (or when it
// turns out to change nothing), a latch when it is released. A request is
// *unblocked* once every earlier one that conflicts with it has left. Two
// requests conflict if their spans overlap and one of them writes there.
//
// So requests on one key go in the order of their arrival, others pass, and a
// latch over a wide span cannot be starved by a stream of writes behind it.
//
// To stay linear for a hot key, a request does not depend on all earlier ones
// but on the last writer (and the readers since), which depends on those before.
// That is right only if nobody leaves before those it depends on: a
// request that is given up while blocked stays, abandoned, until it is
// unblocked.
type conflicts struct {
	points map[string]pointUse
	wide   []wideUse
	// unblocked receives requests, in the order in which they become free.
	unblocked func(*ticket)
}

// access is one span that a request touches: [start, end), or the key start
// alone if point is set. end nil means the end of the keyspace.
type access struct {
	start, end []byte
	point      bool
	write      bool
}

// ticket is the place of one request in the table.
type ticket struct {
	owner      *request
	accesses   []access
	dependents []*ticket
	blockers   int
	abandoned  bool
	left       bool
	// inline keeps the accesses of the usual request without an allocation.
	inline [1]access
}

// pointUse is who uses one key.
type pointUse struct {
	writer  *ticket
	readers []*ticket
}

type wideUse struct {
	access
	ticket *ticket
}

func newConflicts(unblocked func(*ticket)) conflicts {
	return conflicts{points: make(map[string]pointUse), unblocked: unblocked}
}

// enter adds a request behind all that are there. It reports whether it is
// free at once; if not, unblocked is called for it later.
func (c *conflicts) enter(t *ticket) bool {
	for i := range t.accesses {
		a := &t.accesses[i]
		if a.point {
			c.enterPoint(t, a)
		} else {
			c.enterWide(t, a)
		}
	}
	return t.blockers == 0
}

func (c *conflicts) enterPoint(t *ticket, a *access) {
	use := c.points[string(a.start)]
	t.dependOn(use.writer)
	if a.write {
		for _, r := range use.readers {
			t.dependOn(r)
		}
		use.writer, use.readers = t, nil
	} else if use.writer != t {
		use.readers = append(use.readers, t)
	}
	c.points[string(a.start)] = use
	for i := range c.wide {
		if w := &c.wide[i]; (w.write || a.write) && w.contains(a.start) {
			t.dependOn(w.ticket)
		}
	}
}

func (c *conflicts) enterWide(t *ticket, a *access) {
	// In any order: dependOn has the same effect whatever the order of its calls.
	for key, use := range c.points {
		if !a.containsString(key) {
			continue
		}
		t.dependOn(use.writer)
		if a.write {
			for _, r := range use.readers {
				t.dependOn(r)
			}
		}
	}
	kept := c.wide[:0]
	for _, w := range c.wide {
		overlap := a.overlaps(&w.access)
		if overlap && (w.write || a.write) {
			t.dependOn(w.ticket)
		}
		// Whoever conflicts with a span inside a later written one depends on
		// the later request, and it on the earlier.
		if overlap && a.write && a.covers(&w.access) && w.ticket != t {
			continue
		}
		kept = append(kept, w)
	}
	c.wide = append(kept, wideUse{access: *a, ticket: t})
}

// leave removes a request and unblocks those that waited only for it. The
// request must be unblocked itself.
func (c *conflicts) leave(t *ticket) {
	if t.left {
		return
	}
	if t.blockers != 0 {
		panic("replica: a blocked request leaves the conflict table")
	}
	t.left = true
	for i := range t.accesses {
		a := &t.accesses[i]
		if a.point {
			c.leavePoint(t, a.start)
		}
	}
	if len(c.wide) > 0 {
		c.leaveWide(t)
	}
	dependents := t.dependents
	t.dependents = nil
	for _, d := range dependents {
		if d.blockers--; d.blockers > 0 {
			continue
		}
		if d.abandoned {
			c.leave(d)
			continue
		}
		c.unblocked(d)
	}
}

// abandon gives a request up: at once if it is free, else when it would
// become free.
func (c *conflicts) abandon(t *ticket) {
	if t.blockers == 0 {
		c.leave(t)
		return
	}
	t.abandoned = true
}

func (c *conflicts) leavePoint(t *ticket, key []byte) {
	use, ok := c.points[string(key)]
	if !ok {
		return
	}
	if use.writer == t {
		use.writer = nil
	}
	if i := slices.Index(use.readers, t); i >= 0 {
		use.readers = slices.Delete(use.readers, i, i+1)
	}
	if use.writer == nil && len(use.readers) == 0 {
		delete(c.points, string(key))
		return
	}
	c.points[string(key)] = use
}

func (c *conflicts) leaveWide(t *ticket) {
	kept := c.wide[:0]
	for _, w := range c.wide {
		if w.ticket != t {
			kept = append(kept, w)
		}
	}
	clear(c.wide[len(kept):])
	c.wide = kept
}

func (t *ticket) dependOn(other *ticket) {
	if other == nil || other == t {
		return
	}
	other.dependents = append(other.dependents, t)
	t.blockers++
}

func (a *access) contains(key []byte) bool {
	if a.point {
		return bytes.Equal(a.start, key)
	}
	return bytes.Compare(a.start, key) <= 0 && (a.end == nil || bytes.Compare(key, a.end) < 0)
}

func (a *access) containsString(key string) bool {
	return string(a.start) <= key && (a.end == nil || key < string(a.end))
}

func (a *access) overlaps(b *access) bool {
	return (b.end == nil || bytes.Compare(a.start, b.end) < 0) &&
		(a.end == nil || bytes.Compare(b.start, a.end) < 0)
}

// covers reports that b lies inside a; both are wide.
func (a *access) covers(b *access) bool {
	if bytes.Compare(a.start, b.start) > 0 {
		return false
	}
	return a.end == nil || b.end != nil && bytes.Compare(b.end, a.end) <= 0
}

// within reports that the access touches only keys of [start, end), end empty
// meaning the end of the keyspace.
func (a *access) within(start, end []byte) bool {
	if bytes.Compare(a.start, start) < 0 {
		return false
	}
	if len(end) == 0 {
		return true
	}
	if a.point {
		return bytes.Compare(a.start, end) < 0
	}
	return a.end != nil && bytes.Compare(a.end, end) <= 0
}
