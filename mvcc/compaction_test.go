package mvcc

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/hawser-kv/hawser/mvcc/counts"
	"github.com/hawser-kv/hawser/mvcc/keys"
)

// compact forgets what is below rev and removes it.
func compact(t testing.TB, s *Store, rev int64, maxEvents int) {
	t.Helper()
	if err := s.SetForgotten(rev); err != nil {
		t.Fatal(err)
	}
	for done := false; !done; {
		var err error
		if done, err = s.CompactStep(maxEvents); err != nil {
			t.Fatal(err)
		}
	}
}

// compactionTest is what was ever applied, in order, and a store with it.
type compactionTest struct {
	t   testing.TB
	rng *rand.Rand
	fs  *vfs.MemFS
	db  *pebble.DB
	s   *Store

	opts     Options
	writes   []appliedWrite
	versions map[string][]writtenVersion // per key, oldest first
	rev      int64
	removed  int64 // what a compaction at this revision removes is removed
}

type appliedWrite struct {
	rev  int64
	effs []Effect
}

type writtenVersion struct {
	rev int64
	sub uint32
	kv  *mvccpb.KeyValue // nil: a tombstone
}

func newCompactionTest(t testing.TB, seed uint64) *compactionTest {
	h := &compactionTest{t: t, rng: rand.New(rand.NewPCG(seed, 2)), fs: vfs.NewCrashableMem(), versions: map[string][]writtenVersion{}, rev: 1}
	// Windows of 40 or 80 events, or one of all.
	h.opts = Options{Counts: counts.Options{RunKeys: 8}, CompactionWindow: int(seed%3) * 40}
	h.db, h.s = openStore(t, h.fs, h.opts)
	t.Cleanup(func() {
		if err := h.db.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func (h *compactionTest) live(key string) *mvccpb.KeyValue {
	if list := h.versions[key]; len(list) > 0 {
		return list[len(list)-1].kv
	}
	return nil
}

// write makes one revision of a few puts and deletes.
func (h *compactionTest) write() {
	h.rev++
	var effs []Effect
	// Some evaluations name the prior, others do not.
	prior := func(key string) Place {
		list := h.versions[key]
		if last := list[len(list)-1]; last.rev < h.rev && h.rng.IntN(3) > 0 {
			return Place{last.rev, last.sub}
		}
		return Place{}
	}
	put := func(key string) {
		e := Effect{Key: []byte(key), Value: fmt.Append(nil, h.rev, key), Sub: uint32(len(effs)), Version: 1}
		if kv := h.live(key); kv != nil {
			e.CreateRevision, e.Version, e.Prior = kv.CreateRevision, kv.Version+1, prior(key)
		}
		kv := EventOf(e, h.rev).Kv
		h.versions[key] = append(h.versions[key], writtenVersion{h.rev, e.Sub, kv})
		effs = append(effs, e)
	}
	del := func(key string) {
		e := Effect{Key: []byte(key), Sub: uint32(len(effs)), Tombstone: true, Prior: prior(key)}
		h.versions[key] = append(h.versions[key], writtenVersion{h.rev, e.Sub, nil})
		effs = append(effs, e)
	}
	for _, i := range h.rng.Perm(40)[:1+h.rng.IntN(4)] {
		key := fmt.Sprintf("k%02d", i)
		if h.rng.IntN(4) == 0 {
			key += "\x00x"
		}
		switch live := h.live(key) != nil; {
		case !live, h.rng.IntN(3) > 0:
			put(key)
			if h.rng.IntN(8) == 0 {
				del(key) // both in one revision
			}
		default:
			del(key)
			if h.rng.IntN(4) == 0 {
				put(key) // and back again
			}
		}
	}
	h.writes = append(h.writes, appliedWrite{h.rev, effs})
	h.apply(h.writes[len(h.writes)-1:])
}

func (h *compactionTest) apply(writes []appliedWrite) {
	b := h.db.NewBatch()
	for _, w := range writes {
		if err := h.s.Apply(b, w.rev, w.effs); err != nil {
			h.t.Fatal(err)
		}
	}
	if err := b.Commit(pebble.NoSync); err != nil {
		h.t.Fatal(err)
	}
	if err := h.s.counts.Maintain(keyScanner{h.s}, 2); err != nil {
		h.t.Fatal(err)
	}
}

// crash loses some of what was not synced; it is applied again.
func (h *compactionTest) crash() {
	fs := h.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50 * h.rng.IntN(3), RNG: h.rng})
	if err := h.db.Close(); err != nil {
		h.t.Fatal(err)
	}
	h.fs = fs
	h.db, h.s = openStore(h.t, fs, h.opts)
	lower, upper := EventSpan(0, latestRevision)
	it, err := h.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		h.t.Fatal(err)
	}
	survived := h.s.Forgotten()
	if it.Last() {
		rev, _, _, err := splitEventKey(it.Key())
		if err != nil {
			h.t.Fatal(err)
		}
		survived = max(survived, rev)
	}
	if err := it.Close(); err != nil {
		h.t.Fatal(err)
	}
	i := sort.Search(len(h.writes), func(i int) bool { return h.writes[i].rev > survived })
	h.apply(h.writes[i:])
	h.removed = 0
}

