package mvcc

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// Materialised says what a step of writing out large deletions did.
type Materialised struct {
	// Revision is that of the deletion that is written out wholly with this step, 0 if
	// none is.
	Revision int64
	// Done: there is nothing to do now.
	Done bool
}

// SpanError: a deletion cannot be written out, as what it needs of its span cannot be
// read. Others can.
type SpanError struct {
	// Revision and Sub name the deletion.
	Revision int64
	Sub      uint32
	// [Start, End) is what is left of its span, End nil for the end of the keyspace.
	Start, End []byte
	Err        error
}

func (e *SpanError) Error() string {
	return fmt.Sprintf("mvcc: write out the deletion of [%q, %q) at %d: %v", e.Start, e.End, e.Revision, e.Err)
}

// Unwrap returns what was met.
func (e *SpanError) Unwrap() error { return e.Err }

func (p *pendingDeletion) failed(err error) error {
	return &SpanError{Revision: p.rev, Sub: p.sub, Start: p.start, End: p.end, Err: err}
}

// MaterialiseStep writes out the deletion of at most so many keys. The oldest revision
// comes first, of those that are committed and not blocked. Whoever runs the store calls
// it after each commit while Pending is not 0, from any goroutine. A step that is lost in
// a crash is done again. A *SpanError says that one deletion cannot be written out: the
// next step meets the same, unless that one is blocked (Block).
func (s *Store) MaterialiseStep(maxKeys int) (did Materialised, err error) {
	s.pending.step.Lock()
	defer s.pending.step.Unlock()
	p, err := s.nextPending()
	if p == nil || err != nil {
		return Materialised{Done: err == nil}, err
	}
	b := s.db.NewBatch()
	defer func() { err = errors.Join(err, b.Close()) }()
	m := materialising{s: s, b: b, p: *p}
	if err := m.stage(maxKeys); err != nil {
		return Materialised{}, p.failed(err)
	}
	return m.commit()
}

// nextPending returns the deletion that is to be written out next, nil if there is none:
// the oldest that is not blocked, is committed, and has no keys of one that is older.
func (s *Store) nextPending() (*pendingDeletion, error) {
	list := s.pending.list.Load()
	if list == nil {
		return nil, nil
	}
	var uncommitted pendingList
	for i := range *list {
		p := &(*list)[i]
		if p.blocked || uncommitted.overlaps(p) {
			continue
		}
		switch row, err := s.metaRow(p.key()); {
		case err != nil:
			return nil, p.failed(err)
		case row != nil:
			return p, nil
		}
		uncommitted = append(uncommitted, *p)
	}
	return nil, nil
}

// overlaps says whether one of the deletions has keys of p.
func (l pendingList) overlaps(p *pendingDeletion) bool {
	for i := range l {
		if p.touches(l[i].start, l[i].end) {
			return true
		}
	}
	return false
}

// blocks says whether one of the deletions is blocked and has keys of p.
func (l pendingList) blocks(p *pendingDeletion) bool {
	for i := range l {
		if l[i].blocked && p.touches(l[i].start, l[i].end) {
			return true
		}
	}
	return false
}

// Block has MaterialiseStep leave out the deletion that an error names, and the later
// ones of keys in its span, which need its rows, until the store is opened again: they
// stay pending, and others go on. Blocked is whom it concerns.
func (s *Store) Block(e *SpanError) {
	s.pending.step.Lock()
	defer s.pending.step.Unlock()
	s.pending.mu.Lock()
	defer s.pending.mu.Unlock()
	old := s.pending.list.Load()
	if old == nil {
		return
	}
	list := append(pendingList(nil), *old...)
	for i := range list {
		p := &list[i]
		if p.rev == e.Revision && p.sub == e.Sub || list[:i].blocks(p) {
			p.blocked = true
		}
	}
	s.pending.list.Store(&list)
}

// Blocked is the span of a deletion that is not written out while this process lives.
type Blocked struct {
	Revision int64
	// [Start, End) is the span, End nil for the end of the keyspace.
	Start, End []byte
}

