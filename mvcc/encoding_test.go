package mvcc

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hawser-kv/hawser/mvcc/keys"
	enginekeys "github.com/hawser-kv/hawser/range/keys"
)

// awkwardKeys are user keys whose bytes collide with those of the encoding.
var awkwardKeys = [][]byte{
	[]byte("a"), []byte("a\x00"), []byte("a\x00\x00"), []byte("a\x00\x01"), []byte("a\x00\x01\x00"),
	[]byte("a\x00\xff"), []byte("a\x01"), []byte("a\xff"), []byte("\x00"), []byte("\x00\x00"),
	[]byte("\xff"), []byte("\xff\xff"), []byte("\x0d"), []byte("a\x0d"), []byte("aaaaaaaaaaaaaaaaaaaaaaaa\x0d"),
	[]byte("ab"), []byte("b"), bytes.Repeat([]byte{0x0d}, 20), bytes.Repeat([]byte{0x00}, 20),
	append([]byte("a\x00\x01"), bytes.Repeat([]byte{0xff}, 12)...),
}

func randomKey(rng *rand.Rand) []byte {
	if rng.IntN(4) == 0 {
		return slices.Clone(awkwardKeys[rng.IntN(len(awkwardKeys))])
	}
	alphabet := []byte{0x00, 0x01, 0x02, 0x0c, 0x0d, 0x0e, 'a', 0xfe, 0xff}
	k := make([]byte, 1+rng.IntN(6))
	for i := range k {
		k[i] = alphabet[rng.IntN(len(alphabet))]
	}
	return k
}

type versionKey struct {
	key []byte
	rev int64
	sub uint32
}

func (v versionKey) encode() []byte { return appendVersionKey(nil, v.key, v.rev, v.sub) }

// compare is the order promised: user keys ascending, newest version first.
func (v versionKey) compare(w versionKey) int {
	if c := bytes.Compare(v.key, w.key); c != 0 {
		return c
	}
	switch {
	case v.rev != w.rev && v.rev > w.rev, v.rev == w.rev && v.sub > w.sub:
		return -1
	case v.rev == w.rev && v.sub == w.sub:
		return 0
	}
	return 1
}

func randomVersionKey(rng *rand.Rand) versionKey {
	revs := []int64{0, 1, 2, 255, 256, math.MaxInt32, math.MaxInt64 - 1, math.MaxInt64, rng.Int64()}
	subs := []uint32{0, 1, 127, 128, math.MaxUint32}
	return versionKey{randomKey(rng), revs[rng.IntN(len(revs))], subs[rng.IntN(len(subs))]}
}

func TestVersionKeysSortByKeyThenNewestFirst(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200_000 {
		a, b := randomVersionKey(rng), randomVersionKey(rng)
		ea, eb := a.encode(), b.encode()
		if got, want := Comparer.Compare(ea, eb), a.compare(b); got != want {
			t.Fatalf("Compare(%s, %s) = %d, want %d", formatKey(ea), formatKey(eb), got, want)
		}
		prefix, rev, sub, ok := splitVersionKey(ea)
		if !ok || rev != a.rev || sub != a.sub {
			t.Fatalf("%x decodes to %d.%d (%t), want %d.%d", ea, rev, sub, ok, a.rev, a.sub)
		}
		key, err := appendUserKey(nil, prefix)
		if err != nil || !bytes.Equal(key, a.key) {
			t.Fatalf("%x decodes to key %q (%v), want %q", ea, key, err, a.key)
		}
		if n := Comparer.Split(ea); n != len(prefix) {
			t.Fatalf("Split(%x) = %d, want %d", ea, n, len(prefix))
		}
	}
}