// at returns what a key is at rev.
func at(list []writtenVersion, rev int64) *mvccpb.KeyValue {
	for _, v := range slices.Backward(list) {
		if v.rev <= rev {
			return v.kv
		}
	}
	return nil
}

// checkRevision compares the state and the count at rev.
func (h *compactionTest) checkRevision(rev int64) {
	h.t.Helper()
	if rev < h.s.Forgotten() {
		if _, err := h.s.Snapshot(rev); !errors.Is(err, ErrCompacted) {
			h.t.Fatalf("snapshot at %d, forgotten %d: %v", rev, h.s.Forgotten(), err)
		}
		if _, err := h.s.Latest().At(rev); !errors.Is(err, ErrCompacted) {
			h.t.Fatalf("state at %d, forgotten %d: %v", rev, h.s.Forgotten(), err)
		}
		return
	}
	snap, err := h.s.Snapshot(rev)
	if err != nil {
		h.t.Fatal(err)
	}
	defer func() { _ = snap.Close() }()
	got := map[string]string{}
	if err := snap.Scan(nil, nil, ScanOptions{}, func(kv *mvccpb.KeyValue) (bool, error) {
		got[string(kv.Key)] = kv.String()
		return true, nil
	}); err != nil {
		h.t.Fatal(err)
	}
	start, end := []byte(fmt.Sprintf("k%02d", h.rng.IntN(40))), []byte(fmt.Sprintf("k%02d", h.rng.IntN(40)))
	var all, some int64
	for key, list := range h.versions {
		kv := at(list, rev)
		if kv == nil {
			continue
		}
		all++
		if key >= string(start) && key < string(end) {
			some++
		}
		if got[key] != kv.String() {
			h.t.Fatalf("%q at %d: %s, want %s", key, rev, got[key], kv)
		}
	}
	if int64(len(got)) != all {
		h.t.Fatalf("%d keys at %d, want %d", len(got), rev, all)
	}
	if n, err := snap.Count(nil, nil); err != nil || n != all {
		h.t.Fatalf("count at %d: %d (%v), want %d", rev, n, err, all)
	}
	if n, err := snap.Count(start, end); err != nil || n != some {
		h.t.Fatalf("count of [%q, %q) at %d: %d (%v), want %d", start, end, rev, n, err, some)
	}
}

