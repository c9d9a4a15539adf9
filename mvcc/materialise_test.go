package mvcc

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hawser-kv/hawser/mvcc/counts"
)

// damage spoils the version of a key.
func (h *history) damage(key string, rev int64) {
	h.t.Helper()
	if err := h.s.db.Set(appendVersionKey(nil, []byte(key), rev, 0), []byte{rowFormat << 4}, pebble.NoSync); err != nil {
		h.t.Fatal(err)
	}
}

// materialise writes out what can be, blocks what cannot, and returns the revisions of
// both.
func (h *history) materialise() (written, blocked []int64) {
	h.t.Helper()
	for {
		did, err := h.s.MaterialiseStep(1)
		var span *SpanError
		switch {
		case errors.As(err, &span) && errors.Is(err, pebble.ErrCorruption):
			blocked = append(blocked, span.Revision)
			h.s.Block(span)
		case err != nil:
			h.t.Fatal(err)
		}
		if did.Revision != 0 {
			written = append(written, did.Revision)
		}
		if did.Done {
			return written, blocked
		}
	}
}

// Damage in the span of one deletion holds up that one and those of the same keys, and
// no other; a start tries again.
func TestDamageHoldsUpOnlyTheDeletionThatHasIt(t *testing.T) {
	h := newHistory(t)
	keys := []string{"a1", "a2", "a3", "b1", "b2", "c1", "c2"}
	for _, k := range keys {
		h.put(k, "1")
	}
	damagedAt := h.rev - 5
	h.deleteSpan("a1", "b")
	first := h.rev
	h.put("a3", "2")
	h.put("a4", "2")
	h.deleteSpan("b", "c")
	second := h.rev
	h.deleteSpan("a3", "b")
	behind := h.rev
	h.deleteSpan("c", "d")
	last := h.rev
	h.damage("a2", damagedAt)

	written, blocked := h.materialise()
	if len(blocked) != 1 || blocked[0] != first {
		t.Errorf("the deletions at %v are damaged, want %d", blocked, first)
	}
	if len(written) != 2 || written[0] != second || written[1] != last {
		t.Errorf("the deletions at %v are written out, want %d and %d", written, second, last)
	}
	if st, want := h.s.PendingStats(), (PendingStats{Spans: 2, Blocked: 2, Keys: 5, BlockedKeys: 5, Oldest: first}); st != want {
		t.Errorf("%+v, want %+v", st, want)
	}
	if n, keys := h.s.PendingSpans(), h.s.Pending(); n != 0 || keys != 0 {
		t.Errorf("%d spans, %d keys can be written out", n, keys)
	}
	if from := h.s.PendingFrom(); from != first {
		t.Errorf("pending from %d, want %d", from, first)
	}
	if _, found := h.s.Blocked(first - 1); found {
		t.Error("blocked before the damaged one")
	}
	if b, found := h.s.Blocked(math.MaxInt64); !found || b.Revision != first || string(b.Start) != "a1" || string(b.End) != "b" {
		t.Errorf("blocked: %+v, %t", b, found)
	}
	for _, span := range []struct {
		start, end string
		want       int64
	}{{"a", "a1", latestRevision}, {"a", "b", first - 1}, {"a5", "b", first - 1}, {"b", "", latestRevision}} {
		if got := h.s.EventsComplete([]byte(span.start), []byte(span.end), 0); got != span.want {
			t.Errorf("events of %q to %q are complete up to %d, want %d", span.start, span.end, got, span.want)
		}
	}
	if err := h.s.HashVersions([]byte("b"), nil, last, 0, NewHasher(0)); err != nil {
		t.Errorf("hash of others: %v", err)
	}
	if err := h.s.HashVersions([]byte("a"), nil, last, 0, NewHasher(0)); !errors.Is(err, ErrPending) {
		t.Errorf("hash: %v", err)
	}

	// One of the same keys that comes later waits, too, one of others does not.
	h.put("b1", "3")
	h.put("b2", "3")
	h.deleteSpan("b", "c")
	if written, blocked := h.materialise(); len(blocked) != 0 || len(written) != 1 || written[0] != h.rev {
		t.Errorf("written out %v, damaged %v", written, blocked)
	}
	h.put("a3", "3")
	h.put("a4", "3")
	h.deleteSpan("a3", "a5")
	if written, blocked := h.materialise(); len(blocked) != 0 || len(written) != 0 {
		t.Errorf("written out %v, damaged %v, behind what is blocked", written, blocked)
	}

	// With a checkpoint: the counts, told again, would need what is damaged.
	if err := h.s.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := Open(h.s.db, Options{})
	if err != nil {
		t.Fatal(err)
	}
	h.s = s
	if written, blocked := h.materialise(); len(blocked) != 1 || blocked[0] != first || len(written) != 0 {
		t.Errorf("after a start: written out %v, damaged %v", written, blocked)
	}
	if st := h.s.PendingStats(); st.Blocked != 3 || behind <= first {
		t.Errorf("after a start: %+v", st)
	}
}

