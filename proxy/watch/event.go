package watch

import (
	"sort"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/hawser-kv/hawser/mvcc"
)

// event is one change of one key, shared by all watchers that get it.
type event struct {
	kv       *mvccpb.KeyValue
	delete   bool
	revision int64
	sub      uint32
	// size is about what the event costs in memory, in bytes.
	size int
	// position of the key's range in the frontier's layout; found when the
	// event is first dispatched in that layout.
	position int
	layout   uint64

	// previous is the version before this one, read once for all watchers
	// that want it.
	previous struct {
		sync.Mutex
		read bool
		kv   *mvccpb.KeyValue
	}
}

// eventOverhead is the memory of an event beside its key and value, in bytes.
const eventOverhead = 160

func newEvent(e mvcc.Event) *event {
	ev := &event{
		kv:       e.Kv,
		delete:   e.Delete,
		revision: e.Revision,
		sub:      e.Sub,
		size:     len(e.Kv.Key) + len(e.Kv.Value) + eventOverhead,
	}
	if e.PrevKv != nil {
		ev.previous.read, ev.previous.kv = true, e.PrevKv
	}
	return ev
}

// isCreate says whether the event made a key that was not there (W11).
func (e *event) isCreate() bool {
	return !e.delete && e.kv.CreateRevision == e.kv.ModRevision
}

// previousKV returns the version before the event, nil if it has none any
// more. A failed read is tried again by the next watcher.
func (e *event) previousKV(read PreviousReader) (*mvccpb.KeyValue, error) {
	e.previous.Lock()
	defer e.previous.Unlock()
	if !e.previous.read {
		kv, err := read(e.kv.Key, e.revision-1)
		if err != nil {
			return nil, err
		}
		e.previous.read, e.previous.kv = true, kv
	}
	return e.previous.kv, nil
}

// buffer holds the events that were applied here and are not dispatched to
// every group yet, by revision. Revisions are nearly dense, so a slice with
// the first one's revision as offset is the index.
type buffer struct {
	// base is the revision of slots[0]; nothing below it is held.
	base  int64
	slots []slot
	// bytes is the sum of the sizes of the events held.
	bytes int
}

type slot struct {
	events []*event
	sorted bool
}

// add puts an event in; one below base is dropped: who needs it reads history.
func (b *buffer) add(e *event) {
	if e.revision < b.base {
		return
	}
	if len(b.slots) == 0 {
		b.slots = append(b.slots, slot{})
	}
	at := int(e.revision - b.base)
	for at >= len(b.slots) {
		b.slots = append(b.slots, slot{})
	}
	s := &b.slots[at]
	s.events = append(s.events, e)
	s.sorted = len(s.events) == 1
	b.bytes += e.size
}

// at returns the events of a revision in sub-revision order. The revision must
// be complete: nothing is added to it any more.
func (b *buffer) at(revision int64) []*event {
	i := revision - b.base
	if i < 0 || i >= int64(len(b.slots)) {
		return nil
	}
	s := &b.slots[i]
	if !s.sorted {
		sort.SliceStable(s.events, func(i, j int) bool { return s.events[i].sub < s.events[j].sub })
		s.sorted = true
	}
	return s.events
}

// last is the largest revision for which there may be events.
func (b *buffer) last() int64 { return b.base + int64(len(b.slots)) - 1 }

// trim drops everything below revision.
func (b *buffer) trim(revision int64) {
	if revision <= b.base {
		return
	}
	n := revision - b.base
	if n >= int64(len(b.slots)) {
		b.slots = nil
		b.bytes = 0
	} else {
		for _, s := range b.slots[:n] {
			for _, e := range s.events {
				b.bytes -= e.size
			}
		}
		b.slots = append([]slot(nil), b.slots[n:]...)
	}
	b.base = revision
}
