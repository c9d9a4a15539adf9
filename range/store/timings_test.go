package store

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestTimingsAreToldUnderStartAlone: a store that is driven from outside reads no
// clock; one that was started tells of every write, sync and round.
func TestTimingsAreToldUnderStartAlone(t *testing.T) {
	var writes, commits, rounds atomic.Int64
	count := func(n *atomic.Int64) func(time.Duration) {
		return func(d time.Duration) {
			if d < 0 || d > time.Hour {
				t.Errorf("a duration of %s", d)
			}
			n.Add(1)
		}
	}
	timings := Timings{Write: count(&writes), Commit: count(&commits), Round: count(&rounds)}
	for _, manual := range []bool{true, false} {
		db := openDB(t, vfs.NewMem())
		begin(t, db, 0)
		r := newRig(t, db, func(c *Config) { c.ManualSync, c.Timings = manual, timings })
		answer := make(chan error, 1)
		post := func() { r.store.Post(0, &put{text: "x", done: func(p *put) { answer <- p.err }}) }
		if manual {
			post()
			for len(answer) == 0 {
				_, err := r.store.RunRound(0)
				must(t, err)
				_, err = r.store.SyncNext(0)
				must(t, err)
			}
			must(t, <-answer)
			r.store.Stop()
			if n := writes.Load() + commits.Load() + rounds.Load(); n != 0 {
				t.Errorf("%d durations without Start", n)
			}
		} else {
			r.store.Start(context.Background())
			post()
			must(t, <-answer)
			r.store.Stop()
			stats := r.store.Stats()
			if writes.Load() == 0 || uint64(writes.Load()) != stats.Commits || uint64(commits.Load()) != stats.Syncs {
				t.Errorf("%d writes and %d commits told, of %d and %d", writes.Load(), commits.Load(), stats.Commits, stats.Syncs)
			}
			if n := uint64(rounds.Load()); n == 0 || n > stats.Rounds {
				t.Errorf("%d rounds told of %d", n, stats.Rounds)
			}
		}
		must(t, db.Close())
	}
}
