package mvcc

import (
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Latest is the newest applied state, read anew at each call: what is committed
// to the engine before a call is seen by it, and of a single key perhaps also
// what is staged. It pins nothing and is good for ever and for any goroutine.
// Over a leader's unapplied effects lay an Overlay.
type Latest struct {
	s   *Store
	rev int64
}

// Latest returns the view of the newest applied state.
func (s *Store) Latest() *Latest { return &Latest{s, latestRevision} }

// Revision returns math.MaxInt64, or the revision that the view was asked for
// with At.
func (l *Latest) Revision() int64 { return l.rev }

// open returns a cursor over [lower, upper) of the engine; the caller releases it.
func (l *Latest) open(lower, upper []byte, pointReads bool) (*cursor, error) {
	c, err := l.s.openCursor(lower, upper, pointReads)
	if err != nil {
		return nil, err
	}
	// Only now: what the cursor sees cannot be forgotten any more.
	if err := l.s.checkReadable(l.rev); err != nil {
		return nil, errors.Join(err, l.s.release(c))
	}
	return c, nil
}

// Get implements View.
func (l *Latest) Get(key []byte) (*mvccpb.KeyValue, error) {
	if kv, ok, err := l.s.recentGet(key, l.rev); ok || err != nil {
		return kv, errors.Join(err, l.s.checkReadable(l.rev))
	}
	if l.s.known.never(key) {
		return nil, l.s.checkReadable(l.rev)
	}
	c, err := l.open(nil, nil, true)
	if err != nil {
		return nil, err
	}
	kv, err := c.get(key, l.rev)
	return kv, l.s.releaseAfter(c, err)
}

func (l *Latest) head(key []byte) (head, error) {
	if h, ok := l.s.recentHead(key, l.rev); ok {
		return h, l.s.checkReadable(l.rev)
	}
	if l.s.known.never(key) {
		return head{}, l.s.checkReadable(l.rev)
	}
	c, err := l.open(nil, nil, true)
	if err != nil {
		return head{}, err
	}
	h, err := c.head(key, l.rev)
	return h, l.s.releaseAfter(c, err)
}

// Scan implements View.
func (l *Latest) Scan(start, end []byte, opt ScanOptions, fn func(*mvccpb.KeyValue) (bool, error)) error {
	if emptyInterval(start, end) {
		return nil
	}
	lower, upper := VersionSpan(start, end)
	c, err := l.open(lower, upper, false)
	if err != nil {
		return err
	}
	return l.s.releaseAfter(c, c.scanKeyValues(l.rev, opt, fn))
}

// Count implements View.
func (l *Latest) Count(start, end []byte) (int64, error) { return l.s.count(start, end, l.rev) }

// At implements View.
func (l *Latest) At(rev int64) (View, error) {
	if rev > l.rev {
		panic(fmt.Sprintf("mvcc: state at %d from a view of %d", rev, l.rev))
	}
	if err := l.s.checkReadable(rev); err != nil {
		return nil, err
	}
	return &Latest{l.s, rev}, nil
}

// checkReadable returns ErrCompacted for a revision that is forgotten. It is
// called after the iterator that reads at the revision was opened: a revision
// is forgotten before its versions go (revisions.md R9).
func (s *Store) checkReadable(rev int64) error {
	if rev < s.forgotten.Load() {
		return ErrCompacted
	}
	return nil
}
