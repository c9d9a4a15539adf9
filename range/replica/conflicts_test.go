package replica

import (
	"bytes"
	"fmt"
	"math/bits"
	"math/rand"
	"slices"
	"testing"
)

// naiveConflicts is the definition: a request is free when no earlier one that
// conflicts is there.
type naiveConflicts struct {
	present []*ticket
}

func conflicting(a, b *ticket) bool {
	for i := range a.accesses {
		for j := range b.accesses {
			x, y := &a.accesses[i], &b.accesses[j]
			if (x.write || y.write) && overlap(x, y) {
				return true
			}
		}
	}
	return false
}

func overlap(x, y *access) bool {
	return (len(y.end) == 0 || bytes.Compare(x.start, y.end) < 0) && (len(x.end) == 0 || bytes.Compare(y.start, x.end) < 0)
}

func (n *naiveConflicts) free(t *ticket) bool {
	for _, other := range n.present {
		if other == t {
			return true
		}
		if conflicting(other, t) {
			return false
		}
	}
	panic("not present")
}

func (n *naiveConflicts) remove(t *ticket) {
	n.present = slices.DeleteFunc(n.present, func(o *ticket) bool { return o == t })
}

func TestRequestsAreFreeExactlyWhenNoEarlierConflictIsLeft(t *testing.T) {
	for seed := range int64(200) {
		rng := rand.New(rand.NewSource(seed))
		var naive naiveConflicts
		freed := map[*ticket]bool{}
		var order []*ticket // of those that became free since the last step
		c := newConflicts(func(x *ticket) {
			if freed[x] {
				t.Fatalf("seed %d: %s becomes free twice", seed, x)
			}
			freed[x] = true
			order = append(order, x)
		})
		for range 150 {
			order = order[:0]
			if rng.Intn(2) == 0 || len(naive.present) == 0 {
				x := &ticket{owner: &request{}}
				for range 1 + rng.Intn(3) {
					x.accesses = append(x.accesses, randomAccess(rng))
				}
				naive.present = append(naive.present, x)
				if c.enter(x) {
					freed[x] = true
				}
			} else {
				// Mostly one that is free and has been there for long; some are given
				// up where they stand.
				x := naive.present[rng.Intn(1+rng.Intn(len(naive.present)))]
				if freed[x] || rng.Intn(3) == 0 {
					naive.remove(x)
					c.leave(x)
					c.leave(x) // it says so again when it is answered
				}
			}
			for _, x := range naive.present {
				if got, want := freed[x], naive.free(x); got != want {
					t.Fatalf("seed %d: %s is free: %v, want %v", seed, x, got, want)
				}
			}
			if !slices.IsSortedFunc(order, func(a, b *ticket) int { return int(a.place) - int(b.place) }) {
				t.Fatalf("seed %d: %v become free out of order", seed, order)
			}
			for _, x := range order {
				if !slices.Contains(naive.present, x) {
					t.Fatalf("seed %d: %s becomes free and has left", seed, x)
				}
			}
		}
		for len(naive.present) > 0 {
			x := naive.present[0]
			naive.remove(x)
			c.leave(x)
			if x.firstWaiter != nil || x.blocker != nil {
				t.Fatalf("seed %d: %s has left and is waited for", seed, x)
			}
		}
		if !c.reads.Empty() || !c.writes.Empty() {
			t.Fatalf("seed %d: the table keeps spans of nobody", seed)
		}
	}
}

func randomAccess(rng *rand.Rand) access {
	key := []byte{byte('a' + rng.Intn(6))}
	a := pointAccess(key, rng.Intn(2) == 0)
	switch rng.Intn(4) {
	case 0:
		a.end = []byte{key[0] + byte(1+rng.Intn(4))}
	case 1:
		if rng.Intn(3) == 0 {
			a.end = nil
		}
	}
	return a
}

func (t *ticket) String() string {
	s := ""
	for _, a := range t.accesses {
		mode := "r"
		if a.write {
			mode = "w"
		}
		s += fmt.Sprintf("%d:[%q,%q)%s ", t.place, a.start, a.end, mode)
	}
	return s
}

