package mvcc

import (
	"bytes"
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"
)

func TestHalfKeyIsTheMiddleInBytes(t *testing.T) {
	for name, c := range map[string]struct {
		sizes []int
		want  string
	}{
		"none":          {nil, ""},
		"one":           {[]int{10}, ""},
		"two":           {[]int{10, 10}, "k00001"},
		"first is huge": {[]int{1000, 1, 1}, "k00001"},
		"last is huge":  {[]int{1, 1, 1000}, "k00002"},
		"even":          {[]int{5, 5, 5, 5}, "k00002"},
	} {
		var s sizes
		for i, n := range c.sizes {
			s.add(fmt.Appendf(nil, "k%05d", i), n)
		}
		if got := string(s.half()); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	var s sizes
	for i := range 100_000 {
		s.add(fmt.Appendf(nil, "k%05d", i), 100)
	}
	if len(s.samples) > halfSamples {
		t.Errorf("%d samples", len(s.samples))
	}
	if got := string(s.half()); got < "k49900" || got > "k50100" {
		t.Errorf("the middle of 100,000 keys is %s", got)
	}
}

// Whatever lies between the keys beside the middle halves the range as well as the
// second of them: the shortest is taken, since boundaries are in every descriptor.
func TestHalfKeyIsTheShortestBoundaryOfTheMiddle(t *testing.T) {
	ff := strings.Repeat("\xff", 3000)
	for name, c := range map[string]struct {
		keys []string // of one size each: the middle is before keys[len/2]
		want string
	}{
		"differ early":             {[]string{"a" + ff, "b" + ff}, "b"},
		"differ in one byte":       {[]string{"/pods/a-000001", "/pods/b-000001"}, "/pods/b"},
		"prefix of the other":      {[]string{"/pods", "/pods/kube-system/dns"}, "/pods/"},
		"prefix, then zeros":       {[]string{"k", "k\x00\x00\x00"}, "k\x00"},
		"next possible key":        {[]string{"k", "k\x00"}, "k\x00"},
		"run of 0xff":              {[]string{ff, ff + "\x00\x00"}, ff + "\x00"},
		"run of 0xff, then more":   {[]string{"\xff\xff\x00", ff}, "\xff\xff\xff"},
		"0xff after the same":      {[]string{"a\xfe" + ff, "a" + ff}, "a\xff"},
		"before a run of 0xff":     {[]string{"z" + ff, ff}, "\xff"},
		"binary":                   {[]string{"\x00\x01\x00\x00\x00\x07", "\x00\x02\x00\x00\x00\x00"}, "\x00\x02"},
		"shortest already":         {[]string{"a", "b"}, "b"},
		"differ at the end only":   {[]string{ff + "a", ff + "b"}, ff + "b"},
		"beside the middle counts": {[]string{"a", "m" + ff, "n" + ff, "z"}, "n"},
	} {
		var s sizes
		for _, k := range c.keys {
			s.add([]byte(k), 1)
		}
		if got := string(s.half()); got != c.want {
			t.Errorf("%s: %.100q (%d bytes), want %.100q (%d bytes)", name, got, len(got), c.want, len(c.want))
		}
	}
}

// Against every key there is, over few bytes of which one is the first and one the last.
func TestHalfKeyAgainstAllKeys(t *testing.T) {
	const alphabet = "\x00a\xff"
	all := []string{""}
	for from := 0; len(all[from]) < 5; from++ {
		for _, b := range []byte(alphabet) {
			all = append(all, all[from]+string([]byte{b}))
		}
	}
	all = all[1:] // no key is empty
	slices.Sort(all)
	rnd := rand.New(rand.NewSource(1))
	for range 2000 {
		picked := rnd.Perm(len(all))[:2+rnd.Intn(9)]
		slices.Sort(picked)
		var s sizes
		for _, i := range picked {
			s.add([]byte(all[i]), 1)
		}
		half := len(picked) / 2
		left, right := all[picked[half-1]], all[picked[half]]
		got := string(s.half())
		if got <= left || got > right {
			t.Fatalf("%q is not between %q and %q", got, left, right)
		}
		for _, k := range all {
			if left < k && k <= right && len(k) < len(got) {
				t.Fatalf("%q between %q and %q, though %q is shorter", got, left, right, k)
			}
		}
	}
}

// The samples of a large range stay few and keep what they are of.
func TestHalfKeyOfManyLongKeys(t *testing.T) {
	const n = 20_000
	tail := bytes.Repeat([]byte{0xff}, 1000)
	var buf []byte // one for all keys, as a scan may have
	key := func(i int) []byte {
		buf = append(fmt.Appendf(buf[:0], "k%05d", i), tail...)
		return buf
	}
	var s sizes
	for i := range n {
		s.add(key(i), len(key(i)))
	}
	got := s.half()
	before := 0
	for i := range n {
		if bytes.Compare(key(i), got) < 0 {
			before++
		}
	}
	if before < n/2-n/100 || before > n/2+n/100 || len(got) > len("k00000") {
		t.Errorf("%d of %d keys are before the boundary of %d bytes", before, n, len(got))
	}
	held := 0
	for _, x := range s.samples {
		held += len(x.key)
	}
	if held > halfSamples*len("k00000") {
		t.Errorf("%d samples hold %d bytes", len(s.samples), held)
	}
}