// A number of keys that is not that of the effect is damage of that span.
func TestAWrongNumberOfKeysIsDamageOfItsSpan(t *testing.T) {
	for name, change := range map[string]int64{"less than were counted": 1, "more than were counted": -1} {
		t.Run(name, func(t *testing.T) {
			h := newHistory(t)
			for _, k := range []string{"a1", "a2", "b1", "b2"} {
				h.put(k, "1")
			}
			h.deleteSpan("a", "b")
			first := h.rev
			h.deleteSpan("b", "c")
			p := (*h.s.pending.list.Load())[0]
			p.left += change
			if err := h.s.db.Set(p.key(), p.value(), pebble.NoSync); err != nil {
				t.Fatal(err)
			}
			s, err := Open(h.s.db, Options{})
			if err != nil {
				t.Fatal(err)
			}
			h.s = s
			if written, blocked := h.materialise(); len(blocked) != 1 || blocked[0] != first || len(written) != 1 || written[0] != h.rev {
				t.Errorf("written out %v, damaged %v", written, blocked)
			}
		})
	}
}

// What is not committed yet is left out, with what it covers, and others go on.
func TestWhatIsNotCommittedHoldsUpNoOther(t *testing.T) {
	h := newHistory(t)
	for _, k := range []string{"a1", "a2", "b1", "b2"} {
		h.put(k, "1")
	}
	h.deleteSpan("a", "b")
	p := (*h.s.pending.list.Load())[0]
	h.put("a1", "2")
	h.put("a2", "2")
	h.deleteSpan("a", "a3")
	h.deleteSpan("b", "c")
	if err := h.s.db.Delete(p.key(), pebble.NoSync); err != nil {
		t.Fatal(err)
	}
	if written, _ := h.materialise(); len(written) != 1 || written[0] != h.rev {
		t.Errorf("written out %v before the commit, want %d", written, h.rev)
	}
	if err := h.s.db.Set(p.key(), p.value(), pebble.NoSync); err != nil {
		t.Fatal(err)
	}
	if written, _ := h.materialise(); len(written) != 2 || written[0] != p.rev || written[1] != h.rev-1 {
		t.Errorf("written out %v after it, want %d and %d", written, p.rev, h.rev-1)
	}
}

// A run of keys that is to be cut belongs to whatever range has them. If they are
// damaged, it stays whole, and what is applied to other ranges goes on.
func TestDamageInARunThatIsCutConcernsNoOtherRange(t *testing.T) {
	_, s := openStore(t, vfs.NewMem(), Options{Counts: counts.Options{RunKeys: 8}})
	h := &history{t: t, s: s, rev: 1, env: Env{Compacted: -1}}
	b := h.s.db.NewBatch()
	defer b.Close()
	if err := h.s.EnsureBoundary(b, []byte("m")); err != nil {
		t.Fatal(err)
	}
	key := ""
	for i := 0; !h.s.counts.NeedsMaintenance(); i++ {
		key = fmt.Sprintf("a%03d", i)
		h.put(key, "1")
	}
	h.damage(key, h.rev) // in the run of the greatest keys, which grew
	for i := range 4 * maintainEvery {
		h.put("z", fmt.Sprint(i)) // fails the test if it cannot be applied
	}
	if !h.s.counts.NeedsMaintenance() {
		t.Error("no run was to be cut: the test shows nothing")
	}
	if n, err := h.s.count([]byte("a"), []byte("m"), h.rev); err != nil || n == 0 {
		t.Errorf("%d keys, %v", n, err)
	}
}
