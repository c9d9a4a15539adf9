package mvcc

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// crashed opens a store on what a crash leaves when everything is on the disk that
// was committed so far.
func crashed(t *testing.T, db *pebble.DB, fs *vfs.MemFS) (*pebble.DB, *Store, *vfs.MemFS) {
	t.Helper()
	if err := db.LogData(nil, pebble.Sync); err != nil {
		t.Fatal(err)
	}
	clone := fs.CrashClone(vfs.CrashCloneCfg{})
	db, s := openStore(t, clone, Options{})
	return db, s, clone
}

// A revision ends a span and creates a key beside it. Wherever the process dies, before
// or after the commit, between the steps that write the deletion out, with or without a
// checkpoint: the counts of the next life are those of the keys, also when the revision
// is applied once more there, and also after another crash.
func TestCrashesAroundALargeDeletionKeepTheCounts(t *testing.T) {
	const spanRev, putRev = 10, 11
	span := []Effect{
		{Key: []byte("k2"), End: []byte("k5"), Count: 3, Tombstone: true},
		{Key: []byte("k9"), Sub: 3, Version: 1},
	}
	put := []Effect{{Key: []byte("k3"), Version: 1}}
	want := map[int64]int64{spanRev - 1: 6, spanRev: 4, putRev: 5}

	check := func(t *testing.T, s *Store, revs ...int64) {
		t.Helper()
		for _, rev := range revs {
			scanned, err := keyScanner{s}.CountAt(nil, nil, rev)
			if err != nil {
				t.Fatal(err)
			}
			got, err := s.count([]byte{}, nil, rev)
			if err != nil || got != want[rev] || scanned != want[rev] {
				t.Fatalf("at %d: count %d (%v), keys %d, want %d", rev, got, err, scanned, want[rev])
			}
		}
	}
	step := func(t *testing.T, s *Store) {
		t.Helper()
		if _, err := s.MaterialiseStep(1); err != nil {
			t.Fatal(err)
		}
	}
	// again is the next life, which applies both revisions, and the one after it.
	again := func(t *testing.T, db *pebble.DB, fs *vfs.MemFS, has bool) {
		t.Helper()
		db, s, fs := crashed(t, db, fs)
		defer func() {
			if err := db.Close(); err != nil {
				t.Error(err)
			}
		}()
		if has {
			check(t, s, spanRev-1, spanRev)
		}
		applied(t, s, spanRev, span...)
		check(t, s, spanRev-1, spanRev)
		applied(t, s, putRev, put...)
		for n := range 5 {
			check(t, s, spanRev-1, spanRev, putRev)
			next, s2, _ := crashed(t, db, fs)
			check(t, s2, spanRev-1, spanRev, putRev)
			if n > 0 {
				step(t, s2)
				check(t, s2, spanRev-1, spanRev, putRev)
			}
			if err := next.Close(); err != nil {
				t.Fatal(err)
			}
			step(t, s)
		}
		if n := s.Pending(); n != 0 {
			t.Fatalf("%d keys are pending", n)
		}
	}
	for _, staged := range []int{0, 1, 2, 5} { // steps between Apply and the commit
		for _, checkpoint := range []string{"none", "staged", "committed", "written out"} {
			t.Run(fmt.Sprintf("staged=%d/checkpoint=%s", staged, checkpoint), func(t *testing.T) {
				fs := vfs.NewCrashableMem()
				db, s := openStore(t, fs, Options{})
				for i := range 6 {
					applied(t, s, int64(i+2), Effect{Key: fmt.Append(nil, "k", i), Version: 1})
				}
				at := func(when string) {
					t.Helper()
					if when != checkpoint {
						return
					}
					s.counting.Lock()
					defer s.counting.Unlock()
					if err := s.checkpointLocked(pebble.NoSync, nil); err != nil {
						t.Fatal(err)
					}
				}
				b := db.NewBatch()
				if err := s.Apply(b, spanRev, span); err != nil {
					t.Fatal(err)
				}
				at("staged")
				for range staged {
					step(t, s)
					again(t, db, fs, false)
				}
				again(t, db, fs, false)
				if err := b.Commit(pebble.NoSync); err != nil {
					t.Fatal(err)
				}
				at("committed")
				for range 4 {
					check(t, s, spanRev-1, spanRev)
					again(t, db, fs, true)
					step(t, s)
				}
				at("written out")
				check(t, s, spanRev-1, spanRev)
				again(t, db, fs, true)
				if n := s.Pending(); n != 0 {
					t.Errorf("%d keys are pending", n)
				}
				if err := db.Close(); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}