// Blocked returns the oldest deletion that is blocked, at or below a revision.
func (s *Store) Blocked(upTo int64) (b Blocked, found bool) {
	list := s.pending.list.Load()
	if list == nil {
		return b, false
	}
	for i := range *list {
		if p := &(*list)[i]; p.rev > upTo {
			break
		} else if p.blocked {
			return Blocked{p.rev, p.start, p.end}, true
		}
	}
	return b, false
}

// commit makes the step seen.
func (m *materialising) commit() (did Materialised, err error) {
	s := m.s
	if err := s.pending.leases.commit(m.b, m.leases); err != nil {
		return Materialised{}, err
	}
	// The recent versions before the list: until it shrinks they do not matter.
	for _, k := range m.keys {
		s.recent.supersede(k.key, m.p.rev, k.sub)
	}
	s.pending.set(m.p, !m.done)
	if m.done {
		did.Revision = m.p.rev
	}
	st := s.PendingStats()
	if did.Done = st.Spans == st.Blocked; did.Done {
		// Keys of what is blocked lose no row of the lease index any more.
		s.pending.leases.clear()
	}
	return did, nil
}

// materialising is one step.
type materialising struct {
	s    *Store
	b    *pebble.Batch
	p    pendingDeletion
	keys []materialised
	// leases are the rows of the lease index that are to go.
	leases [][]byte
	done   bool // nothing of the span is left
}

type materialised struct {
	key []byte
	sub uint32
}

// stage stages the step but what becomes of the lease index.
func (m *materialising) stage(maxKeys int) error {
	if err := m.write(maxKeys); err != nil {
		return err
	}
	if m.done {
		return m.b.Delete(m.p.key(), nil)
	}
	return m.b.Set(m.p.key(), m.p.value(), nil)
}

// write stages the rows of the next keys, and moves the deletion behind them.
func (m *materialising) write(maxKeys int) error {
	p := &m.p
	c, err := m.s.openCursor(p.lower, p.upper, false)
	if err != nil {
		return err
	}
	// Older deletions of these keys are written out, the others lie elsewhere.
	c.pending = nil
	visited := 0
	m.done = true
	err = c.scanBelow(p.rev, func(r row, sub uint32) (more bool, err error) {
		if len(m.keys) == maxKeys || visited == deadSteps*maxKeys {
			m.done = false
			key, err := appendUserKey(nil, r.prefix)
			if err == nil {
				p.begin(key)
			}
			return false, err
		}
		visited++
		if r.tombstone {
			return true, nil
		}
		return true, m.end(r, sub)
	})
	if err = m.s.releaseAfter(c, err); err != nil {
		return err
	}
	if m.done && p.left != 0 {
		return fmt.Errorf("%w: %d keys less than were counted", errCorruptRow, p.left)
	}
	return nil
}

// deadSteps is how many keys a step looks at for each that it may write.
const deadSteps = 4

// end stages the end of a key whose newest version before is r.
func (m *materialising) end(r row, sub uint32) error {
	p := &m.p
	if p.left == 0 {
		return fmt.Errorf("%w: more keys than were counted", errCorruptRow)
	}
	key, err := appendUserKey(nil, r.prefix)
	if err != nil {
		return err
	}
	e := Effect{Key: key, Sub: p.next, OldLease: r.lease, Tombstone: true, Prior: Place{r.modRevision, sub}}
	if _, err := stageVersion(m.b, p.rev, &e); err != nil {
		return err
	}
	if err := stageEvent(m.b, p.rev, &e, eventDelete); err != nil {
		return err
	}
	m.keys = append(m.keys, materialised{key, p.next})
	p.next++
	p.left--
	return m.leave(&e)
}

// leave removes the key from the index of its lease, unless it was attached to it
// again since, or may have been: rows of that index are hints.
func (m *materialising) leave(e *Effect) error {
	if e.OldLease == 0 {
		return nil
	}
	v, at, known := m.s.recent.newest(e.Key)
	switch {
	case at <= m.p.rev: // not there, or what dies
		h, err := m.s.Latest().head(e.Key)
		if err != nil {
			return err
		}
		v.lease, known = h.lease, true
	case !known:
		return nil // staged, and too large to be kept
	}
	if v.lease == e.OldLease {
		return nil
	}
	m.leases = append(m.leases, appendLeaseKey(nil, e.OldLease, e.Key))
	return nil
}
