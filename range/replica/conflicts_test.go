package replica

import (
	"fmt"
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
			x, y := wideOf(a.accesses[i]), wideOf(b.accesses[j])
			if (x.write || y.write) && x.overlaps(&y) {
				return true
			}
		}
	}
	return false
}

func wideOf(a access) access {
	if a.point {
		a.end, a.point = append(slices.Clone(a.start), 0), false
	}
	return a
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
		c := newConflicts(func(x *ticket) { freed[x] = true })
		abandoned := map[*ticket]bool{}
		for range 150 {
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
				x := naive.present[rng.Intn(len(naive.present))]
				switch {
				case freed[x]:
					naive.remove(x)
					c.leave(x)
				case !abandoned[x] && rng.Intn(4) == 0:
					abandoned[x] = true
					c.abandon(x)
				}
			}
			// An abandoned request goes as soon as it is free.
			for again := true; again; {
				again = false
				for _, x := range naive.present {
					if abandoned[x] && naive.free(x) {
						naive.remove(x)
						again = true
						break
					}
				}
			}
			for _, x := range naive.present {
				if abandoned[x] {
					continue
				}
				if got, want := freed[x], naive.free(x); got != want {
					t.Fatalf("seed %d: %s is free: %v, want %v", seed, x, got, want)
				}
			}
		}
		for len(naive.present) > 0 {
			x := naive.present[0]
			naive.remove(x)
			if !abandoned[x] {
				c.leave(x)
			}
		}
		if len(c.points) != 0 || len(c.wide) != 0 {
			t.Fatalf("seed %d: the table keeps %d points and %d spans of nobody", seed, len(c.points), len(c.wide))
		}
	}
}

func randomAccess(rng *rand.Rand) access {
	key := []byte{byte('a' + rng.Intn(6))}
	a := access{start: key, point: true, write: rng.Intn(2) == 0}
	switch rng.Intn(4) {
	case 0:
		a.point = false
		a.end = []byte{key[0] + byte(1+rng.Intn(4))}
	case 1:
		if rng.Intn(3) == 0 {
			a.point = false // to the end of the keyspace
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
		s += fmt.Sprintf("[%s,%s point=%v]%s ", a.start, a.end, a.point, mode)
	}
	return s
}

// A hot key must not make the table quadratic: each waits for its predecessor only.
func TestAHotKeyCostsOneEdgeARequest(t *testing.T) {
	var order []*ticket
	c := newConflicts(func(x *ticket) { order = append(order, x) })
	var all []*ticket
	for i := range 5000 {
		x := &ticket{accesses: []access{{start: []byte("hot"), point: true, write: true}}}
		if free := c.enter(x); free != (i == 0) {
			t.Fatalf("request %d is free: %v", i, free)
		}
		if x.blockers > 1 {
			t.Fatalf("request %d waits for %d others", i, x.blockers)
		}
		all = append(all, x)
	}
	for i, x := range all {
		c.leave(x)
		if i+1 < len(all) && (len(order) != i+1 || order[i] != all[i+1]) {
			t.Fatalf("after %d left, %d are free", i, len(order))
		}
	}
}
