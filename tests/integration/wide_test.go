package integration

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/hawser-kv/hawser/cmd/node"
	"github.com/hawser-kv/hawser/proto/adminpb"
	"github.com/hawser-kv/hawser/tests/testcluster"
)

// TestWideTransactionsWhileRangesAreSplit: a transaction and a delete over more
// than 100 ranges are done within a few attempts each, while the ranges that
// they are over are split one after the other. Attempts are counted, and the
// splits that each meets are bounded: on a slow machine there would be ever more
// ranges, and ever more splits while they are latched.
func TestWideTransactionsWhileRangesAreSplit(t *testing.T) {
	const (
		ranges   = 110
		rounds   = 6
		attempts = 4  // of one transaction, at most
		meets    = 30 // splits from before it until it is done, at most
	)
	key := func(i int) []byte { return fmt.Appendf(nil, "w%03d", i) }
	var at []string
	for i := 1; i < ranges; i++ {
		at = append(at, string(key(i)))
	}
	n := testcluster.Start(t, testcluster.Options{Splits: at})
	router := n.Inside().Core().Router
	conn := n.Client().ActiveConnection()
	kv, admin := pb.NewKVClient(conn), adminpb.NewAdminClient(conn)

	var splits atomic.Int64
	allowed, stop := make(chan struct{}, meets), make(chan struct{})
	var splitters sync.WaitGroup
	for s := range 2 {
		splitters.Go(func() {
			for i := 0; !t.Failed(); i++ {
				select {
				case <-allowed:
				case <-stop:
					return
				}
				// All over the ranges, behind the key that each has.
				k := fmt.Appendf(key((i*37+s*53)%ranges), "-%d-%05d", s, i)
				if _, err := admin.SplitRange(t.Context(), &adminpb.SplitRangeRequest{At: &adminpb.SplitRangeRequest_Key{Key: k}}, grpc.WaitForReady(true)); err != nil {
					t.Errorf("split at %q: %v", k, err)
				}
				splits.Add(1)
			}
		})
	}
	defer splitters.Wait()
	defer close(stop)

	txn := &pb.TxnRequest{}
	for i := range ranges {
		txn.Success = append(txn.Success, putOp(string(key(i)), key(i)))
	}
	most := uint64(0)
	// count runs one transaction while splits are made and says how often it was tried.
	count := func(what string, do func() error) {
		t.Helper()
		for len(allowed) < meets {
			allowed <- struct{}{} // nobody else does
		}
		before := splits.Load()
		testcluster.Wait(t, func() string { return "a split" }, func() bool { return splits.Load() > before || t.Failed() })
		was := router.Stats().Transactions
		if err := do(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		tried := router.Stats().Transactions - was
		most = max(most, tried)
		if tried < 1 || tried > attempts {
			t.Errorf("%s took %d attempts, want at most %d", what, tried, attempts)
		}
	}
	for round := range rounds {
		count("transaction", func() error {
			resp, err := kv.Txn(t.Context(), txn)
			if err == nil && !resp.Succeeded {
				err = fmt.Errorf("not succeeded: %v", resp)
			}
			return err
		})
		count("delete", func() error {
			resp, err := kv.DeleteRange(t.Context(), &pb.DeleteRangeRequest{Key: []byte{0}, RangeEnd: []byte{0}})
			if err == nil && resp.Deleted != ranges {
				err = fmt.Errorf("%d keys deleted in round %d, want %d", resp.Deleted, round, ranges)
			}
			return err
		})
	}
	s := router.Stats()
	t.Logf("%d splits; %d attempts for %d transactions, at most %d for one; %d ranges replaced under latches",
		splits.Load(), s.Transactions, 2*rounds, most, s.TransactionRecuts)
}

// TestTransactionThatReadsAWholeRange: a transaction in one range that reads more
// than the range's worker evaluates is answered as any other, and takes the way
// of those over several ranges; one that does not read so much does not.
func TestTransactionThatReadsAWholeRange(t *testing.T) {
	const keys = 100
	n := testcluster.Start(t, testcluster.Options{Tune: func(c *node.CoreConfig) { c.Limits.MaxEvaluationRows = keys / 2 }})
	router := n.Inside().Core().Router
	kv := pb.NewKVClient(n.Client().ActiveConnection())
	for i := range keys {
		if _, err := kv.Put(t.Context(), &pb.PutRequest{Key: fmt.Appendf(nil, "w%03d", i), Value: []byte("1")}, grpc.WaitForReady(true)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name    string
		end     string
		limit   int64
		latched bool
	}{{"all", "x", 0, true}, {"some", "w010", 0, false}, {"a page", "x", 10, false}} {
		before := router.Stats().Transactions
		resp, err := kv.Txn(t.Context(), &pb.TxnRequest{
			// It holds for every key, and reads as many.
			Compare: []*pb.Compare{{Key: []byte("w"), RangeEnd: []byte("w010"), Result: pb.Compare_GREATER, Target: pb.Compare_VERSION, TargetUnion: &pb.Compare_Version{}}},
			Success: []*pb.RequestOp{putOp("w005", []byte(c.name)), {Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{
				Key: []byte("w"), RangeEnd: []byte(c.end), Limit: c.limit}}}},
		})
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		got := resp.Responses[1].GetResponseRange()
		want := 10
		if c.latched {
			want = keys
		}
		if !resp.Succeeded || len(got.Kvs) != want || string(got.Kvs[5].Value) != c.name || got.Kvs[5].ModRevision != resp.Header.Revision {
			t.Errorf("%s: %d rows at %d, want %d: %v", c.name, len(got.Kvs), resp.Header.Revision, want, got.Kvs[5])
		}
		if latched := router.Stats().Transactions > before; latched != c.latched {
			t.Errorf("%s: latched %v, want %v", c.name, latched, c.latched)
		}
	}
}
