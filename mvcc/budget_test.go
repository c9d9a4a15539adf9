package mvcc

import (
	"errors"
	"fmt"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// countingView counts the rows that are handed out.
type countingView struct {
	View
	rows int
}

func (c *countingView) Scan(start, end []byte, opt ScanOptions, fn func(*mvccpb.KeyValue) (bool, error)) error {
	return c.View.Scan(start, end, opt, func(kv *mvccpb.KeyValue) (bool, error) {
		c.rows++
		return fn(kv)
	})
}

func rangeOp(r *pb.RangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: r}}
}

func deleteOp(d *pb.DeleteRangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: d}}
}

// A budget ends an evaluation that looks at more, after as many rows, and what is
// not looked at costs nothing: rows behind a limit, counts, keys that a delete
// only names.
func TestBudgetBoundsAnEvaluation(t *testing.T) {
	const keys = 1000
	h := newHistory(t)
	var all []Effect
	for i := range keys {
		all = append(all, Effect{Key: fmt.Appendf(nil, "k%04d", i), Value: make([]byte, 100), Sub: uint32(i), Version: 1})
	}
	h.rev++
	h.apply(h.rev, all)
	var gone []Effect // of d..., which a scan steps over
	for i := range keys {
		gone = append(gone, Effect{Key: fmt.Appendf(nil, "d%04d", i), Sub: uint32(i), Version: 1})
	}
	h.rev++
	h.apply(h.rev, gone)
	for i := range gone {
		gone[i] = Effect{Key: gone[i].Key, Sub: uint32(i), Tombstone: true}
	}
	h.rev++
	h.apply(h.rev, gone)
	h.env.Current = h.rev

	k, end, d := []byte("k"), []byte("l"), []byte("d")
	put := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte("x"), Value: []byte("1")}}}
	txn := func(ops ...*pb.RequestOp) *Request {
		return &Request{Txn: &pb.TxnRequest{Success: append(ops, put)}}
	}
	compare := func(key []byte) *Request {
		return &Request{Txn: &pb.TxnRequest{
			Compare: []*pb.Compare{{Key: key, RangeEnd: []byte{key[0] + 1}, Result: pb.Compare_GREATER, Target: pb.Compare_VERSION, TargetUnion: &pb.Compare_Version{}}},
			Success: []*pb.RequestOp{put},
		}}
	}
	const rows, much = 50, 1 << 30
	for name, c := range map[string]struct {
		req     *Request
		budget  Budget
		tooWide bool
		atMost  int // rows handed out
	}{
		"range":                       {txn(rangeOp(&pb.RangeRequest{Key: k, RangeEnd: end})), Budget{Rows: rows, Bytes: much}, true, rows},
		"range in the budget":         {txn(rangeOp(&pb.RangeRequest{Key: k, RangeEnd: end})), Budget{Rows: keys, Bytes: much}, false, keys},
		"range without values":        {txn(rangeOp(&pb.RangeRequest{Key: k, RangeEnd: end, KeysOnly: true})), Budget{Rows: much, Bytes: keys * 5}, false, keys},
		"range, bytes":                {txn(rangeOp(&pb.RangeRequest{Key: k, RangeEnd: end})), Budget{Rows: much, Bytes: 105 * rows}, true, rows},
		"sorted with a limit":         {txn(rangeOp(&pb.RangeRequest{Key: k, RangeEnd: end, Limit: 1, SortOrder: pb.RangeRequest_DESCEND})), Budget{Rows: rows, Bytes: much}, true, rows},
		"limit":                       {txn(rangeOp(&pb.RangeRequest{Key: k, RangeEnd: end, Limit: rows - 1})), Budget{Rows: rows, Bytes: much}, false, rows},
		"two ranges":                  {txn(rangeOp(&pb.RangeRequest{Key: k, RangeEnd: end, Limit: 30}), rangeOp(&pb.RangeRequest{Key: k, RangeEnd: end, Limit: 30})), Budget{Rows: rows, Bytes: much}, true, rows},
		"count only":                  {txn(rangeOp(&pb.RangeRequest{Key: k, RangeEnd: end, CountOnly: true})), Budget{Rows: 0, Bytes: 0}, false, 0},
		"one large row":               {txn(rangeOp(&pb.RangeRequest{Key: []byte("k0001")})), Budget{Rows: 1, Bytes: 1}, false, 0},
		"a second large row":          {txn(rangeOp(&pb.RangeRequest{Key: []byte("k0001")}), rangeOp(&pb.RangeRequest{Key: []byte("k0002")})), Budget{Rows: rows, Bytes: 1}, true, 0},
		"compare":                     {compare(k), Budget{Rows: rows, Bytes: much}, true, rows},
		"compare in the budget":       {compare(k), Budget{Rows: keys, Bytes: much}, false, keys},
		"deleted keys":                {compare(d), Budget{Rows: rows, Bytes: much}, true, 0},
		"delete":                      {txn(deleteOp(&pb.DeleteRangeRequest{Key: k, RangeEnd: end})), Budget{Rows: 0, Bytes: 0}, false, keys},
		"delete that returns":         {txn(deleteOp(&pb.DeleteRangeRequest{Key: k, RangeEnd: end, PrevKv: true})), Budget{Rows: rows, Bytes: much}, true, rows},
		"delete of dead keys":         {&Request{DeleteRange: &pb.DeleteRangeRequest{Key: d, RangeEnd: end}}, Budget{Rows: rows, Bytes: much}, true, 0},
		"delete alone":                {&Request{DeleteRange: &pb.DeleteRangeRequest{Key: k, RangeEnd: end}}, Budget{Rows: 0, Bytes: 0}, false, keys},
		"delete that returns, alone":  {&Request{DeleteRange: &pb.DeleteRangeRequest{Key: k, RangeEnd: end, PrevKv: true}}, Budget{Rows: rows, Bytes: much}, true, rows},
		"range over the own effects":  {txn(putAll("k0001", "k0002", "k0003"), rangeOp(&pb.RangeRequest{Key: k, RangeEnd: end})), Budget{Rows: rows, Bytes: much}, true, rows},
		"put alone, with what it had": {&Request{Put: &pb.PutRequest{Key: []byte("k0001"), PrevKv: true}}, Budget{Rows: 0, Bytes: 0}, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			v := &countingView{View: h.s.Latest()}
			env := h.env
			env.Budget = &c.budget
			res, err := Evaluate(v, c.req, env)
			if errors.Is(err, ErrTooWide) != c.tooWide || (err != nil) != c.tooWide {
				t.Errorf("%v, %v", res, err)
			}
			if v.rows > c.atMost {
				t.Errorf("%d rows were read, want %d at most", v.rows, c.atMost)
			}
		})
	}
}

// putAll puts several keys in a nested transaction.
func putAll(keys ...string) *pb.RequestOp {
	t := &pb.TxnRequest{}
	for _, k := range keys {
		t.Success = append(t.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(k)}}})
	}
	return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: t}}
}
