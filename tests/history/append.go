package history

import (
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
)

// ListTxn is one transaction of a list-append history: it read lists, and
// appended one value to some of them after reading them. Values are unique
// within a list. Read lists show in which order their values were appended, so
// that the history's dependencies, and cycles in them, can be found (the idea of
// Elle, Kingsbury and Alvaro 2020).
type ListTxn struct {
	Client       int
	Call, Return int64
	Outcome      Outcome
	// Reads are the lists as they were before the transaction's own appends; of
	// an OK one only, except that one with appends has Reads of what it was
	// conditional on.
	Reads   map[string][]int
	Appends map[string]int
}

func (t *ListTxn) String() string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(t.Reads)) {
		parts = append(parts, fmt.Sprintf("r %s %v", k, t.Reads[k]))
	}
	for _, k := range slices.Sorted(maps.Keys(t.Appends)) {
		parts = append(parts, fmt.Sprintf("append %s %d", k, t.Appends[k]))
	}
	outcome := [...]string{"", ", refused", ", unknown"}[t.Outcome]
	return fmt.Sprintf("client %d [%d, %d%s]: %s", t.Client, t.Call, t.Return, outcome, strings.Join(parts, ", "))
}

// dependency says why one transaction comes after another. The letters are
// Adya's.
type dependency int

const (
	// ww: it appended the next value.
	ww dependency = iota
	// wr: it read the value.
	wr
	// rw: the other read the list without its value.
	rw
	// rt: it was asked for after the other was answered.
	rt
)

func (d dependency) String() string { return [...]string{"ww", "wr", "rw", "rt"}[d] }

// lists is the history of a list-append run while it is checked.
type lists struct {
	txns []*ListTxn
	errs []error
	// writer of each value of each list; order of the values of each list.
	writer map[string]map[int]int
	order  map[string][]int
	// next[i] are the transactions that come after i, and why.
	next []map[int]dependency
}

func (l *lists) failf(format string, args ...any) {
	if len(l.errs) < maxErrors {
		l.errs = append(l.errs, fmt.Errorf(format, args...))
	}
}

// CheckAppends returns what contradicts strict serializability: values that
// nobody appended or that were refused, lists that do not extend each other,
// and cycles in the graph of dependencies and real time.
func CheckAppends(txns []*ListTxn) []error {
	l := &lists{txns: txns, writer: map[string]map[int]int{}, order: map[string][]int{}}
	l.findOrders()
	if len(l.errs) > 0 {
		return l.errs // there is no graph without orders
	}
	l.depend()
	l.realTime()
	for _, component := range l.components() {
		cycle := l.cycle(component)
		var b strings.Builder
		for i, at := range cycle {
			fmt.Fprintf(&b, "\n  %v\n    -%v->", l.txns[at], l.next[at][cycle[(i+1)%len(cycle)]])
		}
		l.failf("a cycle of %d transactions, each before the next:%s the first", len(cycle), b.String())
	}
	return l.errs
}

// seen calls fn for every list that a transaction saw or made.
func (l *lists) seen(fn func(t *ListTxn, key string, list []int)) {
	for _, t := range l.txns {
		if t.Outcome != OK {
			continue
		}
		for _, k := range slices.Sorted(maps.Keys(t.Reads)) {
			list := t.Reads[k]
			if v, ok := t.Appends[k]; ok {
				list = append(slices.Clone(list), v)
			}
			fn(t, k, list)
		}
	}
}

func (l *lists) findOrders() {
	for i, t := range l.txns {
		for k, v := range t.Appends {
			if l.writer[k] == nil {
				l.writer[k] = map[int]int{}
			}
			l.writer[k][v] = i
		}
	}
	l.seen(func(_ *ListTxn, k string, list []int) {
		if len(list) > len(l.order[k]) {
			l.order[k] = list
		}
	})
	l.seen(func(t *ListTxn, k string, list []int) {
		if !slices.Equal(list, l.order[k][:len(list)]) {
			l.failf("%v: sees or makes %s %v, which is no beginning of %v", t, k, list, l.order[k])
		}
	})
	for k, order := range l.order {
		once := map[int]bool{}
		for _, v := range order {
			w, ok := l.writer[k][v]
			switch {
			case !ok:
				l.failf("%s has %d, which nobody appended", k, v)
			case l.txns[w].Outcome == Refused:
				l.failf("%s has %d of a transaction that was refused: %v", k, v, l.txns[w])
			case once[v]:
				l.failf("%s has %d twice: %v", k, v, order)
			}
			once[v] = true
		}
	}
}

// edge says that b comes after a. The strongest reason is kept.
func (l *lists) edge(a, b int, why dependency) {
	if a == b {
		return
	}
	if l.next[a] == nil {
		l.next[a] = map[int]dependency{}
	}
	if old, ok := l.next[a][b]; !ok || why < old {
		l.next[a][b] = why
	}
}

