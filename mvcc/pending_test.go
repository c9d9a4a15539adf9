package mvcc

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/hawser-kv/hawser/mvcc/counts"
)

// deleteSpan deletes the keys of [start, end), with one effect.
func (h *history) deleteSpan(start, end string) int64 {
	h.t.Helper()
	env := h.env
	h.env.SpanKeys = 1
	defer func() { h.env.SpanKeys = env.SpanKeys }()
	before := h.rev
	resp := h.do(&Request{DeleteRange: &pb.DeleteRangeRequest{Key: []byte(start), RangeEnd: []byte(end)}}).DeleteRange
	if h.s.PendingFrom() > before+1 {
		h.t.Fatalf("the deletion of [%q, %q) at %d is not pending", start, end, h.rev)
	}
	return resp.Deleted
}

// A reader of an older revision may find a version while its deletion is pending, and
// be done when that is written out: what it has found is no newest version.
func TestAnOldReaderBringsNoDeletedKeyBack(t *testing.T) {
	h := newHistory(t)
	h.put("a", "1")
	h.put("b", "1")
	h.s.recent.clear()
	snap, err := h.s.Snapshot(h.rev)
	if err != nil {
		t.Fatal(err)
	}
	defer snap.Close()
	if kv, err := snap.Get([]byte("b")); kv == nil || err != nil { // pins the state
		t.Fatal(kv, err)
	}
	h.deleteSpan("a", "c")
	if did, err := h.s.MaterialiseStep(10); !did.Done || err != nil {
		t.Fatal(did, err)
	}
	if kv, err := snap.Get([]byte("a")); kv == nil || err != nil {
		t.Fatalf("the view of before does not have the key: %v", err)
	}
	if kv, err := h.s.Latest().Get([]byte("a")); kv != nil || err != nil {
		t.Errorf("a deleted key is back: %v, %v", kv, err)
	}
}

