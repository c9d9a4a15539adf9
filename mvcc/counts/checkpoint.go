package counts

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/hawser-kv/hawser/mvcc/keys"
)

// The rows of this package in the engine.
//
//	0x05 | start of the run     -> run: format, flags, anchor (4), uvarint(asOf), uvarint(count),
//	                               [smallest and largest key, each with its length,] history
//	0x06 | "counts.floor"       -> format, uvarint(floor)
//	0x06 | "counts.late." | rev (8) | start of a run -> format
//	0x06 | "counts.boundary." | key -> format
//	0x06 | "counts.invalid." | uvarint(length of start) | start | 0 or (1 | end) -> format
//
// What is stored is a checkpoint: all run rows as of one moment, written in one
// batch with the floor, which is above every revision that was applied then.
// Ranges do not apply in step, so a change below the floor may come afterwards.
// The first one of each run puts a late row into the batch that applies it. One
// row is enough for a run, because its revisions grow and the batches that change
// it are committed in order: if a later one survived a crash, so did the first.
// So a replay has to look at the events at or above the floor, and, for a run
// with a late row, at those from its revision on.
//
// A boundary row says that a run begins at key that the stored rows may still
// lack: changes on both sides of it do not come in the order of revisions, but a
// replay does, and the run is cut when it is over (Recover).
//
// A checkpoint may be ahead of the engine, when the process dies before a batch
// that was already counted is committed. Then the same changes are applied again
// after the start, as Raft replays them, and asOf in the row, the newest revision
// that the row knows of, keeps them from being counted twice.

const rowFormat byte = 1

const (
	flagBoundary byte = 1 << iota
	flagKeys

	knownFlags = flagBoundary | flagKeys
)

const (
	floorName      = "counts.floor"
	latePrefix     = "counts.late."
	boundaryPrefix = "counts.boundary."
	invalidPrefix  = "counts.invalid."
)

// ErrCorrupt is returned by Load for rows that this package did not write, or
// not in this version.
var ErrCorrupt = fmt.Errorf("counts: corrupt checkpoint: %w", pebble.ErrCorruption)

var (
	noteRow = []byte{rowFormat}
)

func runKey(start []byte) []byte {
	return append([]byte{keys.CountPrefix}, start...)
}

func lateKey(rev int64, start []byte) []byte {
	return append(binary.BigEndian.AppendUint64(keys.MVCCMeta(latePrefix), uint64(rev)), start...)
}

func boundaryKey(key []byte) []byte {
	return append(keys.MVCCMeta(boundaryPrefix), key...)
}

func invalidKey(s span) []byte {
	k := keys.MVCCMeta(invalidPrefix)
	k = binary.AppendUvarint(k, uint64(len(s.start)))
	k = append(k, s.start...)
	if s.end == nil {
		return append(k, 0)
	}
	return append(append(k, 1), s.end...)
}

func decodeInvalid(p []byte) (span, bool) {
	length, n := binary.Uvarint(p)
	if n <= 0 || length >= uint64(len(p)-n) {
		return span{}, false
	}
	p = p[n:]
	s := span{start: slices.Clone(p[:length])}
	switch p = p[length:]; {
	case p[0] == 1:
		s.end = append([]byte{}, p[1:]...)
		return s, true
	case p[0] == 0 && len(p) == 1:
		return s, true
	}
	return span{}, false
}

// note writes a late or boundary row.
func (x *Index) note(b *pebble.Batch, key, row []byte) error {
	x.notes.Lock()
	x.notes.current = append(x.notes.current, key)
	x.notes.Unlock()
	return b.Set(key, row, nil)
}

// Checkpoint writes what is not stored yet into b and calls commit, which must
// commit it; a sync is not needed. applied is the newest revision that was
// applied to the engine, with or without a change of the counts: a replay will
// begin after it. Changes wait until Checkpoint returns, counts do not.
//
// Events must not be removed before a checkpoint that was taken after they were
// applied; commit may do that in the same batch.
func (x *Index) Checkpoint(b *pebble.Batch, applied int64, commit func() error) error {
	x.checkpointMu.Lock()
	defer x.checkpointMu.Unlock()
	floor := max(applied, x.maxRev.Load()) + 1
	if err := x.stage(b, floor); err != nil {
		return err
	}
	if err := commit(); err != nil {
		return err
	}
	x.stored()
	x.checkpoint.floor = floor
	x.checkpoint.seq++
	return nil
}

