package integration

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/hawser-kv/hawser/cmd/config"
	"github.com/hawser-kv/hawser/cmd/node"
	"github.com/hawser-kv/hawser/proto/adminpb"
	"github.com/hawser-kv/hawser/tests/history"
	"github.com/hawser-kv/hawser/tests/testcluster"
)

// TestThousandRanges: 1,000 ranges do what one does, and those without writes
// sleep: no tick, no goroutine, no object in memory, while they still answer
// reads (R10).
func TestThousandRanges(t *testing.T) {
	const ranges, idleTicks = 1000, 40
	n := testcluster.Start(t, testcluster.Options{
		Configure: func(c *config.Config) {
			c.HeartbeatInterval, c.ElectionTimeout = 10*time.Millisecond, 100*time.Millisecond
		},
		Tune: func(c *node.CoreConfig) { c.Limits.IdleTicks = idleTicks },
	})
	core := n.Inside().Core()
	conn := n.Client().ActiveConnection()
	kv, admin := pb.NewKVClient(conn), adminpb.NewAdminClient(conn)
	ctx := t.Context()
	all := &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}}
	key := func(i int) []byte { return fmt.Appendf(nil, "r%04d", i) }
	if _, err := kv.Put(ctx, &pb.PutRequest{Key: key(0)}, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	// asleep waits until all ranges are, and says what the process has then.
	asleep := func() (heap int64, goroutines int) {
		t.Helper()
		testcluster.Wait(t, func() string { return fmt.Sprintf("sleep of %d ranges", len(core.Ranges.Loaded())) },
			func() bool { return len(core.Ranges.Loaded()) == 0 })
		for range 2 {
			runtime.GC()
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc), runtime.NumGoroutine()
	}
	heapOfOne, goroutinesOfOne := asleep()

	splitAt := func(i int) {
		if _, err := admin.SplitRange(ctx, &adminpb.SplitRangeRequest{At: &adminpb.SplitRangeRequest_Key{Key: key(i)}}); err != nil {
			t.Errorf("split at %q: %v", key(i), err)
		}
	}
	for i := 100; i < ranges; i += 100 {
		splitAt(i)
	}
	inParallel(ranges, func(i int) {
		if i%100 != 0 {
			splitAt(i)
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	list, err := admin.ListRanges(ctx, &adminpb.ListRangesRequest{})
	if err != nil || len(list.Ranges) != ranges {
		t.Fatalf("%d ranges, %v", len(list.GetRanges()), err)
	}
	list = nil
	heapOfAll, goroutinesOfAll := asleep()
	// The engine's flushes hold for a while what they write: what is kept is bounded.
	testcluster.Wait(t, func() string { return fmt.Sprintf("%d KiB of 999 ranges asleep to go", (heapOfAll-heapOfOne)/kib) },
		func() bool {
			heapOfAll, goroutinesOfAll = asleep()
			return testcluster.RaceDetector || heapOfAll-heapOfOne <= 999*4*kib
		})
	t.Logf("asleep: 1 range %d KiB, %d goroutines; %d ranges %d KiB, %d goroutines",
		heapOfOne/kib, goroutinesOfOne, ranges, heapOfAll/kib, goroutinesOfAll)
	if goroutinesOfAll > goroutinesOfOne+10 {
		t.Errorf("%d goroutines with 1,000 ranges asleep, %d with one", goroutinesOfAll, goroutinesOfOne)
	}
	if s := core.Store.Stats(); s.Loaded != 1 {
		t.Errorf("%d groups have ticks, want the meta group alone", s.Loaded)
	}

	// They work: writes of each, everything that spans all of them, and a watch.
	rec := &recorder{}
	w := &history.Watch{Name: "all", Start: "\x00", End: "\x00"}
	watch, err := openWatches(ctx, rec, pb.NewWatchClient(conn), map[*history.Watch]*pb.WatchCreateRequest{w: {Key: []byte{0}, RangeEnd: []byte{0}, WatchId: 1}})
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.record(t, <-watch.got); err != nil { // created
		t.Fatal(err)
	}
	first := w.From
	inParallel(ranges, func(i int) {
		if _, err := kv.Put(ctx, &pb.PutRequest{Key: key(i), Value: key(i)}); err != nil {
			t.Errorf("put: %v", err)
		}
	})
	got, err := kv.Range(ctx, all)
	if err != nil || got.Count != ranges || len(got.Kvs) != ranges || got.Header.Revision != first+ranges-1 {
		t.Fatalf("after 1,000 puts: count %d at revision %d (%v), want %d at %d", got.GetCount(), got.GetHeader().GetRevision(), err, ranges, first+ranges-1)
	}
	for i, kv := range got.Kvs {
		if string(kv.Key) != string(key(i)) || string(kv.Value) != string(key(i)) {
			t.Errorf("key %d is %v", i, kv)
		}
	}
	txn := &pb.TxnRequest{Compare: []*pb.Compare{{Key: key(500), Target: pb.Compare_VERSION, TargetUnion: &pb.Compare_Version{Version: 1}}}}
	for i := range 50 {
		txn.Success = append(txn.Success, putOp(string(key(i*20)), []byte("txn")))
	}
	done, err := kv.Txn(ctx, txn)
	if err != nil || !done.Succeeded || done.Header.Revision != first+ranges {
		t.Fatalf("a transaction over 50 ranges: %v, %v", done, err)
	}
	deleted, err := kv.DeleteRange(ctx, &pb.DeleteRangeRequest{Key: key(250), RangeEnd: key(750)})
	if err != nil || deleted.Deleted != 500 || deleted.Header.Revision != first+ranges+1 {
		t.Fatalf("a delete over 500 ranges: %v, %v", deleted, err)
	}
	watch.finish(t, deleted.Header.Revision, false)
	events := 0
	for _, r := range w.Responses {
		events += len(r.Events)
	}
	if events != ranges+50+500 {
		t.Errorf("the watch over all ranges got %d events, want %d", events, ranges+50+500)
	}

	// Reads wake nobody.
	heap, goroutines := asleep()
	t.Logf("asleep again: %d KiB, %d goroutines", heap/kib, goroutines)
	loads := core.Store.Stats().Loads
	for _, req := range []*pb.RangeRequest{all, {Key: key(1)}, {Key: key(1), Serializable: true},
		{Key: all.Key, RangeEnd: all.RangeEnd, Revision: first + ranges - 1}, {Key: key(0), RangeEnd: key(900), CountOnly: true}} {
		if _, err := kv.Range(ctx, req); err != nil {
			t.Errorf("read %v: %v", req, err)
		}
	}
	if now := core.Store.Stats().Loads; now != loads || len(core.Ranges.Loaded()) != 0 {
		t.Errorf("reads woke %d ranges", now-loads)
	}
	if _, err := kv.Put(ctx, &pb.PutRequest{Key: key(999)}); err != nil {
		t.Error(err)
	}
	if now := core.Store.Stats().Loads; now != loads+1 {
		t.Errorf("a write woke %d ranges, want 1", now-loads)
	}
}