func TestVersionSpanHoldsExactlyTheKeysOfTheSpan(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 50_000 {
		start, end, v := randomKey(rng), randomKey(rng), randomVersionKey(rng)
		if rng.IntN(5) == 0 {
			start = nil
		}
		if rng.IntN(5) == 0 {
			end = nil
		}
		lower, upper := VersionSpan(start, end)
		k := v.encode()
		got := bytes.Compare(k, lower) >= 0 && bytes.Compare(k, upper) < 0
		want := bytes.Compare(v.key, start) >= 0 && (end == nil || bytes.Compare(v.key, end) < 0)
		if got != want {
			t.Fatalf("key %q in [%q, %q): %t, want %t", v.key, start, end, got, want)
		}
	}
}

// TestComparerPassesPebblesChecks runs Pebble's own suite. It cuts leading bytes
// off prefixes and expects what is left to be prefixes, as under a synthetic
// prefix, which nothing here uses. Our Split looks at the first byte, so the
// test hands it back; and the keys hold no 0x01 of their own, so that also the
// cut ones are free of prefixes of each other.
func TestComparerPassesPebblesChecks(t *testing.T) {
	cut := *Comparer
	cut.Split = func(k []byte) int {
		return Comparer.Split(append([]byte{keys.VersionPrefix}, k...)) - 1
	}
	var prefixes, suffixes [][]byte
	for _, k := range []string{"a", "a\x00", "a\x00\x00", "\x00\xff", "ab", "\x0d", "\xff\x0d\x0d"} {
		prefixes = append(prefixes, appendVersionPrefix(nil, []byte(k))[1:])
	}
	for _, v := range []versionKey{{rev: 1}, {rev: 1, sub: 1}, {rev: 2}, {rev: math.MaxInt64, sub: math.MaxUint32}} {
		suffixes = append(suffixes, appendVersionSuffix(nil, v.rev, v.sub))
	}
	if err := pebble.CheckComparer(&cut, prefixes, suffixes); err != nil {
		t.Fatal(err)
	}
}

// randomEngineKey returns a key of any part of the engine, with or without suffix.
func randomEngineKey(rng *rand.Rand) []byte {
	switch rng.IntN(8) {
	case 0:
		return appendEventKey(nil, rng.Int64N(4), rng.Uint32N(3), randomKey(rng))
	case 1:
		return enginekeys.LogEntry(rng.Uint64N(3), rng.Uint64N(300))
	case 2:
		first := []byte{enginekeys.NodePrefix, enginekeys.GroupPrefix, keys.CountPrefix, keys.MVCCMetaPrefix}
		return append([]byte{first[rng.IntN(len(first))]}, randomKey(rng)...)
	case 3:
		return appendVersionPrefix(nil, randomKey(rng))
	default:
		return randomVersionKey(rng).encode()
	}
}

func TestSplitSuccessorAndSeparatorKeepOrderOverTheWholeEngine(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	split := func(k []byte) ([]byte, []byte) { n := Comparer.Split(k); return k[:n], k[n:] }
	agree := func(a, b []byte) {
		t.Helper()
		ap, as := split(a)
		bp, bs := split(b)
		want := bytes.Compare(ap, bp)
		if want == 0 {
			want = bytes.Compare(as, bs)
		}
		if got := Comparer.Compare(a, b); got != want {
			t.Fatalf("Compare(%s, %s) = %d, by prefix and suffix %d", formatKey(a), formatKey(b), got, want)
		}
		if aa, ab := Comparer.AbbreviatedKey(a), Comparer.AbbreviatedKey(b); aa < ab && bytes.Compare(a, b) >= 0 || aa > ab && bytes.Compare(a, b) <= 0 {
			t.Fatalf("AbbreviatedKey of %x and %x: %x and %x", a, b, aa, ab)
		}
	}
	for range 200_000 {
		a, b, c := randomEngineKey(rng), randomEngineKey(rng), randomEngineKey(rng)
		agree(a, b)
		s := Comparer.Successor(nil, a)
		if bytes.Compare(a, s) > 0 {
			t.Fatalf("Successor(%x) = %x", a, s)
		}
		agree(s, c)
		ap, _ := split(a)
		is := Comparer.ImmediateSuccessor(nil, ap)
		if len(a) > len(ap) && (bytes.Compare(is, a) <= 0 || Comparer.Split(is) != len(is)) {
			t.Fatalf("ImmediateSuccessor(%x) = %x is not above %x", ap, is, a)
		}
		if cp, _ := split(c); bytes.Compare(cp, ap) > 0 && bytes.Compare(cp, is) < 0 {
			t.Fatalf("%x is between %x and its ImmediateSuccessor %x", cp, ap, is)
		}
		switch bytes.Compare(a, b) {
		case 0:
			continue
		case 1:
			a, b = b, a
		}
		sep := Comparer.Separator(nil, a, b)
		if bytes.Compare(a, sep) > 0 || bytes.Compare(sep, b) >= 0 {
			t.Fatalf("Separator(%x, %x) = %x", a, b, sep)
		}
		agree(sep, c)
	}
}

