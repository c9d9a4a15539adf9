package watch

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/mvcc/spans"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// benchHub is a hub over as many ranges and watchers, each of one key, that are all
// synced: watcher i watches a key of its own in range i modulo ranges.
func benchHub(ranges, watchers int) (f *Frontier, h *Hub, s *Stream, start func(i int) []byte, key func(i int) []byte) {
	start = func(i int) []byte {
		if i == 0 || i == ranges {
			return nil
		}
		return fmt.Appendf(nil, "k%06d", i)
	}
	key = func(i int) []byte { return fmt.Appendf(nil, "k%06d/%06d", i%ranges, i) }
	f = NewFrontier()
	h = NewHub(f, Limits{})
	first := &placementpb.Cut{Revision: 1, First: true}
	for i := range ranges {
		first.Descriptors = append(first.Descriptors, &rangepb.RangeDescriptor{RangeId: uint64(i + 1), Start: start(i), End: start(i + 1)})
	}
	f.Cut(first)
	h.Step()
	s = h.NewStream(func() {})
	for i := range watchers {
		s.Create(CreateRequest{Start: key(i), Current: 1})
	}
	s.Take()
	s.Drained()
	return f, h, s, start, key
}

var benchSizes = []struct{ ranges, watchers int }{
	{1, 1}, {100, 1}, {10_000, 1}, {1, 10_000}, {100, 10_000}, {10_000, 10_000},
}

// BenchmarkEvent is one write, of a key that one of the watchers wants: its cut, its
// event and the step that emits it.
func BenchmarkEvent(b *testing.B) {
	for _, size := range benchSizes {
		b.Run(fmt.Sprintf("ranges=%d/watchers=%d", size.ranges, size.watchers), func(b *testing.B) {
			f, h, s, _, key := benchHub(size.ranges, size.watchers)
			revision, got := int64(1), 0
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				i := n * 7919 % size.watchers
				revision++
				id := uint64(i%size.ranges + 1)
				f.Cut(&placementpb.Cut{Revision: revision, Marks: []*placementpb.Mark{{RangeId: id, Revision: revision}}})
				h.Applied([]mvcc.Event{{Revision: revision, Kv: &mvccpb.KeyValue{Key: key(i), ModRevision: revision}}})
				f.Resolved(id, revision)
				h.Step()
				got += len(s.Take())
				s.Drained()
			}
			if want := int(revision) - 1; got != want {
				b.Fatalf("%d responses to %d writes", got, want)
			}
		})
	}
}

// BenchmarkSplit is a split of one of the ranges and the merge that undoes it: two
// changes of the directory, each with the step that takes it.
func BenchmarkSplit(b *testing.B) {
	for _, size := range benchSizes {
		b.Run(fmt.Sprintf("ranges=%d/watchers=%d", size.ranges, size.watchers), func(b *testing.B) {
			f, h, _, start, _ := benchHub(size.ranges, size.watchers)
			next := uint64(size.ranges + 1)
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				i := n * 7919 % size.ranges
				whole := &rangepb.RangeDescriptor{RangeId: uint64(i + 1), Start: start(i), End: start(i + 1)}
				at := fmt.Appendf(nil, "k%06d/5", i)
				f.Cut(&placementpb.Cut{Revision: 1, Descriptors: []*rangepb.RangeDescriptor{
					{RangeId: whole.RangeId, Start: whole.Start, End: at}, {RangeId: next, Start: at, End: whole.End}}})
				h.Step()
				f.Cut(&placementpb.Cut{Revision: 1, Descriptors: []*rangepb.RangeDescriptor{whole}, Removed: []uint64{next}})
				h.Step()
				next++
			}
		})
	}
}

// BenchmarkStep is one write on a node with 1,000 ranges and 100 groups of
// watchers, each over ten ranges: its cut, its event, and the step that emits it.
// In flight are writes of as many other ranges as the name says: all of them keep
// the frontier back.
func BenchmarkStep(b *testing.B) {
	const ranges, groups = 1000, 100
	for _, inFlight := range []int{0, 100, 900} {
		b.Run(fmt.Sprintf("inflight=%d", inFlight), func(b *testing.B) {
			f := NewFrontier()
			h := NewHub(f, Limits{})
			start := func(i int) []byte { return fmt.Appendf(nil, "k%04d", i) }
			first := &placementpb.Cut{Revision: 1, First: true}
			for i := range ranges {
				d := &rangepb.RangeDescriptor{RangeId: uint64(i + 1), Start: start(i), End: start(i + 1)}
				if i == 0 {
					d.Start = nil
				}
				if i == ranges-1 {
					d.End = nil
				}
				first.Descriptors = append(first.Descriptors, d)
			}
			f.Cut(first)
			h.Step()
			s := h.NewStream(func() {})
			for i := range groups {
				s.Create(CreateRequest{Start: start(10 * i), End: start(10*i + 10), Current: 1})
			}
			revision := int64(1)
			write := func(i int) {
				revision++
				f.Cut(&placementpb.Cut{Revision: revision, Marks: []*placementpb.Mark{{RangeId: uint64(i + 1), Revision: revision}}})
			}
			type flight struct {
				at       int
				revision int64
			}
			var flights []flight
			for i := range inFlight {
				write(i)
				flights = append(flights, flight{i, revision})
			}
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				i := (inFlight + n) % ranges
				write(i)
				flights = append(flights, flight{i, revision})
				fl := flights[0]
				flights = flights[1:]
				h.Applied([]mvcc.Event{{Revision: fl.revision, Kv: &mvccpb.KeyValue{Key: start(fl.at), ModRevision: fl.revision}}})
				f.Resolved(uint64(fl.at+1), fl.revision)
				h.Step()
				s.Take()
				s.Drained()
			}
		})
	}
}

