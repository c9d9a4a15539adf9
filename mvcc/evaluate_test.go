package mvcc

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// history is a store with a history that tests write one revision at a time.
type history struct {
	t   *testing.T
	s   *Store
	rev int64
	env Env
}

func newHistory(t *testing.T) *history {
	return &history{t: t, s: newStore(t), rev: 1, env: Env{Compacted: -1, Current: 1}}
}

// do evaluates on the newest state and applies at the next revision.
func (h *history) do(r *Request) *Result {
	h.t.Helper()
	result, err := h.try(r)
	if err != nil {
		h.t.Fatalf("%v: %v", r.message(), err)
	}
	return result
}

func (h *history) try(r *Request) (*Result, error) {
	h.t.Helper()
	if err := CheckRequest(r, Limits{}); err != nil {
		h.t.Fatalf("%v: %v", r.message(), err)
	}
	result, err := Evaluate(h.s.Latest(), r, h.env)
	if err != nil {
		return nil, err
	}
	if len(result.Effects) > 0 {
		h.rev++
		h.apply(h.rev, result.Effects)
	}
	h.env.Current = h.rev
	result.Finish(h.rev)
	return result, nil
}

func (h *history) apply(rev int64, effs []Effect) {
	h.t.Helper()
	b := h.s.db.NewBatch()
	if err := h.s.Apply(b, rev, effs); err != nil {
		h.t.Fatal(err)
	}
	if err := b.Commit(pebble.NoSync); err != nil {
		h.t.Fatal(err)
	}
}

func (h *history) put(key, value string) *pb.PutResponse {
	h.t.Helper()
	return h.do(&Request{Put: &pb.PutRequest{Key: []byte(key), Value: []byte(value)}}).Put
}

func (h *history) delete(key, end string) *pb.DeleteRangeResponse {
	h.t.Helper()
	return h.do(&Request{DeleteRange: &pb.DeleteRangeRequest{Key: []byte(key), RangeEnd: []byte(end), PrevKv: true}}).DeleteRange
}

func (h *history) txn(t *pb.TxnRequest) *pb.TxnResponse {
	h.t.Helper()
	return h.do(&Request{Txn: t}).Txn
}

// list answers a range request on the newest state.
func (h *history) list(r *pb.RangeRequest) *pb.RangeResponse {
	h.t.Helper()
	return h.do(&Request{Range: r}).Range
}

// show prints rows as key=value@create/mod#version, with +lease.
func show(kvs ...*mvccpb.KeyValue) string {
	var parts []string
	for _, kv := range kvs {
		if kv == nil {
			parts = append(parts, "none")
			continue
		}
		s := fmt.Sprintf("%s=%s@%d/%d#%d", kv.Key, kv.Value, kv.CreateRevision, kv.ModRevision, kv.Version)
		if kv.Lease != 0 {
			s += fmt.Sprintf("+%d", kv.Lease)
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, " ")
}

func want(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %s, want %s", what, got, want)
	}
}

func TestP4VersionsCountFromCreationAndStartAgainAfterADelete(t *testing.T) {
	h := newHistory(t)
	if rev := h.put("a", "1").Header.Revision; rev != 2 {
		t.Errorf("etcd/X6: the first write has revision %d, want 2", rev)
	}
	h.put("b", "x")
	h.put("a", "2")
	p := h.do(&Request{Put: &pb.PutRequest{Key: []byte("a"), Value: []byte("3"), PrevKv: true}}).Put
	want(t, "prev_kv", show(p.PrevKv), "a=2@2/4#2")
	d := h.delete("a", "")
	want(t, "deleted", show(d.PrevKvs...), "a=3@2/5#3")
	h.put("a", "4")
	want(t, "list", show(h.list(&pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}}).Kvs...), "a=4@7/7#1 b=x@3/3#1")
	p = h.do(&Request{Put: &pb.PutRequest{Key: []byte("new"), PrevKv: true}}).Put
	want(t, "prev_kv of a new key", show(p.PrevKv), "none")
}

