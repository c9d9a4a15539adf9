package node

import (
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hawser-kv/hawser/range/engine"
	"github.com/hawser-kv/hawser/range/replica"
	"github.com/hawser-kv/hawser/range/store"
)

// Ranges that are asked for and never come do not keep one from being awaited
// that does.
func TestRangesThatNeverComeMakeRoom(t *testing.T) {
	c, err := OpenCore(CoreConfig{
		Engine: engine.Config{FS: vfs.NewMem(), Dir: "data", NewIDs: func() (uint64, uint64) { return 1, 1 }},
		Store: store.Config{
			ManualSync: true,
			FreeBytes:  func() (uint64, error) { return 1 << 40, nil },
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Store.Stop()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	const first, last = 1000, 1000 + 3*maxAwaited
	for id := uint64(first); id <= last; id++ {
		for range 2 {
			if _, err := c.load(id); !errors.Is(err, replica.ErrNoReplica) {
				t.Fatalf("load of range %d: %v, want %v", id, err, replica.ErrNoReplica)
			}
		}
	}
	if n := len(c.mu.awaited.ids); n > maxAwaited {
		t.Errorf("%d ranges are awaited, want at most %d", n, maxAwaited)
	}
	if c.mu.awaited.take(first) {
		t.Error("the range that was asked for first is still awaited")
	}
	if !c.mu.awaited.take(last) {
		t.Error("the range that was asked for last is not awaited")
	}
	if c.mu.awaited.take(last) {
		t.Error("a range is awaited after it was taken")
	}
}
