// Package raftlog keeps the Raft log and Raft state of one group in the node's
// engine. It stages rows into batches that others commit; it never commits,
// never syncs and starts nothing. raftgroup drives it.
package raftlog

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/range/keys"
)

// InitialIndex and InitialTerm are the place in its log at which a group
// begins: the entries up to it never existed. They are not 0, so that a replica
// that knows nothing can be told from one that began with the group and is sent
// a snapshot instead of a log.
const (
	InitialIndex = 1
	InitialTerm  = 1
)

// Log is the log and Raft state of one group. It implements raft.Storage.
//
// What it says is the state *after* every batch it staged rows into, committed
// or not: the owner commits batches in the order of staging, or stops for good.
// raft itself asks only for what was reported as stable, or for the term and
// index of the whole, so it never acts on a row that is not durable.
//
// A Log is not safe for concurrent use: the shard's worker owns it.
type Log struct {
	id uint64
	db pebble.Reader

	hs      HardState
	cs      *raftpb.ConfState
	trunc   position // last entry that is no more; InitialIndex at the start
	applied position // as of the newest staged AppliedState row
	last    uint64   // index of the last entry; trunc.index when there is none

	// terms[i] says that entries from index on have that term, up to the next
	// element. The first is at trunc.index. Terms change rarely, so it is short.
	terms []position
	// sizes[i] is the size of the row of entry trunc.index+1+i; its sum is bytes.
	sizes []uint32
	bytes uint64

	// tail holds the last entries, up to the last index: all that are not
	// applied, and for a group of several voters some that are, so that a
	// follower close behind costs no engine read.
	tail      []*raftpb.Entry
	tailBytes uint64

	// corrupt is the damage found while raft was reading; raft.Storage has no
	// way to survive it. Sticky.
	corrupt error

	keyBuf, rowBuf []byte
}

var _ raft.Storage = (*Log)(nil)

// Bootstrap stages the rows of a new group whose voters are the given replica
// ids and whose state machine begins with the given part of the applied state.
// It answers ErrExists when the engine has a log or an applied state of that
// group. A HardState alone may be there, or be staged at this moment by another
// worker: of a replica that was asked for its vote before it began (revisions.md
// R11). So none is written, and the term and vote are kept; a group that has only
// begun and has no HardState is of the first term and has voted for nobody.
//
// The batch must be committed with a sync before anything leaves the node that
// rests on the group's existence.
func Bootstrap(r pebble.Reader, b *pebble.Batch, id uint64, voters []uint64, machine []byte) error {
	if len(voters) == 0 || slices.Contains(voters, raft.None) {
		return fmt.Errorf("raftlog: group %d: voters %v", id, voters)
	}
	for _, kind := range []byte{keys.KindApplied, keys.KindConfState, keys.KindTruncated} {
		switch _, found, err := getRow(r, keys.Group(id, kind)); {
		case err != nil:
			return err
		case found:
			return fmt.Errorf("group %d has a row of kind %c: %w", id, kind, ErrExists)
		}
	}
	start := position{InitialIndex, InitialTerm}
	csKey := keys.Group(id, keys.KindConfState)
	csRow, err := appendConfState(nil, csKey, &raftpb.ConfState{Voters: voters})
	if err != nil {
		return err
	}
	truncKey, appliedKey := keys.Group(id, keys.KindTruncated), keys.Group(id, keys.KindApplied)
	applied := append(beginApplied(nil, start.index, start.term), machine...)
	return errors.Join(
		b.Set(csKey, csRow, nil),
		b.Set(truncKey, appendPosition(nil, truncKey, start), nil),
		b.Set(appliedKey, sealRow(applied, 0, appliedKey), nil),
	)
}

// ReadApplied returns the applied state of a group without loading it, or
// ErrNotFound. Safe for concurrent use.
func ReadApplied(r pebble.Reader, id uint64) (Applied, error) {
	key := keys.Group(id, keys.KindApplied)
	row, found, err := getRow(r, key)
	if err != nil {
		return Applied{}, err
	}
	if !found {
		return Applied{}, fmt.Errorf("group %d: %w", id, ErrNotFound)
	}
	return DecodeApplied(key, row)
}

// getRow returns a copy of a row.
func getRow(r pebble.Reader, key []byte) (row []byte, found bool, err error) {
	v, closer, err := r.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("read row %x: %w", key, err)
	}
	row = append([]byte(nil), v...)
	return row, true, closer.Close()
}

