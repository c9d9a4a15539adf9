package mvcc

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
)

// FuzzRequest: whatever a client sends is refused by CheckRequest or can be
// evaluated; nothing in between (ADA-etcd-22-01: an enum out of range got into
// the log and every member crashed while applying it).
func FuzzRequest(f *testing.F) {
	seed := func(kind byte, m proto.Message) {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(kind, b)
	}
	seed(0, &pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte{0}, SortTarget: 9, SortOrder: 7})
	seed(0, &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, Limit: -1, SortTarget: pb.RangeRequest_VALUE, SortOrder: pb.RangeRequest_DESCEND})
	seed(1, &pb.PutRequest{Key: []byte("a"), IgnoreValue: true, Lease: -1})
	seed(2, &pb.DeleteRangeRequest{Key: []byte("b"), RangeEnd: []byte("a"), PrevKv: true})
	seed(3, &pb.TxnRequest{
		Compare: []*pb.Compare{{Key: []byte("a"), Target: 77, Result: 12, RangeEnd: []byte{0}}},
		Success: []*pb.RequestOp{{}, {Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{
			Failure: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte("a")}}}},
		}}}},
	})
	store := newStore(f)
	f.Fuzz(func(t *testing.T, kind byte, data []byte) {
		r := &Request{}
		var m proto.Message
		switch kind % 4 {
		case 0:
			r.Range = &pb.RangeRequest{}
			m = r.Range
		case 1:
			r.Put = &pb.PutRequest{}
			m = r.Put
		case 2:
			r.DeleteRange = &pb.DeleteRangeRequest{}
			m = r.DeleteRange
		default:
			r.Txn = &pb.TxnRequest{}
			m = r.Txn
		}
		if proto.Unmarshal(data, m) != nil {
			return
		}
		if CheckRequest(r, Limits{MaxTxnOps: DefaultMaxTxnOps}) != nil {
			return
		}
		r.Spans()
		r.IsReadOnly()
		r.IsSerializable()
		res, err := Evaluate(store.Latest(), r, Env{LeaseExists: func(int64) bool { return true }, Compacted: -1})
		if err != nil {
			return
		}
		if _, err := DecodeEffects(AppendEffects(nil, res.Effects)); err != nil {
			t.Fatalf("the effects of %v cannot be read back: %v", m, err)
		}
		res.Finish(100)
	})
}
