package raftgroup

import (
	"github.com/cockroachdb/pebble/v2"
	"go.etcd.io/raft/v3/raftpb"
)

// Round is what a Driver needs of a round of the store: one batch of the engine,
// committed once and synced at most once.
type Round interface {
	// NeedSync says that the batch must be synced before OnDurable callbacks run.
	NeedSync()
	// OnDurable registers fn for the time when the batch is durable; without
	// NeedSync, for when every batch before it that needed a sync is.
	OnDurable(fn func())
	// Send sends messages to other replicas after the commit.
	Send(msgs []*raftpb.Message)
}

// Driver drives a Group over the rounds of a store: it stages what raft wants
// into the batch of a round, sends what may leave at once, and tells raft when
// the batch is durable, which lets its promises to others go. Who owns the
// replica calls Begin once at the start of each of its turns and Advance as often
// as it gave the group something. Like the Group it belongs to the worker.
type Driver struct {
	group *Group
	// promises to others have become durable since the last Begin.
	promises []*raftpb.Message
}

// NewDriver returns the driver of a group.
func NewDriver(g *Group) *Driver { return &Driver{group: g} }

// Begin sends what the batches that have become durable promise. The error is
// the fault that has stopped the group, if one has: sticky, as Group.Failed.
func (d *Driver) Begin(r Round) error {
	if err := d.group.Failed(); err != nil {
		return err
	}
	r.Send(d.promises)
	d.promises = nil
	return nil
}

// Advance gives raft its turn, if it has anything to do: see Group.Ready for what
// is staged into b and for errors. It says whether entries were applied and which
// rounds of ReadIndex were confirmed.
func (d *Driver) Advance(b *pebble.Batch, r Round) (Work, error) {
	if !d.group.HasReady() {
		return Work{}, d.group.Failed()
	}
	w, err := d.group.Ready(b)
	if err != nil {
		return Work{}, err
	}
	r.Send(w.Send)
	if w.NeedsSync {
		r.NeedSync()
	}
	if w.NeedsSync || len(w.WhenDurable) > 0 {
		r.OnDurable(func() { d.durable(w) })
	}
	return w, nil
}

// durable tells raft that a batch is on disk. A fault sticks in the group, and
// the next Begin reports it.
func (d *Driver) durable(w Work) {
	if send, err := d.group.Durable(w); err == nil {
		d.promises = append(d.promises, send...)
	}
}
