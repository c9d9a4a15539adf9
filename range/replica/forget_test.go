package replica_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/range/replica"
)

// A request that names an epoch which never comes is refused in time, and
// nothing is kept of it.
func TestRequestsOfAnEpochThatNeverComesAreForgotten(t *testing.T) {
	n := newInstantNode(t, descriptor(1, "", "", 1, 1))
	n.limits.WaitTicks = 3
	n.store.Load(1)
	n.settle()
	const requests = 10
	refused := 0
	for i := range requests {
		n.store.Post(1, &replica.Write{Epoch: 7, Req: put(fmt.Sprint("k", i), "1"), Done: func(_ *mvcc.Result, r rangepb.WriteAnswer) {
			if r.Err == nil {
				t.Error("a write of a later epoch was applied")
			}
			refused++
		}})
	}
	n.settle()
	if got := n.loaded[1].EarlyForTesting(); got == 0 {
		t.Fatal("no request waits for its epoch")
	}
	for range 6 {
		n.store.Tick()
		n.settle()
	}
	if got := n.loaded[1].EarlyForTesting(); refused != requests || got != 0 {
		t.Errorf("%d of %d requests are refused, %d are kept", refused, requests, got)
	}
}

// What is asked about ranges that this node does not have leaves nothing
// behind, but while somebody waits.
func TestReadersForgetRangesThatAreNotHere(t *testing.T) {
	n := newInstantNode(t, descriptor(1, "", "", 1, 1))
	n.store.Load(1)
	n.settle()
	if got := n.readers.StatesForTesting(); got != 1 {
		t.Fatalf("%d ranges are known, want 1", got)
	}
	for id := uint64(100); id < 200; id++ {
		if _, ok := n.readers.Resolved(id); ok || n.readers.Descriptor(id) != nil {
			t.Fatalf("range %d is here", id)
		}
		if err := n.readers.Check(rangepb.Piece{RangeID: id, Epoch: 1, Start: []byte("a")}); !errors.Is(err, replica.ErrNotResolved) {
			t.Fatalf("check: %v, want %v", err, replica.ErrNotResolved)
		}
	}
	if got := n.readers.StatesForTesting(); got != 1 {
		t.Errorf("%d ranges are known after questions about others, want 1", got)
	}
	expired, last := 0, uint64(0)
	for id := uint64(100); id < 200; id++ {
		n.readers.Await(id, 1, 1, func(err error) {
			if errors.Is(err, replica.ErrAwaitExpired) {
				expired++
			}
			if id < last {
				t.Errorf("the read of range %d expires after that of %d: another order each time", id, last)
			}
			last = id
		})
	}
	for range 5 {
		n.readers.Tick(3)
	}
	if got := n.readers.StatesForTesting(); expired != 100 || got != 1 {
		t.Errorf("%d of 100 reads have expired, %d ranges are known, want 1", expired, got)
	}

	// One that begins while somebody waits answers, and stays.
	answered := errors.New("not answered")
	n.readers.Await(2, 1, 1, func(err error) { answered = err })
	n.bootstrap(descriptor(2, "", "", 1, 1), 1)
	if rev, ok := n.readers.Resolved(2); !ok || rev != 1 {
		t.Errorf("resolved %d, %v", rev, ok)
	}
	for range 5 {
		n.readers.Tick(3)
	}
	if got := n.readers.StatesForTesting(); answered != nil || got != 2 {
		t.Errorf("the read that waited: %v; %d ranges are known, want 2", answered, got)
	}
}
