package counts

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"slices"
)

// run is the counts of the keys from its start to the start of the next one.
type run struct {
	start []byte // never changed

	// The rest is guarded by the page's lock.

	count int64
	// asOf is the newest revision applied to the run; ignoreUpTo the one that
	// the run had when it was loaded: changes up to it may be told again.
	asOf, ignoreUpTo int64
	// anchor names a key that changed at asOf (keySum): who sees that change has
	// all changes of the run, as their batches are committed in order.
	anchor uint32
	// below is set while the newest change is at or below the forgotten
	// revision, where a Scanner does not show single changes.
	below bool
	// minKey and maxKey bound the keys that the count or the history knows of;
	// nil if there are none.
	minKey, maxKey []byte
	// weight is the live keys at the forgotten revision plus the creations
	// since: about the number of keys that a look at the run meets.
	weight int64
	hist   history
	// boundary: a range begins here, so the run is never merged with the one
	// before it.
	boundary bool
	dirty    bool // differs from the stored row, or has none
	stored   bool // has a row
	gone     bool // no longer part of the index
	// lateSeq is the last interval in which a change of the run came late and
	// was noted; lateFrom, in a replay, the first revision of such changes.
	lateSeq  uint64
	lateFrom int64

	splitAt int64 // weight from which a split is wanted
	split   *pendingSplit
}

// pendingSplit is what happened to a run since a split of it is wanted: a
// Scanner may lack it as long as the batch that holds it is not committed.
type pendingSplit struct {
	// The changes after this revision are all in recent; anchor names a key that
	// changed at it.
	after  int64
	anchor uint32
	recent []keyChange
}

type keyChange struct {
	key   []byte
	rev   int64
	delta int64
}

func keySum(key []byte) uint32 { return crc32.Checksum(key, castagnoli) }

func (r *run) apply(key []byte, rev, delta int64) {
	r.count += delta
	if r.count < 0 {
		panic(fmt.Sprintf("counts: run %q has %d live keys after the deletion of %q at revision %d", r.start, r.count, key, rev))
	}
	r.hist.add(rev, delta)
	switch {
	case rev != r.asOf:
		r.asOf, r.anchor = rev, keySum(key)
	case r.anchor == spanAnchor:
		r.anchor = keySum(key)
		if s := r.split; s != nil && s.after == rev {
			s.anchor = r.anchor
		}
	}
	r.dirty = true
	if delta > 0 {
		r.weight++
	}
	if r.maxKey == nil || bytes.Compare(key, r.maxKey) > 0 {
		r.maxKey = append(r.maxKey[:0], key...)
	}
	if r.minKey == nil || bytes.Compare(key, r.minKey) < 0 {
		r.minKey = append(r.minKey[:0], key...)
	}
	if s := r.split; s != nil && rev > s.after {
		if len(s.recent) == maxPendingChanges {
			s.after, s.anchor, s.recent = rev, keySum(key), nil
			return
		}
		s.recent = append(s.recent, keyChange{slices.Clone(key), rev, delta})
	}
}

// inherit completes the run r, made of a part of what o knows. A part has seen
// only its own changes: if a range boundary lies between two parts of o, the
// revisions of one say nothing of the other.
func (r *run) inherit(o *run) {
	r.ignoreUpTo = min(r.asOf, o.ignoreUpTo)
	r.lateSeq, r.lateFrom, r.below = o.lateSeq, o.lateFrom, o.below
}

// takeOver adds to r all that o has: a neighbour in the same range, so what one
// of them has seen up to a revision the other has, too.
func (r *run) takeOver(o *run) {
	if r.hist.oldest() == 0 {
		r.hist = o.hist
	} else if o.hist.oldest() != 0 {
		r.hist = merged(&r.hist, &o.hist)
	}
	r.count += o.count
	r.weight += o.weight
	if o.asOf > r.asOf {
		r.asOf, r.anchor, r.below = o.asOf, o.anchor, o.below
	}
	r.ignoreUpTo = max(r.ignoreUpTo, o.ignoreUpTo)
	if r.lateSeq != o.lateSeq {
		r.lateSeq = 0
	}
	if r.lateFrom == 0 || o.lateFrom != 0 && o.lateFrom < r.lateFrom {
		r.lateFrom = o.lateFrom
	}
	if r.minKey == nil || o.minKey != nil && bytes.Compare(o.minKey, r.minKey) < 0 {
		r.minKey = o.minKey
	}
	if r.maxKey == nil || o.maxKey != nil && bytes.Compare(o.maxKey, r.maxKey) > 0 {
		r.maxKey = o.maxKey
	}
	r.dirty = true
}
