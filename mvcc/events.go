package mvcc

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Event is one change of a key, as a watcher sees it (etcd/W11). Whoever gets one
// may keep it and must not change it.
type Event struct {
	// Kv is the new key-value; of a delete only key and mod revision.
	Kv *mvccpb.KeyValue
	// PrevKv is the key-value before the event, if it was asked for, there was
	// one and it is not forgotten (etcd/W12).
	PrevKv   *mvccpb.KeyValue
	Delete   bool
	Revision int64
	Sub      uint32
	// Span is set in the event of the deletion of a span (EventOf), which no watcher
	// sees: the revision index will have an event for each key, not before
	// EventsComplete says so. Kv has the first key of the span, SpanEnd is its end.
	Span    bool
	SpanEnd []byte
}

// EventOf returns the event of an effect applied at rev, without PrevKv. Key and
// value are shared with the effect.
func EventOf(eff Effect, rev int64) Event {
	ev := Event{Delete: eff.Tombstone, Revision: rev, Sub: eff.Sub, Span: eff.IsSpan(), SpanEnd: eff.End}
	if eff.Tombstone {
		ev.Kv = &mvccpb.KeyValue{Key: eff.Key, ModRevision: rev}
		return ev
	}
	ev.Kv = &mvccpb.KeyValue{
		Key: eff.Key, Value: eff.Value, CreateRevision: eff.CreateRevision,
		ModRevision: rev, Version: eff.Version, Lease: eff.Lease,
	}
	if ev.Kv.CreateRevision == 0 {
		ev.Kv.CreateRevision = rev
	}
	return ev
}

// EventRow is a row of the revision index: what is known of an event before its
// version is read. Key is valid during the call that gets the row.
type EventRow struct {
	Key      []byte
	Revision int64
	Delete   bool
}

// Events visits the events of the keys of [start, end), end nil for the end of
// the keyspace, with after < revision <= upTo in the order of (revision, sub),
// until fn returns false or an error. Everything up to upTo is applied.
//
// ErrCompacted if a revision above after is forgotten, so that the events could
// not be complete. What is compacted while it runs is still there.
//
// It walks the revision index, so its cost is that of all events between the
// two revisions on this engine, whatever the span. Who wants the events of many
// spans reads them in one walk (PickEvents).
func (s *Store) Events(start, end []byte, after, upTo int64, prevKV bool, fn func(Event) (more bool, err error)) error {
	if emptyInterval(start, end) {
		return nil
	}
	return s.walkEvents(after, upTo, prevKV, func(row EventRow) (want, more bool) {
		return bytes.Compare(row.Key, start) >= 0 && (end == nil || bytes.Compare(row.Key, end) < 0), true
	}, fn)
}

// PickEvents walks the revision index as Events does, over all keys. pick sees
// every row, and says whether fn gets its event, without PrevKv, and whether the
// walk goes on to it at all. A row whose version is not there any more is picked
// in vain.
func (s *Store) PickEvents(after, upTo int64, pick func(EventRow) (want, more bool), fn func(Event) error) error {
	return s.walkEvents(after, upTo, false, pick, func(e Event) (bool, error) { return true, fn(e) })
}

func (s *Store) walkEvents(after, upTo int64, prevKV bool, pick func(EventRow) (want, more bool), fn func(Event) (more bool, err error)) (err error) {
	if after >= upTo {
		return nil
	}
	// The versions first: what they lack the rows of the index may name, but
	// what the index lacks would be missed.
	c, err := s.openCursor(nil, nil, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.release(c)) }()
	lower, upper := EventSpan(after+1, upTo)
	index, err := c.it.Clone(pebble.CloneOptions{IterOptions: &pebble.IterOptions{LowerBound: lower, UpperBound: upper}})
	if err != nil {
		return fmt.Errorf("mvcc: clone iterator: %w", err)
	}
	defer func() { err = errors.Join(err, index.Close()) }()
	if err := s.checkReadable(after + 1); err != nil {
		return err
	}
	for ok := index.First(); ok; ok = index.Next() {
		rev, sub, key, err := splitEventKey(index.Key())
		if err != nil {
			return err
		}
		row, err := index.ValueAndErr()
		if err != nil {
			return fmt.Errorf("mvcc: events: %w", err)
		}
		event, err := decodeEventValue(row, rev)
		if err != nil {
			return err
		}
		want, more := pick(EventRow{Key: key, Revision: rev, Delete: event.kind == eventDelete})
		if !more {
			return nil
		}
		if !want {
			continue
		}
		ev, ok, err := c.event(key, rev, sub, event.kind, prevKV, s.forgotten.Load())
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		if more, err := fn(ev); err != nil || !more {
			return err
		}
	}
	if err := index.Error(); err != nil {
		return fmt.Errorf("mvcc: events: %w", err)
	}
	return nil
}

// event makes the event that a row of the index names. Rows are hints: ok is
// false if the version is not there, as when the key's range left this node.
func (c *cursor) event(key []byte, rev int64, sub uint32, kind eventKind, prevKV bool, forgotten int64) (ev Event, ok bool, err error) {
	ev = Event{Delete: kind == eventDelete, Revision: rev, Sub: sub}
	c.seek = appendVersionKey(c.seek[:0], key, rev, sub)
	if !c.it.SeekPrefixGE(c.seek) || !bytes.Equal(c.it.Key(), c.seek) {
		return ev, false, c.it.Error()
	}
	row, err := c.it.ValueAndErr()
	if err != nil {
		return ev, false, fmt.Errorf("mvcc: event of %q at %d: %w", key, rev, err)
	}
	v, err := decodeVersionValue(row, rev)
	if err != nil {
		return ev, false, err
	}
	if v.tombstone != ev.Delete {
		return ev, false, fmt.Errorf("%w: event of %q at %d.%d is of kind %d, its version is not", errCorruptRow, key, rev, sub, kind)
	}
	if ev.Delete {
		ev.Kv = &mvccpb.KeyValue{Key: bytes.Clone(key), ModRevision: rev}
	} else {
		ev.Kv = newKeyValue(key, &v, rev)
	}
	if prevKV && kind != eventCreate && rev-1 >= forgotten {
		// The state before the revision: what a transaction overwrote of its
		// own is not the previous key-value.
		if ev.PrevKv, err = c.get(ev.Kv.Key, rev-1); err != nil {
			return ev, false, err
		}
	}
	return ev, true, nil
}

// PrevKV returns the key-value of a key just before a revision: what a watcher
// with prev_kv gets for a live event. Nil if there was none or it is forgotten.
func (s *Store) PrevKV(key []byte, rev int64) (*mvccpb.KeyValue, error) {
	l := Latest{s, rev - 1}
	kv, err := l.Get(key)
	if errors.Is(err, ErrCompacted) {
		return nil, nil
	}
	return kv, err
}
