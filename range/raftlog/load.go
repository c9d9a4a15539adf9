package raftlog

import (
	"encoding/binary"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/hawser-kv/hawser/range/keys"
)

// Load reads a group's log and Raft state. It checks every row, because the log
// that is kept is short, and that the rows agree with each other: a group that
// would start on damaged state answers ErrCorrupt here and is not served.
// ErrNotFound: the engine has no such group, or only a vote of it.
func Load(db pebble.Reader, id uint64) (*Log, error) {
	l := &Log{id: id, db: db}
	if err := l.load(); err != nil {
		return nil, fmt.Errorf("load group %d: %w", id, err)
	}
	return l, nil
}

func (l *Log) load() error {
	csKey := keys.Group(l.id, keys.KindConfState)
	csRow, found, err := getRow(l.db, csKey)
	if err != nil {
		return err
	}
	if !found {
		return l.loadNothing()
	}
	if l.cs, err = decodeConfState(csKey, csRow); err != nil {
		return err
	}
	if err := l.loadState(); err != nil {
		return err
	}
	return l.loadEntries()
}

// loadNothing tells a group that is not here from one that lost a row.
func (l *Log) loadNothing() error {
	for _, kind := range []byte{keys.KindTruncated, keys.KindApplied} {
		_, found, err := getRow(l.db, keys.Group(l.id, kind))
		if err != nil {
			return err
		}
		if found {
			return fmt.Errorf("a row of kind %c but no conf state: %w", kind, ErrCorrupt)
		}
	}
	return ErrNotFound
}

func (l *Log) mustRow(kind byte) (key, row []byte, err error) {
	key = keys.Group(l.id, kind)
	row, found, err := getRow(l.db, key)
	if err == nil && !found {
		err = fmt.Errorf("no row of kind %c: %w", kind, ErrCorrupt)
	}
	return key, row, err
}

func (l *Log) loadState() error {
	key, row, err := l.mustRow(keys.KindTruncated)
	if err != nil {
		return err
	}
	if l.trunc, err = decodePosition(key, row); err != nil {
		return err
	}
	if key, row, err = l.mustRow(keys.KindApplied); err != nil {
		return err
	}
	a, err := DecodeApplied(key, row)
	if err != nil {
		return err
	}
	l.applied = position{a.Index, a.Term}
	if err := l.loadHardState(); err != nil {
		return err
	}
	if len(l.cs.GetVoters()) == 0 {
		return fmt.Errorf("conf state without voters: %w", ErrCorrupt)
	}
	return nil
}

// loadHardState reads the term and vote. A group that has just begun may have none
// (Bootstrap); where a later term wrote entries, check finds it missing.
func (l *Log) loadHardState() error {
	l.hs = HardState{Term: InitialTerm}
	key := keys.Group(l.id, keys.KindHardState)
	row, found, err := getRow(l.db, key)
	if err == nil && found {
		l.hs, err = decodeHardState(key, row)
	}
	// A vote before the beginning knows of no commit.
	l.hs.Commit = max(l.hs.Commit, InitialIndex)
	return err
}

func (l *Log) loadEntries() error {
	l.last = l.trunc.index
	l.terms = append(l.terms, l.trunc)
	err := l.scan(0, 0, func(index uint64, key, row []byte) error {
		if index != l.last+1 {
			return fmt.Errorf("entry %d follows entry %d: %w", index, l.last, ErrCorrupt)
		}
		e, err := decodeEntry(key, row, index)
		if err != nil {
			return err
		}
		if last := l.terms[len(l.terms)-1].term; e.GetTerm() < last {
			return fmt.Errorf("entry %d has term %d after term %d: %w", index, e.GetTerm(), last, ErrCorrupt)
		}
		l.push(e, uint32(len(row)))
		if index <= l.applied.index {
			l.dropTail(index)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return l.check()
}

// check compares the rows with each other. The engine keeps the order of
// batches, so a crash cannot make these untrue.
func (l *Log) check() error {
	at, _ := l.Term(l.applied.index)
	switch {
	case l.applied.index < l.trunc.index:
		return fmt.Errorf("applied %d below truncated %d: %w", l.applied.index, l.trunc.index, ErrCorrupt)
	case l.applied.index > l.last:
		return fmt.Errorf("applied %d beyond the log's end %d: %w", l.applied.index, l.last, ErrCorrupt)
	case l.applied.term != at:
		return fmt.Errorf("applied %d in term %d, in the log it has term %d: %w", l.applied.index, l.applied.term, at, ErrCorrupt)
	case l.hs.Commit > l.last:
		return fmt.Errorf("committed %d beyond the log's end %d: %w", l.hs.Commit, l.last, ErrCorrupt)
	case l.hs.Term < l.terms[len(l.terms)-1].term:
		return fmt.Errorf("term %d below the last entry's term %d: %w", l.hs.Term, l.terms[len(l.terms)-1].term, ErrCorrupt)
	}
	return nil
}

// scan visits the rows of entries [lo, hi); hi 0 means to the end. key and row
// are valid during the call.
func (l *Log) scan(lo, hi uint64, fn func(index uint64, key, row []byte) error) (err error) {
	opts := &pebble.IterOptions{
		LowerBound: keys.LogEntry(l.id, lo),
		UpperBound: keys.Group(l.id, keys.KindLog+1),
	}
	if hi > 0 {
		opts.UpperBound = keys.LogEntry(l.id, hi)
	}
	it, err := l.db.NewIter(opts)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := it.Close(); err == nil {
			err = cerr
		}
	}()
	const prefix = 1 + 8 + 1 // keys.Group
	for valid := it.First(); valid; valid = it.Next() {
		key := it.Key()
		if len(key) != prefix+8 {
			return fmt.Errorf("key %x: %w", key, ErrCorrupt)
		}
		row, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		if err := fn(binary.BigEndian.Uint64(key[prefix:]), key, row); err != nil {
			return err
		}
	}
	return it.Error()
}
