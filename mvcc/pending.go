package mvcc

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"github.com/hawser-kv/hawser/mvcc/counts"
	"github.com/hawser-kv/hawser/mvcc/keys"
)

// A deletion of very many keys is applied as one row, a *pending deletion*: every
// version of a key in its span that is older than its revision is dead for reads at
// or above that revision. Its cost does not depend on the number of keys. In the
// background it is turned into what other deletions are, a tombstone and an event
// for each key (MaterialiseStep), some keys at a time, and shrinks as it goes.
//
//	Apply            row, counts, pendings.list: the keys are gone for readers
//	commit           the row is in the engine
//	MaterialiseStep  tombstones, events, lease index; the row begins behind them
//	...              the same for readers whichever of the two says so
//	last step        the row goes
//
// A step begins after the commit. Its rows would be in the engine before the row, and
// before what else its revision changes: a crash in between would leave a part of a
// revision, which a start takes for all of it, and the row would undo the steps.
//
// Readers see no difference. They take the list before they open their iterator:
// then what a step moves from the list to the engine meanwhile is in one of the two,
// or in both. Who needs the rows themselves (the revision index, the hash, a
// compaction) has to wait: see EventsComplete and ErrPending.
type pendings struct {
	// list is in the order of revision and sub; nil if there is none, nearly always.
	// Nobody changes a list that was stored.
	list atomic.Pointer[pendingList]

	mu   sync.Mutex // held by who changes the list
	step sync.Mutex // held by a step: one at a time

	leases pendingLeases
}

type pendingList []pendingDeletion

// pendingDeletion is what is left of the deletion of a span.
type pendingDeletion struct {
	rev int64
	sub uint32 // the first of the deletion: with rev it names the row
	// next is the sub of the first key that is left, and left the number of keys.
	next uint32
	left int64
	// [start, end) is the span that is left, end nil for the end of the keyspace;
	// lower and upper are the same among the prefixes of version keys.
	start, end   []byte
	lower, upper []byte
	// blocked: it cannot be written out while this process lives (Store.Block).
	blocked bool
}

// ErrPending: a deletion of a span at or below the revision is not yet turned into
// rows, which the caller needs. It will be, soon; ask again.
var ErrPending = errors.New("mvcc: a large deletion is still being written out")

// Rows, under keys.MVCCMetaPrefix:
//
//	"pending." | revision (8) | sub (4) -> format (1) | next sub | keys left | start length, start | [end]
const pendingName = "pending."

const (
	pendingFormat byte = 1
	// pendingFormatToEnd is that of a span without an end.
	pendingFormatToEnd byte = 2
)

func newPending(rev int64, e *Effect) pendingDeletion {
	p := pendingDeletion{rev: rev, sub: e.Sub, next: e.Sub, left: e.Count, end: bytes.Clone(e.End)}
	p.begin(e.Key)
	return p
}

// begin makes the span begin at key.
func (p *pendingDeletion) begin(key []byte) {
	p.start = bytes.Clone(key)
	p.lower, p.upper = VersionSpan(p.start, p.end)
}

func (p *pendingDeletion) key() []byte {
	k := binary.BigEndian.AppendUint64(keys.MVCCMeta(pendingName), uint64(p.rev))
	return binary.BigEndian.AppendUint32(k, p.sub)
}

func (p *pendingDeletion) value() []byte {
	format := pendingFormat
	if p.end == nil {
		format = pendingFormatToEnd
	}
	v := binary.AppendUvarint([]byte{format}, uint64(p.next))
	v = binary.AppendUvarint(v, uint64(p.left))
	v = binary.AppendUvarint(v, uint64(len(p.start)))
	v = append(v, p.start...)
	return append(v, p.end...)
}