// checkEvents compares the events after a revision.
func (h *compactionTest) checkEvents(after int64) {
	h.t.Helper()
	type event struct {
		rev int64
		sub uint32
		key string
		kv  string
	}
	var got, want []event
	err := h.s.Events(nil, nil, after, h.rev, false, func(ev Event) (bool, error) {
		e := event{ev.Revision, ev.Sub, string(ev.Kv.Key), ""}
		if !ev.Delete {
			e.kv = ev.Kv.String()
		}
		if !h.superseded(e.key, e.rev, e.sub) {
			got = append(got, e)
		}
		return true, nil
	})
	forgotten := h.s.Forgotten()
	if after+1 < forgotten && after < h.rev {
		if !errors.Is(err, ErrCompacted) {
			h.t.Fatalf("events after %d, forgotten %d: %v", after, forgotten, err)
		}
		return
	}
	if err != nil {
		h.t.Fatal(err)
	}
	for key, list := range h.versions {
		for _, v := range list {
			if v.rev <= after || h.superseded(key, v.rev, v.sub) {
				continue
			}
			e := event{v.rev, v.sub, key, ""}
			if v.kv != nil {
				e.kv = v.kv.String()
			}
			want = append(want, e)
		}
	}
	slices.SortFunc(want, func(a, b event) int {
		if a.rev != b.rev {
			return int(a.rev - b.rev)
		}
		return int(a.sub) - int(b.sub)
	})
	if !slices.Equal(got, want) {
		h.t.Fatalf("events after %d, forgotten %d:\n%v\nwant\n%v", after, forgotten, got, want)
	}
}

// superseded is true for the first of two versions of a key in the compacted
// revision itself: it may be gone, in etcd too.
func (h *compactionTest) superseded(key string, rev int64, sub uint32) bool {
	return rev == h.s.Forgotten() && slices.ContainsFunc(h.versions[key], func(v writtenVersion) bool {
		return v.rev == rev && v.sub > sub
	})
}

// checkRows compares what is stored with what etcd/C3 says is left.
func (h *compactionTest) checkRows(rev int64) {
	h.t.Helper()
	want := map[string]bool{}
	for key, list := range h.versions {
		for i, v := range list {
			last := i+1 == len(list) || list[i+1].rev > rev // of those at or below rev
			if v.rev > rev || last && (v.kv != nil || v.rev == rev) {
				want[fmt.Sprintf("%q %d.%d", key, v.rev, v.sub)] = true
			}
		}
	}
	it, err := h.db.NewIter(&pebble.IterOptions{LowerBound: []byte{keys.VersionPrefix}, UpperBound: []byte{keys.EventPrefix + 1}})
	if err != nil {
		h.t.Fatal(err)
	}
	defer func() { _ = it.Close() }()
	got := 0
	for it.First(); it.Valid(); it.Next() {
		if it.Key()[0] == keys.EventPrefix {
			if at, _, key, err := splitEventKey(it.Key()); err != nil || at < rev {
				h.t.Fatalf("compacted at %d: event of %q at %d (%v)", rev, key, at, err)
			}
			continue
		}
		prefix, at, sub, ok := splitVersionKey(it.Key())
		if !ok {
			h.t.Fatalf("row %x", it.Key())
		}
		key, err := appendUserKey(nil, prefix)
		if err != nil {
			h.t.Fatal(err)
		}
		got++
		if name := fmt.Sprintf("%q %d.%d", key, at, sub); !want[name] {
			h.t.Fatalf("compacted at %d: %s is left", rev, name)
		}
	}
	if n, err := h.s.Garbage(); n != 0 || err != nil {
		h.t.Fatalf("compacted at %d: %d versions are garbage (%v)", rev, n, err)
	}
	if got != len(want) {
		h.t.Fatalf("compacted at %d: %d versions are left, want %d", rev, got, len(want))
	}
}

