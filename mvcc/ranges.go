package mvcc

import (
	"bytes"
	"math"
	"slices"
	"sort"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// RangePlan is how a range request is answered from one or more pieces of its
// interval that tile it: what each piece reads (Read), and how the answer is
// put together (Assemble). The pieces are read at one revision.
//
// As in etcd the limit is pushed down to the read, as limit + 1 rows, unless
// rows are filtered or sorted first (etcd/R8); a sort without an order is done after
// the limited read (etcd/R9).
type RangePlan struct {
	// Start, End is the interval; a nil End is the end of the keyspace.
	Start, End []byte
	// Revision asked for; 0 for the newest.
	Revision int64
	// Limit is the number of rows to read over all pieces, 0 for all.
	Limit int64
	// KeysOnly: the rows are needed without values.
	KeysOnly bool
	// CountOnly: no rows are needed.
	CountOnly bool
	// SkipCount leaves Count at the number of rows read. PlanRange does not set
	// it; who reads an answer in chunks does.
	SkipCount bool

	// rowsFilteredLater leaves the filters to RangePiece.filter.
	rowsFilteredLater bool
	budget            *Budget
	response          Holder

	req *pb.RangeRequest
}

// RangePiece is what a piece of the interval contributes.
type RangePiece struct {
	Kvs   []*mvccpb.KeyValue // in key order, filtered
	Count int64              // live keys of the piece, whatever limit and filters
}

// CountOnlyLimit is the limit of a piece when the pieces before it have all the
// rows that are needed.
const CountOnlyLimit int64 = -1

// PlanRange returns the plan of a checked request.
func PlanRange(r *pb.RangeRequest) RangePlan {
	p := RangePlan{
		Revision:  max(r.GetRevision(), 0),
		KeysOnly:  r.GetKeysOnly() && r.GetSortTarget() != pb.RangeRequest_VALUE,
		CountOnly: r.GetCountOnly(),
		req:       r,
	}
	p.Start, p.End = interval(r.GetKey(), r.GetRangeEnd())
	if limit := r.GetLimit(); limit > 0 && isKeyOrder(r.GetSortTarget(), r.GetSortOrder()) && !hasFilters(r) {
		p.Limit = limit
		if limit < math.MaxInt64 {
			p.Limit++ // one more than asked for tells whether there is more
		}
	}
	return p
}

// Remaining returns the limit for a piece when the pieces before it have read
// some rows.
func (p *RangePlan) Remaining(rows int) int64 {
	switch {
	case p.CountOnly:
		return CountOnlyLimit
	case p.Limit == 0:
		return 0
	case int64(rows) >= p.Limit:
		return CountOnlyLimit
	}
	return p.Limit - int64(rows)
}

// Read reads the piece [start, end) of the interval from a view at the plan's
// revision: at most limit rows, 0 for all, CountOnlyLimit for none.
func (p *RangePlan) Read(v View, start, end []byte, limit int64) (piece RangePiece, err error) {
	if p.CountOnly || limit == CountOnlyLimit {
		if p.SkipCount {
			return piece, nil
		}
		piece.Count, err = v.Count(start, end)
		return piece, err
	}
	all, filter := true, hasFilters(p.req) && !p.rowsFilteredLater
	err = v.Scan(start, end, ScanOptions{KeysOnly: p.KeysOnly, Budget: p.budget}, func(kv *mvccpb.KeyValue) (bool, error) {
		piece.Count++
		if !filter || passes(kv, p.req) {
			if err := hold(p.response, kv); err != nil {
				return false, err
			}
			piece.Kvs = append(piece.Kvs, kv)
		}
		all = limit == 0 || piece.Count < limit
		return all, nil
	})
	if err == nil && !all && !p.SkipCount {
		piece.Count, err = v.Count(start, end)
	}
	return piece, err
}

// readAll reads the whole interval as one piece.
func (p *RangePlan) readAll(v View) (piece RangePiece, err error) {
	if len(p.req.GetRangeEnd()) != 0 {
		return p.Read(v, p.Start, p.End, p.Remaining(0))
	}
	kv, err := v.Get(p.req.GetKey())
	if err != nil || kv == nil {
		return piece, err
	}
	piece.Count = 1
	if !p.CountOnly {
		if err := p.budget.single(kv); err != nil {
			return piece, err
		}
	}
	if !p.CountOnly && (p.rowsFilteredLater || passes(kv, p.req)) {
		if err := hold(p.response, kv); err != nil {
			return piece, err
		}
		piece.Kvs = []*mvccpb.KeyValue{kv}
	}
	return piece, nil
}

// filter drops the rows that do not pass the request's filters.
func (piece *RangePiece) filter(r *pb.RangeRequest) {
	if hasFilters(r) {
		piece.Kvs = slices.DeleteFunc(piece.Kvs, func(kv *mvccpb.KeyValue) bool { return !passes(kv, r) })
	}
}

// Assemble makes the answer from the pieces, in key order. The header is empty:
// its revision is the current one, not the one read (etcd/R4). Rows may be changed
// (keys only) and are the answer's from now on.
func (p *RangePlan) Assemble(pieces ...RangePiece) *pb.RangeResponse {
	resp := &pb.RangeResponse{Header: &pb.ResponseHeader{}}
	p.assemble(resp, pieces)
	return resp
}

func (p *RangePlan) assemble(resp *pb.RangeResponse, pieces []RangePiece) {
	var kvs []*mvccpb.KeyValue
	for i := range pieces {
		resp.Count += pieces[i].Count
		if kvs == nil {
			kvs = pieces[i].Kvs
		} else {
			kvs = append(kvs, pieces[i].Kvs...)
		}
	}
	if p.Limit > 0 && int64(len(kvs)) > p.Limit {
		kvs = kvs[:p.Limit] // pieces read side by side
	}
	sortRows(kvs, p.req)
	if limit := p.req.GetLimit(); limit > 0 && int64(len(kvs)) > limit {
		kvs = kvs[:limit:limit]
		resp.More = true
	}
	if p.req.GetKeysOnly() {
		for _, kv := range kvs {
			kv.Value = nil
		}
	}
	resp.Kvs = kvs
}

// EvaluateRange answers a checked range request from one view. The header
// carries the view's revision, if it has one. response bounds what is kept for the
// response; nil: no bounds.
func EvaluateRange(v View, r *pb.RangeRequest, response Holder) (*pb.RangeResponse, error) {
	p := PlanRange(r)
	p.response = response
	at := v
	if p.Revision > 0 {
		if p.Revision > v.Revision() {
			return nil, ErrFutureRev
		}
		var err error
		if at, err = v.At(p.Revision); err != nil {
			return nil, err
		}
	}
	piece, err := p.readAll(at)
	if err != nil {
		return nil, err
	}
	resp := p.Assemble(piece)
	if rev := v.Revision(); rev != latestRevision {
		resp.Header.Revision = rev
	}
	return resp, nil
}

// isKeyOrder says whether rows come out as they are read. KEY without an order
// and any target without an order count as such when the limit is pushed down.
func isKeyOrder(target pb.RangeRequest_SortTarget, order pb.RangeRequest_SortOrder) bool {
	return order == pb.RangeRequest_NONE || target == pb.RangeRequest_KEY && order == pb.RangeRequest_ASCEND
}

func hasFilters(r *pb.RangeRequest) bool {
	return r.GetMinModRevision() != 0 || r.GetMaxModRevision() != 0 || r.GetMinCreateRevision() != 0 || r.GetMaxCreateRevision() != 0
}

// passes says whether a row passes the filters; their bounds are included, 0 is
// no bound (etcd/R8).
func passes(kv *mvccpb.KeyValue, r *pb.RangeRequest) bool {
	within := func(rev, lo, hi int64) bool { return (lo == 0 || rev >= lo) && (hi == 0 || rev <= hi) }
	return within(kv.ModRevision, r.GetMinModRevision(), r.GetMaxModRevision()) &&
		within(kv.CreateRevision, r.GetMinCreateRevision(), r.GetMaxCreateRevision())
}

// sortRows sorts as etcd does, with the same algorithm on rows in the same
// order: so rows that compare equal end up in the same places, too (etcd/R9).
func sortRows(kvs []*mvccpb.KeyValue, r *pb.RangeRequest) {
	target, order := r.GetSortTarget(), r.GetSortOrder()
	if target != pb.RangeRequest_KEY && order == pb.RangeRequest_NONE {
		order = pb.RangeRequest_ASCEND
	}
	if isKeyOrder(target, order) {
		return
	}
	rows := rowsBy{kvs: kvs}
	switch target {
	case pb.RangeRequest_KEY:
		rows.less = func(a, b *mvccpb.KeyValue) bool { return bytes.Compare(a.Key, b.Key) < 0 }
	case pb.RangeRequest_VERSION:
		rows.less = func(a, b *mvccpb.KeyValue) bool { return a.Version < b.Version }
	case pb.RangeRequest_CREATE:
		rows.less = func(a, b *mvccpb.KeyValue) bool { return a.CreateRevision < b.CreateRevision }
	case pb.RangeRequest_MOD:
		rows.less = func(a, b *mvccpb.KeyValue) bool { return a.ModRevision < b.ModRevision }
	case pb.RangeRequest_VALUE:
		rows.less = func(a, b *mvccpb.KeyValue) bool { return bytes.Compare(a.Value, b.Value) < 0 }
	}
	if order == pb.RangeRequest_ASCEND {
		sort.Sort(rows)
	} else {
		sort.Sort(sort.Reverse(rows))
	}
}

type rowsBy struct {
	kvs  []*mvccpb.KeyValue
	less func(a, b *mvccpb.KeyValue) bool
}

func (s rowsBy) Len() int           { return len(s.kvs) }
func (s rowsBy) Less(i, j int) bool { return s.less(s.kvs[i], s.kvs[j]) }
func (s rowsBy) Swap(i, j int)      { s.kvs[i], s.kvs[j] = s.kvs[j], s.kvs[i] }
