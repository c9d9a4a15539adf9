package host

import (
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/range/engine"
	"github.com/hawser-kv/hawser/range/replica"
)

// newHost returns a host over an empty engine.
func newHost(t *testing.T) *Host {
	t.Helper()
	e, err := engine.Open(engine.Config{
		FS: vfs.NewMem(), Dir: "data", NewIDs: func() (uint64, uint64) { return 1, 1 },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	store, err := mvcc.Open(e.DB, mvcc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return New(Config{NodeID: 1, DB: e.DB, MVCC: store})
}

// Ranges that are asked for and never come do not keep one from being awaited
// that does.
func TestRangesThatNeverComeMakeRoom(t *testing.T) {
	h := newHost(t)
	const first, last = 1000, 1000 + 3*maxAwaited
	for id := uint64(first); id <= last; id++ {
		for range 2 {
			if _, err := h.load(id); !errors.Is(err, replica.ErrNoReplica) {
				t.Fatalf("load of range %d: %v, want %v", id, err, replica.ErrNoReplica)
			}
		}
	}
	if n := len(h.mu.awaited.ids); n > maxAwaited {
		t.Errorf("%d ranges are awaited, want at most %d", n, maxAwaited)
	}
	if h.takeAwaited(first) {
		t.Error("the range that was asked for first is still awaited")
	}
	if !h.takeAwaited(last) {
		t.Error("the range that was asked for last is not awaited")
	}
	if h.takeAwaited(last) {
		t.Error("a range is awaited after it was taken")
	}
}
