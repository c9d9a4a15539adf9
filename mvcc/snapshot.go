package mvcc

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Snapshot is the state at a revision in one state of the engine, which it pins
// until Close: many reads share an iterator. For one goroutine. A snapshot that
// lives long keeps the engine from freeing memory and files; make a new one for
// each page of a list.
type Snapshot struct {
	s    *Store
	base *Snapshot // whose iterators this one uses; itself unless made by At
	rev  int64

	// The rest is used of base only.
	gets  *cursor // without bounds, for point reads; pins the engine's state
	spare *cursor // for scans; nil while one is running or none was made yet
}

// Snapshot returns a view of the state at rev, which may be math.MaxInt64: the
// newest state of now. ErrCompacted if rev is forgotten. The caller knows that
// everything at or below rev is applied.
func (s *Store) Snapshot(rev int64) (*Snapshot, error) {
	c, err := s.openCursor(nil, nil, true)
	if err != nil {
		return nil, err
	}
	if err := s.checkReadable(rev); err != nil {
		return nil, errors.Join(err, s.release(c))
	}
	n := &Snapshot{s: s, rev: rev, gets: c}
	n.base = n
	return n, nil
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
func (n *Snapshot) Get(key []byte) (*mvccpb.KeyValue, error) { return n.base.gets.get(key, n.rev) }

func (n *Snapshot) head(key []byte) (head, error) { return n.base.gets.head(key, n.rev) }

// Scan implements View.
func (n *Snapshot) Scan(start, end []byte, opt ScanOptions, fn func(*mvccpb.KeyValue) (bool, error)) error {
	if emptyInterval(start, end) {
		return nil
	}
	b := n.base
	lower, upper := VersionSpan(start, end)
	c := b.spare
	b.spare = nil
	if c == nil {
		it, err := b.gets.it.Clone(pebble.CloneOptions{IterOptions: &pebble.IterOptions{LowerBound: lower, UpperBound: upper}})
		if err != nil {
			return fmt.Errorf("mvcc: clone iterator: %w", err)
		}
		c = n.s.newCursor()
		c.it = it
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
	if err := n.s.checkReadable(rev); err != nil {
		return nil, err
	}
	return &Snapshot{s: n.s, base: n.base, rev: rev}, nil
}