func TestP2IgnoreValueAndLeaseKeepThem(t *testing.T) {
	h := newHistory(t)
	h.env.LeaseExists = func(id int64) bool { return id == 5 }
	h.do(&Request{Put: &pb.PutRequest{Key: []byte("a"), Value: []byte("1"), Lease: 5}})
	h.do(&Request{Put: &pb.PutRequest{Key: []byte("a"), Value: []byte("2"), IgnoreLease: true}})
	want(t, "ignore_lease", show(h.list(&pb.RangeRequest{Key: []byte("a")}).Kvs...), "a=2@2/3#2+5")
	h.do(&Request{Put: &pb.PutRequest{Key: []byte("a"), IgnoreValue: true}})
	want(t, "ignore_value", show(h.list(&pb.RangeRequest{Key: []byte("a")}).Kvs...), "a=2@2/4#3")
	for _, p := range []*pb.PutRequest{{Key: []byte("x"), IgnoreValue: true}, {Key: []byte("x"), IgnoreLease: true}} {
		if _, err := h.try(&Request{Put: p}); !errors.Is(err, ErrKeyNotFound) {
			t.Errorf("%v: %v", p, err)
		}
	}
	if _, err := h.try(&Request{Put: &pb.PutRequest{Key: []byte("x"), Lease: 6, IgnoreValue: true}}); !errors.Is(err, ErrLeaseNotFound) {
		t.Errorf("etcd/P3 comes first: %v", err)
	}
}

func TestD2DeletesTakeOneRevisionInKeyOrderAndNoneForNothing(t *testing.T) {
	h := newHistory(t)
	h.put("c", "")
	h.put("a", "")
	h.put("b", "")
	r := h.do(&Request{DeleteRange: &pb.DeleteRangeRequest{Key: []byte("a"), RangeEnd: []byte{0}}})
	for i, key := range []string{"a", "b", "c"} {
		if e := r.Effects[i]; string(e.Key) != key || e.Sub != uint32(i) || !e.Tombstone {
			t.Errorf("effect %d: %+v", i, e)
		}
	}
	if d := r.DeleteRange; d.Deleted != 3 || d.Header.Revision != 5 {
		t.Errorf("got %v", d)
	}
	if d := h.delete("a", "\x00"); d.Deleted != 0 || d.Header.Revision != 5 {
		t.Errorf("delete of nothing: %v", d)
	}
	if d := h.delete("b", "a"); d.Deleted != 0 {
		t.Errorf("etcd/R1: range_end before key: %v", d)
	}
}

func TestR5CountIsThatOfTheIntervalWhateverLimitAndFilters(t *testing.T) {
	h := newHistory(t)
	for i := range 6 {
		h.put(fmt.Sprintf("k%d", i), "v")
	}
	for _, tc := range []struct {
		r     *pb.RangeRequest
		kvs   int
		count int64
		more  bool
	}{
		{&pb.RangeRequest{}, 6, 6, false},
		{&pb.RangeRequest{Limit: 6}, 6, 6, false},
		{&pb.RangeRequest{Limit: 5}, 5, 6, true},
		{&pb.RangeRequest{Limit: -1}, 6, 6, false},
		{&pb.RangeRequest{Limit: math.MaxInt64}, 6, 6, false},
		{&pb.RangeRequest{CountOnly: true, Limit: 2}, 0, 6, false},
		{&pb.RangeRequest{MinModRevision: 5}, 3, 6, false},
		{&pb.RangeRequest{MinModRevision: 5, Limit: 2}, 2, 6, true},
		{&pb.RangeRequest{MinModRevision: 5, Limit: 3}, 3, 6, false},
		{&pb.RangeRequest{MaxCreateRevision: 4, MinModRevision: 4}, 1, 6, false},
		{&pb.RangeRequest{SortTarget: pb.RangeRequest_MOD, SortOrder: pb.RangeRequest_DESCEND, Limit: 1}, 1, 6, true},
	} {
		tc.r.Key, tc.r.RangeEnd = []byte("k"), []byte("l")
		got := h.list(tc.r)
		if len(got.Kvs) != tc.kvs || got.Count != tc.count || got.More != tc.more {
			t.Errorf("%v: %d rows, count %d, more %t", tc.r, len(got.Kvs), got.Count, got.More)
		}
	}
}

