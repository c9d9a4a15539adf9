package mvcc

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// Short forms for requests.

func opPut(key string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key), Value: []byte("v")}}}
}

func opDelete(key, end string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(key), RangeEnd: []byte(end)}}}
}

func opRange(key, end string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte(key), RangeEnd: []byte(end)}}}
}

func opTxn(t *pb.TxnRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: t}}
}

func then(ops ...*pb.RequestOp) *pb.TxnRequest { return &pb.TxnRequest{Success: ops} }

func TestRequestsAreCheckedAsEtcdDoes(t *testing.T) {
	k := []byte("k")
	for _, tc := range []struct {
		name string
		r    Request
		want error
	}{
		{"etcd/R1 range without key", Request{Range: &pb.RangeRequest{SortOrder: 9}}, ErrEmptyKey},
		{"etcd/R1 end before key is no error", Request{Range: &pb.RangeRequest{Key: k, RangeEnd: []byte("a")}}, nil},
		{"etcd/R2 sort order", Request{Range: &pb.RangeRequest{Key: k, SortOrder: 3}}, ErrInvalidSortOption},
		{"etcd/R2 sort target", Request{Range: &pb.RangeRequest{Key: k, SortTarget: 5}}, ErrInvalidSortOption},
		{"etcd/P1 put without key", Request{Put: &pb.PutRequest{Value: k}}, ErrEmptyKey},
		{"etcd/P1 empty value", Request{Put: &pb.PutRequest{Key: k}}, nil},
		{"etcd/P2 value with ignore_value", Request{Put: &pb.PutRequest{Key: k, Value: k, IgnoreValue: true, IgnoreLease: true, Lease: 1}}, ErrValueProvided},
		{"etcd/P2 lease with ignore_lease", Request{Put: &pb.PutRequest{Key: k, IgnoreLease: true, Lease: 1}}, ErrLeaseProvided},
		{"etcd/D1 delete without key", Request{DeleteRange: &pb.DeleteRangeRequest{RangeEnd: k}}, ErrEmptyKey},
		{"etcd/T2 compare without key", Request{Txn: &pb.TxnRequest{Compare: []*pb.Compare{{}}, Success: []*pb.RequestOp{{}}}}, ErrEmptyKey},
		{"etcd/T2 empty operation", Request{Txn: then(&pb.RequestOp{})}, ErrKeyNotFound},
		{"etcd/T2 operations are checked alone, too", Request{Txn: then(&pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: k, SortOrder: 4}}})}, ErrInvalidSortOption},
		{"etcd/T2 the success branch comes first", Request{Txn: &pb.TxnRequest{Success: []*pb.RequestOp{{}}, Failure: []*pb.RequestOp{opPut("")}}}, ErrKeyNotFound},
		{"etcd/T2 before T3", Request{Txn: &pb.TxnRequest{Success: []*pb.RequestOp{opPut("a"), opPut("a")}, Failure: []*pb.RequestOp{opPut("")}}}, ErrEmptyKey},
		{"etcd/T3 two puts", Request{Txn: then(opPut("a"), opPut("a"))}, ErrDuplicateKey},
		{"etcd/T3 in the failure branch", Request{Txn: &pb.TxnRequest{Failure: []*pb.RequestOp{opPut("a"), opPut("a")}}}, ErrDuplicateKey},
		{"etcd/T3 both branches may put", Request{Txn: &pb.TxnRequest{Success: []*pb.RequestOp{opPut("a")}, Failure: []*pb.RequestOp{opPut("a")}}}, nil},
		{"etcd/T3 put and delete", Request{Txn: then(opPut("a"), opDelete("a", ""))}, ErrDuplicateKey},
		{"etcd/T3 put in a deleted interval", Request{Txn: then(opDelete("a", "c"), opPut("b"))}, ErrDuplicateKey},
		{"etcd/T3 put at its end", Request{Txn: then(opDelete("a", "b"), opPut("b"))}, nil},
		{"etcd/T3 adjacent deletes", Request{Txn: then(opDelete("a", "b"), opDelete("b", "c"), opPut("bb"))}, ErrDuplicateKey},
		{"etcd/T3 overlapping deletes", Request{Txn: then(opDelete("a", "c"), opDelete("b", "d"), opDelete("b", "b"))}, nil},
		{"etcd/T3 ranges overlap anything", Request{Txn: then(opPut("a"), opRange("a", "c"))}, nil},
		{"etcd/T3 a delete from a key on hides nothing (as in etcd)", Request{Txn: then(opDelete("a", "\x00"), opPut("b"))}, nil},
		{"etcd/T3 put against the level above", Request{Txn: then(opTxn(then(opPut("a"))), opPut("a"))}, ErrDuplicateKey},
		{"etcd/T3 nested put against a delete above", Request{Txn: then(opTxn(then(opPut("b"))), opDelete("a", "c"))}, ErrDuplicateKey},
		{"etcd/T3 then and else of a nested one", Request{Txn: then(opTxn(&pb.TxnRequest{Success: []*pb.RequestOp{opPut("a")}, Failure: []*pb.RequestOp{opPut("a")}}))}, nil},
		{"etcd/T3 siblings put", Request{Txn: then(opTxn(then(opPut("a"))), opTxn(then(opPut("a"))))}, ErrDuplicateKey},
		{"etcd/T3 else of a later sibling", Request{Txn: then(opTxn(then(opPut("a"))), opTxn(&pb.TxnRequest{Failure: []*pb.RequestOp{opPut("a")}}))}, ErrDuplicateKey},
		{"etcd/T3 siblings delete then put", Request{Txn: then(opTxn(then(opDelete("a", ""))), opTxn(then(opPut("a"))))}, ErrDuplicateKey},
		{"etcd/T3 the same in else", Request{Txn: then(opTxn(&pb.TxnRequest{Failure: []*pb.RequestOp{opDelete("a", "")}}), opTxn(then(opPut("a"))))}, ErrDuplicateKey},
		{"etcd/T3 siblings put then delete (as in etcd)", Request{Txn: then(opTxn(then(opPut("a"))), opTxn(then(opDelete("a", ""))))}, nil},
		{"no content", Request{}, errAny},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := CheckRequest(&tc.r, Limits{})
			if tc.want == errAny && err != nil {
				return
			}
			if !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
}

