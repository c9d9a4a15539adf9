package compat

import (
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
