package compat

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// TestDocumentListsTheExceptions: docs/differences.md and the exceptions that the comparison makes are one list.
func TestDocumentListsTheExceptions(t *testing.T) {
	document, err := os.ReadFile("../../docs/differences.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []exception
	for _, heading := range regexp.MustCompile(`(?m)^### (D[0-9]+) (.*)$`).FindAllStringSubmatch(string(document), -1) {
		documented = append(documented, exception{heading[1], heading[2]})
	}
	if !slices.Equal(documented, exceptions) {
		t.Errorf("docs/differences.md lists %q, exceptions.go %q", documented, exceptions)
	}
}

// TestRequestsThatKillEtcd sends Hawser what etcd 3.7.3 does not survive: D3 and D6.
func TestRequestsThatKillEtcd(t *testing.T) {
	t.Parallel()
	settings := ReadSettings(t)
	if settings.Target.Name() == (Etcd{}).Name() {
		t.Skip("etcd would panic")
	}
	s, err := newSide("hawser", settings.Target.Start(t), answerWithin)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	do := func(kind Kind, request proto.Message) *answer {
		return s.call(t.Context(), Op{Kind: kind, Request: request})
	}
	key := []byte("k")
	deleteAndPut := func(put *pb.PutRequest) *pb.TxnRequest {
		return &pb.TxnRequest{Success: []*pb.RequestOp{deleteOp(&pb.DeleteRangeRequest{Key: key, RangeEnd: []byte{0}}), putOp(put)}}
	}
	has := func(value string, version, modRevision int64) {
		t.Helper()
		a := do(Range, &pb.RangeRequest{Key: key})
		kvs := a.message.(*pb.RangeResponse).GetKvs()
		if len(kvs) != 1 || string(kvs[0].Value) != value || kvs[0].Version != version || kvs[0].ModRevision != modRevision {
			t.Fatalf("want value %q, version %d, mod_revision %d: %s", value, version, modRevision, a)
		}
	}
	if a := do(Put, &pb.PutRequest{Key: key, Value: []byte("v")}); a.code != codes.OK {
		t.Fatal(a)
	}

	// D3: the key that the put refers to is gone.
	for _, put := range []*pb.PutRequest{{Key: key, IgnoreValue: true}, {Key: key, IgnoreLease: true}} {
		if a := do(Txn, deleteAndPut(put)); a.text != "etcdserver: key not found" {
			t.Errorf("%v: %s", put, a)
		}
	}
	has("v", 1, 2)

	// D6: what compaction at their revision leaves of a delete and a put.
	if a := do(Txn, deleteAndPut(&pb.PutRequest{Key: key, Value: []byte("new")})); headerRevision(a.message) != 3 {
		t.Fatal(a)
	}
	if a := do(Compact, &pb.CompactionRequest{Revision: 3, Physical: true}); a.code != codes.OK {
		t.Fatal(a)
	}
	has("new", 1, 3)
}

// TestStreamWithSortTarget covers D5: RangeStream with a sort target and no order answers as Range, and as etcd's RangeStream
// where that answers as etcd's Range: within its first chunk of ten keys.
func TestStreamWithSortTarget(t *testing.T) {
	t.Parallel()
	settings := ReadSettings(t)
	etcd, err := newSide("etcd", Etcd{}.Start(t), answerWithin)
	if err != nil {
		t.Fatal(err)
	}
	defer etcd.close()
	target, err := newSide(settings.Target.Name(), settings.Target.Start(t), answerWithin)
	if err != nil {
		t.Fatal(err)
	}
	defer target.close()

	// The order by key is none of the others.
	const keys = 35
	for i := range keys {
		key := []byte(fmt.Sprintf("k%02d", i*17%keys))
		for range 1 + i%3 {
			for _, s := range []*side{etcd, target} {
				put := &pb.PutRequest{Key: key, Value: []byte(fmt.Sprintf("v%02d", i*11%keys))}
				if a := s.call(t.Context(), Op{Kind: Put, Request: put}); a.code != codes.OK {
					t.Fatal(a)
				}
			}
		}
	}
	for _, end := range []string{"k10", "k05", "k35", "\x00"} {
		for _, limit := range []int64{0, 1, 9, 10, 11, 30, 100} {
			for sortTarget := range pb.RangeRequest_SortTarget_name {
				for _, keysOnly := range []bool{false, true} {
					request := &pb.RangeRequest{
						Key: []byte("k"), RangeEnd: []byte(end), Limit: limit, KeysOnly: keysOnly,
						SortTarget: pb.RangeRequest_SortTarget(sortTarget),
					}
					streamed := target.call(t.Context(), Op{Kind: RangeStream, Request: request})
					ranged := target.call(t.Context(), Op{Kind: Range, Request: request})
					if lines := diffAnswers(request, ranged, streamed); len(lines) > 0 {
						t.Errorf("%v: Range and RangeStream differ: %q", request, lines)
					}
					wanted := etcd.call(t.Context(), Op{Kind: Range, Request: request})
					if lines := diffAnswers(request, wanted, streamed); len(lines) > 0 {
						t.Errorf("%v: etcd's Range and this RangeStream differ: %q", request, lines)
					}
					if end == "k35" || end == "\x00" || limit > 0 && limit < 10 {
						continue // etcd's first chunk has not all that is sorted
					}
					wanted = etcd.call(t.Context(), Op{Kind: RangeStream, Request: request})
					if lines := diffAnswers(request, wanted, streamed); len(lines) > 0 {
						t.Errorf("%v: the RangeStreams differ: %q", request, lines)
					}
				}
			}
		}
	}
}
