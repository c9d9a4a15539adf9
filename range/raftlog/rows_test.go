package raftlog

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/range/keys"
)

// sampleGroup is a group in which every kind of row exists.
func sampleGroup(t testing.TB, db *pebble.DB) {
	t.Helper()
	l := newGroup(t, db, testGroup, 1, 2, 3)
	stage(t, db, func(b *pebble.Batch) error {
		_, err := l.SetHardState(b, HardState{Term: 5, Vote: 2, Commit: 1})
		return errors.Join(err,
			l.Append(b, []*raftpb.Entry{entry(2, 4, "two"), entry(3, 5, "three"), entry(4, 5, "")}),
			l.SetApplied(b, 3, 5, 0, appendMachine("state")),
			l.Truncate(b, 2))
	})
}

// rowsOf returns the rows of a group by key.
func rowsOf(t testing.TB, db *pebble.DB, id uint64) map[string][]byte {
	t.Helper()
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: keys.Group(id, 0), UpperBound: keys.Group(id, 0xff)})
	must(t, err)
	rows := make(map[string][]byte)
	for it.First(); it.Valid(); it.Next() {
		rows[string(it.Key())] = append([]byte(nil), it.Value()...)
	}
	must(t, it.Close())
	return rows
}

// A row with a wrong byte, a torn row, a lost row: the group is refused.
func TestDamagedRowsAreDetected(t *testing.T) {
	db := openDB(t)
	sampleGroup(t, db)
	rows := rowsOf(t, db, testGroup)
	if len(rows) != 6 {
		t.Fatalf("%d rows", len(rows))
	}
	broken := func(what, key string, row []byte) {
		t.Helper()
		if row == nil {
			must(t, db.Delete([]byte(key), pebble.NoSync))
		} else {
			must(t, db.Set([]byte(key), row, pebble.NoSync))
		}
		if _, err := Load(db, testGroup); !errors.Is(err, ErrCorrupt) {
			t.Errorf("row %x %s: %v", key, what, err)
		}
		must(t, db.Set([]byte(key), rows[key], pebble.NoSync))
	}
	lastEntry := string(keys.LogEntry(testGroup, 4))
	for key, row := range rows {
		for i := range row {
			bad := append([]byte(nil), row...)
			bad[i] ^= 0x10
			broken(fmt.Sprintf("with a wrong byte %d", i), key, bad)
			broken(fmt.Sprintf("torn at %d", i), key, append([]byte{}, row[:i]...))
		}
		if key != lastEntry { // losing an end that is not applied looks like a log without it
			broken("lost", key, nil)
		}
	}
	if _, err := Load(db, testGroup); err != nil {
		t.Errorf("whole again: %v", err)
	}
}

func TestRowUnderAnotherKeyIsDetected(t *testing.T) {
	db := openDB(t)
	sampleGroup(t, db)
	rows := rowsOf(t, db, testGroup)
	must(t, db.Set(keys.LogEntry(testGroup, 4), rows[string(keys.LogEntry(testGroup, 3))], pebble.NoSync))
	if _, err := Load(db, testGroup); !errors.Is(err, ErrCorrupt) {
		t.Errorf("entry under another index: %v", err)
	}
	for key, row := range rows {
		must(t, db.Set(append(keys.Group(8, key[9]), key[10:]...), row, pebble.NoSync))
	}
	if _, err := Load(db, 8); !errors.Is(err, ErrCorrupt) {
		t.Errorf("rows under another group: %v", err)
	}
}

func TestNewerFormatIsAClearError(t *testing.T) {
	db := openDB(t)
	sampleGroup(t, db)
	for key, row := range rowsOf(t, db, testGroup) {
		newer := append([]byte{rowFormat + 1}, row[1:len(row)-4]...)
		must(t, db.Set([]byte(key), sealRow(newer, 0, []byte(key)), pebble.NoSync))
		if _, err := Load(db, testGroup); !errors.Is(err, ErrFormat) || errors.Is(err, ErrCorrupt) {
			t.Errorf("row %x: %v", key, err)
		}
		must(t, db.Set([]byte(key), row, pebble.NoSync))
	}
}

