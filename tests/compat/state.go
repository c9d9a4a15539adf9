package compat

import (
	"bytes"
	"cmp"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// State is what is known of the keyspace from the reference's answers. The generator aims with it.
type State struct {
	// Revision is the current revision, Compacted the compacted one (-1: nothing was ever compacted).
	Revision, Compacted int64
	// Live has the newest version of every live key; long values are cut.
	Live map[string]*mvccpb.KeyValue

	// compactions has every revision that was compacted.
	compactions map[int64]bool
	// history are the events from Compacted on, in order.
	history []event
}

// event is an event of the keyspace without what only the servers need to know.
type event struct {
	revision int64
	key      string
	deleted  bool
}

// maxKeptValue bounds the part of a value that State keeps.
const maxKeptValue = 64

func newState() State {
	return State{Revision: 1, Compacted: -1, Live: make(map[string]*mvccpb.KeyValue), compactions: make(map[int64]bool)}
}

// add notes an event of the reference's journal.
func (s *State) add(e *mvccpb.Event) event {
	key := string(e.Kv.Key)
	deleted := e.Type == mvccpb.Event_DELETE
	if deleted {
		delete(s.Live, key)
	} else {
		kv := &mvccpb.KeyValue{
			Key: e.Kv.Key, CreateRevision: e.Kv.CreateRevision, ModRevision: e.Kv.ModRevision, Version: e.Kv.Version, Lease: e.Kv.Lease,
			Value: bytes.Clone(e.Kv.Value[:min(len(e.Kv.Value), maxKeptValue)]),
		}
		s.Live[key] = kv
	}
	noted := event{e.Kv.ModRevision, key, deleted}
	s.history = append(s.history, noted)
	return noted
}

func (s *State) compact(revision int64) {
	s.Compacted = revision
	s.compactions[revision] = true
	first, _ := slices.BinarySearchFunc(s.history, revision, func(e event, r int64) int { return cmp.Compare(e.revision, r) })
	s.history = slices.Clone(s.history[first:])
}

// eventsFrom returns the events at and after a revision that is not compacted.
func (s *State) eventsFrom(revision int64) []event {
	first, _ := slices.BinarySearchFunc(s.history, revision, func(e event, r int64) int { return cmp.Compare(e.revision, r) })
	return s.history[first:]
}

// changedTwiceAt tells whether a transaction at the revision has changed one key twice. Compaction at that revision removes all but
// the last of these versions, in the background: what a watcher from there sees depends on when it asks.
func (s *State) changedTwiceAt(revision int64) bool {
	seen := make(map[string]bool)
	for _, e := range s.eventsFrom(revision) {
		if e.revision != revision {
			break
		}
		if seen[e.key] {
			return true
		}
		seen[e.key] = true
	}
	return false
}

// putAfterDeleteAt tells whether a transaction at the revision has deleted a key and put it again.
func (s *State) putAfterDeleteAt(revision int64) bool {
	deleted := make(map[string]bool)
	for _, e := range s.eventsFrom(revision) {
		switch {
		case e.revision != revision:
			return false
		case e.deleted:
			deleted[e.key] = true
		case deleted[e.key]:
			return true
		}
	}
	return false
}

// watcher is a watcher that the reference has accepted.
type watcher struct {
	stream int
	id     int64
	// request is the create request.
	request *pb.WatchCreateRequest
	// from is the first revision it is told of.
	from int64
	// want counts the events that both servers owe since the last comparison.
	want int
	// wantCompacted: it starts below the compacted revision, so a cancellation is owed (etcd/W9).
	wantCompacted bool
	// catchingUp: history was owed since the last comparison, and how that is grouped is not compared.
	catchingUp bool
}

// wants tells whether an event is for the watcher.
func (w *watcher) wants(e event) bool {
	if e.revision < w.from || !inSpan(e.key, w.request.Key, w.request.RangeEnd) {
		return false
	}
	drop := pb.WatchCreateRequest_NOPUT
	if e.deleted {
		drop = pb.WatchCreateRequest_NODELETE
	}
	return !slices.Contains(w.request.Filters, drop)
}

// inSpan tells whether a key lies in the interval of a watch request (etcd/W2).
func inSpan(key string, start, end []byte) bool {
	if len(start) == 0 {
		start = []byte{0}
	}
	switch {
	case len(end) == 0:
		return key == string(start)
	case len(end) == 1 && end[0] == 0:
		return key >= string(start)
	}
	return key >= string(start) && key < string(end)
}
