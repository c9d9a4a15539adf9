package raftlog

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/hawser-kv/hawser/range/keys"
)

// Append stages entries, which follow each other, into b. They may replace the
// log's end: entries of a deposed leader. They never reach below what is
// applied. The log keeps the entries; nobody may change them.
func (l *Log) Append(b *pebble.Batch, entries []*raftpb.Entry) error {
	if len(entries) == 0 {
		return nil
	}
	first := entries[0].GetIndex()
	if first <= l.applied.index || first > l.last+1 {
		panic(fmt.Sprintf("raftlog: append at %d to %s", first, l))
	}
	oldLast := l.last
	if first <= oldLast {
		l.cut(first)
	}
	for i, e := range entries {
		if e.GetIndex() != first+uint64(i) || e.GetTerm() < l.terms[len(l.terms)-1].term {
			panic(fmt.Sprintf("raftlog: append entry (%d,%d) to %s", e.GetIndex(), e.GetTerm(), l))
		}
		l.keyBuf = appendLogKey(l.keyBuf[:0], l.id, e.GetIndex())
		size := entryRowSize(e)
		op := b.SetDeferred(len(l.keyBuf), size)
		copy(op.Key, l.keyBuf)
		putEntry(op.Value, l.keyBuf, e)
		if err := op.Finish(); err != nil {
			return err
		}
		l.push(e, uint32(size))
	}
	for i := l.last + 1; i <= oldLast; i++ {
		if err := l.deleteEntry(b, i); err != nil {
			return err
		}
	}
	return nil
}

// push adds an entry to the log in memory.
func (l *Log) push(e *raftpb.Entry, size uint32) {
	l.last = e.GetIndex()
	if l.terms[len(l.terms)-1].term != e.GetTerm() {
		l.terms = append(l.terms, position{l.last, e.GetTerm()})
	}
	l.sizes = append(l.sizes, size)
	l.bytes += uint64(size)
	l.tail = append(l.tail, e)
	l.tailBytes += uint64(size)
}

// cut removes the entries from index on, in memory.
func (l *Log) cut(index uint64) {
	keep := int(index - l.trunc.index - 1)
	tailKeep := 0
	if first := l.tailFirst(); index > first {
		tailKeep = int(index - first)
	}
	for i, size := range l.sizes[keep:] {
		l.bytes -= uint64(size)
		if l.trunc.index+1+uint64(keep+i) >= l.tailFirst() {
			l.tailBytes -= uint64(size)
		}
	}
	clear(l.tail[tailKeep:])
	l.tail = l.tail[:tailKeep]
	l.sizes = l.sizes[:keep]
	l.last = index - 1
	for l.terms[len(l.terms)-1].index > l.last {
		l.terms = l.terms[:len(l.terms)-1]
	}
}

func (l *Log) deleteEntry(b *pebble.Batch, index uint64) error {
	op := b.DeleteDeferred(len(appendLogKey(l.keyBuf[:0], l.id, index)))
	l.keyBuf = appendLogKey(l.keyBuf[:0], l.id, index)
	copy(op.Key, l.keyBuf)
	return op.Finish()
}

// HardState returns the term, vote and commit index as staged.
func (l *Log) HardState() HardState { return l.hs }

// SetHardState stages raft's HardState and reports whether it staged a row. One
// in which only the commit index moved is not written. That is safe: in Raft
// the commit index is volatile. A voter that restarts learns it from a leader,
// and if it is the leader, by committing an entry of its new term; what it
// answered before rested on the entries, which are synced, not on the index.
// What restart needs is that the index is not below what is applied, and
// InitialState sees to that: the applied state commits after, and in the order
// of the engine's log, the entries that it covers. The price is that a replica
// that restarts may serve an older state until it hears from a leader
// (revisions.md R10 counts on that).
func (l *Log) SetHardState(b *pebble.Batch, hs HardState) (staged bool, err error) {
	if hs.Term < l.hs.Term || hs.Commit < l.hs.Commit {
		panic(fmt.Sprintf("raftlog: hard state %+v after %+v of %s", hs, l.hs, l))
	}
	moved := hs.Term != l.hs.Term || hs.Vote != l.hs.Vote
	if moved && hs.Term == l.hs.Term && l.hs.Vote != 0 {
		panic(fmt.Sprintf("raftlog: second vote in a term: %+v after %+v of %s", hs, l.hs, l))
	}
	if !moved {
		l.hs.Commit = hs.Commit
		return false, nil
	}
	l.hs = hs
	// A row may name a commit index only if the entries up to it are rows, too:
	// a follower can know of a commit whose entries come with this very batch.
	row := hs
	row.Commit = min(hs.Commit, l.last)
	l.keyBuf = keys.AppendGroup(l.keyBuf[:0], l.id, keys.KindHardState)
	l.rowBuf = appendHardState(l.rowBuf[:0], l.keyBuf, row)
	return true, b.Set(l.keyBuf, l.rowBuf, nil)
}