// Rows that contradict each other are as bad as damaged ones.
func TestRowsThatContradictEachOtherAreDetected(t *testing.T) {
	set := func(kind byte, row func(key []byte) []byte) func(b *pebble.Batch) error {
		key := keys.Group(testGroup, kind)
		return func(b *pebble.Batch) error { return b.Set(key, row(key), nil) }
	}
	applied := func(index, term uint64) func(b *pebble.Batch) error {
		return set(keys.KindApplied, func(key []byte) []byte { return sealRow(beginApplied(nil, index, term), 0, key) })
	}
	hard := func(hs HardState) func(b *pebble.Batch) error {
		return set(keys.KindHardState, func(key []byte) []byte { return appendHardState(nil, key, hs) })
	}
	for name, fn := range map[string]func(b *pebble.Batch) error{
		"applied beyond the end":      applied(5, 5),
		"applied below the beginning": applied(1, 1),
		"applied in another term":     applied(3, 4),
		"committed beyond the end":    hard(HardState{Term: 5, Commit: 5}),
		"term below the log's":        hard(HardState{Term: 4, Commit: 2}),
		"no voters": set(keys.KindConfState, func(key []byte) []byte {
			row, _ := appendConfState(nil, key, &raftpb.ConfState{})
			return row
		}),
	} {
		t.Run(name, func(t *testing.T) {
			db := openDB(t)
			sampleGroup(t, db)
			stage(t, db, fn)
			if _, err := Load(db, testGroup); !errors.Is(err, ErrCorrupt) {
				t.Errorf("loaded: %v", err)
			}
		})
	}
}

// Whatever bytes are in a row, decoding ends in a value or an error, and a
// value is written back as the same bytes where the encoding is unique.
func FuzzRows(f *testing.F) {
	db := openDB(f)
	sampleGroup(f, db)
	for key, row := range rowsOf(f, db, testGroup) {
		f.Add([]byte(key), row, true)
	}
	f.Add([]byte{}, []byte{}, false)
	f.Fuzz(func(t *testing.T, key, row []byte, seal bool) {
		if seal && len(row) > 4 { // else nothing gets past the checksum
			row = sealRow(append([]byte(nil), row[:len(row)-4]...), 0, key)
		}
		if hs, err := decodeHardState(key, row); err == nil {
			if again, err := decodeHardState(key, appendHardState(nil, key, hs)); err != nil || again != hs {
				t.Errorf("hard state %+v: %+v, %v", hs, again, err)
			}
		}
		if at, err := decodePosition(key, row); err == nil {
			if again, err := decodePosition(key, appendPosition(nil, key, at)); err != nil || again != at {
				t.Errorf("position %+v: %+v, %v", at, again, err)
			}
		}
		if a, err := DecodeApplied(key, row); err == nil {
			again := sealRow(append(beginApplied(nil, a.Index, a.Term), a.Machine...), 0, key)
			if b, err := DecodeApplied(key, again); err != nil || fmt.Sprint(a) != fmt.Sprint(b) {
				t.Errorf("applied %+v: %+v, %v", a, b, err)
			}
		}
		if cs, err := decodeConfState(key, row); err == nil {
			again, err := appendConfState(nil, key, cs)
			must(t, err)
			if b, err := decodeConfState(key, again); err != nil || !proto.Equal(cs, b) {
				t.Errorf("conf state %v: %v, %v", cs, b, err)
			}
		}
		if e, err := decodeEntry(key, row, 3); err == nil {
			again := make([]byte, entryRowSize(e))
			putEntry(again, key, e)
			if b, err := decodeEntry(key, again, 3); err != nil || !proto.Equal(e, b) {
				t.Errorf("entry %v: %v, %v", e, b, err)
			}
		}
	})
}
