package counts

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// EnsureBoundary makes a run begin at key, because a range does: revisions grow
// within a range, not over several. It is called after the batch that applied
// the split is committed, and before anything is applied to the new range; and
// after a start for all ranges, before anything is applied. The boundary is noted
// in b, which the caller commits before it applies anything to the new range.
//
// ErrUnsettled if changes of the run were applied whose batch is not committed;
// then nothing has changed.
func (x *Index) EnsureBoundary(b *pebble.Batch, key []byte, scan Scanner) error {
	for range 1 + maxSplitAttempts {
		made, r := x.tryBoundary(key)
		if r == nil && !made {
			return nil
		}
		if r != nil {
			if _, err := x.splitRun(r, slices.Clone(key), true, scan); err != nil {
				return err
			}
			made = x.isBoundary(key)
		}
		if made {
			return x.note(b, boundaryKey(key), noteRow)
		}
	}
	return fmt.Errorf("%w: boundary %q", ErrUnsettled, key)
}

// Cut makes a run begin at key if that takes a look at the keys, so that
// EnsureBoundary, which is called where others wait, need not look. It may be
// called at any time and promises nothing: changes that are not committed yet may
// keep the run whole, and a checkpoint may put it together again.
func (x *Index) Cut(key []byte, scan Scanner) error {
	x.mu.RLock()
	p := x.mu.pages[x.findPageLocked(key)]
	r := p.runs[p.find(key)]
	p.mu.Lock()
	whole := r.maxKey != nil && !bytes.Equal(r.start, key) && bytes.Compare(r.minKey, key) < 0 && bytes.Compare(key, r.maxKey) <= 0
	p.mu.Unlock()
	x.mu.RUnlock()
	if !whole {
		return nil
	}
	_, err := x.splitRun(r, slices.Clone(key), false, scan)
	return err
}

func (x *Index) isBoundary(key []byte) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	p := x.mu.pages[x.findPageLocked(key)]
	r := p.runs[p.find(key)]
	return bytes.Equal(r.start, key) && r.boundary
}

// tryBoundary makes the boundary if it is missing and that takes no look at the
// keys; if it does, it returns the run to be split.
func (x *Index) tryBoundary(key []byte) (made bool, toSplit *run) {
	x.checkpointMu.RLock()
	defer x.checkpointMu.RUnlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	pi := x.findPageLocked(key)
	p := x.mu.pages[pi]
	i := p.find(key)
	r := p.runs[i]
	if bytes.Equal(r.start, key) {
		if r.boundary {
			return false, nil
		}
		r.boundary, r.dirty, p.dirty = true, true, true
		return true, nil
	}
	left, right := r, x.newRun(slices.Clone(key))
	right.boundary = true
	switch {
	case r.maxKey == nil || bytes.Compare(r.maxKey, key) < 0:
		right.inherit(r)
	case bytes.Compare(key, r.minKey) <= 0:
		left = x.newRun(r.start)
		left.boundary = r.boundary
		left.inherit(r)
		right.takeOver(r)
		right.lateSeq, right.lateFrom = r.lateSeq, r.lateFrom
	default:
		return false, r
	}
	x.replaceLocked(pi, i, i+1, left, right)
	return true, nil
}

// ReleaseBoundary takes back EnsureBoundary: two ranges became one, both had
// applied all they ever will, and revisions grow over both from now on. b is the
// batch that applies the merge.
func (x *Index) ReleaseBoundary(b *pebble.Batch, key []byte) error {
	x.checkpointMu.RLock()
	defer x.checkpointMu.RUnlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.mu.pages[x.findPageLocked(key)]
	if r := p.runs[p.find(key)]; bytes.Equal(r.start, key) && r.boundary {
		r.boundary, r.dirty, p.dirty = false, true, true
	}
	return b.Delete(boundaryKey(key), nil)
}
