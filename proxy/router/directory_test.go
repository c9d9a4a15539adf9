package router

import (
	"bytes"
	"fmt"
	"math/rand"
	"strings"
	"testing"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// parseDirectory reads "1@1:,c 2@4:c,m 3@1:m,".
func parseDescriptors(t *testing.T, text string) (out []*rangepb.RangeDescriptor) {
	t.Helper()
	for _, f := range strings.Fields(text) {
		d := &rangepb.RangeDescriptor{}
		head, span, _ := strings.Cut(f, ":")
		if _, err := fmt.Sscanf(head, "%d@%d", &d.RangeId, &d.Epoch); err != nil {
			t.Fatal(err)
		}
		start, end, _ := strings.Cut(span, ",")
		d.Start, d.End = []byte(start), []byte(end)
		out = append(out, d)
	}
	return out
}

func directory(t *testing.T, text string) *Directory {
	t.Helper()
	d, err := NewDirectory(parseDescriptors(t, text))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func compact(d *Directory) string {
	var f []string
	for _, r := range d.All() {
		f = append(f, fmt.Sprintf("%d@%d:%s,%s", r.RangeId, r.Epoch, r.Start, r.End))
	}
	return strings.Join(f, " ")
}

func TestDirectoryThatDoesNotTileIsRefused(t *testing.T) {
	for _, text := range []string{
		"", "1@1:a,", "1@1:,c", "1@1:,c 2@1:d,", "1@1:,d 2@1:c,", "1@1:, 2@1:c,", "1@1:,c 2@1:c,m 3@1:c,m 4@1:m,",
	} {
		if d, err := NewDirectory(parseDescriptors(t, text)); err == nil {
			t.Errorf("%q was taken: %s", text, d)
		}
	}
}

func TestCutsChangeTheDirectory(t *testing.T) { // R6
	var d *Directory
	for _, step := range []struct {
		first         bool
		change, after string
	}{
		{change: "1@2:,b", after: "error"}, // before the first cut
		{first: true, change: "1@1:,", after: "1@1:,"},
		{change: "", after: "1@1:,"},
		{change: "1@2:,m 2@2:m,", after: "1@2:,m 2@2:m,"},
		{change: "1@3:,c 3@3:c,m", after: "1@3:,c 3@3:c,m 2@2:m,"},
		// Two splits of one range in one cut, the older word on it first.
		{change: "2@3:m,x 4@3:x, 2@4:m,p 5@4:p,x", after: "1@3:,c 3@3:c,m 2@4:m,p 5@4:p,x 4@3:x,"},
		{change: "1@4:,b", after: "error"},
		{first: true, change: "7@1:,k 8@1:k,", after: "7@1:,k 8@1:k,"},
	} {
		n, err := d.Apply(&placementpb.Cut{First: step.first, Descriptors: parseDescriptors(t, step.change)})
		if err != nil {
			if step.after != "error" {
				t.Errorf("%q: %v", step.change, err)
			}
			continue
		}
		if compact(n) != step.after {
			t.Errorf("%q: got %s, want %s", step.change, compact(n), step.after)
		}
		d = n
	}
}

func TestHintIsTakenOnlyWhenItIsNewerAndFits(t *testing.T) {
	d := directory(t, "1@2:,m 2@2:m,")
	for hint, after := range map[string]string{
		"1@3:,c 3@3:c,m": "1@3:,c 3@3:c,m 2@2:m,",
		"1@1:,":          "1@2:,m 2@2:m,", // older
		"1@3:,c":         "1@2:,m 2@2:m,", // the other half is unknown
		"1@2:,m":         "1@2:,m 2@2:m,",
	} {
		if got := compact(d.Newer(parseDescriptors(t, hint))); got != after {
			t.Errorf("%s: got %s, want %s", hint, got, after)
		}
	}
}

func TestPiecesCoverTheSpans(t *testing.T) {
	d := directory(t, "1@1:,c 2@4:c,m 3@1:m,")
	for _, c := range []struct{ spans, want string }{
		{"a", "1[a,a\x00)"},
		{"c", "2[c,c\x00)"},
		{"z", "3[z,z\x00)"},
		{"a-c", "1[a,c)"},
		{"a-d", "1[a,c) 2[c,d)"},
		{"a-", "1[a,c) 2[c,m) 3[m,*)"},
		{"-", "1[,c) 2[c,m) 3[m,*)"},
		{"b-a", ""},
		{"d d f k-l", "2[d,l)"},
		{"x a", "1[a,a\x00) 3[x,x\x00)"},
		{"b-e d-n", "1[b,c) 2[c,m) 3[m,n)"},
	} {
		var got []string
		for _, p := range d.Pieces(parseSpans(c.spans)) {
			end := string(p.End)
			if p.End == nil {
				end = "*"
			}
			got = append(got, fmt.Sprintf("%d[%s,%s)", p.RangeID, p.Start, end))
			if p.Epoch != d.ByID(p.RangeID).Epoch {
				t.Errorf("%s: epoch %d of range %d", c.spans, p.Epoch, p.RangeID)
			}
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: got %q, want %q", c.spans, s, c.want)
		}
	}
}

func parseSpans(text string) (out []mvcc.Access) {
	for _, f := range strings.Fields(text) {
		start, end, interval := strings.Cut(f, "-")
		s := mvcc.Access{Start: []byte(start), End: []byte(end)}
		switch {
		case !interval:
			s.End = append([]byte(start), 0)
		case end == "":
			s.End = nil
		}
		out = append(out, s)
	}
	return out
}

func TestLookupAgainstASearchFromTheStart(t *testing.T) {
	rnd := rand.New(rand.NewSource(1))
	for range 200 {
		var ranges []*rangepb.RangeDescriptor
		start := ""
		for i := range rnd.Intn(20) + 1 {
			ranges = append(ranges, &rangepb.RangeDescriptor{RangeId: uint64(i + 1), Start: []byte(start)})
			if i > 0 {
				ranges[i-1].End = ranges[i].Start
			}
			start += string(rune('a' + rnd.Intn(3)))
		}
		d, err := NewDirectory(ranges)
		if err != nil {
			t.Fatal(err)
		}
		for range 50 {
			key := make([]byte, rnd.Intn(10))
			for i := range key {
				key[i] = byte('a' + rnd.Intn(3))
			}
			want := ranges[0]
			for _, r := range ranges {
				if bytes.Compare(r.Start, key) <= 0 {
					want = r
				}
			}
			if got := d.Lookup(key); got != want {
				t.Fatalf("%q in %s: got range %d, want %d", key, d, got.RangeId, want.RangeId)
			}
		}
	}
}

// TestCutIsDivide: what lies within one range is cut as by the long way.
func TestCutIsDivide(t *testing.T) {
	d := directory(t, "1@1:,c 2@4:c,f 3@1:f,")
	rng := rand.New(rand.NewSource(1))
	key := func() []byte { return []byte{byte('a' + rng.Intn(8))} }
	short := 0
	for range 5000 {
		spans := make([]mvcc.Access, rng.Intn(4))
		for i := range spans {
			spans[i] = mvcc.Access{Start: key(), Write: rng.Intn(2) == 0}
			if rng.Intn(6) > 0 {
				spans[i].End = key()
			}
		}
		if _, ok := d.within(spans); ok {
			short++
		}
		if got, want := fmt.Sprint(d.cut(spans)), fmt.Sprint(d.divide(spans)); got != want {
			t.Fatalf("%v: cut into %s, want %s", spans, got, want)
		}
	}
	if short < 200 || short > 4800 {
		t.Errorf("%d of 5000 lie within one range", short)
	}
}

// Changes of a directory against a directory that is made anew, in the right and in
// the wrong; and nobody sees a directory that he has change.
func TestChangesOfADirectoryAgainstOneMadeAnew(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	d := directory(t, "1@1:,")
	next, refused, taken := uint64(2), 0, 0
	for range 20_000 {
		all := d.All()
		before := compact(d)
		var changed []*rangepb.RangeDescriptor
		var removed []uint64
		for range 1 + rng.Intn(2) {
			i := rng.Intn(len(all))
			r := all[i]
			switch rng.Intn(8) {
			case 0: // a merge, perhaps forgotten by one side
				if i+1 < len(all) {
					changed = append(changed, &rangepb.RangeDescriptor{RangeId: r.RangeId, Epoch: r.Epoch + 1, Start: r.Start, End: all[i+1].End})
					removed = append(removed, all[i+1].RangeId)
				}
			case 1: // anything
				changed = append(changed, &rangepb.RangeDescriptor{RangeId: uint64(rng.Intn(int(next)) + 1), Start: key2(rng), End: key2(rng)})
			case 2:
				removed = append(removed, r.RangeId)
			default:
				at := key2(rng)
				if bytes.Compare(at, r.Start) <= 0 || len(r.End) > 0 && bytes.Compare(at, r.End) >= 0 {
					continue
				}
				changed = append(changed,
					&rangepb.RangeDescriptor{RangeId: r.RangeId, Epoch: r.Epoch + 1, Start: r.Start, End: at},
					&rangepb.RangeDescriptor{RangeId: next, Epoch: r.Epoch + 1, Start: at, End: r.End})
				next++
			}
		}
		got, err := d.with(changed, removed)
		want, wantErr := NewDirectory(changedBySearch(all, changed, removed))
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%s\nwith %v without %v: %v, made anew: %v", d, changed, removed, err, wantErr)
		}
		if compact(d) != before {
			t.Fatalf("%s has become %s", before, d)
		}
		if err != nil {
			refused++
			continue
		}
		taken++
		if compact(got) != compact(want) || got.Len() != len(got.All()) || got.byID.Len() != got.Len() {
			t.Fatalf("got %s, want %s", got, want)
		}
		for _, r := range got.All() {
			if got.ByID(r.RangeId) != r {
				t.Fatalf("range %d is not found by its id", r.RangeId)
			}
		}
		if d = got; d.Len() > 100 {
			d = directory(t, "1@1:,")
		}
	}
	if refused < 1000 || taken < 5000 {
		t.Errorf("%d changes taken, %d refused", taken, refused)
	}
}

func key2(rng *rand.Rand) []byte {
	return []byte{byte('a' + rng.Intn(16)), byte('a' + rng.Intn(16))}[:rng.Intn(3)]
}

func changedBySearch(all, changed []*rangepb.RangeDescriptor, removed []uint64) (out []*rangepb.RangeDescriptor) {
	last := make(map[uint64]*rangepb.RangeDescriptor)
	for _, c := range changed {
		last[c.RangeId] = c
	}
	for _, id := range removed {
		last[id] = nil
	}
	for _, r := range all {
		if _, ok := last[r.RangeId]; !ok {
			out = append(out, r)
		}
	}
	for _, c := range changed {
		if last[c.RangeId] == c {
			out = append(out, c)
		}
	}
	return out
}

func BenchmarkDirectory(b *testing.B) {
	for _, n := range []int{1, 1000, 100_000} {
		ranges := make([]*rangepb.RangeDescriptor, n)
		for i := range ranges {
			ranges[i] = &rangepb.RangeDescriptor{RangeId: uint64(i + 1), Epoch: 1}
			if i > 0 {
				ranges[i].Start = fmt.Appendf(nil, "/registry/pods/%09d", i)
				ranges[i-1].End = ranges[i].Start
			}
		}
		d, err := NewDirectory(ranges)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("lookup/ranges=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for i := range b.N {
				if d.Lookup(ranges[i*7919%n].Start) == nil {
					b.Fatal("no range")
				}
			}
		})
		b.Run(fmt.Sprintf("split/ranges=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for i := range b.N {
				r := ranges[i*7919%n]
				at := append(bytes.Clone(r.Start), 0)
				cut := &placementpb.Cut{Descriptors: []*rangepb.RangeDescriptor{
					{RangeId: r.RangeId, Epoch: 2, Start: r.Start, End: at}, {RangeId: uint64(n + 1), Epoch: 2, Start: at, End: r.End},
				}}
				if _, err := d.Apply(cut); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
