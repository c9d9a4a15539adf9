package store

import (
	"errors"

	"github.com/hawser-kv/hawser/range/raftgroup"
	"github.com/hawser-kv/hawser/range/raftlog"
)

// Ready does for a member's group what a Flush has to: it stages what the group
// wants into the batch, asks for a sync where there must be one, hands the group
// its answers when that is durable, and sends its messages. ok is false after a
// fault, which Ready has passed on: damage of the group's own rows to Fail,
// anything else to FailStore. The Work is for what else it says: what was
// applied and which reads are confirmed.
func (r *Round) Ready(g *raftgroup.Group) (w raftgroup.Work, ok bool) {
	if !g.HasReady() {
		return raftgroup.Work{}, r.check(r.slot, g.Failed())
	}
	w, err := g.Ready(r.Batch)
	if !r.check(r.slot, err) {
		return raftgroup.Work{}, false
	}
	if w.NeedsSync {
		r.NeedSync()
	}
	r.Send(w.Send)
	if w.NeedsSync || len(w.WhenDurable) > 0 {
		sl := r.slot
		r.OnDurable(func() {
			msgs, err := g.Durable(w)
			if r.check(sl, err) && len(msgs) > 0 {
				r.sends = append(r.sends, outgoing{sl.id, msgs})
			}
		})
	}
	return w, true
}

func (r *Round) check(sl *slot, err error) bool {
	switch {
	case err == nil:
		return true
	case errors.Is(err, raftgroup.ErrApply):
		r.shard.store.fail(err) // the batch has half an entry's effects
	case errors.Is(err, raftlog.ErrCorrupt), errors.Is(err, raftlog.ErrFormat):
		sl.failure = err
	default:
		r.shard.store.fail(err)
	}
	return false
}
