package watch

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// FuzzCreate: whatever a client asks to watch is refused or made, cancelled
// and forgotten; a watcher that was made leaves nothing behind.
func FuzzCreate(f *testing.F) {
	for _, r := range []*pb.WatchCreateRequest{
		{},
		{Key: []byte("a"), RangeEnd: []byte{0}, StartRevision: -5, WatchId: -1},
		{Key: []byte("b"), RangeEnd: []byte("a"), StartRevision: 1 << 62},
		{Key: []byte{0xff, 0xff}, RangeEnd: []byte{0xff, 0xff, 0}, WatchId: 7, Filters: []pb.WatchCreateRequest_FilterType{9}},
	} {
		b, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var r pb.WatchCreateRequest
		if proto.Unmarshal(data, &r) != nil {
			return
		}
		fr := NewFrontier()
		fr.Cut(&placementpb.Cut{Revision: 5, First: true, Compacted: 2, Descriptors: []*rangepb.RangeDescriptor{
			{RangeId: 1, End: []byte("m")}, {RangeId: 2, Start: []byte("m")},
		}})
		h := NewHub(fr, Limits{})
		s := h.NewStream(func() {})
		for range 2 {
			s.Create(CreateRequest{
				Start: r.Key, End: r.RangeEnd, StartRevision: r.StartRevision, WatchID: r.WatchId,
				PrevKV: r.PrevKv, Fragment: r.Fragment, Progress: r.ProgressNotify, Current: 5, Compacted: 2,
			})
		}
		h.Step()
		s.RequestProgress(5)
		s.ProgressTick()
		for _, resp := range s.Take() {
			if resp.Created && !resp.Canceled {
				s.Cancel(resp.WatchID, 5)
			}
		}
		s.Close()
		if all, behind := h.Watchers(); all != 0 || behind != 0 || len(h.groups)+h.match.n+h.waiting != 0 {
			t.Fatalf("%d watchers, %d behind, %d groups are left", all, behind, len(h.groups))
		}
	})
}