// Counts are exact at every revision while large deletions are pending, overlap
// keys that were put again, are written out, and after starts in between.
func TestCountsOfLargeDeletions(t *testing.T) {
	fs := vfs.NewMem()
	opts := Options{Counts: counts.Options{RunKeys: 50}}
	db, s := openStore(t, fs, opts)
	h := &history{t: t, s: s, rev: 1, env: Env{Compacted: -1}}
	const keys = 2000
	want := map[int64]map[string]bool{1: {}}
	now := map[string]bool{}
	note := func() {
		state := map[string]bool{}
		for k := range now {
			state[k] = true
		}
		want[h.rev] = state
	}
	key := func(i int) string { return fmt.Sprintf("k%05d", i) }
	fill := func(from, to, step int) {
		for i := from; i < to; i += step {
			h.put(key(i), "v")
			now[key(i)] = true
		}
		note()
	}
	end := func(from, to int) {
		n := int64(0)
		for i := from; i < to; i++ {
			if now[key(i)] {
				n++
				delete(now, key(i))
			}
		}
		if got := h.deleteSpan(key(from), key(to)); got != n {
			t.Fatalf("deleted %d keys, there were %d", got, n)
		}
		note()
	}
	check := func(when string) {
		t.Helper()
		for rev, state := range want {
			for _, span := range [][2]int{{0, keys}, {3, keys - 3}, {111, 1234}, {777, 778}, {500, 1500}, {333, 600}} {
				n := int64(0)
				for k := range state {
					if k >= key(span[0]) && k < key(span[1]) {
						n++
					}
				}
				if got, err := h.s.count([]byte(key(span[0])), []byte(key(span[1])), rev); err != nil || got != n {
					t.Fatalf("%s: %d keys in %v at %d, want %d (%v)", when, got, span, rev, n, err)
				}
			}
		}
	}
	reopen := func() {
		t.Helper()
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		db, s = openStore(t, fs, opts)
		h.s = s
	}
	fill(0, keys, 1)
	end(333, 1777)
	check("pending")
	reopen()
	check("pending, after a start")
	fill(200, 1000, 7)
	end(444, 900)
	fill(500, 600, 2)
	check("two pending")
	for n := 1; ; n++ {
		did, err := h.s.MaterialiseStep(60)
		if err != nil {
			t.Fatal(err)
		}
		if n%7 == 0 {
			check("some written out")
			reopen()
			check("some written out, after a start")
		}
		if n%10 == 0 && h.s.counts.NeedsMaintenance() {
			if err := h.s.counts.Maintain(keyScanner{h.s}, 5); err != nil {
				t.Fatal(err)
			}
		}
		if did.Done {
			break
		}
	}
	check("written out")
	if err := h.s.Close(); err != nil {
		t.Fatal(err)
	}
	reopen()
	check("after a checkpoint")
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// Who needs the rows of a deletion is told to wait for it.
func TestWhatWaitsForAPendingDeletion(t *testing.T) {
	h := newHistory(t)
	for _, k := range []string{"a", "b", "c", "d"} {
		h.put(k, "1")
	}
	before := h.rev
	h.deleteSpan("b", "d")
	at := h.rev
	h.put("b", "2")
	waits := func(pending bool) {
		t.Helper()
		if err := h.s.HashVersions(nil, nil, before, before, NewHasher(0)); err != nil {
			t.Errorf("hash before it: %v", err)
		}
		if err := h.s.HashVersions(nil, nil, at, before, NewHasher(0)); errors.Is(err, ErrPending) != pending {
			t.Errorf("hash at it: %v", err)
		}
		for _, span := range []struct {
			start, end string
			waits      bool
		}{{"a", "b", false}, {"a", "bb", true}, {"c", "", true}, {"d", "", false}} {
			complete := h.s.EventsComplete([]byte(span.start), []byte(span.end), 0)
			if want := span.waits && pending; (complete == at-1) != want || !want && complete != latestRevision {
				t.Errorf("events of %q-%q are complete up to %d", span.start, span.end, complete)
			}
		}
		if complete := h.s.EventsComplete([]byte("b"), []byte("d"), at); complete != latestRevision {
			t.Errorf("events after it are complete up to %d", complete)
		}
	}
	waits(true)
	if err := h.s.SetForgotten(before); err != nil {
		t.Errorf("compaction before it: %v", err)
	}
	if err := h.s.SetForgotten(at); !errors.Is(err, ErrPending) {
		t.Errorf("compaction at it: %v", err)
	}
	if n := h.s.Pending(); n != 2 {
		t.Errorf("%d keys are pending", n)
	}
	if _, err := h.s.MaterialiseStep(100); err != nil {
		t.Fatal(err)
	}
	waits(false)
	if err := h.s.SetForgotten(at); err != nil {
		t.Errorf("compaction at it: %v", err)
	}
	if kv, err := h.s.Latest().Get([]byte("b")); err != nil || string(kv.GetValue()) != "2" || kv.GetVersion() != 1 {
		t.Errorf("the key that was put again: %v, %v", kv, err)
	}
}

// A damaged row of a pending deletion is an error at the start, and no deletion is
// lost or made of it.
func TestDamagedPendingDeletionIsFound(t *testing.T) {
	h := newHistory(t)
	h.put("a", "1")
	h.put("b", "1")
	h.deleteSpan("a", "c")
	p := (*h.s.pending.list.Load())[0]
	for name, row := range map[string][]byte{
		"empty":        {},
		"newer format": {9, 0, 2, 1, 'a', 'c'},
		"no start":     {pendingFormat, 0, 2, 0},
		"too short":    {pendingFormat, 0, 2, 5, 'a'},
		"no span":      {pendingFormat, 0, 2, 1, 'c', 'a'},
		"end too many": {pendingFormatToEnd, 0, 2, 1, 'a', 'c'},
	} {
		if err := h.s.db.Set(p.key(), row, pebble.NoSync); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(h.s.db, Options{}); err == nil {
			t.Errorf("%s: opened", name)
		}
	}
}