func (x *Index) stage(b *pebble.Batch, floor int64) error {
	x.mu.RLock()
	defer x.mu.RUnlock()
	// In any order: a batch of deletes of different rows.
	for start := range x.mu.dead {
		if err := b.Delete(runKey([]byte(start)), nil); err != nil {
			return err
		}
	}
	for _, s := range x.mu.wasInvalid {
		if err := b.Delete(invalidKey(s), nil); err != nil {
			return err
		}
	}
	x.notes.Lock()
	defer x.notes.Unlock()
	// A batch with a note of the interval before may have been committed after
	// the checkpoint that ended the interval, so those go here, too.
	for _, key := range slices.Concat(x.notes.current, x.notes.previous) {
		if err := b.Delete(key, nil); err != nil {
			return err
		}
	}
	var row []byte
	for _, p := range x.mu.pages {
		p.mu.Lock()
		if p.dirty {
			for _, r := range p.runs {
				if !r.dirty {
					continue
				}
				row = r.appendTo(row[:0])
				if err := b.Set(runKey(r.start), row, nil); err != nil {
					p.mu.Unlock()
					return err
				}
			}
		}
		p.mu.Unlock()
	}
	return b.Set(keys.MVCCMeta(floorName), binary.AppendUvarint([]byte{rowFormat}, uint64(floor)), nil)
}

// stored takes note that what stage wrote is in the engine.
func (x *Index) stored() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, p := range x.mu.pages {
		if !p.dirty {
			continue
		}
		p.dirty = false
		for _, r := range p.runs {
			if r.dirty {
				r.dirty, r.stored = false, true
			}
		}
	}
	clear(x.mu.dead)
	x.mu.wasInvalid = nil
	x.notes.Lock()
	defer x.notes.Unlock()
	x.notes.previous, x.notes.current = x.notes.current, nil
}

func (r *run) appendTo(dst []byte) []byte {
	var flags byte
	if r.boundary {
		flags |= flagBoundary
	}
	if r.maxKey != nil {
		flags |= flagKeys
	}
	dst = append(dst, rowFormat, flags)
	dst = binary.BigEndian.AppendUint32(dst, r.anchor)
	dst = binary.AppendUvarint(dst, uint64(r.asOf))
	dst = binary.AppendUvarint(dst, uint64(r.count))
	if r.maxKey != nil {
		for _, k := range [][]byte{r.minKey, r.maxKey} {
			dst = binary.AppendUvarint(dst, uint64(len(k)))
			dst = append(dst, k...)
		}
	}
	return r.hist.appendTo(dst)
}

// decodeRun reads the row of the run that begins at start.
func decodeRun(start, row []byte) (*run, error) {
	corrupt := func(what string) (*run, error) {
		return nil, fmt.Errorf("%w: run %q: %s", ErrCorrupt, start, what)
	}
	if len(row) < 6 || row[0] != rowFormat || row[1]&^knownFlags != 0 {
		return corrupt("format")
	}
	r := &run{start: slices.Clone(start), boundary: row[1]&flagBoundary != 0, stored: true}
	hasKeys := row[1]&flagKeys != 0
	r.anchor = binary.BigEndian.Uint32(row[2:])
	row = row[6:]
	for _, field := range []*int64{&r.asOf, &r.count} {
		u, n := binary.Uvarint(row)
		if n <= 0 || u > math.MaxInt64 {
			return corrupt("number")
		}
		*field = int64(u)
		row = row[n:]
	}
	if hasKeys {
		for _, field := range []*[]byte{&r.minKey, &r.maxKey} {
			length, n := binary.Uvarint(row)
			if n <= 0 || length > uint64(len(row)-n) {
				return corrupt("key")
			}
			*field = append([]byte{}, row[n:n+int(length)]...)
			row = row[n+int(length):]
		}
		if bytes.Compare(r.minKey, r.maxKey) > 0 || bytes.Compare(r.minKey, r.start) < 0 {
			return corrupt("order of keys")
		}
	}
	var ok bool
	if r.hist, row, ok = decodeHistory(row); !ok || len(row) > 0 {
		return corrupt("history")
	}
	switch {
	case r.hist.newest() > r.asOf:
		return corrupt("history goes on after the revision of the row")
	case r.count < r.hist.sum:
		return corrupt("history creates more keys than there are")
	case !hasKeys && (r.count != 0 || r.hist.oldest() != 0):
		return corrupt("keys are missing")
	}
	r.ignoreUpTo = r.asOf
	return r, nil
}

