package integration

import (
	"fmt"
	"sync/atomic"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/hawser-kv/hawser/tests/testcluster"
)

// TestThousandsOfWatchersFromTheFirstRevision: 2,000 watchers that begin at the
// first revision, as after a restart of their clients, get exactly their events
// of 20,000 revisions, in bounded memory, and the node reads these revisions for
// many of them at a time.
func TestThousandsOfWatchersFromTheFirstRevision(t *testing.T) {
	const streams, each, puts, keys, keysOfPrefix = 4, 500, 20_000, 1000, 10
	keyOf := func(i int) []byte { return fmt.Appendf(nil, "w%03d/%d", i/keysOfPrefix, i%keysOfPrefix) }
	p := testcluster.StartProcess(t, testcluster.ProcessOptions{Splits: []string{"w020", "w040", "w060", "w080"}})
	kv := pb.NewKVClient(connect(t, p, 0))
	value := noise(1)[:256]
	var next, last atomic.Int64
	inParallel(32, func(int) {
		for i := next.Add(1) - 1; i < puts; i = next.Add(1) - 1 {
			resp, err := kv.Put(t.Context(), &pb.PutRequest{Key: keyOf(int(i) % keys), Value: value})
			if err != nil {
				t.Error(err)
				return
			}
			for rev := last.Load(); resp.Header.Revision > rev && !last.CompareAndSwap(rev, resp.Header.Revision); rev = last.Load() {
			}
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	before := p.Report()

	// Watcher i watches one key, every tenth a prefix, every five-hundredth all.
	request := func(i int) (r *pb.WatchCreateRequest, events int) {
		r = &pb.WatchCreateRequest{StartRevision: 1, Key: keyOf(i % keys)}
		switch {
		case i%500 == 0:
			r.Key, r.RangeEnd = []byte("w"), []byte("x")
			return r, puts
		case i%10 == 0:
			prefix := fmt.Sprintf("w%03d", i/10%100)
			r.Key, r.RangeEnd = []byte(prefix+"/"), []byte(prefix+"0")
			return r, puts / keys * keysOfPrefix
		}
		return r, puts / keys
	}
	inParallel(streams, func(s int) {
		var reqs []*pb.WatchCreateRequest
		for i := range each {
			r, _ := request(s*each + i)
			reqs = append(reqs, r)
		}
		c := openCall(t, connect(t, p, 0), reqs)
		if c == nil {
			return
		}
		c.readUpTo(t, last.Load())
		for i := range each {
			if _, want := request(s*each + i); c.counts[i+1] != want {
				t.Errorf("watcher %d of stream %d got %d events, want %d", i, s, c.counts[i+1], want)
			}
		}
	})
	after := p.Report()
	t.Log(before, "->", after)
	// A stream holds 8 MiB and a response, and the sender has one more in hand.
	atMost(t, "2,000 watchers that catch up", after.PeakLive-before.Heap, 150*mib)
	// One walk is usual. How many watchers are there when the first begin depends on
	// the machine: ten to a walk is what none is too slow for.
	rows := after.HistoryRows - before.HistoryRows
	t.Logf("%d rows of the index were walked", rows)
	if most := int64(streams * each * puts / 10); rows > most {
		t.Errorf("%d rows of the index were walked for %d watchers, want at most %d", rows, streams*each, most)
	}
}
