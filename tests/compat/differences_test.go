package compat

import (
	"os"
	"regexp"
	"slices"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
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

// TestPutAfterDeleteIsRefusedNotFatal is D3: etcd 3.7.3 does not survive these requests.
func TestPutAfterDeleteIsRefusedNotFatal(t *testing.T) {
	t.Parallel()
	settings := ReadSettings(t)
	if settings.Target.Name() == (Etcd{}).Name() {
		t.Skip("etcd would panic")
	}
	server := settings.Target.Start(t)
	s, err := newSide("hawser", server, answerWithin)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	key := []byte("k")
	if a := s.call(t.Context(), Op{Kind: Put, Request: &pb.PutRequest{Key: key, Value: []byte("v")}}); a.code != 0 {
		t.Fatal(a)
	}
	for name, put := range map[string]*pb.PutRequest{
		"ignore_value": {Key: key, IgnoreValue: true},
		"ignore_lease": {Key: key, IgnoreLease: true},
	} {
		txn := &pb.TxnRequest{Success: []*pb.RequestOp{deleteOp(&pb.DeleteRangeRequest{Key: key, RangeEnd: []byte{0}}), putOp(put)}}
		if a := s.call(t.Context(), Op{Kind: Txn, Request: txn}); a.text != "etcdserver: key not found" {
			t.Errorf("%s: %s", name, a)
		}
	}
	a := s.call(t.Context(), Op{Kind: Range, Request: &pb.RangeRequest{Key: key}})
	response, ok := a.message.(*pb.RangeResponse)
	if !ok || len(response.Kvs) != 1 || response.Kvs[0].ModRevision != 2 || response.Header.Revision != 2 {
		t.Errorf("a refused transaction has changed something: %s", a)
	}
}