// Load reads the index from an engine whose forgotten revision is given. The
// caller then tells it again, with Apply, the changes of all events whose
// revision is at or above replayFrom, and calls Recover.
func Load(engine pebble.Reader, forgotten int64, opts Options) (x *Index, replayFrom int64, err error) {
	x = New(opts)
	x.mu.forgotten = forgotten
	if err := x.loadFloor(engine); err != nil {
		return nil, 0, err
	}
	if err := x.loadRuns(engine); err != nil {
		return nil, 0, err
	}
	if replayFrom, err = x.loadNotes(engine); err != nil {
		return nil, 0, err
	}
	return x, replayFrom, nil
}

func (x *Index) loadRuns(engine pebble.Reader) error {
	var runs []*run
	err := visit(engine, []byte{keys.CountPrefix}, func(start, row []byte) error {
		r, err := decodeRun(start, row)
		if err != nil {
			return err
		}
		if n := len(runs); n > 0 && runs[n-1].maxKey != nil && bytes.Compare(runs[n-1].maxKey, r.start) >= 0 {
			return fmt.Errorf("%w: run %q reaches into run %q", ErrCorrupt, runs[n-1].start, r.start)
		}
		runs = append(runs, r)
		return nil
	})
	if err != nil {
		return err
	}
	if len(runs) == 0 {
		if x.checkpoint.floor != 0 {
			return fmt.Errorf("%w: no runs, though a checkpoint was written", ErrCorrupt)
		}
		return nil
	}
	if len(runs[0].start) != 0 {
		return fmt.Errorf("%w: the first run is %q", ErrCorrupt, runs[0].start)
	}
	for _, r := range runs {
		x.weigh(r)
		x.maxRev.Store(max(x.maxRev.Load(), r.asOf))
	}
	x.mu.pages = paged(runs)
	return nil
}

func (x *Index) loadFloor(engine pebble.Reader) error {
	return visit(engine, keys.MVCCMeta(floorName), func(rest, row []byte) error {
		if len(rest) != 0 || len(row) == 0 || row[0] != rowFormat {
			return fmt.Errorf("%w: floor %x", ErrCorrupt, row)
		}
		u, n := binary.Uvarint(row[1:])
		if n <= 0 || n != len(row)-1 || u > math.MaxInt64 {
			return fmt.Errorf("%w: floor %x", ErrCorrupt, row)
		}
		x.checkpoint.floor = int64(u)
		return nil
	})
}

// loadNotes reads the notes, when the runs are there.
func (x *Index) loadNotes(engine pebble.Reader) (replayFrom int64, err error) {
	replayFrom = x.checkpoint.floor
	err = visit(engine, keys.MVCCMeta(latePrefix), func(rest, row []byte) error {
		if len(rest) < 8 || !bytes.Equal(row, noteRow) || rest[0]&0x80 != 0 {
			return fmt.Errorf("%w: late revision %x", ErrCorrupt, rest)
		}
		rev, start := int64(binary.BigEndian.Uint64(rest)), rest[8:]
		x.notes.current = append(x.notes.current, lateKey(rev, start))
		// The run of the note may be a part of the stored one.
		p := x.mu.pages[x.findPageLocked(start)]
		r := p.runs[p.find(start)]
		if r.lateFrom == 0 || rev < r.lateFrom {
			r.lateFrom, r.lateSeq = rev, x.checkpoint.seq
		}
		replayFrom = min(replayFrom, rev)
		return nil
	})
	if err != nil {
		return 0, err
	}
	err = visit(engine, keys.MVCCMeta(boundaryPrefix), func(key, row []byte) error {
		if !bytes.Equal(row, noteRow) {
			return fmt.Errorf("%w: boundary %q", ErrCorrupt, key)
		}
		x.mu.unmade = append(x.mu.unmade, slices.Clone(key))
		return nil
	})
	if err != nil {
		return 0, err
	}
	err = visit(engine, keys.MVCCMeta(invalidPrefix), func(rest, row []byte) error {
		s, ok := decodeInvalid(rest)
		if !ok || !bytes.Equal(row, noteRow) {
			return fmt.Errorf("%w: invalid span %x", ErrCorrupt, rest)
		}
		x.mu.invalid = append(x.mu.invalid, s)
		return nil
	})
	return replayFrom, err
}

// visit calls fn for all rows whose key begins with prefix, with the rest of the
// key. Both slices belong to visit.
func visit(engine pebble.Reader, prefix []byte, fn func(rest, row []byte) error) (err error) {
	upper := slices.Clone(prefix)
	upper[len(upper)-1]++ // no prefix here ends with 0xff
	it, err := engine.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: upper})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for it.First(); it.Valid(); it.Next() {
		row, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		if err := fn(it.Key()[len(prefix):], row); err != nil {
			return err
		}
	}
	return it.Error()
}
