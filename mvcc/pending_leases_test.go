package mvcc

import (
	"testing"
)

// A key whose deletion is being written out is put again with the lease that it had,
// while the step has looked at it and is not committed: it stays attached.
func TestAStepTakesNoLeaseFromAKeyThatIsPutAgain(t *testing.T) {
	const lease = 7
	s := newStore(t)
	for i, k := range []string{"a", "b", "c"} {
		applied(t, s, int64(i+2), Effect{Key: []byte(k), Version: 1, Lease: lease})
	}
	applied(t, s, 10, Effect{Key: []byte("a"), End: []byte("z"), Count: 3, Tombstone: true})
	m := materialising{s: s, b: s.db.NewBatch(), p: (*s.pending.list.Load())[0]}
	if err := m.stage(10); err != nil {
		t.Fatal(err)
	}
	applied(t, s, 11, Effect{Key: []byte("b"), Version: 1, Lease: lease})
	if did, err := m.commit(); !did.Done || err != nil {
		t.Fatal(did, err)
	}
	if err := m.b.Close(); err != nil {
		t.Fatal(err)
	}
	keys, err := LeaseKeys(s.Latest(), lease, []byte("a"), nil)
	if err != nil || len(keys) != 1 || string(keys[0]) != "b" {
		t.Errorf("the lease has %q (%v), want b", keys, err)
	}
	// The rows of the others are gone.
	if rows, err := s.Latest().leaseCandidates(lease, nil, nil); err != nil || len(rows) != 1 {
		t.Errorf("rows of %q (%v)", rows, err)
	}
	if s.pending.leases.attached != nil {
		t.Error("what was attached is kept though nothing is pending")
	}
}
