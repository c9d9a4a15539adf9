package watch

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/hawser-kv/hawser/mvcc/spans"
)

// matcher finds those of some spans that hold a key, each with what belongs to it:
// the groups of watchers, or those that ride in a read of history. Those of one key,
// and of one prefix, are found by hashing, with a look-up for the key and one for
// each of a few lengths that prefixes have; all others by a search in a tree.
type matcher[T any] struct {
	keys     map[string]T
	prefixes map[string]T
	// lengths are those of the prefixes that are hashed, ascending, mostLengths at
	// most; counts says how many prefixes have each.
	lengths []int
	counts  map[int]int
	// spans has the rest.
	spans spans.Tree[T]
	n     int
}

// mostLengths is how many lengths of prefixes are hashed; prefixes of others are in
// the tree. Each length costs every key a look-up, whether a prefix is found or
// not, and the tree one search for all: hashing is faster only while the lengths
// are few (BenchmarkMatch).
const mostLengths = 8

func newMatcher[T any]() matcher[T] {
	return matcher[T]{keys: map[string]T{}, prefixes: map[string]T{}, counts: map[int]int{}}
}

// get returns what belongs to a span, and whether the matcher has it.
func (m *matcher[T]) get(start, end []byte) (of T, ok bool) {
	switch {
	case singleKey(start, end):
		of, ok = m.keys[string(start)]
		return of, ok
	case isPrefix(start, end):
		if of, ok = m.prefixes[string(start)]; ok {
			return of, true
		}
	}
	m.spans.Edit(start, end, 0, func(v T, found bool) (T, bool) {
		of, ok = v, found
		return v, found
	})
	return of, ok
}

// add adds a span that the matcher does not have.
func (m *matcher[T]) add(start, end []byte, of T) {
	m.n++
	switch {
	case singleKey(start, end):
		m.keys[string(start)] = of
	case isPrefix(start, end) && m.hashes(len(start)):
		m.prefixes[string(start)] = of
		m.count(len(start), 1)
	default:
		m.spans.Set(start, end, 0, of)
	}
}

// remove removes a span, which the matcher must have.
func (m *matcher[T]) remove(start, end []byte) {
	m.n--
	if singleKey(start, end) {
		delete(m.keys, string(start))
		return
	}
	if isPrefix(start, end) {
		if _, ok := m.prefixes[string(start)]; ok {
			delete(m.prefixes, string(start))
			m.count(len(start), -1)
			return
		}
	}
	m.spans.Delete(start, end, 0)
}

// hashes says whether a prefix of n bytes that is added is hashed.
func (m *matcher[T]) hashes(n int) bool { return m.counts[n] > 0 || len(m.lengths) < mostLengths }

func (m *matcher[T]) count(n, delta int) {
	m.counts[n] += delta
	i, found := slices.BinarySearch(m.lengths, n)
	switch {
	case m.counts[n] == 0:
		delete(m.counts, n)
		m.lengths = slices.Delete(m.lengths, i, i+1)
	case !found:
		m.lengths = slices.Insert(m.lengths, i, n)
	}
}

// each calls fn for what belongs to every span that holds key. The order depends on
// nothing but what was added and removed: the key, hashed prefixes from the shortest
// on, and spans in the tree's order.
func (m *matcher[T]) each(key []byte, fn func(T)) {
	if of, ok := m.keys[string(key)]; ok {
		fn(of)
	}
	for _, n := range m.lengths {
		if n > len(key) {
			break
		}
		if of, ok := m.prefixes[string(key[:n])]; ok {
			fn(of)
		}
	}
	m.spans.Stab(key, fn)
}

// alike are watchers of one group. Each knows its place, so that it leaves at once,
// however many there are: the last one takes its place.
type alike []*watcher

func (a alike) with(w *watcher) alike {
	w.place = len(a)
	return append(a, w)
}

func (a alike) without(w *watcher) alike {
	if w.place >= len(a) || a[w.place] != w {
		panic(fmt.Sprintf("watch: watcher %d of [%q, %q) is not at place %d of %d", w.id, w.start, w.end, w.place, len(a)))
	}
	end := len(a) - 1
	a[w.place] = a[end]
	a[w.place].place = w.place
	a[end] = nil
	return a[:end]
}

// prefixEnd is the first key after all keys with the prefix; nil if there is
// none.
func prefixEnd(prefix []byte) []byte {
	end := bytes.Clone(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i] < 0xff {
			end[i]++
			return end[:i+1]
		}
	}
	return nil
}

// isPrefix says whether [start, end) holds the keys with a prefix.
func isPrefix(start, end []byte) bool {
	n := len(start)
	if n == 0 || len(end) == 0 || len(end) > n {
		return false
	}
	last := prefixEnd(start)
	return last != nil && bytes.Equal(last, end)
}

// singleKey says whether [start, end) holds one key.
func singleKey(start, end []byte) bool {
	return len(end) == len(start)+1 && end[len(start)] == 0 && bytes.HasPrefix(end, start)
}
