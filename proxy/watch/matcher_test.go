package watch

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestMatcherFindsWhatAScanFinds adds watchers, each of any span of its own, with more lengths of
// prefixes than are hashed, removes them and adds them again, and holds what is
// found for a key against a scan. Doing the same once more gives the same order.
func TestMatcherFindsWhatAScanFinds(t *testing.T) {
	run := func(seed uint64) (found []int64) {
		rng := rand.New(rand.NewPCG(seed, 13))
		m := newMatcher[*watcher]()
		var in, out []*watcher
		unhashed := 0
		for op := range 1500 {
			// It grows, shrinks to nothing and grows again.
			if grow := []int{8, 1, 8}[op/500]; len(in) == 0 || rng.IntN(10) < grow {
				var w *watcher
				switch n := len(out); {
				case n > 0 && rng.IntN(2) == 0:
					w, out = out[n-1], out[:n-1]
				case rng.IntN(3) == 0:
					prefix := bytes.Repeat([]byte{'a'}, 1+rng.IntN(2*mostLengths))
					w = watcherOf(op, prefix, prefixEnd(prefix))
				default:
					start, end := anySpan(rng, 4)
					w = watcherOf(op, start, end)
				}
				if other, ok := m.get(w.start, w.end); ok {
					if other == w || !bytes.Equal(other.start, w.start) || !bytes.Equal(other.end, w.end) {
						t.Fatalf("seed %d: [%q, %q) has the watcher of [%q, %q)", seed, w.start, w.end, other.start, other.end)
					}
					continue
				}
				isNew := m.counts[len(w.start)] == 0
				in = append(in, w)
				m.add(w.start, w.end, w)
				if got, ok := m.get(w.start, w.end); !ok || got != w {
					t.Fatalf("seed %d: [%q, %q) was added and is not there", seed, w.start, w.end)
				}
				if _, hashed := m.prefixes[string(w.start)]; isPrefix(w.start, w.end) && !singleKey(w.start, w.end) && !hashed {
					unhashed++
					if !isNew {
						t.Fatalf("seed %d: prefix %q is not hashed, others of its length are", seed, w.start)
					}
				}
			} else {
				i := rng.IntN(len(in))
				m.remove(in[i].start, in[i].end)
				out = append(out, in[i])
				in = slices.Delete(in, i, i+1)
			}
			if len(m.lengths) > mostLengths || m.n != len(in) {
				t.Fatalf("seed %d: %d lengths are hashed, and there are %d watchers, not %d", seed, len(m.lengths), len(in), m.n)
			}
			key := keysOverFewLetters(rng, 5)
			if rng.IntN(2) == 0 {
				key = bytes.Repeat([]byte{'a'}, rng.IntN(3*mostLengths))
			}
			var got []*watcher
			m.each(key, func(w *watcher) {
				got = append(got, w)
				found = append(found, w.id)
			})
			checkSame(t, fmt.Sprintf("seed %d: key %q", seed, key), got, in, key)
		}
		if unhashed == 0 {
			t.Fatalf("seed %d: all prefixes were hashed", seed)
		}
		for _, w := range in {
			m.remove(w.start, w.end)
		}
		if m.n+len(m.keys)+len(m.prefixes)+len(m.lengths)+len(m.counts) != 0 || !m.spans.Empty() {
			t.Fatalf("seed %d: something is left", seed)
		}
		return found
	}
	for seed := range uint64(10) {
		if !slices.Equal(run(seed), run(seed)) {
			t.Fatalf("seed %d: the order was another the second time", seed)
		}
	}
}

// TestWatchersOfAGroupLeaveFromTheirPlaces: whoever leaves, the others know where
// they are.
func TestWatchersOfAGroupLeaveFromTheirPlaces(t *testing.T) {
	var of alike
	in := map[*watcher]bool{}
	rng := rand.New(rand.NewPCG(1, 17))
	for i := range 50 {
		w := watcherOf(i, []byte("k"), nil)
		of, in[w] = of.with(w), true
	}
	for len(of) > 0 {
		w := of[rng.IntN(len(of))]
		of = of.without(w)
		delete(in, w)
		if len(of) != len(in) {
			t.Fatalf("%d watchers are left, want %d", len(of), len(in))
		}
		for i, w := range of {
			if w.place != i || !in[w] {
				t.Fatalf("the watcher at place %d says %d", i, w.place)
			}
		}
	}
}

func watcherOf(id int, start, end []byte) *watcher {
	return &watcher{id: int64(id), start: start, end: end}
}

func (w *watcher) holds(key []byte) bool {
	return bytes.Compare(w.start, key) <= 0 && (len(w.end) == 0 || bytes.Compare(key, w.end) < 0)
}

// keysOverFewLetters makes keys of up to most bytes that are often equal, neighbours,
// or prefixes of each other, at the ends of the keyspace, too.
func keysOverFewLetters(rng *rand.Rand, most int) []byte {
	key := make([]byte, rng.IntN(most+1))
	for i := range key {
		key[i] = []byte{0, 'a', 'b', 0xff}[rng.IntN(4)]
	}
	return key
}

// anySpan is one of a key, of a prefix, to the end of the keyspace, or any other.
// Many are nested, touch or are equal.
func anySpan(rng *rand.Rand, most int) (start, end []byte) {
	for {
		start = keysOverFewLetters(rng, most)
		switch rng.IntN(4) {
		case 0:
			return start, append(bytes.Clone(start), 0)
		case 1:
			if len(start) > 0 {
				return start, prefixEnd(start)
			}
		case 2:
			return start, nil
		default:
			if end = keysOverFewLetters(rng, most); bytes.Compare(start, end) < 0 {
				return start, end
			}
		}
	}
}

// checkSame fails the test unless got are those of in that hold key, each once.
func checkSame(t *testing.T, of string, got, in []*watcher, key []byte) {
	t.Helper()
	var ids, want []int64
	for _, w := range got {
		ids = append(ids, w.id)
	}
	for _, w := range in {
		if w.holds(key) {
			want = append(want, w.id)
		}
	}
	slices.Sort(ids)
	slices.Sort(want)
	if !slices.Equal(ids, want) {
		t.Fatalf("%s: found %v, want %v", of, ids, want)
	}
}
