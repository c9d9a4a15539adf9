package watch

import (
	"cmp"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

func putAt(revision int64, sub uint32) *event {
	return newEvent(mvcc.Event{Revision: revision, Sub: sub, Kv: &mvccpb.KeyValue{Key: []byte("k"), ModRevision: revision}})
}

// held lists the events of the buffer with from <= revision <= to, as pairs of
// revision and sub.
func held(b *buffer, from, to int64) [][2]int64 {
	out := [][2]int64{}
	for events := range b.between(from, to) {
		for _, e := range events {
			out = append(out, [2]int64{e.revision, int64(e.sub)})
		}
	}
	return out
}

// A buffer against a sorted list: random revisions, dense and far apart, in
// any order, and random trims.
func TestBufferHoldsWhatASortedListHolds(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 3))
		var b buffer
		var list []*event
		next := int64(1)
		for range 400 {
			switch n := rng.IntN(20); {
			case n == 0:
				next += 1 << rng.IntN(60) >> 1
			case n == 1:
				base := b.base + rng.Int64N(next-b.base+1)
				b.trim(base)
				list = slices.DeleteFunc(list, func(e *event) bool { return e.revision < base })
			case n == 2 && len(list) > 0:
				before := b.bytes
				b.trim(b.half())
				list = slices.DeleteFunc(list, func(e *event) bool { return e.revision < b.base })
				if b.bytes > before/2 {
					t.Fatalf("seed %d: %d of %d bytes are left after half were to go", seed, b.bytes, before)
				}
			case n < 12:
				next++
				fallthrough
			default:
				revision := max(next-rng.Int64N(200), 1)
				e := putAt(revision, uint32(rng.IntN(1000)))
				b.add(e)
				if revision >= b.base {
					list = append(list, e)
				}
			}
			if rng.IntN(5) != 0 {
				continue
			}
			from := next - rng.Int64N(300)
			to := from + rng.Int64N(300)
			want := [][2]int64{}
			bytes := 0
			slices.SortStableFunc(list, func(x, y *event) int {
				return cmp.Or(cmp.Compare(x.revision, y.revision), cmp.Compare(x.sub, y.sub))
			})
			for _, e := range list {
				bytes += e.size
				if e.revision >= from && e.revision <= to {
					want = append(want, [2]int64{e.revision, int64(e.sub)})
				}
			}
			if got := held(&b, from, to); !slices.Equal(got, want) {
				t.Fatalf("seed %d: between %d and %d are %v, want %v", seed, from, to, got, want)
			}
			if b.bytes != bytes {
				t.Fatalf("seed %d: %d bytes are counted, want %d", seed, b.bytes, bytes)
			}
		}
	}
}

// A gap in the revisions costs nothing, however wide: a fail-over and a restore
// that raises revisions leave one (revisions.md, section 1).
func TestGapInRevisionsCostsNothing(t *testing.T) {
	const gap = 1 << 40
	run := func(gap int64) (allocations, bytes uint64) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		func() {
			f := NewFrontier()
			h := NewHub(f, Limits{})
			f.Cut(&placementpb.Cut{Revision: 1, First: true, Descriptors: []*rangepb.RangeDescriptor{{RangeId: 1}}})
			s := h.NewStream(func() {})
			s.Create(CreateRequest{Start: []byte("k"), Current: 1})
			h.Step()
			at := int64(1)
			for range 4 {
				events := putsOf(10, int(at)+1, int(at)+3)
				at += 3 + gap
				h.Applied(append(events, putsOf(10, int(at), int(at))...))
				// What waits, what is dispatched and what is shed.
				h.Step()
				f.Cut(&placementpb.Cut{Revision: at, Marks: []*placementpb.Mark{{RangeId: 1, Revision: at}}})
				f.Resolved(1, at)
				h.Step()
				h.Applied(putsOf(10, int(at+gap), int(at+gap)))
				h.Step()
				h.shed(at + gap + 1)
				at += gap
				f.Cut(&placementpb.Cut{Revision: at, Marks: []*placementpb.Mark{{RangeId: 1, Revision: at}}})
				f.Resolved(1, at)
				h.Step()
			}
		}()
		runtime.ReadMemStats(&after)
		return after.Mallocs - before.Mallocs, after.TotalAlloc - before.TotalAlloc
	}
	run(0)
	// A lone event has a page of its own.
	wide, wideBytes := run(gap)
	none, noneBytes := run(0)
	if wide > none+200 || wideBytes > noneBytes+200<<10 {
		t.Errorf("%d allocations, %d bytes with gaps of %d revisions; %d, %d without gaps", wide, wideBytes, int64(gap), none, noneBytes)
	}
}