func TestR7KeysOnlyDropsValuesAndKeepsLeases(t *testing.T) {
	h := newHistory(t)
	h.do(&Request{Put: &pb.PutRequest{Key: []byte("a"), Value: []byte("1"), Lease: 5}})
	for _, target := range []pb.RangeRequest_SortTarget{pb.RangeRequest_KEY, pb.RangeRequest_VALUE} {
		got := h.list(&pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte{0}, KeysOnly: true, SortTarget: target})
		want(t, target.String(), show(got.Kvs...), "a=@2/2#1+5")
	}
	want(t, "one key", show(h.list(&pb.RangeRequest{Key: []byte("a"), KeysOnly: true}).Kvs...), "a=@2/2#1+5")
}

func TestR9SortWithoutOrderAppliesTheLimitFirst(t *testing.T) {
	h := newHistory(t)
	for _, key := range []string{"d", "c", "b", "a"} { // so mod revisions fall with the key
		h.put(key, "")
	}
	get := func(order pb.RangeRequest_SortOrder) string {
		return show(h.list(&pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte{0}, SortTarget: pb.RangeRequest_MOD, SortOrder: order, Limit: 2}).Kvs...)
	}
	want(t, "none", get(pb.RangeRequest_NONE), "c=@3/3#1 b=@4/4#1") // of a, b, c: one above the limit is read
	want(t, "ascend", get(pb.RangeRequest_ASCEND), "d=@2/2#1 c=@3/3#1")
	want(t, "descend", get(pb.RangeRequest_DESCEND), "a=@5/5#1 b=@4/4#1")
}

func TestR3OlderRevisionsAreReadableUntilForgotten(t *testing.T) {
	h := newHistory(t)
	h.put("a", "1")
	h.put("a", "2")
	h.delete("a", "")
	h.s.forgotten.Store(3)
	for rev, wanted := range map[int64]string{3: "a=2@2/3#2", 4: "", 0: "", -7: ""} {
		got := h.list(&pb.RangeRequest{Key: []byte("a"), Revision: rev})
		want(t, fmt.Sprint(rev), show(got.Kvs...), wanted)
		if got.Header.Revision != 4 {
			t.Errorf("etcd/R4: header.revision is %d, want the current one", got.Header.Revision)
		}
	}
	if _, err := h.s.Snapshot(2); !errors.Is(err, ErrCompacted) {
		t.Errorf("snapshot of a forgotten revision: %v", err)
	}
	snap, err := h.s.Snapshot(4)
	if err != nil {
		t.Fatal(err)
	}
	defer snap.Close()
	if _, err := EvaluateRange(snap, &pb.RangeRequest{Key: []byte("a"), Revision: 2}, nil); !errors.Is(err, ErrCompacted) {
		t.Errorf("forgotten revision: %v", err)
	}
	if _, err := EvaluateRange(snap, &pb.RangeRequest{Key: []byte("a"), Revision: 5}, nil); !errors.Is(err, ErrFutureRev) {
		t.Errorf("future revision: %v", err)
	}
}