func TestVersionAndEventRowsRoundTrip(t *testing.T) {
	for _, tc := range []struct {
		v   version
		rev int64
	}{
		{version{createRevision: 2, version: 1, value: []byte("v")}, 2},
		{version{createRevision: 2, version: 7, lease: 5}, 1 << 40},
		{version{createRevision: 1, version: math.MaxInt64, lease: -1, value: bytes.Repeat([]byte("x"), 1000)}, math.MaxInt64},
		{version{tombstone: true}, 9},
	} {
		row := appendVersionValue(nil, &tc.v, tc.rev)
		got, err := decodeVersionValue(row, tc.rev)
		if err != nil {
			t.Fatal(err)
		}
		if got.createRevision != tc.v.createRevision || got.version != tc.v.version || got.lease != tc.v.lease ||
			got.tombstone != tc.v.tombstone || !bytes.Equal(got.value, tc.v.value) {
			t.Errorf("%+v became %+v", tc.v, got)
		}
	}
	for _, v := range []eventValue{
		{kind: eventCreate}, {kind: eventPut}, {kind: eventDelete},
		{eventPut, Place{1, 0}}, {eventDelete, Place{8, 7}}, {eventPut, Place{7, math.MaxUint32}},
	} {
		row := appendEventValue(nil, 9, v)
		if got, err := decodeEventValue(row, 9); err != nil || got != v {
			t.Errorf("event %+v became %+v, %v", v, got, err)
		}
		for n := range row[:len(row)-1] {
			if _, err := decodeEventValue(row[:n+1], 9); n > 0 && !errors.Is(err, errCorruptRow) {
				t.Errorf("%d bytes of event row %x: %v", n+1, row, err)
			}
		}
	}
	for _, row := range [][]byte{{}, {0x10}, {0x14}, {0x11, 0}, {0x20, 1, 0}, {0x21, 1, 0}, {0x22, 0, 0}, {0x22, 9, 0}, {0x22, 1, 0, 0}} {
		if v, err := decodeEventValue(row, 9); !errors.Is(err, errCorruptRow) {
			t.Errorf("event row %x at 9: %+v, %v", row, v, err)
		}
	}
}

func TestRowsOfANewerFormatAreRefused(t *testing.T) {
	for _, row := range [][]byte{{0x20}, {0x20, 1, 1}, {0x14, 0, 1}, {0x00}} {
		if _, err := decodeVersionValue(row, 5); !errors.Is(err, errRowFormat) {
			t.Errorf("version row %x: %v", row, err)
		}
	}
	if _, err := decodeEventValue([]byte{0x31}, 9); !errors.Is(err, errRowFormat) {
		t.Errorf("event row: %v", err)
	}
}

