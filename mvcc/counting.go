package mvcc

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/hawser-kv/hawser/mvcc/counts"
)

// loadCounts reads the count index and tells it again what came after its last
// checkpoint.
func (s *Store) loadCounts(opts counts.Options) error {
	x, from, err := counts.Load(s.db, s.forgotten.Load(), opts)
	if err != nil {
		return err
	}
	s.counts = x
	if err := s.replayCounts(from); err != nil {
		return err
	}
	b := s.db.NewBatch()
	if err := x.Recover(b, keyScanner{s}); err != nil {
		return errors.Join(err, b.Close())
	}
	if b.Empty() {
		return b.Close()
	}
	return b.Commit(pebble.NoSync)
}

// replayCounts applies the creations and deletions among the event rows from a
// revision on, revision by revision.
func (s *Store) replayCounts(from int64) (err error) {
	lower, upper := EventSpan(from, latestRevision)
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return fmt.Errorf("mvcc: replay counts: %w", err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	var (
		at      int64
		changes []counts.Change
		names   []byte // the bytes of the keys in changes
	)
	flush := func() error {
		err := s.counts.Apply(nil, at, changes)
		changes, names = changes[:0], names[:0]
		return err
	}
	for ok := it.First(); ok; ok = it.Next() {
		rev, _, key, err := splitEventKey(it.Key())
		if err != nil {
			return err
		}
		kind, err := decodeEventValue(it.Value())
		if err != nil {
			return err
		}
		if rev != at {
			if err := flush(); err != nil {
				return err
			}
			at = rev
		}
		delta := 0
		switch kind {
		case eventCreate:
			delta = +1
		case eventDelete:
			delta = -1
		default:
			continue
		}
		n := len(names)
		names = append(names, key...)
		changes = append(changes, counts.Change{Key: names[n:len(names):len(names)], Delta: delta})
	}
	if err := it.Error(); err != nil {
		return fmt.Errorf("mvcc: replay counts: %w", err)
	}
	return flush()
}

// count returns the number of keys in [start, end) that are live at rev.
func (s *Store) count(start, end []byte, rev int64) (int64, error) {
	n, err := s.counts.Count(start, end, rev, keyScanner{s})
	if errors.Is(err, counts.ErrForgotten) {
		return 0, ErrCompacted
	}
	return n, err
}

// keyScanner lets the count index look at the keys.
type keyScanner struct{ s *Store }

// CountAt implements counts.Scanner.
func (k keyScanner) CountAt(start, end []byte, rev int64) (n int64, err error) {
	l := Latest{k.s, rev}
	if emptyInterval(start, end) {
		return 0, nil
	}
	lower, upper := VersionSpan(start, end)
	err = l.with(lower, upper, false, func(c *cursor) error {
		return c.scan(rev, func(row) (bool, error) { n++; return true, nil })
	})
	return n, err
}

// History implements counts.Scanner.
func (k keyScanner) History(start, end []byte, after int64, fn func(key []byte, rev int64, delta int) error) error {
	if emptyInterval(start, end) {
		return nil
	}
	l := Latest{k.s, after}
	lower, upper := VersionSpan(start, end)
	return l.with(lower, upper, false, func(c *cursor) error { return c.history(after, fn) })
}

// history visits the creations and deletions of every key within the iterator's
// bounds that came after a revision, the newest first, and then, if the key was
// live at that revision, a creation at it.
func (c *cursor) history(after int64, fn func(key []byte, rev int64, delta int) error) error {
	var key []byte
	for ok := c.it.First(); ok; {
		prefix, rev, _, isVersion := splitVersionKey(c.it.Key())
		if !isVersion {
			return fmt.Errorf("%w: version key %x", errCorruptRow, c.it.Key())
		}
		value, err := c.it.ValueAndErr()
		if err != nil {
			return fmt.Errorf("mvcc: history: %w", err)
		}
		v, err := decodeVersionValue(value, rev)
		if err != nil {
			return err
		}
		if !bytes.Equal(prefix, c.prefix) || key == nil {
			c.prefix = append(c.prefix[:0], prefix...)
			if key, err = appendUserKey(key[:0], prefix); err != nil {
				return err
			}
		}
		delta := 0
		switch {
		case v.tombstone && rev > after:
			delta = -1
		case !v.tombstone && (v.version == 1 || rev <= after):
			delta = +1
		}
		if delta != 0 {
			if err := fn(key, max(rev, after), delta); err != nil {
				return err
			}
		}
		if rev <= after {
			ok = c.it.NextPrefix()
		} else {
			ok = c.it.Next()
		}
	}
	if err := c.it.Error(); err != nil {
		return fmt.Errorf("mvcc: history: %w", err)
	}
	return nil
}
