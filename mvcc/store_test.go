package mvcc

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/mvcc/keys"
)

func TestStoreOfANewerFormatIsNotOpened(t *testing.T) {
	s := newStore(t)
	if err := s.db.Set(storeFormatKey, []byte{storeFormat + 1}, pebble.Sync); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(s.db, Options{}); !errors.Is(err, ErrStoreFormat) {
		t.Errorf("got %v", err)
	}
}

// TestStoreOfTheFormatBefore is opened, and is one of this format from then on:
// an older version refuses it.
func TestStoreOfTheFormatBefore(t *testing.T) {
	s := newStore(t)
	if err := s.db.Set(storeFormatKey, []byte{storeFormatBefore}, pebble.Sync); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(s.db, Options{}); err != nil {
		t.Fatal(err)
	}
	if row, err := s.metaRow(storeFormatKey); err != nil || string(row) != string([]byte{storeFormat}) {
		t.Errorf("format %x, %v", row, err)
	}
}

// TestStoreThatCannotBeOpenedKeepsItsFormat: the version that wrote it may still
// open it, or what is restored of it.
func TestStoreThatCannotBeOpenedKeepsItsFormat(t *testing.T) {
	s := newStore(t)
	b := s.db.NewBatch()
	for key, row := range map[string][]byte{string(storeFormatKey): {storeFormatBefore}, string(forgottenKey): {1}} {
		if err := b.Set([]byte(key), row, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Commit(pebble.Sync); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(s.db, Options{}); !errors.Is(err, errCorruptRow) {
		t.Fatalf("opened with a damaged row: %v", err)
	}
	if row, err := s.metaRow(storeFormatKey); err != nil || string(row) != string([]byte{storeFormatBefore}) {
		t.Errorf("format %x, %v", row, err)
	}
}

func TestImpossibleEffectsStopApply(t *testing.T) {
	s := newStore(t)
	for name, e := range map[string]Effect{
		"no key":              {Version: 1},
		"no version":          {Key: []byte("k")},
		"value of tombstone":  {Key: []byte("k"), Tombstone: true, Value: []byte("v")},
		"created later":       {Key: []byte("k"), Version: 2, CreateRevision: 8},
		"prior of a creation": {Key: []byte("k"), Version: 1, Prior: Place{Revision: 3}},
		"prior not before":    {Key: []byte("k"), Version: 2, Prior: Place{Revision: 7}},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("applied")
				}
			}()
			_ = s.Apply(s.db.NewBatch(), 7, []Effect{e})
		})
	}
}

func TestApplyingAgainChangesNothing(t *testing.T) {
	h := newHistory(t)
	var log []overlayWrite
	for i := range 20 {
		r := h.do(&Request{Put: &pb.PutRequest{Key: fmt.Appendf(nil, "k%d", i%7), Lease: int64(i % 3)}})
		log = append(log, overlayWrite{h.rev, r.Effects})
	}
	everything := &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}}
	before := h.list(everything)
	reopened, err := Open(h.s.db, Options{})
	if err != nil {
		t.Fatal(err)
	}
	h.s = reopened
	for _, w := range log[5:] {
		h.apply(w.rev, w.effs)
	}
	if after := h.list(everything); !proto.Equal(before, after) {
		t.Errorf("got %v, want %v", after, before)
	}
	if n, err := h.s.Latest().Count(nil, nil); n != 7 || err != nil {
		t.Errorf("count %d, %v", n, err)
	}
}