func TestCompactionKeepsWhatIsReadable(t *testing.T) { // etcd/C3, etcd/R4, etcd/W9
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			h := newCompactionTest(t, seed)
			for range 600 {
				switch n := h.rng.IntN(100); {
				case n < 70:
					h.write()
				case n < 74:
					rev := h.s.Forgotten() + h.rng.Int64N(h.rev-h.s.Forgotten()+1)
					if err := h.s.SetForgotten(rev); err != nil {
						t.Fatal(err)
					}
				case n < 86:
					done, err := h.s.CompactStep(1 + h.rng.IntN(40))
					if err != nil {
						t.Fatal(err)
					}
					if done {
						h.removed = h.s.Forgotten()
						h.checkRows(h.removed)
					}
				case n < 88:
					h.crash()
				case n < 89:
					// A clean end.
					if err := h.s.Close(); err != nil {
						t.Fatal(err)
					}
					h.crash()
				default:
					h.checkRevision(1 + h.rng.Int64N(h.rev))
					h.checkEvents(h.rng.Int64N(h.rev))
				}
			}
			rev := max(h.rev-10, h.s.Forgotten())
			compact(t, h.s, rev, 7)
			h.checkRows(rev)
			for rev := range h.rev + 1 {
				h.checkRevision(rev)
				h.checkEvents(rev)
			}
		})
	}
}

