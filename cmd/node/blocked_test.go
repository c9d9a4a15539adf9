package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/adminpb"
)

// spoil makes the newest version of a key one that cannot be read.
func spoil(t *testing.T, db *pebble.DB, key string) {
	t.Helper()
	lower, upper := mvcc.VersionSpan([]byte(key), []byte(key+"\x00"))
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		t.Fatal(err)
	}
	if !it.First() {
		t.Fatalf("there is no %q", key)
	}
	row := bytes.Clone(it.Key())
	if err := errors.Join(it.Close(), db.Set(row, nil, pebble.Sync)); err != nil {
		t.Fatal(err)
	}
}

// TestDamageUnderALargeDeletionStopsItsRangeOnly: a large deletion whose keys are
// damaged is not written out. Its range stops, which shows everywhere; large deletions,
// watches and hashes of other ranges go on, also more of them than may be pending, and
// what waits for the blocked one is refused at once. The next process finds the same.
func TestDamageUnderALargeDeletionStopsItsRangeOnly(t *testing.T) {
	const mostPending = 2
	mem := vfs.NewMem()
	cfg := testConfig(mem)
	cfg.Tune = func(c *CoreConfig) {
		c.Limits.MaxDeletedKeys, c.Router.SpanKeys, c.Router.MaxPendingSpans = 1, 1, mostPending
	}
	n, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := dial(t, n)
	fill := func(prefix string) {
		t.Helper()
		for i := range 5 {
			if _, err := c.Put(ctx, fmt.Sprint(prefix, i), "1"); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, at := range []string{"m", "n"} {
		if _, err := adminpb.NewAdminClient(dialGRPC(t, n)).SplitRange(ctx, splitAt(at)); err != nil {
			t.Fatal(err)
		}
	}
	fill("m")
	spoil(t, n.core.DB, "m3")
	streams := [3]clientv3.Watcher{}
	for i := range streams {
		streams[i] = clientv3.NewWatcher(c)
		defer streams[i].Close()
	}
	// Of what is blocked, and of everything: they end.
	ends := []clientv3.WatchChan{
		streams[0].Watch(ctx, "m", clientv3.WithPrefix()), streams[1].Watch(ctx, "", clientv3.WithPrefix()),
	}
	healthy := streams[2].Watch(ctx, "z", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	if r := <-healthy; !r.Created {
		t.Fatalf("created: %v", r)
	}
	del, err := c.Delete(ctx, "m", clientv3.WithPrefix())
	if err != nil || del.Deleted != 5 {
		t.Fatalf("delete: %v, %v", del, err)
	}
	blocked := del.Header.Revision
	compacted := make(chan error, 1)
	go func() { // before the damage is found, or after
		_, err := c.Compact(ctx, blocked, clientv3.WithCompactPhysical())
		compacted <- err
	}()
	for i, w := range ends {
		var last clientv3.WatchResponse
		for r := range w {
			last = r
		}
		if ctx.Err() != nil || !errors.Is(last.Err(), rpctypes.ErrCorrupt) {
			t.Errorf("watch %d ends with %v", i, last.Err())
		}
	}
	if err := <-compacted; !errors.Is(err, rpctypes.ErrCorrupt) {
		t.Errorf("physical compaction at the deletion: %v", err)
	}
	othersGoOn := func() {
		t.Helper()
		if ranges, outside := n.core.Damaged(); len(ranges) != 1 || outside {
			t.Errorf("damaged: %v, outside %t", ranges, outside)
		}
		for range 3 * mostPending {
			fill("z")
			if del, err := c.Delete(ctx, "z", clientv3.WithPrefix()); err != nil || del.Deleted != 5 {
				t.Fatalf("a large delete of another range: %v, %v", del, err)
			}
			for deleted := 0; deleted < 5; {
				r, ok := <-healthy
				if !ok || r.Err() != nil {
					t.Fatalf("the watch of another range: %v", r.Err())
				}
				for _, e := range r.Events {
					if e.Type == clientv3.EventTypeDelete {
						deleted++
					}
				}
			}
		}
		now, err := c.Get(ctx, "z")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Compact(ctx, now.Header.Revision, clientv3.WithCompactPhysical()); !errors.Is(err, rpctypes.ErrCorrupt) {
			t.Errorf("physical compaction: %v", err)
		}
		if _, err := pb.NewMaintenanceClient(dialGRPC(t, n)).HashKV(ctx, &pb.HashKVRequest{}); !isCorrupt(err) {
			t.Errorf("hash: %v", err)
		}
		m := scrape(t, n)
		for name, want := range map[string]float64{
			"hawser_pending_deletions": 1, "hawser_pending_deletions_blocked": 1, "hawser_pending_deletion_keys": 5,
			"hawser_pending_deletions_oldest_revision": float64(blocked), "hawser_ranges_damaged": 1,
		} {
			if got := value(m, name); got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
	}
	othersGoOn()
	closeTest(t, n)

	if n, err = Start(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	defer closeTest(t, n)
	c = dial(t, n)
	w := clientv3.NewWatcher(c)
	defer w.Close()
	healthy = w.Watch(ctx, "z", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	if r := <-healthy; !r.Created {
		t.Fatalf("created after a start: %v", r)
	}
	for found := false; !found && ctx.Err() == nil; {
		ranges, changed := n.core.Ranges.Damaged.List()
		if found = len(ranges) > 0; !found {
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
	}
	othersGoOn()
}
