// Package counts knows how many keys are live in any span of the keyspace at
// any revision that is not forgotten, exactly, without a walk over the keys.
//
// The keyspace is cut into runs of about a thousand keys. A run has its current
// count and the history of that count, some bytes a creation or deletion; a
// count over a span is the sum over the whole runs in it, and a look at the keys
// themselves (Scanner) for the run at each edge. Runs are written to the engine
// now and then (Checkpoint), not with each change: what came after is told
// again from the events when the engine is opened (Load).
//
// The package must never read MVCC data but through the Scanner, and never
// answer a number that is not exact.
package counts

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// ErrForgotten is returned by Count for a revision below the forgotten one.
var ErrForgotten = errors.New("counts: revision is forgotten")

const (
	// DefaultRunKeys is about what a list of one page reads anyway, so that the
	// partial runs at the edges of a count cost as much as the page.
	DefaultRunKeys = 1024

	// maxPageRuns bounds the runs that one lock guards, and what is walked
	// when a page changed after the revision of a count.
	maxPageRuns = 128
)

// Options of an Index. The zero value means the defaults.
type Options struct {
	// RunKeys is the number of keys, dead but not forgotten ones included,
	// above which a run wants to be split. Smaller runs make the edges of a
	// count cheaper and cost memory. Default DefaultRunKeys.
	RunKeys int
}

// Scanner looks at the keys themselves. It sees at least everything that was
// committed to the engine when it is called.
type Scanner interface {
	// CountAt counts the keys of [start, end) that are live at rev.
	CountAt(start, end []byte, rev int64) (int64, error)
	// History visits the keys of [start, end) in ascending order and tells of
	// each, in any order: (key, after, +1) if it was live at the revision after,
	// and every creation (+1) and deletion (-1) at a later revision. The key
	// belongs to the scanner.
	History(start, end []byte, after int64, fn func(key []byte, rev int64, delta int) error) error
}

// Change is a key that came to life (+1) or died (-1), or the death of all keys of
// a span.
type Change struct {
	Key   []byte
	Delta int
	// Live is set for a span [Key, End), End nil for the end of the keyspace, all of
	// whose keys die: it counts those of a part that were live before the revision,
	// and no other change of the revision before this one is in the span. Delta is 0.
	Live func(start, end []byte) (int64, error)
	End  []byte
}

// Index holds the counts of one engine. Its methods may be called concurrently,
// with one exception: the changes of one run, so of one range, come in the
// order of their revisions, from one caller at a time.
//
// Locks are taken in the order of the fields. Whatever changes runs does so
// under checkpointMu, Apply for all changes of a revision together, so that a
// checkpoint has all of a revision in a run or nothing.
type Index struct {
	runKeys int

	checkpointMu sync.RWMutex
	// guarded by checkpointMu, written with it held exclusively
	checkpoint struct {
		seq   uint64 // number of the current interval between two checkpoints, from 1
		floor int64  // every change that the stored rows lack is at or above it
	}

	mu struct {
		sync.RWMutex
		// pages in key order; the first starts at "". The runs of a page change
		// (in number, not in content) only under the exclusive lock.
		pages     []*page
		forgotten int64
		// invalid spans, and those whose marks the next checkpoint removes
		invalid, wasInvalid []span
		// unmade are the boundaries that were noted when the index was loaded.
		unmade [][]byte
		// dead are the stored rows of runs that are no more.
		dead map[string]struct{}
	}

	notes struct {
		sync.Mutex
		// Keys of late and boundary rows that were written in this interval,
		// and in the one before it (see stage).
		current, previous [][]byte
	}

	splits struct {
		sync.Mutex
		queue []*run
	}
	splitCount atomic.Int64 // len(splits.queue)
	maxRev     atomic.Int64 // newest revision with a change
}

type span struct{ start, end []byte } // end nil: to the end of the keyspace

