package raftgroup

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hawser-kv/hawser/range/keys"
	"github.com/hawser-kv/hawser/range/raftlog"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// journal is a state machine that keeps what was applied as rows of its group,
// one per entry, and a running count and hash in the applied state.
type journal struct {
	id      uint64
	entries []string // since it was loaded
	count   uint64
	hash    uint64
	fail    error // from index failAt on
	failAt  uint64
	onApply func(index, term uint64, data []byte)
}

func (j *journal) Apply(b *pebble.Batch, index, term uint64, data []byte) error {
	if j.fail != nil && index >= j.failAt {
		return j.fail
	}
	if j.onApply != nil {
		j.onApply(index, term, data)
	}
	j.entries = append(j.entries, fmt.Sprintf("%d/%d %s", index, term, data))
	j.count++
	j.hash = nextHash(j.hash, index, term, data)
	key := binary.BigEndian.AppendUint64(keys.Group(j.id, keys.KindState), index)
	return b.Set(key, data, nil)
}

func nextHash(h, index, term uint64, data []byte) uint64 {
	for _, v := range append(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, index), term), data...) {
		h = (h ^ uint64(v)) * 1099511628211
	}
	return h
}

func (j *journal) AppliedState(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, j.count)
	return binary.AppendUvarint(dst, j.hash)
}

func (j *journal) load(db pebble.Reader) error {
	a, err := raftlog.ReadApplied(db, j.id)
	if err != nil {
		return err
	}
	var n int
	j.count, n = binary.Uvarint(a.Machine)
	if len(a.Machine) > 0 {
		j.hash, _ = binary.Uvarint(a.Machine[n:])
	}
	return nil
}

// rows returns what the journal has written, by index.
func (j *journal) rows(t testing.TB, db *pebble.DB) string {
	t.Helper()
	it, err := db.NewIter(&pebble.IterOptions{
		LowerBound: keys.Group(j.id, keys.KindState), UpperBound: keys.Group(j.id, keys.KindState+1)})
	must(t, err)
	var out strings.Builder
	for it.First(); it.Valid(); it.Next() {
		fmt.Fprintf(&out, "%d:%s ", binary.BigEndian.Uint64(it.Key()[10:]), it.Value())
	}
	must(t, it.Close())
	return strings.TrimSpace(out.String())
}

type discard struct{}

func (discard) Infof(string, ...any)              {}
func (discard) Errorf(string, ...any)             {}
func (discard) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func openDB(t testing.TB, fs vfs.FS) *pebble.DB {
	t.Helper()
	db, err := pebble.Open("", &pebble.Options{FS: fs, Logger: discard{}, FormatMajorVersion: pebble.FormatNewest})
	must(t, err)
	return db
}

// begin makes a group with the given voters.
func begin(t testing.TB, db *pebble.DB, id uint64, voters ...uint64) {
	t.Helper()
	b := db.NewBatch()
	must(t, raftlog.Bootstrap(db, b, id, voters, nil))
	must(t, db.Apply(b, pebble.Sync))
	must(t, b.Close())
}

// load returns replica `replica` of a group with a journal.
func load(t testing.TB, db *pebble.DB, id, replica uint64) (*Group, *journal) {
	t.Helper()
	l, err := raftlog.Load(db, id)
	must(t, err)
	j := &journal{id: id}
	must(t, j.load(db))
	g, err := New(Config{ID: id, ReplicaID: replica, Log: l, Machine: j})
	must(t, err)
	return g, j
}

// settle runs a sole voter until nothing is left to do, every batch synced.
func settle(t testing.TB, db *pebble.DB, g *Group) (applied bool) {
	t.Helper()
	for g.HasReady() {
		b := db.NewBatch()
		w, err := g.Ready(b)
		must(t, err)
		must(t, db.Apply(b, pebble.NoSync))
		must(t, b.Close())
		if w.NeedsSync || len(w.WhenDurable) > 0 {
			_, err := g.Durable(w)
			must(t, err)
		}
		applied = applied || w.Applied
	}
	return applied
}