func TestT4ComparesOfMissingKeysAndIntervals(t *testing.T) {
	h := newHistory(t)
	h.put("a", "1")
	h.put("b", "2")
	h.put("b", "1")
	compare := func(target pb.Compare_CompareTarget, result pb.Compare_CompareResult, key, end string, union any) bool {
		c := &pb.Compare{Key: []byte(key), RangeEnd: []byte(end), Target: target, Result: result}
		switch v := union.(type) {
		case int:
			c.TargetUnion = map[pb.Compare_CompareTarget]pb.Compare{
				pb.Compare_VERSION: {TargetUnion: &pb.Compare_Version{Version: int64(v)}},
				pb.Compare_MOD:     {TargetUnion: &pb.Compare_ModRevision{ModRevision: int64(v)}},
				pb.Compare_CREATE:  {TargetUnion: &pb.Compare_CreateRevision{CreateRevision: int64(v)}},
				pb.Compare_LEASE:   {TargetUnion: &pb.Compare_Lease{Lease: int64(v)}},
			}[target].TargetUnion
		case string:
			c.TargetUnion = &pb.Compare_Value{Value: []byte(v)}
		}
		return h.txn(&pb.TxnRequest{Compare: []*pb.Compare{c}}).Succeeded
	}
	for _, tc := range []struct {
		name  string
		got   bool
		wants bool
	}{
		{"no compares", h.txn(&pb.TxnRequest{}).Succeeded, true},
		{"missing key has version 0", compare(pb.Compare_VERSION, pb.Compare_EQUAL, "x", "", 0), true},
		{"missing key has mod revision 0", compare(pb.Compare_MOD, pb.Compare_LESS, "x", "", 1), true},
		{"missing key has lease 0", compare(pb.Compare_LEASE, pb.Compare_EQUAL, "x", "", nil), true},
		{"missing key has no value", compare(pb.Compare_VALUE, pb.Compare_NOT_EQUAL, "x", "", "1"), false},
		{"not even the empty one", compare(pb.Compare_VALUE, pb.Compare_EQUAL, "x", "", ""), false},
		{"empty interval", compare(pb.Compare_VERSION, pb.Compare_EQUAL, "b", "a", 0), true},
		{"value of an empty interval", compare(pb.Compare_VALUE, pb.Compare_LESS, "b", "a", "z"), false},
		{"all of an interval", compare(pb.Compare_VALUE, pb.Compare_EQUAL, "a", "c", "1"), true},
		{"not all of an interval", compare(pb.Compare_VERSION, pb.Compare_EQUAL, "a", "\x00", 1), false},
		{"other union counts as zero", compare(pb.Compare_MOD, pb.Compare_GREATER, "a", "", "1"), true},
		{"create revision", compare(pb.Compare_CREATE, pb.Compare_EQUAL, "b", "", 3), true},
		{"mod revision", compare(pb.Compare_MOD, pb.Compare_EQUAL, "b", "", 4), true},
	} {
		if tc.got != tc.wants {
			t.Errorf("%s: %t", tc.name, tc.got)
		}
	}
}

func TestT5NestedComparesSeeTheStateBefore(t *testing.T) {
	h := newHistory(t)
	nested := &pb.TxnRequest{
		Compare: []*pb.Compare{{Key: []byte("a"), Target: pb.Compare_VERSION, TargetUnion: &pb.Compare_Version{Version: 0}}},
		Success: []*pb.RequestOp{opPut("then")}, Failure: []*pb.RequestOp{opPut("else")},
	}
	resp := h.txn(then(opPut("a"), opTxn(nested)))
	if inner := resp.Responses[1].GetResponseTxn(); !inner.Succeeded || inner.Header.Revision != 0 {
		t.Errorf("etcd/X5: nested response %v", inner)
	}
	want(t, "list", show(h.list(&pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}}).Kvs...), "a=v@2/2#1 then=v@2/2#1")
}