// decodePending reads a row; rest is its key behind the name.
func decodePending(rest, row []byte) (p pendingDeletion, err error) {
	bad := func() (pendingDeletion, error) {
		return p, fmt.Errorf("%w: pending deletion %x: %x", errCorruptRow, rest, row)
	}
	if len(rest) != 12 || len(row) == 0 {
		return bad()
	}
	if row[0] != pendingFormat && row[0] != pendingFormatToEnd {
		return p, fmt.Errorf("%w: pending deletion of format %d", errRowFormat, row[0])
	}
	p.rev, p.sub = int64(binary.BigEndian.Uint64(rest)), binary.BigEndian.Uint32(rest[8:])
	d := effectDecoder{rest: row[1:]}
	next, left, start := d.uvarint(), d.uvarint(), d.bytes()
	if d.bad || p.rev <= 0 || next > math.MaxUint32 || uint32(next) < p.sub || left > math.MaxUint32 || len(start) == 0 {
		return bad()
	}
	p.next, p.left = uint32(next), int64(left)
	if row[0] == pendingFormat {
		p.end = bytes.Clone(d.rest)
	} else if len(d.rest) > 0 {
		return bad()
	}
	p.begin(start)
	if emptyInterval(p.start, p.end) {
		return bad()
	}
	return p, nil
}

// covers says whether the key with a prefix lies in the span.
func (p *pendingDeletion) covers(prefix []byte) bool {
	return bytes.Compare(p.lower, prefix) <= 0 && bytes.Compare(prefix, p.upper) < 0
}

// kills returns the revision at which a version of the key with the prefix was
// deleted, of those up to readRev; 0 if it was not. It is for the newest version at
// or below readRev.
func (l *pendingList) kills(prefix []byte, rev, readRev int64) int64 {
	for i := range *l {
		p := &(*l)[i]
		if p.rev > readRev {
			return 0
		}
		if rev < p.rev && p.covers(prefix) {
			return p.rev
		}
	}
	return 0
}

// killsKey is kills for a user key.
func (l *pendingList) killsKey(key []byte, rev, readRev int64) bool {
	var few [128]byte
	return l.kills(appendVersionPrefix(few[:0], key), rev, readRev) != 0
}

// names says whether an event is that of a key whose deletion is pending. Programs of
// before could write it out before the row of the deletion.
func (l *pendingList) names(rev int64, sub uint32) bool {
	if l == nil {
		return false
	}
	i, _ := slices.BinarySearchFunc(*l, rev, func(p pendingDeletion, rev int64) int { return cmp.Compare(p.rev, rev) })
	for ; i < len(*l) && (*l)[i].rev == rev; i++ {
		if p := &(*l)[i]; p.next <= sub && int64(sub) < int64(p.next)+p.left {
			return true
		}
	}
	return false
}

// load reads the rows at the start.
func (p *pendings) load(db *pebble.DB) (err error) {
	lower := keys.MVCCMeta(pendingName)
	upper := bytes.Clone(lower)
	upper[len(upper)-1]++
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return fmt.Errorf("mvcc: pending deletions: %w", err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	var list pendingList
	for ok := it.First(); ok; ok = it.Next() {
		row, err := it.ValueAndErr()
		if err != nil {
			return fmt.Errorf("mvcc: pending deletions: %w", err)
		}
		d, err := decodePending(it.Key()[len(lower):], row)
		if err != nil {
			return err
		}
		list = append(list, d)
	}
	if len(list) > 0 {
		p.list.Store(&list)
	}
	return it.Error()
}

// set replaces what is known of a deletion, or drops it.
func (p *pendings) set(d pendingDeletion, keep bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list pendingList
	if old := p.list.Load(); old != nil {
		list = slices.Clone(*old)
	}
	i, found := slices.BinarySearchFunc(list, d, func(a, b pendingDeletion) int {
		return cmp.Or(cmp.Compare(a.rev, b.rev), cmp.Compare(a.sub, b.sub))
	})
	switch {
	case !keep && found:
		list = slices.Delete(list, i, i+1)
	case !keep:
	case found:
		d.blocked = list[i].blocked
		list[i] = d
	default:
		d.blocked = list[:i].blocks(&d)
		list = slices.Insert(list, i, d)
	}
	if len(list) == 0 {
		p.list.Store(nil)
		return
	}
	p.list.Store(&list)
}

// stageSpan stages the deletion of a span, which readers at its revision see from
// now on, and returns the change of the counts. They see it before the batch is
// committed: nobody reads at that revision yet, and when what follows fails, the batch
// is given up and the same deletion, applied again, takes its place in the list.
func (s *Store) stageSpan(b *pebble.Batch, rev int64, e *Effect) (counts.Change, error) {
	p := newPending(rev, e)
	// A view of before may still offer a version that is dead now.
	s.recent.drop(rev)
	if again, err := s.hasDeletion(&p); again || err != nil {
		return s.spanChange(&p), err
	}
	if err := b.Set(p.key(), p.value(), nil); err != nil {
		return counts.Change{}, err
	}
	s.pending.set(p, true)
	return s.spanChange(&p), nil
}

// hasDeletion says whether the engine had the deletion of a span when it was opened:
// what is left of it, or its first event. Then it is applied once more, and what is
// written out of it must not become pending again.
func (s *Store) hasDeletion(p *pendingDeletion) (has bool, err error) {
	if p.rev > s.recent.known {
		return false, nil
	}
	if list := s.pending.list.Load(); list != nil {
		for i := range *list {
			if q := &(*list)[i]; q.rev == p.rev && q.sub == p.sub {
				return true, nil
			}
		}
	}
	lower := appendEventKey(nil, p.rev, p.sub, nil)
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: appendEventKey(nil, p.rev, p.sub+1, nil)})
	if err != nil {
		return false, fmt.Errorf("mvcc: events of a deletion: %w", err)
	}
	has = it.First()
	return has, errors.Join(it.Error(), it.Close())
}

