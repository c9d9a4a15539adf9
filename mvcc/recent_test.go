package mvcc

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// stagedVersion is a version of the model: what a store has staged.
type stagedVersion struct {
	rev int64
	sub uint32
	row []byte
}

// recentModel is what the engine holds, with the newest versions of each key
// last; those above visible are staged and not committed.
type recentModel struct {
	versions map[string][]stagedVersion
	visible  int64
}

// at returns what a reader of the engine at rev finds.
func (m *recentModel) at(key string, rev int64) (v stagedVersion, found bool) {
	for _, s := range m.versions[key] {
		if s.rev <= min(rev, m.visible) {
			v, found = s, true
		}
	}
	return v, found
}

// What the recent versions answer is what the engine would answer, whatever was
// dropped, displaced by another key of the same hash, too large to keep, or
// offered by readers that see less than what is staged.
func TestRecentVersionsAnswerAsTheEngineWould(t *testing.T) {
	for _, c := range []struct {
		name  string
		bytes int64
		mask  uint64
	}{
		{"room for all", DefaultRecentBytes, ^uint64(0)},
		{"little room", 32 * 2 * 200, ^uint64(0)},
		{"one shard, little room", 32 * 2 * 200, ^uint64(31)},
		{"colliding hashes", 32 * 2 * 400, 7 << 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			hits := 0
			for seed := range uint64(20) {
				hits += checkRecent(t, newRecentWithMask(c.bytes, c.mask), rand.New(rand.NewPCG(seed, 7)))
			}
			if hits < 300 {
				t.Errorf("only %d reads were answered: the test shows nothing", hits)
			}
		})
	}
}

func newRecentWithMask(bytes int64, mask uint64) *recent {
	c := newRecent(bytes)
	c.mask = mask
	return c
}

func checkRecent(t *testing.T, c *recent, rng *rand.Rand) (hits int) {
	t.Helper()
	m := &recentModel{versions: make(map[string][]stagedVersion)}
	rev := int64(0)
	for range 3000 {
		key := fmt.Sprintf("key-%02d", rng.IntN(40))
		switch rng.IntN(8) {
		case 0, 1: // stage
			rev++
			for sub := range uint32(1 + rng.IntN(2)) {
				row := bytes.Repeat([]byte{byte(rng.IntN(256))}, 1+rng.IntN(120))
				if rng.IntN(20) == 0 {
					row = make([]byte, 500) // does not fit where there is little room
				}
				m.versions[key] = append(m.versions[key], stagedVersion{rev, sub, row})
				c.put([]byte(key), rev, sub, row)
			}
		case 2: // commit some of it
			m.visible += rng.Int64N(rev - m.visible + 1)
		default: // read at or below what is visible, as a reader may
			readRev := m.visible - rng.Int64N(min(m.visible, 5)+1)
			want, found := m.at(key, readRev)
			row, modRevision, ok := c.get(nil, []byte(key), readRev)
			if ok {
				hits++
				if !found || modRevision != want.rev || !bytes.Equal(row, want.row) {
					t.Fatalf("%s at %d: %d %x, the engine has %t %d %x", key, readRev, modRevision, row, found, want.rev, want.row)
				}
				continue
			}
			// As Snapshot.seek: the newest that the engine shows.
			if newest, found := m.at(key, m.visible); found && newest.rev <= readRev {
				c.offer([]byte(key), newest.rev, newest.sub, newest.row, readRev, c.cleared.Load())
			}
		}
	}
	return hits
}

// After clear nothing of before is answered, nor taken from a view of before.
func TestClearedRecentVersionsStayAway(t *testing.T) {
	c := newRecent(DefaultRecentBytes)
	key := []byte("key")
	c.put(key, 5, 0, []byte("row"))
	before := c.cleared.Load()
	c.clear()
	if _, _, ok := c.get(nil, key, 9); ok {
		t.Error("answered after clear")
	}
	c.offer(key, 5, 0, []byte("row"), 9, before)
	if _, _, ok := c.get(nil, key, 9); ok {
		t.Error("took an offer of a view from before clear")
	}
	c.offer(key, 6, 0, []byte("new"), 9, c.cleared.Load())
	if row, rev, ok := c.get(nil, key, 9); !ok || rev != 6 || string(row) != "new" {
		t.Errorf("answered %q at %d, %t", row, rev, ok)
	}
}

// What was in the engine at the start may be applied again, older than what the
// engine has: it is not taken for the newest.
func TestVersionsAppliedAgainAreNotTakenForTheNewest(t *testing.T) {
	h := newHistory(t)
	first := h.do(&Request{Put: &pb.PutRequest{Key: []byte("a"), Value: []byte("1")}})
	rev := h.rev
	h.put("a", "2")
	reopened, err := Open(h.s.db, Options{})
	if err != nil {
		t.Fatal(err)
	}
	h.s = reopened
	h.apply(rev, first.Effects)
	n, err := h.s.Snapshot(h.rev)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	for range 2 { // from the engine, then from what it taught
		kv, err := n.Get([]byte("a"))
		if err != nil || kv.GetModRevision() != h.rev || string(kv.GetValue()) != "2" {
			t.Errorf("read %v, %v", kv, err)
		}
	}
	if _, _, ok := h.s.recent.get(nil, []byte("a"), h.rev); !ok {
		t.Error("the version that was read is not among the recent ones")
	}
}

// A snapshot that needs the engine only after its revision was forgotten says so;
// one that has pinned the engine before does not.
func TestR9SnapshotThatPinsTooLateIsCompacted(t *testing.T) {
	h := newHistory(t)
	h.put("a", "1")
	h.put("b", "1")
	early, err := h.s.Snapshot(h.rev - 1)
	if err != nil {
		t.Fatal(err)
	}
	defer early.Close()
	late, err := h.s.Snapshot(h.rev - 1)
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	visit := func(*mvccpb.KeyValue) (bool, error) { return true, nil }
	if err := early.Scan(nil, nil, ScanOptions{}, visit); err != nil {
		t.Fatal(err)
	}
	if err := h.s.SetForgotten(h.rev); err != nil {
		t.Fatal(err)
	}
	if err := early.Scan(nil, nil, ScanOptions{}, visit); err != nil {
		t.Errorf("scan of a pinned state: %v", err)
	}
	if err := late.Scan(nil, nil, ScanOptions{}, visit); !errors.Is(err, ErrCompacted) {
		t.Errorf("scan after the revision was forgotten: %v", err)
	}
}

func BenchmarkRecent(b *testing.B) {
	const held = 100_000
	c := newRecent(DefaultRecentBytes)
	keys := make([][]byte, held)
	row := make([]byte, 264)
	for i := range keys {
		keys[i] = benchKey(i * 7919 % benchKeys)
		c.put(keys[i], int64(i+1), 0, row)
	}
	b.Run("get", func(b *testing.B) {
		b.ReportAllocs()
		var few [512]byte
		for i := range b.N {
			if _, _, ok := c.get(few[:0], keys[i*7919%held], held); !ok {
				b.Fatal("not there")
			}
		}
	})
	b.Run("put", func(b *testing.B) {
		b.ReportAllocs()
		for i := range b.N {
			c.put(keys[i*7919%held], int64(held+i+1), 0, row)
		}
	})
}