// SetConfState stages the configuration as applied.
func (l *Log) SetConfState(b *pebble.Batch, cs *raftpb.ConfState) error {
	l.cs = cs
	key := keys.Group(l.id, keys.KindConfState)
	row, err := appendConfState(nil, key, cs)
	if err != nil {
		return err
	}
	return b.Set(key, row, nil)
}

// SetApplied stages the applied state; machine appends the state machine's
// part. Entries up to index leave the tail, but keepTail bytes of it.
func (l *Log) SetApplied(b *pebble.Batch, index, term uint64, keepTail uint64, machine func(dst []byte) []byte) error {
	if index < l.applied.index || index > l.last {
		panic(fmt.Sprintf("raftlog: applied %d of %s", index, l))
	}
	l.applied = position{index, term}
	l.keyBuf = keys.AppendGroup(l.keyBuf[:0], l.id, keys.KindApplied)
	l.rowBuf = machine(beginApplied(l.rowBuf[:0], index, term))
	l.rowBuf = sealRow(l.rowBuf, 0, l.keyBuf)
	if l.tailBytes > keepTail {
		l.dropTailKeeping(index, keepTail)
	}
	return b.Set(l.keyBuf, l.rowBuf, nil)
}

// dropTail removes the entries up to index from the tail.
func (l *Log) dropTail(index uint64) { l.dropTailKeeping(index, 0) }

// dropTailKeeping removes entries up to index from the tail until it has no
// more than keep bytes.
func (l *Log) dropTailKeeping(index, keep uint64) {
	n := 0
	for i := l.tailFirst(); i <= index && n < len(l.tail) && l.tailBytes > keep; i++ {
		l.tailBytes -= uint64(l.sizes[i-l.trunc.index-1])
		l.tail[n] = nil // Entries hands out copies of the slice, so it is ours
		n++
	}
	switch {
	case n < len(l.tail):
		l.tail = l.tail[n:]
	case cap(l.tail) <= maxIdleTail:
		l.tail = l.tail[:0]
	default:
		l.tail = nil
	}
}

// maxIdleTail bounds the array that an empty tail keeps, so that a group that
// once had a backlog does not hold memory for it.
const maxIdleTail = 64

// Truncate stages the removal of the entries up to index, which must be applied
// durably: the caller has seen a sync complete that covers the applied state.
func (l *Log) Truncate(b *pebble.Batch, index uint64) error {
	if index > l.applied.index {
		panic(fmt.Sprintf("raftlog: truncate at %d, which is not applied, of %s", index, l))
	}
	if index <= l.trunc.index {
		return nil
	}
	term, err := l.Term(index)
	if err != nil {
		return err
	}
	for i := l.trunc.index + 1; i <= index; i++ {
		if err := l.deleteEntry(b, i); err != nil {
			return err
		}
	}
	l.dropTail(index)
	n := int(index - l.trunc.index)
	for _, size := range l.sizes[:n] {
		l.bytes -= uint64(size)
	}
	l.sizes = append(l.sizes[:0], l.sizes[n:]...)
	l.trunc = position{index, term}
	first := 0
	for first+1 < len(l.terms) && l.terms[first+1].index <= index {
		first++
	}
	l.terms = append(l.terms[:0], l.terms[first:]...)
	l.terms[0] = l.trunc
	l.keyBuf = keys.AppendGroup(l.keyBuf[:0], l.id, keys.KindTruncated)
	l.rowBuf = appendPosition(l.rowBuf[:0], l.keyBuf, l.trunc)
	return b.Set(l.keyBuf, l.rowBuf, nil)
}

// TruncateAt returns the largest index, not above limit, at which the log may
// be cut so that of the entries up to limit the newest keepEntries remain, or
// fewer if these have more than keepBytes.
func (l *Log) TruncateAt(limit, keepEntries, keepBytes uint64) uint64 {
	limit = min(limit, l.applied.index)
	at := limit
	for kept := uint64(0); at > l.trunc.index && limit-at < keepEntries; at-- {
		if kept += uint64(l.sizes[at-l.trunc.index-1]); kept > keepBytes {
			break
		}
	}
	return max(at, l.trunc.index)
}

func appendLogKey(dst []byte, id, index uint64) []byte {
	dst = keys.AppendGroup(dst, id, keys.KindLog)
	return append(dst, byte(index>>56), byte(index>>48), byte(index>>40), byte(index>>32),
		byte(index>>24), byte(index>>16), byte(index>>8), byte(index))
}
