package compat

import (
	"math"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// watchStreams is the number of streams that a run uses, maxWatchers the number of watchers from which on no more are created.
const (
	watchStreams = 4
	maxWatchers  = 40
)

func (g *Generator) watchOp(request *pb.WatchRequest) Op {
	return Op{Kind: Watch, Stream: g.rng.IntN(watchStreams), Request: request}
}

func (g *Generator) watchCreate(s *State, watchers []*watcher) Op {
	if len(watchers) >= maxWatchers {
		return g.watchCancel(watchers)
	}
	r := &pb.WatchCreateRequest{
		StartRevision: g.startRevision(s), ProgressNotify: g.chance(3), PrevKv: g.chance(2), Fragment: g.chance(4),
	}
	r.Key, r.RangeEnd = g.span(s)
	if g.chance(2) {
		r.Key, r.RangeEnd = []byte("k/"), []byte("k0") // Where most happens.
	}
	if g.chance(20) {
		r.Key = nil
	}
	if g.chance(3) {
		for range 1 + g.rng.IntN(2) {
			r.Filters = append(r.Filters, pb.WatchCreateRequest_FilterType(g.rng.IntN(2)))
		}
		if g.chance(6) {
			r.Filters = append(r.Filters, oneOf[pb.WatchCreateRequest_FilterType](g, 2, -1))
		}
	}
	if g.chance(3) {
		// Ids of watchers that exist, and of those the server would give out next.
		r.WatchId = oneOf[int64](g, 1, 2, 3, 4, 5, 7, -2, math.MaxInt64)
	}
	return g.watchOp(createRequest(r))
}

func (g *Generator) startRevision(s *State) int64 {
	switch n := g.rng.IntN(100); {
	case n < 40:
		return 0
	case n < 65:
		return s.Revision - g.rng.Int64N(min(s.Revision, 100))
	case n < 70:
		return s.Revision
	case n < 75:
		return s.Revision + 1
	case n < 82:
		return s.Revision + 2 + g.rng.Int64N(10)
	case n < 91:
		return s.Compacted + g.rng.Int64N(3) - 1
	case n < 95:
		return 1
	case n < 98:
		return oneOf[int64](g, -1, -2, math.MinInt64)
	default:
		return oneOf(g, math.MaxInt64, s.Revision+1000)
	}
}

// watchCancel cancels a watcher that exists, mostly.
func (g *Generator) watchCancel(watchers []*watcher) Op {
	op := g.watchOp(nil)
	id := oneOf[int64](g, 0, 1, 2, 3, -1, -2, 1000)
	if len(watchers) > 0 && !g.chance(5) {
		w := watchers[g.rng.IntN(len(watchers))]
		op.Stream, id = w.stream, w.id
	}
	op.Request = &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: id}}}
	return op
}