// BenchmarkMatch looks for the watchers that want a key: as a matcher does, which
// hashes keys and prefixes, and in a tree of all spans. The two take turns, and
// what the best turn of each took for a key is reported, so that whoever shares the
// machine counts little.
func BenchmarkMatch(b *testing.B) {
	type span struct{ start, end []byte }
	prefix := func(p []byte) span { return span{p, prefixEnd(p)} }
	namespace := func(i int) []byte { return fmt.Appendf(nil, "/registry/pods/ns-%04d/", i) }
	kind := func(i int) []byte {
		return fmt.Appendf(nil, "/registry/%s%02d/", "customresourcedefinitions.apiextensions"[:4+i%36], i)
	}
	for _, bm := range []struct {
		name     string
		watchers int
		span     func(i int) span
		key      func(i int) []byte // that watcher i wants
	}{
		{"keys=10000", 10_000, func(i int) span { k := namespace(i); return span{k, append(bytes.Clone(k), 0)} }, namespace},
		{"prefixes=10000", 10_000, func(i int) span { return prefix(namespace(i)) }, namespace},
		{"prefixes=80/lengths=36", 80, func(i int) span { return prefix(kind(i)) }, kind},
		{"prefixes=1/watchers=1000", 1000, func(int) span { return prefix([]byte("/registry/pods/")) }, namespace},
		{"spans=1", 1, func(i int) span { return span{namespace(i), namespace(i + 1)} }, namespace},
		{"spans=3000", 3000, func(i int) span { return span{namespace(i), namespace(i + 1)} }, namespace},
	} {
		b.Run(bm.name, func(b *testing.B) {
			order := rand.New(rand.NewPCG(1, 1)).Perm(bm.watchers)
			m, t := newMatcher[*group](), spans.Tree[*group]{}
			for _, i := range order {
				s := bm.span(i)
				g, ok := m.get(s.start, s.end)
				if !ok {
					g = &group{start: s.start, end: s.end}
					m.add(s.start, s.end, g)
					t.Set(s.start, s.end, 0, g)
				}
				g.synced = g.synced.with(&watcher{start: s.start, end: s.end})
			}
			const turn = 1000
			keys := make([][]byte, turn)
			for n := range keys {
				i := order[(n*7919)%len(order)]
				keys[n] = bm.key(i)
				if s := bm.span(i); !singleKey(s.start, s.end) {
					keys[n] = append(keys[n], "pod-1"...)
				}
			}
			hashed, inTree := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
			found := 0
			count := func(g *group) {
				for _, w := range g.synced {
					if w.wantsKind(false) {
						found++
					}
				}
			}
			turns := 0
			for b.Loop() {
				began := time.Now()
				for _, k := range keys {
					m.each(k, count)
				}
				between := time.Now()
				for _, k := range keys {
					t.Stab(k, count)
				}
				hashed, inTree = min(hashed, between.Sub(began)), min(inTree, time.Since(between))
				turns++
			}
			if found < 2*turns*turn {
				b.Fatalf("%d searches have found %d watchers", 2*turns*turn, found)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(hashed.Nanoseconds())/turn, "matcher-ns/key")
			b.ReportMetric(float64(inTree.Nanoseconds())/turn, "tree-ns/key")
		})
	}
}

// BenchmarkLeave has as many watchers of one prefix as the name says leave their
// group and come back, one after the other, as when their clients are slow. What one
// costs does not depend on their number.
func BenchmarkLeave(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("watchers=%d", n), func(b *testing.B) {
			var of alike
			watchers := make([]*watcher, n)
			for i := range watchers {
				watchers[i] = &watcher{start: []byte("/registry/pods/"), end: []byte("/registry/pods0")}
				of = of.with(watchers[i])
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				w := watchers[i%n]
				of = of.without(w).with(w)
			}
		})
	}
}
