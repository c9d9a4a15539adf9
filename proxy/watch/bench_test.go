package watch

import (
	"fmt"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

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