func TestT6T9RangesSeeEarlierWritesAndSayAtWhichRevision(t *testing.T) {
	h := newHistory(t)
	h.put("a", "old")
	h.put("z", "z")
	old := opRange("a", "")
	old.GetRequestRange().Revision = 3
	filtered := opRange("a", "\x00")
	filtered.GetRequestRange().MinModRevision = 4
	sorted := opRange("a", "\x00")
	sorted.GetRequestRange().SortTarget, sorted.GetRequestRange().SortOrder = pb.RangeRequest_MOD, pb.RangeRequest_DESCEND
	resp := h.txn(then(opRange("a", ""), opDelete("x", ""), opPut("a"), opRange("a", ""), old, filtered, sorted, opDelete("x", "")))
	if resp.Header.Revision != 4 {
		t.Errorf("etcd/T8: header.revision is %d, want 4", resp.Header.Revision)
	}
	for i, w := range []string{"a=old@2/2#1", "", "", "a=v@2/4#2", "a=old@2/2#1", "a=v@2/4#2", "a=v@2/4#2 z=z@3/3#1"} {
		if r := resp.Responses[i].GetResponseRange(); r != nil {
			want(t, fmt.Sprint("range ", i), show(r.Kvs...), w)
		}
	}
	var headers []int64
	for _, op := range resp.Responses {
		switch o := op.Response.(type) {
		case *pb.ResponseOp_ResponseRange:
			headers = append(headers, o.ResponseRange.Header.Revision)
		case *pb.ResponseOp_ResponsePut:
			headers = append(headers, o.ResponsePut.Header.Revision)
		case *pb.ResponseOp_ResponseDeleteRange:
			headers = append(headers, o.ResponseDeleteRange.Header.Revision)
		}
	}
	want(t, "headers", fmt.Sprint(headers), "[3 3 4 4 4 4 4 4]")
}

func TestT6ExplicitRevisionsAreCheckedAgainstTheStateBefore(t *testing.T) {
	h := newHistory(t)
	h.put("a", "1")
	h.put("a", "2")
	at := func(rev int64) error {
		op := opRange("a", "")
		op.GetRequestRange().Revision = rev
		_, err := h.try(&Request{Txn: then(opPut("b"), op)})
		return err
	}
	for _, tc := range []struct {
		compacted, rev int64
		want           error
	}{
		{-1, 0, nil}, {-1, -1, nil}, {-1, -2, ErrCompacted}, {2, -1, ErrCompacted}, {2, 2, nil}, {2, 1, ErrCompacted},
	} {
		h.env.Compacted = tc.compacted
		if err := at(tc.rev); !errors.Is(err, tc.want) {
			t.Errorf("revision %d with %d compacted: %v", tc.rev, tc.compacted, err)
		}
	}
	if err := at(h.rev + 1); !errors.Is(err, ErrFutureRev) {
		t.Errorf("the revision that the transaction would get: %v", err)
	}
}

func TestT7OnlyTheBranchTakenIsCheckedAndInOrder(t *testing.T) {
	h := newHistory(t)
	h.env.LeaseExists = func(int64) bool { return false }
	leased := func(ops ...*pb.RequestOp) *pb.RequestOp {
		op := opPut("l")
		op.GetRequestPut().Lease = 9
		return op
	}
	missing := opPut("m")
	missing.GetRequestPut().IgnoreLease = true
	future := opRange("a", "")
	future.GetRequestRange().Revision = 99
	if resp := h.txn(&pb.TxnRequest{Success: []*pb.RequestOp{opPut("a")}, Failure: []*pb.RequestOp{leased(), future}}); !resp.Succeeded {
		t.Error("the other branch was taken")
	}
	for _, tc := range []struct {
		ops  []*pb.RequestOp
		want error
	}{
		{[]*pb.RequestOp{opPut("b"), leased(), missing}, ErrLeaseNotFound},
		{[]*pb.RequestOp{opPut("b"), missing, leased()}, ErrKeyNotFound},
		{[]*pb.RequestOp{opTxn(then(future)), missing}, ErrFutureRev},
		// The key is put before, but was not there before the transaction.
		{[]*pb.RequestOp{opTxn(then(opPut("m2"))), missing}, ErrKeyNotFound},
	} {
		if _, err := h.try(&Request{Txn: then(tc.ops...)}); !errors.Is(err, tc.want) {
			t.Errorf("%v: got %v, want %v", tc.ops, err, tc.want)
		}
	}
	if h.rev != 2 {
		t.Errorf("a refused transaction changed something: revision %d", h.rev)
	}
}