// spanChange is what the deletion of a span does to the counts.
func (s *Store) spanChange(p *pendingDeletion) counts.Change {
	rev := p.rev
	return counts.Change{Key: p.start, End: p.end, Live: func(start, end []byte) (int64, error) {
		return keyScanner{s}.CountAt(start, end, rev-1)
	}}
}

// PendingStats says what of the deletions of spans is not written out yet.
type PendingStats struct {
	// Spans is how many they are, and Blocked how many of these never will be while
	// this process lives (Block).
	Spans, Blocked int
	// Keys are those of them that are left, and BlockedKeys those of the blocked.
	Keys, BlockedKeys int64
	// Oldest is the revision of the oldest, 0 if there is none.
	Oldest int64
}

// PendingStats returns what is not written out yet.
func (s *Store) PendingStats() (st PendingStats) {
	list := s.pending.list.Load()
	if list == nil {
		return st
	}
	st.Oldest, st.Spans = (*list)[0].rev, len(*list)
	for i := range *list {
		p := &(*list)[i]
		st.Keys += p.left
		if p.blocked {
			st.Blocked++
			st.BlockedKeys += p.left
		}
	}
	return st
}

// Pending returns the number of keys whose deletion is not written out yet, but for
// what is blocked.
func (s *Store) Pending() int64 {
	st := s.PendingStats()
	return st.Keys - st.BlockedKeys
}

// PendingSpans returns the number of spans whose deletion is not written out yet, but
// for those that are blocked. Each read of a version looks through them.
func (s *Store) PendingSpans() int {
	st := s.PendingStats()
	return st.Spans - st.Blocked
}

// PendingFrom returns the revision of the oldest deletion that is not written out,
// blocked or not, math.MaxInt64 if all are.
func (s *Store) PendingFrom() int64 {
	if list := s.pending.list.Load(); list != nil {
		return (*list)[0].rev
	}
	return latestRevision
}

// EventsComplete returns the revision up to which the revision index has all events
// above after of the keys of [start, end), end empty for the end of the keyspace, that
// were applied: math.MaxInt64 if nothing is pending there.
func (s *Store) EventsComplete(start, end []byte, after int64) int64 {
	if rev := s.pending.list.Load().from(start, end, after); rev != latestRevision {
		return rev - 1
	}
	return latestRevision
}

// from returns the revision of the oldest deletion above after of keys in
// [start, end), end empty for the end of the keyspace, latestRevision if there is none.
func (l *pendingList) from(start, end []byte, after int64) int64 {
	if l == nil {
		return latestRevision
	}
	for i := range *l {
		p := &(*l)[i]
		if p.rev > after && p.touches(start, end) {
			return p.rev
		}
	}
	return latestRevision
}

// touches says whether the span has keys of [start, end), end empty for the end of the
// keyspace.
func (p *pendingDeletion) touches(start, end []byte) bool {
	return (len(end) == 0 || bytes.Compare(p.start, end) < 0) && (p.end == nil || bytes.Compare(start, p.end) < 0)
}
