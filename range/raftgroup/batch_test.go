package raftgroup

import (
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// A batch of the engine has a largest size, so a Ready ends when its batch has
// enough, and goes on with the next one: also when many large entries are applied
// after a start.
func TestReadyEndsWithAFullBatch(t *testing.T) {
	fs := vfs.NewMem()
	db := openDB(t, fs)
	defer db.Close()
	begin(t, db, 1, 1)
	g, _ := load(t, db, 1, 1)
	settle(t, db, g)
	const entries = 20
	large := strings.Repeat("x", maxCommittedSize/4) // several readies
	for range entries {
		must(t, g.Propose([]byte(large)))
	}
	// They are durable in the log, and not applied, when the process ends.
	b := db.NewBatch()
	_, err := g.Ready(b)
	must(t, err)
	must(t, db.Apply(b, pebble.Sync))
	must(t, b.Close())

	g, j := load(t, db, 1, 1)
	g.maxBatch = 2 * len(large)
	batches := 0
	for g.HasReady() {
		b := db.NewBatch()
		w, err := g.Ready(b)
		must(t, err)
		if limit := g.maxBatch + maxCommittedSize + len(large); b.Len() > limit {
			t.Fatalf("a batch of %d bytes, %d are enough", b.Len(), limit)
		}
		if w.Applied {
			batches++
		}
		must(t, db.Apply(b, pebble.NoSync))
		must(t, b.Close())
		if w.NeedsSync || len(w.WhenDurable) > 0 {
			_, err := g.Durable(w)
			must(t, err)
		}
	}
	if j.count < entries {
		t.Errorf("%d entries are applied, %d were proposed", j.count, entries)
	}
	if batches < 3 {
		t.Errorf("%d MiB were applied in %d batches", entries*len(large)>>20, batches)
	}
}
