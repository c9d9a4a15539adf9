package crash

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hawser-kv/hawser/tests/testcluster"
)

// TestKilledAroundALargeDelete kills a server at some points around the delete of very
// many keys: before it is answered, and while its events are written out, over several
// starts. After that all of it is there or nothing, by list and by count, a watcher of
// what came since gets each event once and in order, and what is put again stays.
func TestKilledAroundALargeDelete(t *testing.T) {
	seed := fromEnv(t, "HAWSER_CRASH_SEED", rand.Uint64())
	rounds := int(fromEnv(t, "HAWSER_CRASH_WIDE", 4))
	t.Logf("HAWSER_CRASH_SEED=%d HAWSER_CRASH_WIDE=%d", seed, rounds)
	rng := rand.New(rand.NewPCG(seed, 2<<32))
	const keys = 6_000
	dir := filepath.Join(testcluster.Dir(t), "data")
	key := func(i int) string { return fmt.Sprintf("w%06d", i) }
	deleted := 0
	for round := range rounds {
		p := start(t, dir)
		client := at(p.address).client(t)
		// The keys, and neighbours that stay.
		for i := 0; i < keys; i += 100 {
			var ops []clientv3.Op
			for j := i; j < i+100; j++ {
				ops = append(ops, clientv3.OpPut(key(j), "1"))
			}
			if _, err := client.Txn(within(t)).Then(ops...).Commit(); err != nil {
				t.Fatal(err)
			}
		}
		var filled int64
		for _, k := range []string{"v", "x"} {
			resp, err := client.Put(within(t), k, "1")
			if err != nil {
				t.Fatal(err)
			}
			filled = resp.Header.Revision
		}

		// The kill comes at some moment from before the delete to when its events are
		// written out.
		answered := make(chan *clientv3.DeleteResponse, 1)
		ctx, cancel := context.WithCancel(within(t))
		go func() {
			resp, err := client.Delete(ctx, "w", clientv3.WithRange("x"))
			if err != nil {
				resp = nil
			}
			answered <- resp
		}()
		var answer *clientv3.DeleteResponse
		if round%2 == 0 {
			answer = <-answered // the events are being written out
			if answer != nil && answer.Deleted != keys {
				t.Fatalf("round %d: deleted %d keys of %d", round, answer.Deleted, keys)
			}
		}
		pause(time.Duration(rng.Int64N(int64(20 * time.Millisecond))))
		p.kill()
		cancel()
		if round%2 == 1 {
			answer = <-answered
		}
		if round%4 >= 2 { // again, while they are written out after a start
			p := start(t, dir)
			pause(time.Duration(rng.Int64N(int64(20 * time.Millisecond))))
			p.kill()
		}

		p = start(t, dir)
		client = at(p.address).client(t)
		count, err := client.Get(within(t), "w", clientv3.WithRange("x"), clientv3.WithCountOnly())
		if err != nil {
			t.Fatal(err)
		}
		list, err := client.Get(within(t), "w", clientv3.WithRange("x"), clientv3.WithKeysOnly())
		if err != nil {
			t.Fatal(err)
		}
		gone := count.Count == 0
		if count.Count != int64(len(list.Kvs)) || !gone && count.Count != keys || answer != nil && !gone {
			t.Fatalf("round %d: %d keys are counted and %d listed of %d, delete answered: %t", round, count.Count, len(list.Kvs), keys, answer != nil)
		}
		before, err := client.Get(within(t), "w", clientv3.WithRange("x"), clientv3.WithCountOnly(), clientv3.WithRev(filled))
		if err != nil || before.Count != keys {
			t.Fatalf("round %d: %d keys are counted at the revision before (%v), want %d", round, before.Count, err, keys)
		}
		// A key that is put again is there, beside those that are still written out.
		again, err := client.Put(within(t), key(keys/2), "2", clientv3.WithPrevKV())
		if err != nil || (again.PrevKv == nil) != gone {
			t.Fatalf("round %d: put again: %v, %v", round, again, err)
		}
		events := eventsUpTo(t, p, filled+1, again.Header.Revision)
		if gone {
			deleted++
			if len(events) != keys+1 {
				t.Fatalf("round %d: %d events after the delete of %d keys and a put", round, len(events), keys)
			}
			for i, e := range events[:keys] {
				if e.Type != mvccpb.Event_DELETE || string(e.Kv.Key) != key(i) || e.Kv.ModRevision != events[0].Kv.ModRevision {
					t.Fatalf("round %d: event %d is %v", round, i, e)
				}
			}
		} else if len(events) != 1 {
			t.Fatalf("round %d: %d events after a put alone", round, len(events))
		}
		if last := events[len(events)-1]; last.Type != mvccpb.Event_PUT || string(last.Kv.Key) != key(keys/2) {
			t.Fatalf("round %d: the last event is %v", round, last)
		}
		kept, err := client.Get(within(t), "v", clientv3.WithRange("z"))
		if err != nil {
			t.Fatal(err)
		}
		if want := 3; gone && (len(kept.Kvs) != want || kept.Count != int64(want) || !bytes.Equal(kept.Kvs[1].Value, []byte("2")) || kept.Kvs[1].Version != 1) {
			t.Fatalf("round %d: after everything %d keys are there: %v", round, kept.Count, kept.Kvs)
		}
		p.stop(t)
	}
	t.Logf("%d of %d deletes were applied", deleted, rounds)
	if deleted < (rounds+1)/2 {
		t.Errorf("%d deletes were applied, every second of %d was answered", deleted, rounds)
	}
}

// pause lets time pass for a kill at a random moment; nothing depends on how much.
func pause(d time.Duration) { <-time.After(d) }

// eventsUpTo returns the events of the large delete's keys from a revision on to another.
func eventsUpTo(t *testing.T, p *process, from, to int64) (events []*mvccpb.Event) {
	t.Helper()
	conn := at(p.address).conn(t)
	stream, err := pb.NewWatchClient(conn).Watch(within(t))
	if err != nil {
		t.Fatal(err)
	}
	err = stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
		Key: []byte("w"), RangeEnd: []byte("x"), StartRevision: from}}})
	if err != nil {
		t.Fatal(err)
	}
	for {
		resp, err := stream.Recv()
		if err != nil || resp.Canceled {
			t.Fatalf("watch from %d after %d events: %v, %v", from, len(events), resp.GetCancelReason(), err)
		}
		events = append(events, resp.Events...)
		if n := len(events); n > 0 && events[n-1].Kv.ModRevision >= to {
			return events
		}
	}
}