// TestDerivedRowsAreTheOnesApplyWrites: a replica that got versions only, by a
// snapshot, has the same revision and lease index afterwards.
func TestDerivedRowsAreTheOnesApplyWrites(t *testing.T) {
	h := newHistory(t)
	h.put("a\x00", "1")
	h.do(&Request{Put: &pb.PutRequest{Key: []byte("a\x00"), Lease: 5}})
	h.do(&Request{Put: &pb.PutRequest{Key: []byte("l\x00m"), Lease: 5}})
	h.do(&Request{Put: &pb.PutRequest{Key: []byte("n"), Lease: -6}})
	h.txn(then(opPut("b"), opDelete("a", "b"), opPut("c")))
	h.put("a\x00", "3")
	it, err := h.s.db.NewIter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer it.Close()
	derived, applied := map[string]string{}, map[string]string{}
	var d Deriver
	for ok := it.First(); ok; ok = it.Next() {
		isVersion, err := d.Rows(it.Key(), it.Value(), func(k, v []byte) error {
			derived[string(k)] = string(v)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		switch it.Key()[0] {
		case keys.LeasePrefix:
			applied[string(it.Key())] = string(it.Value())
		case keys.EventPrefix:
			rev, _, _, err := splitEventKey(it.Key())
			if err != nil {
				t.Fatal(err)
			}
			event, err := decodeEventValue(it.Value(), rev)
			if err != nil {
				t.Fatal(err)
			}
			event.prior = Place{} // a compaction looks for it
			applied[string(it.Key())] = string(appendEventValue(nil, rev, event))
		}
		if isVersion != (it.Key()[0] == keys.VersionPrefix) {
			t.Errorf("row %x is a version: %t", it.Key(), isVersion)
		}
	}
	want(t, "rows", fmt.Sprintf("%x", derived), fmt.Sprintf("%x", applied))
	if len(applied) != 8+2 {
		t.Errorf("%d rows, want 8 events and 2 keys of leases", len(applied))
	}
}

func TestW9EventsBelowTheForgottenRevisionAreRefused(t *testing.T) {
	h := newHistory(t)
	for range 5 {
		h.put("a", "v")
	}
	h.s.forgotten.Store(4)
	count := func(after int64) (n int, err error) {
		err = h.s.Events(nil, nil, after, h.rev, true, func(ev Event) (bool, error) {
			n++
			if known := ev.Revision > 4; (ev.PrevKv != nil) != known {
				t.Errorf("etcd/W12: event at %d has previous %v", ev.Revision, ev.PrevKv)
			}
			return true, nil
		})
		return n, err
	}
	if n, err := count(3); n != 3 || err != nil {
		t.Errorf("from the forgotten revision itself: %d events, %v", n, err)
	}
	if _, err := count(2); !errors.Is(err, ErrCompacted) {
		t.Errorf("from below: %v", err)
	}
}

func TestEventRowsWithoutAVersionAreSkipped(t *testing.T) {
	h := newHistory(t)
	h.put("a", "v")
	h.put("b", "v")
	lower, upper := VersionSpan([]byte("a"), []byte("b"))
	if err := h.s.db.DeleteRange(lower, upper, pebble.NoSync); err != nil {
		t.Fatal(err)
	}
	var got []string
	err := h.s.Events(nil, nil, 0, h.rev, false, func(ev Event) (bool, error) {
		got = append(got, string(ev.Kv.Key))
		return true, nil
	})
	if err != nil || fmt.Sprint(got) != "[b]" {
		t.Errorf("events of %v, %v", got, err)
	}
}

func TestCorruptRowsAreErrors(t *testing.T) {
	db, s := openStore(t, vfs.NewMem(), Options{})
	defer db.Close()
	key := appendVersionKey(nil, []byte("k"), 5, 0)
	if err := db.Set(key, []byte{0x7f, 1, 1}, pebble.NoSync); err != nil {
		t.Fatal(err)
	}
	s.known.restart() // it came by other means than Apply
	if _, err := s.Latest().Get([]byte("k")); !errors.Is(err, errRowFormat) {
		t.Errorf("get: %v", err)
	}
	if err := s.Latest().Scan(nil, nil, ScanOptions{}, nil); !errors.Is(err, errRowFormat) {
		t.Errorf("scan: %v", err)
	}
	if _, err := Evaluate(s.Latest(), &Request{Put: &pb.PutRequest{Key: []byte("k")}}, Env{}); !errors.Is(err, errRowFormat) {
		t.Errorf("evaluate: %v", err)
	}
}
