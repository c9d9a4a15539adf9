package replica

import (
	"cmp"
	"slices"

	"github.com/hawser-kv/hawser/mvcc/spans"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// conflicts orders the requests of a range that touch the same keys.
//
// A request enters when it arrives, with every span it may touch, and leaves
// when what it does is known: a write when its revision is granted (or when it
// turns out to change nothing), a latch when it is released, either of them when it
// is given up. A request is *unblocked* once every earlier one that conflicts with it
// has left. Two requests conflict if their spans overlap and one of them writes there.
//
// So requests on one key go in the order of their arrival, others pass, and a
// latch over a wide span cannot be starved by a stream of writes behind it.
//
// A request waits for one other at a time: the latest of the earlier ones that
// conflict with it. When that leaves, it looks for another. As requests leave in the
// order of their arrival, or nearly so, there is none then, and each has looked twice,
// whatever the number of those that it stands behind.
type conflicts struct {
	// reads and writes hold the spans of all requests that are here, each at the
	// place of its request. Reads do not conflict, so they are never compared.
	reads, writes spans.Tree[*ticket]
	// newest is the place of the request that came last.
	newest uint64
	// unblocked receives requests, in the order in which they become free.
	unblocked func(*ticket)
	// nodes counts what was looked at.
	nodes int
}

// access is one span that a request touches: [start, end), end empty meaning the
// end of the keyspace.
type access struct {
	start, end []byte
	write      bool
}

// pointAccess is the access of one key.
func pointAccess(key []byte, write bool) access {
	end := make([]byte, len(key)+1)
	copy(end, key)
	return access{start: key, end: end, write: write}
}

// ticket is the place of one request in the table.
type ticket struct {
	owner    *request
	accesses []access
	// place grows with each request that enters.
	place uint64
	// blocker is who the request waits for, in whose list of waiters it is then.
	blocker                *ticket
	firstWaiter            *ticket
	prevWaiter, nextWaiter *ticket
	left                   bool
	// inline keeps the accesses of the usual request without an allocation.
	inline [1]access
}

func newConflicts(unblocked func(*ticket)) conflicts {
	return conflicts{unblocked: unblocked}
}

// enter adds a request behind all that are there. It reports whether it is
// free at once; if not, unblocked is called for it later.
func (c *conflicts) enter(t *ticket) bool {
	c.newest++
	t.place = c.newest
	t.waitFor(c.blockerOf(t))
	for i := range t.accesses {
		a := &t.accesses[i]
		c.nodes += c.treeOf(a).Set(a.start, a.end, t.place, t)
	}
	return t.blocker == nil
}

// leave removes a request, free or not, and unblocks those that waited for it and
// have nobody else to wait for. A second time it does nothing.
func (c *conflicts) leave(t *ticket) {
	if t.left {
		return
	}
	t.left = true
	for i := range t.accesses {
		a := &t.accesses[i]
		c.nodes += c.treeOf(a).Delete(a.start, a.end, t.place)
	}
	t.stopWaiting()
	if t.firstWaiter == nil {
		return
	}
	var waiters []*ticket
	for w := t.firstWaiter; w != nil; w = w.nextWaiter {
		waiters = append(waiters, w)
	}
	slices.SortFunc(waiters, func(a, b *ticket) int { return cmp.Compare(a.place, b.place) })
	for _, w := range waiters {
		w.stopWaiting()
		w.waitFor(c.blockerOf(w))
		if w.blocker == nil {
			c.unblocked(w)
		}
	}
}

// blockerOf returns the latest of the requests before t that conflict with it, nil if
// there is none.
func (c *conflicts) blockerOf(t *ticket) (blocker *ticket) {
	var latest uint64
	look := func(in *spans.Tree[*ticket], a *access) {
		found, place, ok, nodes := in.Latest(a.start, a.end, latest, t.place)
		c.nodes += nodes
		if ok {
			blocker, latest = found, place
		}
	}
	for i := range t.accesses {
		a := &t.accesses[i]
		look(&c.writes, a)
		if a.write {
			look(&c.reads, a)
		}
	}
	return blocker
}

func (c *conflicts) treeOf(a *access) *spans.Tree[*ticket] {
	if a.write {
		return &c.writes
	}
	return &c.reads
}

// waitFor puts t, which waits for nobody, among the waiters of a blocker.
func (t *ticket) waitFor(blocker *ticket) {
	if blocker == nil {
		return
	}
	t.blocker = blocker
	t.nextWaiter = blocker.firstWaiter
	if t.nextWaiter != nil {
		t.nextWaiter.prevWaiter = t
	}
	blocker.firstWaiter = t
}

func (t *ticket) stopWaiting() {
	if t.blocker == nil {
		return
	}
	if t.prevWaiter != nil {
		t.prevWaiter.nextWaiter = t.nextWaiter
	} else {
		t.blocker.firstWaiter = t.nextWaiter
	}
	if t.nextWaiter != nil {
		t.nextWaiter.prevWaiter = t.prevWaiter
	}
	t.blocker, t.prevWaiter, t.nextWaiter = nil, nil, nil
}

func (a *access) span() rangepb.Span { return rangepb.Span{Start: a.start, End: a.end} }