// TestConflictTableLooksAtFewNodes has many spans wait at once, in the ways that
// clients make them wait, and leave as they became free. What the table looks at for
// one span grows with the logarithm of how many there are, not with their number.
func TestConflictTableLooksAtFewNodes(t *testing.T) {
	key := func(format string, args ...any) []byte { return fmt.Appendf(nil, format, args...) }
	read := func(start, end []byte) access { return access{start: start, end: end} }
	for _, tc := range []struct {
		name string
		// spansOf are the spans of the i-th of n requests.
		spansOf func(i, n int) []access
		spans   int // of a request
	}{
		{"a put and 100 small reads each, in no conflict", func(i, _ int) (all []access) {
			all = append(all, pointAccess(key("put/%06d", i), true))
			for j := range 100 {
				all = append(all, read(key("r/%06d/%03d", i, j), key("r/%06d/%03d~", i, j)))
			}
			return all
		}, 101},
		{"the same, reading the same spans", func(i, _ int) (all []access) {
			all = append(all, pointAccess(key("put/%06d", i), true))
			for j := range 100 {
				all = append(all, read(key("r/%03d", j), key("r/%03d~", j)))
			}
			return all
		}, 101},
		{"a hot key", func(int, int) []access { return []access{pointAccess(key("hot"), true)} }, 1},
		{"a compare and a put on a hot key", func(int, int) []access {
			return []access{pointAccess(key("hot"), false), pointAccess(key("hot"), true)}
		}, 2},
		{"puts of different keys", func(i, _ int) []access { return []access{pointAccess(key("k%06d", i*7919%100003), true)} }, 1},
		{"deletes of one prefix", func(int, int) []access { return []access{{start: key("p/"), end: key("p0"), write: true}} }, 1},
		{"puts below a prefix that others read", func(i, _ int) []access {
			if i%2 == 0 {
				return []access{read(key("p/"), key("p0")), pointAccess(key("q/%06d", i), true)}
			}
			return []access{pointAccess(key("p/%06d", i*7919%100003), true)}
		}, 2},
		{"reads of a prefix, then puts below it", func(i, n int) []access {
			if i < n/2 {
				return []access{read(key("p/"), key("p0")), pointAccess(key("q/%06d", i), true)}
			}
			return []access{pointAccess(key("p/%06d", i*7919%100003), true)}
		}, 2},
		{"puts below a prefix, then reads of it", func(i, n int) []access {
			if i < n/2 {
				return []access{pointAccess(key("p/%06d", i*7919%100003), true)}
			}
			return []access{read(key("p/"), key("p0")), pointAccess(key("q/%06d", i), true)}
		}, 2},
		{"nested reads around a key that is then put", func(i, n int) []access {
			if i < n-1 {
				return []access{read(key("a%06d", i), key("z%06d", n-i)), pointAccess(key("zz/%06d", i), true)}
			}
			return []access{pointAccess(key("m"), true)}
		}, 2},
		{"a latch over many keys, then puts of them", func(i, n int) (all []access) {
			if i > 0 {
				return []access{pointAccess(key("k%06d", i), true)}
			}
			for j := range n {
				all = append(all, pointAccess(key("k%06d", j), j%2 == 0))
			}
			return all
		}, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, spans := range []int{1000, 10_000, 100_000} {
				n := max(1, spans/tc.spans)
				var free fifo[*ticket]
				c := newConflicts(func(x *ticket) { free.push(x) })
				// Each span is entered, taken out and looked for in two trees, twice at most.
				most := n * tc.spans * 8 * bits.Len(uint(spans))
				check := func() {
					t.Helper()
					if c.nodes > most {
						t.Fatalf("%d requests of %d spans make the table look at more than %d nodes", n, tc.spans, most)
					}
				}
				for i := range n {
					x := &ticket{accesses: tc.spansOf(i, n)}
					if c.enter(x) {
						free.push(x)
					}
					check()
				}
				left := 0
				for ; free.len() > 0; left++ {
					c.leave(free.pop())
					check()
				}
				if left != n || !c.reads.Empty() || !c.writes.Empty() {
					t.Fatalf("%d of %d requests became free", left, n)
				}
			}
		})
	}
}

// TestGivingUpFreesAtOnce: whoever is given up in the middle of a line is out of it,
// and what waited for it waits for whom it waited for.
func TestGivingUpFreesAtOnce(t *testing.T) {
	var free []*ticket
	c := newConflicts(func(x *ticket) { free = append(free, x) })
	var all []*ticket
	for i := range 1000 {
		x := &ticket{accesses: []access{pointAccess([]byte("hot"), true)}}
		if got := c.enter(x); got != (i == 0) {
			t.Fatalf("request %d is free: %v", i, got)
		}
		all = append(all, x)
	}
	for _, x := range all[1:999] {
		c.leave(x)
	}
	if len(free) != 0 {
		t.Fatalf("%v free beside the first", free)
	}
	c.leave(all[0])
	if len(free) != 1 || free[0] != all[999] {
		t.Fatalf("%v are free, want the last only", free)
	}
}
