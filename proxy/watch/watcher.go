package watch

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// watcher is one watch of one stream.
//
// It is *synced* while it belongs to a group: it has been sent everything its
// group has dispatched. Otherwise it is *behind*: everything at or below pos
// has been sent, and the rest comes from history until it has reached its
// group. It becomes behind at creation with an old start revision, when its
// stream's queue is full, and when its group falls out of the event buffer.
type watcher struct {
	id         int64
	stream     *Stream
	start, end []byte // end empty: to the end of the keyspace

	prevKV, fragment, progress bool
	noPut, noDelete            bool

	// asked is the start revision in the request, 0 for "from now on".
	asked int64
	// min is the first revision that is still to be sent, as far as a synced
	// watcher is concerned: nothing below it is.
	min int64
	// group of the span; set while synced and behind.
	group  *group
	synced bool
	// pos: everything at or below it has been sent; kept while behind.
	pos int64
	// reading: it waits for a catch-up task, or rides in one.
	reading bool
	// since says when it began to wait: the hub counts them.
	since int64
	ride  ride
	// place among those of its group that are synced, or that are parked.
	place  int
	parked bool
	// heldBack: it is parked for the events of a deletion of a span.
	heldBack bool
	// sent since the last progress interval.
	sent bool
	// batch collects the events of the dispatch under way.
	batch []*event
}

func (w *watcher) wants(e *event) bool { return e.revision >= w.min && w.wantsKind(e.delete) }

func (w *watcher) wantsKind(isDelete bool) bool {
	if isDelete {
		return !w.noDelete
	}
	return !w.noPut
}

// Response is one message for a stream, before it is made into etcd's.
type Response struct {
	WatchID  int64
	Revision int64 // header.revision; 0 on a cancel for compaction
	Created  bool
	Canceled bool
	Reason   string
	// CompactRevision is set on a cancel for compaction.
	CompactRevision int64
	Fragment        bool // the watcher asked for fragments
	prevKV          bool
	events          []*event
	// packed are the events behind those.
	packed packed
	// bytes that it counts for in its stream's queue.
	bytes int
}

// PreviousReader finds the version of a key just before a revision: nil if
// there was none or it has been compacted.
type PreviousReader func(key []byte, revision int64) (*mvccpb.KeyValue, error)

// Events makes etcd's events of the response, with previous values where they
// were asked for. Values are shared with other watchers: never modify them.
func (r *Response) Events(previous PreviousReader) ([]*mvccpb.Event, error) {
	if r.NumEvents() == 0 {
		return nil, nil
	}
	out := make([]*mvccpb.Event, len(r.events), r.NumEvents())
	backing := make([]mvccpb.Event, len(r.events))
	for i, e := range r.events {
		ev := &backing[i]
		if err := r.message(ev, e, previous); err != nil {
			return nil, err
		}
		out[i] = ev
	}
	more, err := r.packed.unpack()
	return append(out, more...), err
}

// message makes m the message of an event for this response.
func (r *Response) message(m *mvccpb.Event, e *event, previous PreviousReader) (err error) {
	m.Kv, m.Type = e.kv, eventType(e.delete)
	if r.prevKV && !e.isCreate() {
		m.PrevKv, err = e.previousKV(previous)
	}
	return err
}

// WatchResponse makes etcd's message, without what only the server knows of
// its header.
func (r *Response) WatchResponse(previous PreviousReader) (*pb.WatchResponse, error) {
	events, err := r.Events(previous)
	if err != nil {
		return nil, err
	}
	return &pb.WatchResponse{
		Header:          &pb.ResponseHeader{Revision: r.Revision},
		WatchId:         r.WatchID,
		Created:         r.Created,
		Canceled:        r.Canceled,
		CompactRevision: r.CompactRevision,
		CancelReason:    r.Reason,
		Events:          events,
	}, nil
}
