package mvcc

import (
	"bytes"
	"fmt"
	"math"

	"github.com/cockroachdb/pebble/v2"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// cursor reads versions through one engine iterator. It is for one goroutine.
// Buffers stay with it when it goes back to the store's pool, the iterator does
// not: an open one would pin the state of the engine.
type cursor struct {
	it     *pebble.Iterator
	seek   []byte // key of the last seek
	row    []byte // of the version that seekVersion found, with sub
	sub    uint32
	prefix []byte // prefix of the user key that a scan is at
	arena  arena
	// pending is what was pending before the iterator was opened, or nil.
	pending *pendingList
}

// openCursor returns a cursor over the engine's state of now. Point reads want
// the filters of the last level, too: they spare a block for each key that does
// not exist, which is what most first puts of a key meet.
func (s *Store) openCursor(lower, upper []byte, pointReads bool) (*cursor, error) {
	pending := s.pending.list.Load() // before the iterator: see pendings
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper, UseL6Filters: pointReads})
	if err != nil {
		return nil, fmt.Errorf("mvcc: open iterator: %w", err)
	}
	c := s.newCursor()
	c.it, c.pending = it, pending
	return c, nil
}

func (s *Store) newCursor() *cursor {
	if c, ok := s.cursors.Get().(*cursor); ok {
		return c
	}
	return &cursor{}
}

// release closes the iterator and gives the cursor back.
func (s *Store) release(c *cursor) error {
	err := c.it.Close()
	c.it, c.row, c.pending = nil, nil, nil
	c.arena = arena{}
	s.cursors.Put(c)
	if err != nil {
		return fmt.Errorf("mvcc: close iterator: %w", err)
	}
	return nil
}

// releaseAfter releases a cursor after a read that ended with err.
func (s *Store) releaseAfter(c *cursor, err error) error {
	if rerr := s.release(c); err == nil {
		return rerr
	}
	return err
}

// seekVersion moves to the newest version of key at or below rev. The row
// aliases the engine's memory until the cursor moves; there is none if what it
// returns is a tombstone that is pending.
func (c *cursor) seekVersion(key []byte, rev int64) (v version, modRevision int64, found bool, err error) {
	c.seek = appendVersionKey(c.seek[:0], key, rev, math.MaxUint32)
	if !c.it.SeekPrefixGE(c.seek) {
		if err := c.it.Error(); err != nil {
			return v, 0, false, fmt.Errorf("mvcc: read key %q: %w", key, err)
		}
		return v, 0, false, nil
	}
	_, modRevision, sub, ok := splitVersionKey(c.it.Key())
	if !ok {
		return v, 0, false, fmt.Errorf("%w: version key %x", errCorruptRow, c.it.Key())
	}
	row, err := c.it.ValueAndErr()
	if err != nil {
		return v, 0, false, fmt.Errorf("mvcc: read key %q: %w", key, err)
	}
	c.row, c.sub = row, sub
	v, err = decodeVersionValue(row, modRevision)
	if err != nil {
		return v, 0, false, fmt.Errorf("mvcc: key %q: %w", key, err)
	}
	if c.pending != nil && !v.tombstone {
		if at := c.pending.kills(c.seek[:len(c.seek)-suffixLen], modRevision, rev); at != 0 {
			c.row = nil
			return version{tombstone: true}, at, true, nil
		}
	}
	return v, modRevision, true, nil
}

// get returns the key-value of key at rev, nil if it is not live.
func (c *cursor) get(key []byte, rev int64) (*mvccpb.KeyValue, error) {
	v, modRevision, found, err := c.seekVersion(key, rev)
	if err != nil || !found || v.tombstone {
		return nil, err
	}
	return newKeyValue(key, &v, modRevision), nil
}

func (c *cursor) head(key []byte, rev int64) (head, error) {
	v, modRevision, found, err := c.seekVersion(key, rev)
	if err != nil || !found || v.tombstone {
		return head{}, err
	}
	return v.head(Place{modRevision, c.sub}), nil
}

func newKeyValue(key []byte, v *version, modRevision int64) *mvccpb.KeyValue {
	data := make([]byte, len(key)+len(v.value))
	n := copy(data, key)
	copy(data[n:], v.value)
	kv := &mvccpb.KeyValue{
		Key:            data[:n:n],
		CreateRevision: v.createRevision,
		ModRevision:    modRevision,
		Version:        v.version,
		Lease:          v.lease,
	}
	if len(v.value) > 0 {
		kv.Value = data[n:]
	}
	return kv
}

// row is a live version that a scan is at. All of it is good until the cursor
// moves.
type row struct {
	prefix      []byte // of the version key; the user key is in it
	modRevision int64
	version
}

