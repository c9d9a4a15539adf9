package watch

import (
	"bytes"
	"fmt"
	"slices"
)

// matcher finds those of some watchers that want a key: the synced ones of a
// group, or those that ride in a read of history. Those of one key, and of one
// prefix, are found by hashing, with a look-up for the key and one for each of a few
// lengths that prefixes have; all others by a search in a tree.
//
// It writes where a watcher is into the watcher, which can be in one matcher only
// at a time.
type matcher struct {
	keys     map[string]alike
	prefixes map[string]alike
	// lengths are those of the prefixes that are hashed, ascending, mostLengths at
	// most; counts says how many watchers of prefixes have each.
	lengths []int
	counts  map[int]int
	// spans has the rest.
	spans spanTree
	n     int
}

// mostLengths is how many lengths of prefixes are hashed; prefixes of others are in
// the tree. Each length costs every key a look-up, whether a prefix is found or
// not, and the tree one search for all: hashing is faster only while the lengths
// are few (BenchmarkMatch).
const mostLengths = 8

func newMatcher() matcher {
	return matcher{keys: map[string]alike{}, prefixes: map[string]alike{}, counts: map[int]int{}}
}

func (m *matcher) add(w *watcher) {
	m.n++
	switch {
	case w.single:
		m.keys[string(w.start)] = m.keys[string(w.start)].with(w)
	case w.isPrefix() && m.hashes(len(w.start)):
		w.hashed = true
		m.prefixes[string(w.start)] = m.prefixes[string(w.start)].with(w)
		m.count(len(w.start), 1)
	default:
		w.hashed = false
		m.spans.add(w)
	}
}

// remove removes a watcher, which must be in the matcher.
func (m *matcher) remove(w *watcher) {
	m.n--
	switch {
	case w.single:
		removeHashed(m.keys, w)
	case w.hashed:
		removeHashed(m.prefixes, w)
		m.count(len(w.start), -1)
	default:
		m.spans.remove(w)
	}
}

func removeHashed(of map[string]alike, w *watcher) {
	rest := of[string(w.start)].without(w)
	if len(rest) == 0 {
		delete(of, string(w.start))
		return
	}
	of[string(w.start)] = rest
}

// hashes says whether a prefix of n bytes that is added is hashed.
func (m *matcher) hashes(n int) bool { return m.counts[n] > 0 || len(m.lengths) < mostLengths }

func (m *matcher) count(n, delta int) {
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

// each calls fn for every watcher whose span holds key. The order depends on
// nothing but what was added and removed: watchers of the key, of hashed prefixes
// from the shortest on, and of spans in the tree's order.
func (m *matcher) each(key []byte, fn func(*watcher)) {
	for _, w := range m.keys[string(key)] {
		fn(w)
	}
	for _, n := range m.lengths {
		if n > len(key) {
			break
		}
		for _, w := range m.prefixes[string(key[:n])] {
			fn(w)
		}
	}
	m.spans.stab(key, fn)
}

// alike are watchers of one span. Each knows its place, so that it leaves at once,
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

func (w *watcher) isPrefix() bool {
	end := prefixEnd(w.start)
	return len(w.start) > 0 && end != nil && bytes.Equal(end, w.end)
}
