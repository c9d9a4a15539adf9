package watch

import (
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
	// span: the event stands for the deletion of [kv.Key, spanEnd), of which history
	// has the events (mvcc.Event.Span). It comes before all others of its revision.
	span    bool
	spanEnd []byte
	// size is about what the event costs in memory, in bytes.
	size int
	// counted is the number of the hub's emission in which a stream's queue
	// counted it last.
	counted uint64

	// previous is the version before this one, read once for all watchers that
	// want it, unless it is more than twice as large as the event: what waits on
	// slow streams keeps it, and is counted by size.
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
		span:     e.Span,
		spanEnd:  e.SpanEnd,
		size:     len(e.Kv.Key) + len(e.Kv.Value) + eventOverhead,
	}
	if e.PrevKv != nil {
		ev.previous.read, ev.previous.kv = true, e.PrevKv
	}
	return ev
}

// isCreate says whether the event made a key that was not there (etcd/W11).
func (e *event) isCreate() bool {
	return !e.delete && e.kv.CreateRevision == e.kv.ModRevision
}

func eventType(isDelete bool) mvccpb.Event_EventType {
	if isDelete {
		return mvccpb.Event_DELETE
	}
	return mvccpb.Event_PUT
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
		if kv != nil && len(kv.Key)+len(kv.Value) > 2*e.size {
			return kv, nil
		}
		e.previous.read, e.previous.kv = true, kv
	}
	return e.previous.kv, nil
}