// scan visits the keys within the iterator's bounds that are live at rev, in
// ascending order, and charges for each step as opt says. fn must not move the
// cursor.
func (c *cursor) scan(rev int64, opt ScanOptions, fn func(row) (more bool, err error)) error {
	r := row{}
	ok := c.it.First()
	for ok {
		if err := opt.step(); err != nil {
			return err
		}
		k := c.it.Key()
		var isVersion bool
		r.prefix, r.modRevision, _, isVersion = splitVersionKey(k)
		if !isVersion {
			return fmt.Errorf("%w: version key %x", errCorruptRow, k)
		}
		if r.modRevision > rev {
			// Pebble tries a few steps before it seeks.
			c.seek = appendVersionSuffix(append(c.seek[:0], r.prefix...), rev, math.MaxUint32)
			ok = c.it.SeekGE(c.seek)
			continue
		}
		value, err := c.it.ValueAndErr()
		if err != nil {
			return fmt.Errorf("mvcc: scan at %s: %w", formatKey(k), err)
		}
		if r.version, err = decodeVersionValue(value, r.modRevision); err != nil {
			return fmt.Errorf("mvcc: scan at %s: %w", formatKey(k), err)
		}
		if c.pending != nil && c.pending.kills(r.prefix, r.modRevision, rev) != 0 {
			r.tombstone = true
		}
		if !r.tombstone {
			more, err := fn(r)
			if err != nil || !more {
				return err
			}
		} else if err := opt.dead(); err != nil {
			return err
		}
		// Most keys have one version: one step, and only if that meets an
		// older version of the same key, a jump over the rest.
		c.prefix = append(c.prefix[:0], r.prefix...)
		if ok = c.it.Next(); ok && bytes.HasPrefix(c.it.Key(), c.prefix) {
			ok = c.it.NextPrefix()
		}
	}
	if err := c.it.Error(); err != nil {
		return fmt.Errorf("mvcc: scan: %w", err)
	}
	return nil
}

// scanBelow visits, of each key within the iterator's bounds, the newest version
// below rev with its sub-revision, tombstones among them. What is pending does not
// count.
func (c *cursor) scanBelow(rev int64, fn func(r row, sub uint32) (more bool, err error)) error {
	r := row{}
	for ok := c.it.First(); ok; {
		var sub uint32
		var isVersion bool
		r.prefix, r.modRevision, sub, isVersion = splitVersionKey(c.it.Key())
		if !isVersion {
			return fmt.Errorf("%w: version key %x", errCorruptRow, c.it.Key())
		}
		if r.modRevision >= rev {
			c.seek = appendVersionSuffix(append(c.seek[:0], r.prefix...), rev-1, math.MaxUint32)
			ok = c.it.SeekGE(c.seek)
			continue
		}
		value, err := c.it.ValueAndErr()
		if err != nil {
			return fmt.Errorf("mvcc: scan at %s: %w", formatKey(c.it.Key()), err)
		}
		if r.version, err = decodeVersionValue(value, r.modRevision); err != nil {
			return fmt.Errorf("mvcc: scan at %s: %w", formatKey(c.it.Key()), err)
		}
		if more, err := fn(r, sub); err != nil || !more {
			return err
		}
		ok = c.it.NextPrefix()
	}
	if err := c.it.Error(); err != nil {
		return fmt.Errorf("mvcc: scan: %w", err)
	}
	return nil
}

// scanKeyValues is scan with key-values made for the caller.
func (c *cursor) scanKeyValues(rev int64, opt ScanOptions, fn func(*mvccpb.KeyValue) (bool, error)) error {
	return c.scan(rev, opt, func(r row) (bool, error) {
		kv, err := c.arena.keyValue(r, opt)
		if err != nil {
			return false, err
		}
		opt.live(kv)
		return fn(kv)
	})
}

const (
	minArenaBytes = 1 << 10
	maxArenaBytes = 64 << 10
	minArenaRows  = 4
	maxArenaRows  = 256
)

// arena makes the key-values of a scan from slabs that grow with it: a list of
// many small rows costs few allocations, a list of one row no large one. What
// it hands out is never used again by it.
type arena struct {
	rows     []mvccpb.KeyValue
	data     []byte
	rowsMade int
	dataMade int
}

func (a *arena) keyValue(r row, opt ScanOptions) (*mvccpb.KeyValue, error) {
	need := len(r.prefix)
	if !opt.KeysOnly {
		need += len(r.value)
	}
	if cap(a.data)-len(a.data) < need {
		a.dataMade = min(max(2*a.dataMade, minArenaBytes), maxArenaBytes)
		a.data = make([]byte, 0, max(a.dataMade, need))
	}
	if len(a.rows) == 0 {
		a.rowsMade = min(max(2*a.rowsMade, minArenaRows), maxArenaRows)
		a.rows = make([]mvccpb.KeyValue, a.rowsMade)
	}
	kv := &a.rows[0]
	a.rows = a.rows[1:]

	from := len(a.data)
	data, err := appendUserKey(a.data, r.prefix)
	if err != nil {
		return nil, err
	}
	kv.Key = data[from:len(data):len(data)]
	if !opt.KeysOnly && len(r.value) > 0 {
		from = len(data)
		data = append(data, r.value...)
		kv.Value = data[from:len(data):len(data)]
	}
	a.data = data
	kv.CreateRevision, kv.ModRevision, kv.Version, kv.Lease = r.createRevision, r.modRevision, r.version.version, r.lease
	return kv, nil
}