func (l *lists) depend() {
	l.next = make([]map[int]dependency, len(l.txns))
	for k, order := range l.order {
		for i := 1; i < len(order); i++ {
			l.edge(l.writer[k][order[i-1]], l.writer[k][order[i]], ww)
		}
	}
	for i, t := range l.txns {
		if t.Outcome != OK {
			continue
		}
		for k, list := range t.Reads {
			if n := len(list); n > 0 {
				l.edge(l.writer[k][list[n-1]], i, wr)
			}
			if order := l.order[k]; len(list) < len(order) {
				l.edge(i, l.writer[k][order[len(list)]], rw)
			}
		}
	}
}

// realTime adds an edge from each answered transaction to those that were asked
// for after it, leaving out those that follow from others.
func (l *lists) realTime() {
	type moment struct {
		at   int64
		txn  int
		call bool
	}
	var moments []moment
	for i, t := range l.txns {
		moments = append(moments, moment{t.Call, i, true})
		if t.Outcome == OK {
			moments = append(moments, moment{t.Return, i, false})
		}
	}
	sort.Slice(moments, func(i, j int) bool { return moments[i].at < moments[j].at })
	// latest are the answered ones that no answered one was asked for after.
	latest := map[int]bool{}
	for _, m := range moments {
		if m.call {
			for i := range latest {
				l.edge(i, m.txn, rt)
			}
			continue
		}
		for i := range latest {
			if _, ok := l.next[i][m.txn]; ok && l.txns[i].Return < l.txns[m.txn].Call {
				delete(latest, i)
			}
		}
		latest[m.txn] = true
	}
}

// components returns the strongly connected components with more than one
// member (Tarjan, with a stack of its own).
func (l *lists) components() [][]int {
	const unseen = -1
	index := make([]int, len(l.txns))
	low := make([]int, len(l.txns))
	on := make([]bool, len(l.txns))
	for i := range index {
		index[i] = unseen
	}
	type frame struct {
		at    int
		succs []int
	}
	var stack []int
	var found [][]int
	n := 0
	for root := range l.txns {
		if index[root] != unseen {
			continue
		}
		var frames []frame
		enter := func(at int) {
			index[at], low[at], on[at] = n, n, true
			n++
			stack = append(stack, at)
			frames = append(frames, frame{at, slices.Sorted(maps.Keys(l.next[at]))})
		}
		enter(root)
		for len(frames) > 0 {
			f := &frames[len(frames)-1]
			if len(f.succs) > 0 {
				to := f.succs[0]
				f.succs = f.succs[1:]
				if index[to] == unseen {
					enter(to)
				} else if on[to] {
					low[f.at] = min(low[f.at], index[to])
				}
				continue
			}
			at := f.at
			frames = frames[:len(frames)-1]
			if len(frames) > 0 {
				parent := frames[len(frames)-1].at
				low[parent] = min(low[parent], low[at])
			}
			if low[at] != index[at] {
				continue
			}
			i := slices.Index(stack, at)
			component := slices.Clone(stack[i:])
			stack = stack[:i]
			for _, c := range component {
				on[c] = false
			}
			if len(component) > 1 {
				found = append(found, component)
			}
		}
	}
	return found
}

// cycle returns a shortest cycle through the first member of a component.
func (l *lists) cycle(component []int) []int {
	inside := map[int]bool{}
	for _, c := range component {
		inside[c] = true
	}
	start := slices.Min(component)
	from := map[int]int{}
	for queue := []int{start}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		for _, to := range slices.Sorted(maps.Keys(l.next[at])) {
			if to == start {
				cycle := []int{at}
				for at != start {
					at = from[at]
					cycle = append(cycle, at)
				}
				slices.Reverse(cycle)
				return cycle
			}
			if _, ok := from[to]; !ok && inside[to] {
				from[to] = at
				queue = append(queue, to)
			}
		}
	}
	panic(fmt.Sprintf("history: component %v has no cycle", component))
}

// PlantStaleRead makes one read of a transaction that appends nothing miss the
// last value that was there before the transaction was asked for, to show that
// the checker finds it. It returns the transaction, nil if there is none of that
// kind.
func PlantStaleRead(txns []*ListTxn, rng interface{ IntN(int) int }) *ListTxn {
	returned := map[string]map[int]int64{}
	for _, t := range txns {
		for k, v := range t.Appends {
			if t.Outcome == OK {
				if returned[k] == nil {
					returned[k] = map[int]int64{}
				}
				returned[k][v] = t.Return
			}
		}
	}
	for _, i := range permutation(len(txns), rng) {
		t := txns[i]
		if t.Outcome != OK || len(t.Appends) > 0 {
			continue
		}
		for _, k := range slices.Sorted(maps.Keys(t.Reads)) {
			list := t.Reads[k]
			if n := len(list); n > 0 {
				if at, ok := returned[k][list[n-1]]; ok && at < t.Call {
					t.Reads[k] = list[:n-1]
					return t
				}
			}
		}
	}
	return nil
}

func permutation(n int, rng interface{ IntN(int) int }) []int {
	p := make([]int, n)
	for i := range p {
		j := rng.IntN(i + 1)
		p[i], p[j] = p[j], i
	}
	return p
}