func FuzzDecodeRows(f *testing.F) {
	f.Add(versionKey{[]byte("a\x00b"), 7, 1}.encode(), appendVersionValue(nil, &version{createRevision: 3, version: 2, lease: 9, value: []byte("v")}, 7))
	f.Add(appendVersionPrefix(nil, []byte("a")), []byte{0x11})
	f.Add(appendEventKey(nil, 3, 1, []byte("a")), []byte{0x11})
	f.Add(appendEventKey(nil, 3, 1, []byte("a")), []byte{0x22, 1, 7})
	f.Add([]byte{0x03, 0x00, 0x00, 0x01}, []byte{})
	f.Fuzz(func(t *testing.T, k, row []byte) {
		if prefix, rev, sub, ok := splitVersionKey(k); ok {
			if key, err := appendUserKey(nil, prefix); err == nil && !bytes.Equal(appendVersionKey(nil, key, rev, sub), k) {
				t.Fatalf("version key %x decodes to %q@%d.%d, which encodes otherwise", k, key, rev, sub)
			}
			if v, err := decodeVersionValue(row, rev); err == nil {
				again, err := decodeVersionValue(appendVersionValue(nil, &v, rev), rev)
				if err != nil || again.version != v.version || !bytes.Equal(again.value, v.value) {
					t.Fatalf("version row %x does not round-trip: %+v, %+v, %v", row, v, again, err)
				}
			}
			_, _ = new(Deriver).Rows(k, row, func(_, _ []byte) error { return nil })
		}
		if rev, sub, key, err := splitEventKey(k); err == nil && !bytes.Equal(appendEventKey(nil, rev, sub, key), k) {
			t.Fatalf("event key %x does not round-trip", k)
		} else if err == nil {
			if v, err := decodeEventValue(row, rev); err == nil {
				if again, err := decodeEventValue(appendEventValue(nil, rev, v), rev); err != nil || again != v {
					t.Fatalf("event row %x at %d does not round-trip: %+v, %+v, %v", row, rev, v, again, err)
				}
			}
		}
	})
}

// TestEngineFindsVersionsByPrefixThroughSSTables writes, flushes and compacts,
// so that block properties, index separators and bloom filters are all used.
func TestEngineFindsVersionsByPrefixThroughSSTables(t *testing.T) {
	db, err := pebble.Open("", EngineOptions(vfs.NewMem()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	rng := rand.New(rand.NewPCG(7, 8))
	var all []versionKey
	for i := range 4000 {
		v := versionKey{randomKey(rng), int64(rng.IntN(50)), uint32(rng.IntN(2))}
		all = append(all, v)
		if err := db.Set(v.encode(), []byte("x"), pebble.NoSync); err != nil {
			t.Fatal(err)
		}
		if i%1000 == 999 {
			if err := db.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := db.Compact(t.Context(), []byte{0}, []byte{0xff}, false); err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(all, versionKey.compare)
	it, err := db.NewIter(&pebble.IterOptions{UseL6Filters: true})
	if err != nil {
		t.Fatal(err)
	}
	defer it.Close()
	for range 4000 {
		want := versionKey{randomKey(rng), int64(rng.IntN(50)), math.MaxUint32}
		i, _ := slices.BinarySearchFunc(all, want, versionKey.compare)
		found := i < len(all) && bytes.Equal(all[i].key, want.key)
		if got := it.SeekPrefixGE(want.encode()); got != found {
			t.Fatalf("SeekPrefixGE(%s) = %t, want %t", formatKey(want.encode()), got, found)
		}
		if found && !bytes.Equal(it.Key(), all[i].encode()) {
			t.Fatalf("SeekPrefixGE(%s) is at %s, want %s", formatKey(want.encode()), formatKey(it.Key()), formatKey(all[i].encode()))
		}
	}
	var last []byte
	for ok := it.First(); ok; ok = it.NextPrefix() {
		prefix, _, _, _ := splitVersionKey(it.Key())
		key, err := appendUserKey(nil, prefix)
		if err != nil || last != nil && bytes.Compare(key, last) <= 0 {
			t.Fatalf("NextPrefix went from %q to %q (%v)", last, key, err)
		}
		i, _ := slices.BinarySearchFunc(all, versionKey{key, math.MaxInt64, math.MaxUint32}, versionKey.compare)
		if !bytes.Equal(all[i].encode(), it.Key()) {
			t.Fatalf("NextPrefix is at %s, want %s", formatKey(it.Key()), formatKey(all[i].encode()))
		}
		last = key
	}
}