var errAny = errors.New("any error")

func TestT1NestedTransactionsShareTheLimitOfOperations(t *testing.T) {
	many := func(n int, last ...*pb.RequestOp) *pb.TxnRequest {
		var ops []*pb.RequestOp
		for i := range n - len(last) {
			ops = append(ops, opRange(fmt.Sprint(i), ""))
		}
		return then(append(ops, last...)...)
	}
	compares := &pb.TxnRequest{Compare: make([]*pb.Compare, 129)}
	for i := range compares.Compare {
		compares.Compare[i] = &pb.Compare{Key: []byte("k")}
	}
	for _, tc := range []struct {
		name   string
		txn    *pb.TxnRequest
		limits Limits
		want   error
	}{
		{"128", many(128), Limits{}, nil},
		{"129", many(129), Limits{}, ErrTooManyOps},
		{"compares", compares, Limits{}, ErrTooManyOps},
		{"nested 100 + 28", many(100, opTxn(many(28))), Limits{}, nil},
		{"nested 100 + 29", many(100, opTxn(many(29))), Limits{}, ErrTooManyOps},
		{"three levels", many(2, opTxn(many(2, opTxn(many(2))))), Limits{MaxTxnOps: 5}, ErrTooManyOps},
		{"own limit", many(6), Limits{MaxTxnOps: 6}, nil},
	} {
		if err := CheckRequest(&Request{Txn: tc.txn}, tc.limits); !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", tc.name, err, tc.want)
		}
	}
}

// TestSpanSetEqualsAListOfSpans holds the disjoint spans against the plain list.
func TestSpanSetEqualsAListOfSpans(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		s := newSpanSet()
		var list []keySpan
		for range rng.IntN(12) {
			p := keySpan{string(rune('a' + rng.IntN(20))), string(rune('a' + rng.IntN(20)))}
			s.add(p.start, p.end)
			list = append(list, p)
		}
		for c := 'a'; c < 'u'; c++ {
			for _, key := range []string{string(c), string(c) + "x"} {
				want := false
				for _, p := range list {
					want = want || p.start <= key && key < p.end
				}
				if got := s.contains(key); got != want {
					t.Fatalf("%v contains %q: %t", list, key, got)
				}
			}
		}
	}
}

func TestSpansNameAllThatIsTouched(t *testing.T) {
	r := Request{Txn: &pb.TxnRequest{
		Compare: []*pb.Compare{{Key: []byte("c"), RangeEnd: []byte("d")}},
		Success: []*pb.RequestOp{opPut("p"), opTxn(&pb.TxnRequest{Failure: []*pb.RequestOp{opDelete("x", "\x00")}})},
		Failure: []*pb.RequestOp{opRange("b", "a"), opRange("e", "")},
	}}
	got := ""
	for _, a := range r.Spans() {
		got += fmt.Sprintf("[%q,%q) %t, ", a.Start, a.End, a.Write)
	}
	want := `["c","d") false, ["p","p\x00") true, ["x","") true, ["b","b\x00") false, ["e","e\x00") false, `
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if end := r.Spans()[2].End; end != nil {
		t.Errorf("the end of the keyspace is %q, want nil", end)
	}
}

func TestT10ReadOnlyAndSerializable(t *testing.T) {
	serial := &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte("a"), Serializable: true}}}
	for _, tc := range []struct {
		r                      Request
		readOnly, serializable bool
	}{
		{Request{Range: &pb.RangeRequest{}}, true, false},
		{Request{Range: &pb.RangeRequest{Serializable: true}}, true, true},
		{Request{Put: &pb.PutRequest{}}, false, false},
		{Request{DeleteRange: &pb.DeleteRangeRequest{}}, false, false},
		{Request{Txn: &pb.TxnRequest{}}, true, true},
		{Request{Txn: then(opRange("a", ""), serial)}, true, false},
		{Request{Txn: then(serial)}, true, true},
		{Request{Txn: &pb.TxnRequest{Failure: []*pb.RequestOp{opPut("a")}}}, false, false},
		{Request{Txn: then(opTxn(then(serial)))}, false, false},
	} {
		if got := tc.r.IsReadOnly(); got != tc.readOnly {
			t.Errorf("%v: read only %t", tc.r.message(), got)
		}
		if got := tc.r.IsSerializable(); got != tc.serializable {
			t.Errorf("%v: serializable %t", tc.r.message(), got)
		}
	}
}
