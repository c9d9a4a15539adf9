package mvcc

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Snapshot is the state at a revision. From the first read on that needs it, it
// pins a state of the engine until Close: many reads share an iterator. For one
// goroutine. A snapshot that lives long keeps the engine from freeing memory and
// files; make a new one for each page of a list.
type Snapshot struct {
	s    *Store
	base *Snapshot // whose iterators this one uses; itself unless made by At
	rev  int64

	// The rest is used of base only.
	gets    *cursor // without bounds, for point reads; pins the engine's state; nil until it is needed
	spare   *cursor // for scans; nil while one is running or none was made yet
	cleared uint64  // see recent.offer
}

// Snapshot returns a view of the state at rev, which may be math.MaxInt64: the
// newest state of now. ErrCompacted if rev is forgotten. The caller knows that
// everything at or below rev is applied. A read of the view returns ErrCompacted,
// too, if it is the first that needs the engine and rev was forgotten since.
func (s *Store) Snapshot(rev int64) (*Snapshot, error) {
	n := &Snapshot{s: s, rev: rev, cleared: s.recent.cleared.Load()}
	n.base = n
	if rev == latestRevision {
		// The state of now is this one, and not that of the first read.
		if err := n.pin(); err != nil {
			return nil, err
		}
	}
	return n, s.checkReadable(rev)
}

// pin opens the iterator of the base, if none is open.
func (n *Snapshot) pin() error {
	if n.gets != nil {
		return nil
	}
	c, err := n.s.openCursor(nil, nil, true)
	if err != nil {
		return err
	}
	// Only now: what the cursor sees cannot be forgotten any more.
	if err := n.s.checkReadable(n.rev); err != nil {
		return errors.Join(err, n.s.release(c))
	}
	n.gets = c
	return nil
}

// Close lets go of the engine's state. Views made with At end, too; closing one
// of those does nothing.
func (n *Snapshot) Close() error {
	if n.base != n || n.gets == nil {
		return nil
	}
	err := n.s.release(n.gets)
	if n.spare != nil {
		err = errors.Join(err, n.s.release(n.spare))
	}
	n.gets, n.spare = nil, nil
	return err
}

// Revision implements View.
func (n *Snapshot) Revision() int64 { return n.rev }

// Get implements View.
func (n *Snapshot) Get(key []byte) (*mvccpb.KeyValue, error) {
	if n.usesRecent() {
		// No need to look at what is forgotten: the version is the one at rev.
		if kv, ok, err := n.s.recentGet(key, n.rev); ok || err != nil {
			return kv, err
		}
	}
	v, modRevision, found, err := n.seek(key)
	if err != nil || !found || v.tombstone {
		return nil, err
	}
	return newKeyValue(key, &v, modRevision), nil
}

func (n *Snapshot) head(key []byte) (head, error) {
	if n.usesRecent() {
		if h, ok := n.s.recentHead(key, n.rev); ok {
			return h, nil
		}
	}
	v, modRevision, found, err := n.seek(key)
	if err != nil || !found || v.tombstone {
		return head{}, err
	}
	return v.head(Place{modRevision, n.base.gets.sub}), nil
}

// usesRecent: the newest state of the time when the snapshot was made is not
// that of now.
func (n *Snapshot) usesRecent() bool { return n.base.rev != latestRevision }

// seek reads the newest version of key at or below the revision from the engine.
// If it is the newest of all, the recent versions learn it.
func (n *Snapshot) seek(key []byte) (v version, modRevision int64, found bool, err error) {
	b := n.base
	if n.s.known.never(key) {
		return v, 0, false, nil
	}
	if err := b.pin(); err != nil {
		return v, 0, false, err
	}
	if !n.usesRecent() {
		return b.gets.seekVersion(key, n.rev)
	}
	v, modRevision, found, err = b.gets.seekVersion(key, latestRevision)
	if err != nil || !found {
		return v, 0, false, err
	}
	if modRevision > n.rev {
		return b.gets.seekVersion(key, n.rev)
	}
	if b.gets.row == nil {
		return v, modRevision, true, nil // a tombstone that is pending
	}
	n.s.recent.offer(key, modRevision, b.gets.sub, b.gets.row, n.rev, b.cleared)
	return v, modRevision, true, nil
}

// Scan implements View.
func (n *Snapshot) Scan(start, end []byte, opt ScanOptions, fn func(*mvccpb.KeyValue) (bool, error)) error {
	if emptyInterval(start, end) {
		return nil
	}
	b := n.base
	if err := b.pin(); err != nil {
		return err
	}
	lower, upper := VersionSpan(start, end)
	c := b.spare
	b.spare = nil
	if c == nil {
		it, err := b.gets.it.Clone(pebble.CloneOptions{IterOptions: &pebble.IterOptions{LowerBound: lower, UpperBound: upper}})
		if err != nil {
			return fmt.Errorf("mvcc: clone iterator: %w", err)
		}
		c = n.s.newCursor()
		c.it, c.pending = it, b.gets.pending
	} else {
		c.it.SetBounds(lower, upper)
	}
	err := c.scanKeyValues(n.rev, opt, fn)
	if b.spare == nil && b.gets != nil {
		b.spare = c
		return err
	}
	return errors.Join(err, n.s.release(c)) // fn scanned, too
}

// Count implements View. At math.MaxInt64 it counts the newest state, which may
// be newer than the snapshot.
func (n *Snapshot) Count(start, end []byte) (int64, error) { return n.s.count(start, end, n.rev) }

// At implements View.
func (n *Snapshot) At(rev int64) (View, error) {
	if rev > n.rev {
		panic(fmt.Sprintf("mvcc: state at %d from a view of %d", rev, n.rev))
	}
	// What is pinned stays readable; what was forgotten before may be gone.
	if err := n.base.pin(); err != nil {
		return nil, err
	}
	if err := n.s.checkReadable(rev); err != nil {
		return nil, err
	}
	return &Snapshot{s: n.s, base: n.base, rev: rev}, nil
}
