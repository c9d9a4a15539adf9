package history

import (
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// TestCompactionOfUnknownFate: a server that is killed may have done a compaction
// that it did not answer. Then what it made unreadable is refused; without it that
// would be wrong.
func TestCompactionOfUnknownFate(t *testing.T) {
	kv := func(rev int64) *mvccpb.KeyValue {
		return &mvccpb.KeyValue{Key: []byte("k"), Value: []byte{byte(rev)}, CreateRevision: 2, ModRevision: rev, Version: rev - 1}
	}
	for _, asked := range []bool{true, false} {
		r := &Run{Revision: 4}
		for rev := int64(2); rev <= 4; rev++ {
			r.Truth = append(r.Truth, Event{Kv: kv(rev)})
			r.Ops = append(r.Ops, &Op{Call: 10 * rev, Return: 10*rev + 5, Outcome: OK,
				Put:    &pb.PutRequest{Key: []byte("k"), Value: []byte{byte(rev)}},
				Answer: &pb.PutResponse{Header: &pb.ResponseHeader{Revision: rev}}})
		}
		if asked {
			r.Ops = append(r.Ops, &Op{Client: 1, Call: 50, Return: 55, Outcome: Unknown, Compact: &pb.CompactionRequest{Revision: 4}})
		}
		r.Crashes = []Crash{{Down: 52, Up: 60}}
		r.Ops = append(r.Ops, &Op{Client: 2, Call: 70, Return: 75, Outcome: Refused, Refusal: RefusedCompacted,
			Range: &pb.RangeRequest{Key: []byte("k"), Revision: 3}})
		if err := Linearizable(r, time.Minute); (err == nil) != asked {
			t.Errorf("compaction asked for: %t; %v", asked, err)
		}
	}
}