// page is some neighbouring runs under one lock.
type page struct {
	runs []*run // guarded by Index.mu

	mu    sync.Mutex // guards all below and the content of the runs
	count int64      // sum over the runs
	asOf  int64      // the newest over the runs
	dirty bool       // a run is dirty
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// maxPendingChanges bounds pendingSplit.recent. When it is full, it starts
// again: by then the older changes are committed.
const maxPendingChanges = 8192

// New returns the index of an empty keyspace.
func New(opts Options) *Index {
	x := &Index{runKeys: opts.RunKeys}
	if x.runKeys <= 0 {
		x.runKeys = DefaultRunKeys
	}
	x.checkpoint.seq = 1
	x.mu.dead = make(map[string]struct{})
	x.mu.pages = paged([]*run{x.newRun(nil)})
	return x
}

func (x *Index) newRun(start []byte) *run {
	return &run{start: start, dirty: true, splitAt: int64(x.runKeys) + 1}
}

// findPageLocked returns the index of the page that holds key.
func (x *Index) findPageLocked(key []byte) int {
	pages := x.mu.pages
	return sort.Search(len(pages), func(i int) bool { return bytes.Compare(pages[i].runs[0].start, key) > 0 }) - 1
}

// find returns the index of the run that holds key, which the page holds.
func (p *page) find(key []byte) int {
	lo, hi := 0, len(p.runs) // runs[lo].start <= key < runs[hi].start
	for hi-lo > 1 {
		m := int(uint(lo+hi) >> 1)
		if bytes.Compare(p.runs[m].start, key) <= 0 {
			lo = m
		} else {
			hi = m
		}
	}
	return lo
}

// Apply takes in the changes of one revision. Revisions grow within a run; a
// revision's changes of one run come in one call. What the index must remember
// of it goes into b, the batch with the events, which the caller commits; in a
// replay at the start, from events that are in the engine, b is nil.
func (x *Index) Apply(b *pebble.Batch, rev int64, changes []Change) error {
	if len(changes) == 0 {
		return nil
	}
	x.checkpointMu.RLock()
	defer x.checkpointMu.RUnlock()
	for {
		old := x.maxRev.Load()
		if rev <= old || x.maxRev.CompareAndSwap(old, rev) {
			break
		}
	}
	for _, c := range changes {
		if c.Live != nil {
			if err := x.applySpan(b, rev, c); err != nil {
				return err
			}
			continue
		}
		if c.Delta != 1 && c.Delta != -1 {
			panic(fmt.Sprintf("counts: change of %d at revision %d", c.Delta, rev))
		}
		for {
			done, lateRun := x.applyOne(c, rev, b == nil)
			if !done {
				x.startRun(c.Key)
				continue
			}
			if lateRun == nil {
				break
			}
			if err := x.note(b, lateKey(rev, lateRun), noteRow); err != nil {
				return err
			}
			break
		}
	}
	return nil
}

// applyOne applies a change unless a new run should begin with its key first. It
// returns the start of the run if the change is its first late one.
func (x *Index) applyOne(c Change, rev int64, replay bool) (done bool, lateRun []byte) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if len(x.mu.invalid) > 0 && x.invalidLocked(c.Key) {
		return true, nil
	}
	p := x.mu.pages[x.findPageLocked(c.Key)]
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.runs[p.find(c.Key)]
	late := rev < x.checkpoint.floor
	if rev <= r.ignoreUpTo || replay && late && (r.lateFrom == 0 || rev < r.lateFrom) {
		return true, nil
	}
	if c.Delta > 0 && r.weight >= int64(x.runKeys) && bytes.Compare(c.Key, r.maxKey) > 0 {
		return false, nil
	}
	if rev < r.asOf {
		panic(fmt.Sprintf("counts: revision %d of %q after %d in run %q", rev, c.Key, r.asOf, r.start))
	}
	if late && !replay && r.lateSeq != x.checkpoint.seq {
		r.lateSeq = x.checkpoint.seq
		lateRun = append([]byte{}, r.start...)
	}
	r.apply(c.Key, rev, int64(c.Delta))
	r.below = !replay && rev <= x.mu.forgotten
	p.count += int64(c.Delta)
	p.asOf = max(p.asOf, rev)
	p.dirty = true
	if r.weight >= r.splitAt && r.split == nil {
		r.split = &pendingSplit{after: rev, anchor: keySum(c.Key)}
		x.enqueue(r)
	}
	return true, lateRun
}

// startRun lets a run begin at key, if the run that holds it is full and has no
// key at or above it: so keys that come in ascending order fill runs and need no
// look at the keys to cut them.
func (x *Index) startRun(key []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	pi := x.findPageLocked(key)
	p := x.mu.pages[pi]
	i := p.find(key)
	r := p.runs[i]
	if r.weight < int64(x.runKeys) || bytes.Compare(key, r.maxKey) <= 0 {
		return // somebody was faster
	}
	n := x.newRun(slices.Clone(key))
	n.inherit(r)
	// A split of r may be pending because it had become too heavy before;
	// what is recorded for it stays true, as no change of r is at or above key.
	if i++; i == len(p.runs) && pi+1 < len(x.mu.pages) {
		pi, i = pi+1, 0
		p = x.mu.pages[pi]
	}
	if i < len(p.runs) {
		if next := p.runs[i]; !next.boundary && next.weight < int64(x.runKeys) {
			// Keys that come in descending order: the next run grows downwards.
			n.takeOver(next)
			x.replaceLocked(pi, i, i+1, n)
			return
		}
	}
	x.replaceLocked(pi, i, i, n)
}