// ID returns the group's id.
func (l *Log) ID() uint64 { return l.id }

// Applied returns index and term of the newest staged applied state.
func (l *Log) Applied() (index, term uint64) { return l.applied.index, l.applied.term }

// Bytes returns the size of the log's rows.
func (l *Log) Bytes() uint64 { return l.bytes }

// InitialState implements raft.Storage. The commit index is raised to the
// applied index: see SetHardState.
func (l *Log) InitialState() (*raftpb.HardState, *raftpb.ConfState, error) {
	commit := max(l.hs.Commit, l.applied.index)
	return &raftpb.HardState{
		Term:   new(l.hs.Term),
		Vote:   new(l.hs.Vote),
		Commit: &commit,
	}, proto.Clone(l.cs).(*raftpb.ConfState), nil
}

// FirstIndex implements raft.Storage.
func (l *Log) FirstIndex() (uint64, error) { return l.trunc.index + 1, nil }

// LastIndex implements raft.Storage.
func (l *Log) LastIndex() (uint64, error) { return l.last, nil }

// Term implements raft.Storage.
func (l *Log) Term(i uint64) (uint64, error) {
	switch {
	case i < l.trunc.index:
		return 0, raft.ErrCompacted
	case i > l.last:
		return 0, raft.ErrUnavailable
	}
	for n := len(l.terms) - 1; ; n-- {
		if l.terms[n].index <= i {
			return l.terms[n].term, nil
		}
	}
}

// Snapshot implements raft.Storage. There are no snapshots of groups yet:
// raftgroup keeps the entries that some voter may still need.
func (l *Log) Snapshot() (*raftpb.Snapshot, error) {
	return nil, raft.ErrSnapshotTemporarilyUnavailable
}

// Entries implements raft.Storage. The size of an entry is counted as the size
// of its row.
func (l *Log) Entries(lo, hi, maxSize uint64) ([]*raftpb.Entry, error) {
	switch {
	case lo <= l.trunc.index:
		return nil, raft.ErrCompacted
	case hi > l.last+1:
		return nil, raft.ErrUnavailable
	case lo >= hi:
		return nil, nil
	}
	size := uint64(l.sizes[lo-l.trunc.index-1])
	end := lo + 1
	for ; end < hi; end++ {
		if size += uint64(l.sizes[end-l.trunc.index-1]); size > maxSize {
			break
		}
	}
	first := l.tailFirst()
	if lo >= first {
		return slices.Clone(l.tail[lo-first : end-first]), nil
	}
	out, err := l.readEntries(make([]*raftpb.Entry, 0, end-lo), lo, min(end, first))
	if err != nil {
		l.corrupt = err
		return nil, err
	}
	if end > first {
		out = append(out, l.tail[:end-first]...)
	}
	return out, nil
}

// tailFirst is the index of the first entry of the tail, last+1 if it is empty.
func (l *Log) tailFirst() uint64 { return l.last + 1 - uint64(len(l.tail)) }

// readEntries appends the entries [lo, hi) to dst, from the engine.
func (l *Log) readEntries(dst []*raftpb.Entry, lo, hi uint64) ([]*raftpb.Entry, error) {
	next := lo
	err := l.scan(lo, hi, func(index uint64, key, row []byte) error {
		if index != next {
			return fmt.Errorf("group %d: entry %d is missing: %w", l.id, next, ErrCorrupt)
		}
		e, err := decodeEntry(key, row, index)
		if err != nil {
			return fmt.Errorf("group %d: entry %d: %w", l.id, index, err)
		}
		if want, _ := l.Term(index); e.GetTerm() != want {
			return fmt.Errorf("group %d: entry %d has term %d, want %d: %w", l.id, index, e.GetTerm(), want, ErrCorrupt)
		}
		dst = append(dst, e)
		next++
		return nil
	})
	if err == nil && next != hi {
		err = fmt.Errorf("group %d: entry %d is missing: %w", l.id, next, ErrCorrupt)
	}
	return dst, err
}

// Corrupt returns the damage that was found while raft was reading, nil if
// there was none.
func (l *Log) Corrupt() error { return l.corrupt }

func (l *Log) String() string {
	return fmt.Sprintf("log %d: (%d,%d] applied=%d term=%d vote=%d", l.id, l.trunc.index, l.last, l.applied.index, l.hs.Term, l.hs.Vote)
}
