package engine

import (
	"bytes"
	"context"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// Flush writes what the engine has in memory only to its tables.
func (e *Engine) Flush(ctx context.Context) error {
	var flushed <-chan struct{}
	err := e.Fault.Write(func() (err error) {
		// A flush begins another log, and the engine ends the process when the one
		// before fails just then: a sync tells whether the disk works.
		if err := e.DB.LogData(nil, pebble.Sync); err != nil {
			return err
		}
		flushed, err = e.DB.AsyncFlush()
		return err
	})
	if err != nil {
		return err
	}
	select {
	case <-flushed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pieceBytes is how much of the tables a merge rewrites at a time, about: so much
// more the disk must hold meanwhile.
const pieceBytes = 32 << 20

// Merge rewrites the tables that have something deleted, or hide it, so that it
// takes no room: what is in tables now. It goes piece by piece. rest is called after
// each, so that others hardly feel it; its error ends the merge.
func (e *Engine) Merge(ctx context.Context, rest func() error) error {
	// What the tables themselves say: the engine's own figures follow by some moments.
	levels, err := e.DB.SSTables(pebble.WithProperties())
	if err != nil {
		return err
	}
	for _, p := range pieces(levels) {
		if err := e.Fault.Write(func() error { return e.DB.Compact(ctx, p.start, p.end, false) }); err != nil {
			return err
		}
		if err := rest(); err != nil {
			return err
		}
	}
	return nil
}

// piece is what a merge works on at a time, from start to before end.
type piece struct{ start, end []byte }

// pieces returns what to merge: all keys, cut where tables of the lowest level
// begin, without the pieces in which no table has a deletion.
func pieces(levels [][]pebble.SSTableInfo) (out []piece) {
	bounds := [][]byte{{0}}
	var size uint64
	for _, t := range levels[len(levels)-1] {
		if size >= pieceBytes {
			bounds = append(bounds, t.Smallest.UserKey)
			size = 0
		}
		size += t.Size
	}
	bounds = append(bounds, []byte{0xff})
	for i := range len(bounds) - 1 {
		p := piece{bounds[i], bounds[i+1]}
		if slices.ContainsFunc(levels, func(level []pebble.SSTableInfo) bool { return slices.ContainsFunc(level, p.hasDeletions) }) {
			out = append(out, p)
		}
	}
	return out
}

// hasDeletions says whether a table has deletions and keys in the piece.
func (p piece) hasDeletions(t pebble.SSTableInfo) bool {
	return t.Properties.NumDeletions > 0 &&
		bytes.Compare(t.Smallest.UserKey, p.end) < 0 && bytes.Compare(t.Largest.UserKey, p.start) >= 0
}

// Defragment does what Merge does, of what is in memory, too, and without rest. It
// gives up the logs that are kept for the next ones.
func (e *Engine) Defragment(ctx context.Context) error {
	done, err := e.logs.dropSpares()
	defer done()
	if err != nil {
		return err
	}
	if err := e.Flush(ctx); err != nil {
		return err
	}
	return e.Merge(ctx, ctx.Err)
}
