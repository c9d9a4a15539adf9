package mvcc

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2"
)

// fillSizes puts keys with values of the given sizes, a thousand in each revision,
// and flushes them if wanted.
func fillSizes(t *testing.T, s *Store, n int, key func(int) []byte, size func(int) int, flush bool) {
	t.Helper()
	rng := rand.NewChaCha8([32]byte{1})
	rev := int64(2)
	for i := 0; i < n; rev++ {
		var effs []Effect
		for ; i < n && len(effs) < 1000; i++ {
			value := make([]byte, size(i)) // random, so that the files are as large
			_, _ = rng.Read(value)         // never fails
			effs = append(effs, Effect{Key: key(i), Value: value, CreateRevision: rev, Version: 1, Sub: uint32(len(effs))})
		}
		b := s.db.NewBatch()
		if err := s.Apply(b, rev, effs); err != nil {
			t.Fatal(err)
		}
		if err := b.Commit(pebble.NoSync); err != nil {
			t.Fatal(err)
		}
		for s.counts.NeedsMaintenance() {
			if err := s.counts.Maintain(keyScanner{s}, 100); err != nil {
				t.Fatal(err)
			}
		}
	}
	if flush {
		if err := s.db.Flush(); err != nil {
			t.Fatal(err)
		}
	}
}

// A range that is too large to be read is halved by size, whatever the sizes are
// like, and what is read does not grow with it.
func TestHalfOfALargeRange(t *testing.T) {
	limits := defaultHalfLimits
	limits.rows, limits.bytes, limits.probe = 500, 64<<10, 100
	plain := func(i int) []byte { return fmt.Appendf(nil, "/registry/pods/%06d", i) }
	for name, c := range map[string]struct {
		keys  int
		key   func(int) []byte
		size  func(int) int
		flush bool
		// tolerance is how far from the middle the boundary may be, in percent of the range.
		tolerance float64
	}{
		"even": {20_000, plain, func(int) int { return 100 }, true, 5},
		// The engine flushes some of it by itself, at any time: what it flushes during
		// the search counts in memory and in files, for the first keys.
		"in memory":              {20_000, plain, func(int) int { return 5 }, false, 20},
		"large values first":     {20_000, plain, func(i int) int { return 10 + max(0, 4000-2*i) }, true, 5},
		"large values last":      {20_000, plain, func(i int) int { return 10 + max(0, i-19_000) }, true, 8},
		"few and large, one run": {600, plain, func(int) int { return 10_000 }, true, 5},
		"one is huge": {600, plain, func(i int) int {
			if i == 400 {
				return 4 << 20
			}
			return 1000
		}, true, 45},
		"long common prefix": {600, func(i int) []byte { return append(bytes.Repeat([]byte("p"), 300), plain(i)...) }, func(int) int { return 10_000 }, true, 10},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			fillSizes(t, s, c.keys, c.key, c.size, c.flush)
			half, looked, err := s.halfKey(nil, nil, limits)
			if err != nil || half == nil {
				t.Fatalf("%q, %v", half, err)
			}
			if most := limits.rows + 6*limits.probe; looked > most {
				t.Errorf("%d keys were looked at, more than %d", looked, most)
			}
			left, total := 0, 0
			for i := range c.keys {
				n := len(c.key(i)) + c.size(i)
				if total += n; bytes.Compare(c.key(i), half) < 0 {
					left += n
				}
			}
			if part := 100 * float64(left) / float64(total); part < 50-c.tolerance || part > 50+c.tolerance {
				t.Errorf("%.1f %% are before %q", part, half)
			}
			if longest := len(c.key(0)); len(half) > longest {
				t.Errorf("boundary %q is longer than a key", half)
			}
		})
	}
}

// Sizes lead to where no key lives; live ones are on both sides all the same.
func TestHalfOfARangeThatIsMostlyDead(t *testing.T) {
	key := func(i int) []byte { return fmt.Appendf(nil, "%06d", i) }
	limits := defaultHalfLimits
	limits.rows, limits.probe = 300, 100
	for name, alive := range map[string][]int{
		"at both ends":   {0, 9999},
		"at the begin":   {0, 1, 2, 3},
		"at the end":     {9996, 9997, 9998, 9999},
		"in the middle":  {5000, 5001},
		"here and there": {2000, 2100, 7000},
		"one":            {5000},
		"none":           nil,
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			fillSizes(t, s, 10_000, key, func(int) int { return 100 }, true)
			live := make(map[int]bool)
			for _, i := range alive {
				live[i] = true
			}
			rev := int64(1000)
			var effs []Effect
			for i := range 10_000 {
				if !live[i] {
					effs = append(effs, Effect{Key: key(i), Tombstone: true, Sub: uint32(len(effs)), Prior: Place{Revision: int64(i/1000) + 2, Sub: uint32(i % 1000)}})
				}
			}
			b := s.db.NewBatch()
			if err := s.Apply(b, rev, effs); err != nil {
				t.Fatal(err)
			}
			if err := b.Commit(pebble.NoSync); err != nil {
				t.Fatal(err)
			}
			half, _, err := s.halfKey(nil, nil, limits)
			if err != nil {
				t.Fatal(err)
			}
			if len(alive) < 2 {
				if half != nil {
					t.Errorf("boundary %q with %d live keys", half, len(alive))
				}
				return
			}
			left := 0
			for _, i := range alive {
				if bytes.Compare(key(i), half) < 0 {
					left++
				}
			}
			if half == nil || left == 0 || left == len(alive) {
				t.Errorf("%d of %d live keys are before %q", left, len(alive), half)
			}
		})
	}
}

func TestBetween(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	key := func() []byte {
		k := make([]byte, rng.IntN(5))
		for i := range k {
			k[i] = []byte{0, 1, 'a', 'b', 254, 255}[rng.IntN(6)]
		}
		return k
	}
	for range 100_000 {
		lo, hi := key(), key()
		if rng.IntN(10) == 0 {
			hi = nil
		}
		if hi != nil && bytes.Compare(lo, hi) >= 0 {
			continue
		}
		got := between(lo, hi)
		if got == nil {
			if hi == nil || !bytes.Equal(hi, append(bytes.Clone(lo), 0)) {
				t.Fatalf("nothing between %q and %q", lo, hi)
			}
			continue
		}
		if bytes.Compare(got, lo) <= 0 || hi != nil && bytes.Compare(got, hi) >= 0 {
			t.Fatalf("%q is not between %q and %q", got, lo, hi)
		}
	}
	// Halving meets any key after some steps for each of its bytes.
	lo, hi, want := []byte(nil), []byte(nil), []byte("/registry/pods/x")
	steps := 0
	for !bytes.Equal(lo, want) && steps < 9*len(want)+9 {
		m := between(lo, hi)
		if bytes.Compare(m, want) <= 0 {
			lo = m
		} else {
			hi = m
		}
		steps++
	}
	if !bytes.Equal(lo, want) {
		t.Errorf("after %d steps between %q and %q", steps, lo, hi)
	}
}
