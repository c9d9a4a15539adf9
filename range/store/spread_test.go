package store

import (
	"context"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestRangesAreSpreadEvenly: whatever the ranges that are there, as long as their ids
// were given out in order, no worker has many more than another, and with a worker of
// its own the meta group shares with none.
func TestRangesAreSpreadEvenly(t *testing.T) {
	db := openDB(t, vfs.NewMem())
	for _, shards := range []int{1, 2, 4, 7} {
		for _, meta := range []bool{false, true} {
			r := newRig(t, db, func(c *Config) { c.Shards, c.MetaShard = shards, meta })
			counts := map[*shard]int{}
			const ranges = 1000
			for id := uint64(1); id <= ranges; id++ {
				counts[r.store.shardOf(id)]++
			}
			if len(counts) != shards {
				t.Fatalf("%d shards, %d have ranges", shards, len(counts))
			}
			for s, n := range counts {
				if n > ranges/shards+1 {
					t.Errorf("%d shards: number %d has %d of %d ranges", shards, s.index, n, ranges)
				}
			}
			if alone := counts[r.store.shardOf(metaGroup)] == 0; alone != meta {
				t.Errorf("%d shards: the meta group is alone: %v", shards, alone)
			}
			r.store.Stop()
		}
	}
}

// stuck is a member whose Flush takes until the test lets it go.
type stuck struct {
	flushing chan struct{}
	goOn     chan struct{}
}

func (m *stuck) Handle(any) {}
func (m *stuck) Flush(*Round) {
	m.flushing <- struct{}{}
	<-m.goOn
}
func (m *stuck) Tick()            {}
func (m *stuck) WantsTicks() bool { return false }
func (m *stuck) Close(error)      {}

// TestMetaGroupDoesNotWaitForARange: a range that keeps its worker busy, as a large
// entry that is applied does, delays neither the meta group nor a range of another shard.
func TestMetaGroupDoesNotWaitForARange(t *testing.T) {
	db := openDB(t, vfs.NewMem())
	const busy, other = 2, 3
	m := &stuck{flushing: make(chan struct{}), goOn: make(chan struct{})}
	flushed := make(chan uint64)
	r := newRig(t, db, func(c *Config) {
		c.ManualSync = false
		c.Shards, c.MetaShard = 2, true
	})
	r.store.cfg.Loader = func(id uint64) (Member, error) {
		if id == busy {
			return m, nil
		}
		return flushOnly(func() { flushed <- id }), nil
	}
	r.store.Start(context.Background())
	r.store.Load(busy)
	<-m.flushing
	for _, id := range []uint64{metaGroup, other} {
		r.store.Load(id)
		if got := <-flushed; got != id {
			t.Fatalf("group %d has its turn, want %d", got, id)
		}
	}
	close(m.goOn)
	r.store.Stop()
}

// flushOnly is a member that calls it when it is flushed.
type flushOnly func()

func (flushOnly) Handle(any)       {}
func (f flushOnly) Flush(*Round)   { f() }
func (flushOnly) Tick()            {}
func (flushOnly) WantsTicks() bool { return false }
func (flushOnly) Close(error)      {}