// replaceLocked puts runs in place of the runs [from, to) of a page and cuts the
// page if it becomes too long. Page sums are computed again.
func (x *Index) replaceLocked(pi, from, to int, runs ...*run) {
	p := x.mu.pages[pi]
	for _, r := range p.runs[from:to] {
		if !slices.Contains(runs, r) {
			x.discardLocked(r)
		}
	}
	x.adoptLocked(runs)
	p.runs = slices.Replace(p.runs, from, to, runs...)
	if len(p.runs) <= maxPageRuns {
		p.sum()
		return
	}
	x.mu.pages = slices.Replace(x.mu.pages, pi, pi+1, paged(p.runs)...)
}

// adoptLocked is told of runs that are part of the index now.
func (x *Index) adoptLocked(runs []*run) {
	for _, r := range runs {
		if _, ok := x.mu.dead[string(r.start)]; ok {
			delete(x.mu.dead, string(r.start))
			r.stored = true // as another one, which the next checkpoint replaces
		}
	}
}

func (x *Index) discardLocked(r *run) {
	r.gone = true
	if r.stored {
		x.mu.dead[string(r.start)] = struct{}{}
	}
}

func (p *page) sum() {
	p.count, p.asOf, p.dirty = 0, 0, false
	for _, r := range p.runs {
		p.count += r.count
		p.asOf = max(p.asOf, r.asOf)
		p.dirty = p.dirty || r.dirty
	}
}

// Forget folds the history at or below rev: counts below it are refused from
// now on. It is called before the versions and events go that only revisions
// below rev need. A revision below the forgotten one changes nothing.
func (x *Index) Forget(rev int64) {
	x.mu.Lock()
	if rev <= x.mu.forgotten {
		x.mu.Unlock()
		return
	}
	x.mu.forgotten = rev
	x.mu.Unlock()
	// Page by page, so that nobody waits for the whole.
	for next := []byte{}; next != nil; {
		next = x.foldPage(next)
	}
	x.merge()
}

// foldPage folds the page that holds key and returns the start of the next.
func (x *Index) foldPage(key []byte) (next []byte) {
	x.checkpointMu.RLock()
	defer x.checkpointMu.RUnlock()
	x.mu.RLock()
	defer x.mu.RUnlock()
	pi := x.findPageLocked(key)
	p := x.mu.pages[pi]
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.runs {
		x.foldRunLocked(p, r)
	}
	return x.pageEndLocked(pi)
}

func (x *Index) foldRunLocked(p *page, r *run) {
	if old := r.hist.oldest(); old == 0 || old > x.mu.forgotten {
		return
	}
	x.weigh(r)
	p.dirty = p.dirty || r.dirty
}

// weigh folds the history of r and computes what depends on it. The stored row
// may keep the history, as Load folds too.
func (x *Index) weigh(r *run) {
	var created int64
	r.hist, created = r.hist.folded(x.mu.forgotten)
	r.weight = r.count - r.hist.sum + created
	r.splitAt = int64(x.runKeys) + 1
	if r.maxKey != nil && r.count == 0 && r.hist.oldest() == 0 {
		r.minKey, r.maxKey = nil, nil
		r.dirty = true // a boundary may be made where the row still knows of keys
	}
}

// Forgotten returns the revision up to which history is folded.
func (x *Index) Forgotten() int64 {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.mu.forgotten
}

// Runs returns the number of runs.
func (x *Index) Runs() int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	n := 0
	for _, p := range x.mu.pages {
		n += len(p.runs)
	}
	return n
}

// Stats describes the size of an Index.
type Stats struct {
	Runs     int
	Pages    int
	LiveKeys int64
	// HistoryBytes is the memory of the packed histories, PendingSplits the
	// number of runs that wait for Maintain.
	HistoryBytes  int64
	PendingSplits int
}

// Stats walks over all runs.
func (x *Index) Stats() Stats {
	x.mu.RLock()
	defer x.mu.RUnlock()
	s := Stats{Pages: len(x.mu.pages), PendingSplits: int(x.splitCount.Load())}
	for _, p := range x.mu.pages {
		p.mu.Lock()
		s.Runs += len(p.runs)
		s.LiveKeys += p.count
		for _, r := range p.runs {
			s.HistoryBytes += int64(cap(r.hist.packed)) + int64(cap(r.hist.marks))*int64(binary.Size(struct{ A, B, C int64 }{}))
		}
		p.mu.Unlock()
	}
	return s
}