func TestOneRevisionMayHoldTwoVersionsOfAKey(t *testing.T) {
	h := newHistory(t)
	h.put("old", "1")
	// Both pass etcd's check of duplicates.
	h.txn(then(opTxn(then(opPut("new"))), opTxn(then(opDelete("new", "")))))
	h.txn(then(opDelete("o", "\x00"), opPut("old")))
	want(t, "list", show(h.list(&pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}}).Kvs...), "old=v@4/4#1")
	if n, err := h.s.Latest().Count(nil, nil); n != 1 || err != nil {
		t.Errorf("count %d, %v", n, err)
	}
	var got []string
	err := h.s.Events(nil, nil, 2, 4, true, func(ev Event) (bool, error) {
		got = append(got, fmt.Sprintf("%d.%d delete=%t %s prev=%s", ev.Revision, ev.Sub, ev.Delete, show(ev.Kv), show(ev.PrevKv)))
		return true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want(t, "events", "\n"+strings.Join(got, "\n"), `
3.0 delete=false new=v@3/3#1 prev=none
3.1 delete=true new=@0/3#0 prev=none
4.0 delete=true old=@0/4#0 prev=old=1@2/2#1
4.1 delete=false old=v@4/4#1 prev=none`)
}

func TestL3RevokeDeletesTheKeysOfALeaseAndOnlyThose(t *testing.T) {
	h := newHistory(t)
	for i, key := range []string{"c", "a", "b", "d"} {
		h.do(&Request{Put: &pb.PutRequest{Key: []byte(key), Lease: int64(5 + i/3)}})
	}
	h.do(&Request{Put: &pb.PutRequest{Key: []byte("b"), Lease: 7}}) // moves to another lease
	keysOf := func(lease int64) [][]byte {
		keys, err := LeaseKeys(h.s.Latest(), lease, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		return keys
	}
	want(t, "lease 5", fmt.Sprintf("%q", keysOf(5)), `["a" "c"]`)
	want(t, "lease 7", fmt.Sprintf("%q", keysOf(7)), `["b"]`)
	effs, err := EvaluateDeletes(h.s.Latest(), keysOf(5))
	if err != nil {
		t.Fatal(err)
	}
	h.rev++
	h.apply(h.rev, effs)
	want(t, "after", show(h.list(&pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}}).Kvs...), "b=@4/6#2+7 d=@5/5#1+6")
	want(t, "lease 5", fmt.Sprintf("%q", keysOf(5)), `[]`)
}

func TestKeyValuesHandedOutStayAsTheyAre(t *testing.T) {
	h := newHistory(t)
	for i := range 50 {
		h.put(fmt.Sprintf("k%02d", i), fmt.Sprintf("value %d", i))
	}
	snap, err := h.s.Snapshot(h.rev)
	if err != nil {
		t.Fatal(err)
	}
	defer snap.Close()
	var kvs []*mvccpb.KeyValue
	keep := func(kv *mvccpb.KeyValue) (bool, error) {
		kvs = append(kvs, kv)
		one, err := snap.Get(kv.Key) // and the view may be used meanwhile
		kvs = append(kvs, one)
		return true, err
	}
	if err := snap.Scan(nil, nil, ScanOptions{}, keep); err != nil {
		t.Fatal(err)
	}
	before := show(kvs...)
	for i := range 50 {
		h.put(fmt.Sprintf("k%02d", i), "another")
	}
	if err := snap.Scan([]byte("k2"), []byte("k3"), ScanOptions{}, keep); err != nil {
		t.Fatal(err)
	}
	want(t, "rows", show(kvs[:100]...), before)
	want(t, "a scan in a snapshot", show(kvs[100]), "k20=value 20@22/22#1")
}
