package watch

import (
	"bytes"
	"slices"
)

// matcher finds those of some watchers that want a key: the synced ones of a
// group, or those that ride in a read of history. Watchers of one key
// and of one prefix are found by hashing, whatever their number; other spans
// are compared one by one.
type matcher struct {
	keys     map[string][]*watcher
	prefixes map[string][]*watcher
	// lengths are those that prefixes have, ascending; counts says how many
	// have each.
	lengths []int
	counts  map[int]int
	spans   []*watcher
	n       int
}

func newMatcher() matcher {
	return matcher{keys: map[string][]*watcher{}, prefixes: map[string][]*watcher{}, counts: map[int]int{}}
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

func (m *matcher) add(w *watcher) {
	m.n++
	switch {
	case w.single:
		m.keys[string(w.start)] = append(m.keys[string(w.start)], w)
	case w.isPrefix():
		if len(m.prefixes[string(w.start)]) == 0 {
			m.countLength(len(w.start), 1)
		}
		m.prefixes[string(w.start)] = append(m.prefixes[string(w.start)], w)
	default:
		m.spans = append(m.spans, w)
	}
}

func (m *matcher) remove(w *watcher) {
	m.n--
	switch {
	case w.single:
		if m.keys[string(w.start)] = without(m.keys[string(w.start)], w); len(m.keys[string(w.start)]) == 0 {
			delete(m.keys, string(w.start))
		}
	case w.isPrefix():
		if m.prefixes[string(w.start)] = without(m.prefixes[string(w.start)], w); len(m.prefixes[string(w.start)]) == 0 {
			delete(m.prefixes, string(w.start))
			m.countLength(len(w.start), -1)
		}
	default:
		m.spans = without(m.spans, w)
	}
}

func (m *matcher) countLength(n, delta int) {
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

func without(ws []*watcher, w *watcher) []*watcher {
	for i, x := range ws {
		if x == w {
			return append(ws[:i], ws[i+1:]...)
		}
	}
	return ws
}

// each calls fn for every watcher whose span holds key. Watchers of one key
// or prefix come in the order in which they were added.
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
	for _, w := range m.spans {
		if w.covers(key) {
			fn(w)
		}
	}
}

func (w *watcher) covers(key []byte) bool {
	return bytes.Compare(key, w.start) >= 0 && (len(w.end) == 0 || bytes.Compare(key, w.end) < 0)
}