func TestTombstoneAtTheCompactedRevisionStays(t *testing.T) { // etcd/C3
	h := newCompactionTest(t, 1)
	effs := func(rev int64, e ...Effect) {
		h.apply([]appliedWrite{{rev, e}})
		h.rev = rev
	}
	k := []byte("k")
	effs(2, Effect{Key: k, Value: []byte("v"), Version: 1})
	effs(3, Effect{Key: k, Tombstone: true})
	effs(4, Effect{Key: []byte("other"), Version: 1})
	deletions := func(after int64) (n int) {
		t.Helper()
		if err := h.s.Events(nil, nil, after, h.rev, false, func(ev Event) (bool, error) {
			if ev.Delete {
				n++
			}
			return true, nil
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	compact(t, h.s, 3, 100)
	if n := deletions(2); n != 1 {
		t.Fatalf("compacted at the deletion: a watch from there sees %d deletions", n)
	}
	compact(t, h.s, 4, 100)
	if n := deletions(3); n != 0 {
		t.Fatalf("compacted after the deletion: %d deletions", n)
	}
	it, err := h.db.NewIter(&pebble.IterOptions{LowerBound: []byte{keys.VersionPrefix}, UpperBound: []byte{keys.VersionPrefix + 1}})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for it.First(); it.Valid(); it.Next() {
		n++
	}
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
	if n != 1 {
		t.Fatalf("%d versions are left, want 1", n)
	}
}

func TestForgottenIsDurableBeforeAnythingGoes(t *testing.T) { // R9
	h := newCompactionTest(t, 3)
	for range 50 {
		h.write()
	}
	if err := h.s.SetForgotten(30); err != nil {
		t.Fatal(err)
	}
	fs := h.fs.CrashClone(vfs.CrashCloneCfg{})
	db, s := openStore(t, fs, h.opts)
	if s.Forgotten() != 30 {
		t.Fatalf("forgotten after the crash: %d", s.Forgotten())
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if err := h.s.SetForgotten(20); err != nil || h.s.Forgotten() != 30 {
		t.Fatalf("an older revision: %d (%v)", h.s.Forgotten(), err)
	}
}

func TestCompactStepIsBounded(t *testing.T) {
	h := newCompactionTest(t, 4)
	for range 100 {
		h.write()
	}
	events := 0
	for _, w := range h.writes {
		events += len(w.effs)
	}
	if err := h.s.SetForgotten(h.rev); err != nil {
		t.Fatal(err)
	}
	steps := 1
	for {
		done, err := h.s.CompactStep(10)
		if err != nil {
			t.Fatal(err)
		}
		if done {
			break
		}
		steps++
	}
	if want := (events + 9) / 10; steps != want {
		t.Fatalf("%d steps for %d events, want %d", steps, events, want)
	}
	if done, err := h.s.CompactStep(10); err != nil || !done {
		t.Fatalf("after the end: %t, %v", done, err)
	}
}

// TestCompactionOfNamedPriorsLooksNothingUp: for what single keys were changed by
// it needs the index only.
func TestCompactionOfNamedPriorsLooksNothingUp(t *testing.T) {
	h := newHistory(t)
	for i := range 30 {
		key := fmt.Sprint("k", i%7)
		switch {
		case i%10 == 9:
			h.do(&Request{DeleteRange: &pb.DeleteRangeRequest{Key: []byte(key)}})
		case i%4 == 3:
			h.txn(then(opPut(key), opPut("another")))
		default:
			h.put(key, "v")
		}
	}
	if n, err := h.s.Garbage(); n != 0 || err != nil {
		t.Fatalf("%d versions are garbage before anything is forgotten (%v)", n, err)
	}
	if err := h.s.SetForgotten(h.rev); err != nil {
		t.Fatal(err)
	}
	if n, err := h.s.Garbage(); n == 0 || err != nil {
		t.Fatalf("%d versions are garbage before the compaction (%v)", n, err)
	}
	compact(t, h.s, h.rev, 5)
	if n, err := h.s.Garbage(); n != 0 || err != nil {
		t.Fatalf("%d versions are garbage after the compaction (%v)", n, err)
	}
	if n := h.s.compaction.lookups; n > 1 { // of a creation in the compacted revision
		t.Fatalf("%d versions were looked up", n)
	}
	h.put("a", "1")
	h.put("b", "1")
	compact(t, h.s, h.rev, 5)
	before := h.s.compaction.lookups
	h.delete("a", "c") // does not learn which versions it deletes
	compact(t, h.s, h.rev+1, 5)
	if n, err := h.s.Garbage(); n != 0 || err != nil || h.s.compaction.lookups == before {
		t.Fatalf("%d versions are garbage, %d more were looked up (%v)", n, h.s.compaction.lookups-before, err)
	}
}

// TestRowsThatComeByOtherMeansAreCompactedToo: versions of a snapshot that lie
// below where a compaction is, and events derived of them, are not left behind.
func TestRowsThatComeByOtherMeansAreCompactedToo(t *testing.T) {
	from, s := newHistory(t), newStore(t)
	apply := func(rev int64, e Effect) {
		t.Helper()
		b := s.db.NewBatch()
		if err := s.Apply(b, rev, []Effect{e}); err != nil {
			t.Fatal(err)
		}
		if err := b.Commit(pebble.NoSync); err != nil {
			t.Fatal(err)
		}
	}
	from.put("k", "1")
	from.put("x", "1")
	from.put("k", "2") // at 4
	for rev := int64(5); rev < 8; rev++ {
		apply(rev, Effect{Key: []byte{'y', byte(rev)}, Version: 1})
	}
	if err := s.SetForgotten(8); err != nil {
		t.Fatal(err)
	}
	for range 2 { // it is past 4
		if _, err := s.CompactStep(1); err != nil {
			t.Fatal(err)
		}
	}

	it, err := from.s.db.NewIter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer it.Close()
	b := s.db.NewBatch()
	if err := s.InvalidateCounts(b, []byte("k"), []byte("y")); err != nil {
		t.Fatal(err)
	}
	var d Deriver
	for ok := it.First(); ok; ok = it.Next() {
		isVersion, err := d.Rows(it.Key(), it.Value(), func(k, v []byte) error { return b.Set(k, v, nil) })
		if err == nil && isVersion {
			err = b.Set(it.Key(), it.Value(), nil)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Commit(pebble.NoSync); err != nil {
		t.Fatal(err)
	}
	if err := s.RebuildCounts([]byte("k"), []byte("y")); err != nil {
		t.Fatal(err)
	}

	compact(t, s, 8, 10)
	if n, err := s.Garbage(); n != 0 || err != nil {
		t.Fatalf("%d versions are garbage (%v)", n, err)
	}
	apply(9, Effect{Key: []byte("k"), Tombstone: true, Prior: Place{Revision: 4}})
	apply(10, Effect{Key: []byte("z"), Version: 1})
	compact(t, s, 10, 10)
	if kv, err := s.Latest().Get([]byte("k")); kv != nil || err != nil {
		t.Fatalf("the deleted key is %v (%v)", kv, err)
	}
	if n, err := s.Garbage(); n != 0 || err != nil {
		t.Fatalf("%d versions are garbage (%v)", n, err)
	}
}
