package raftgroup

import (
	"errors"
	"fmt"
	"math"

	"github.com/cockroachdb/pebble/v2"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"

	"github.com/hawser-kv/hawser/range/raftlog"
)

// Work says what to do about the rows that a Ready staged.
type Work struct {
	// Send to peers; they may leave at once, even before the batch is committed.
	Send []*raftpb.Message
	// NeedsSync: the batch must be synced before this Work is durable. When it
	// is false and WhenDurable is not empty, this Work is durable as soon as the
	// Works before it are.
	NeedsSync bool
	// WhenDurable holds raft's answers, to peers and to itself, that promise
	// what the batch holds. Pass the Work to Durable when it is durable.
	WhenDurable []*raftpb.Message
	// Applied: entries were applied; the batch holds their effects.
	Applied bool
	// ReadStates answer ReadIndex: leadership was confirmed after it was asked.
	ReadStates []raft.ReadState

	// appliedIndex is what is applied with the batch, and so with every sync
	// that covers it.
	appliedIndex uint64
}

// MaxBatchBytes is the size of a batch beyond which Ready stages nothing more. What
// one step stages comes on top: the entries that were proposed since the last Ready,
// which whoever proposes keeps to about as much, and one page of committed entries;
// one entry is always staged, however large. The engine takes 4 GiB.
const MaxBatchBytes = 64 << 20

// HasReady says whether Ready may have something to do.
func (g *Group) HasReady() bool { return g.failed == nil && g.dirty }

// Ready stages everything raft wants written or applied into b: log rows, hard
// state, the effects of committed entries with the applied state, and the
// truncation of the log. It goes on until raft has nothing more that can be
// done before something is durable, or until b has MaxBatchBytes: then HasReady
// is still true and the rest belongs to another batch.
//
// An error is a fault: the group has stopped. If it wraps raftlog.ErrCorrupt, or
// ErrApply from a Machine that staged nothing for the entry it refused, it
// concerns this group alone: its rows in b are a whole prefix of what raft
// wanted. After any other error b must not be committed.
func (g *Group) Ready(b *pebble.Batch) (w Work, err error) {
	if g.failed != nil {
		return Work{}, g.failed
	}
	if !g.dirty {
		return Work{}, nil
	}
	defer g.guard(&err)
	full := false
	for again := true; again; {
		again = false
		if full = b.Len() >= g.maxBatch; full {
			break
		}
		rd := g.rn.Ready()
		if rd.SoftState != nil {
			if rd.SoftState.RaftState != g.state {
				g.election.restart()
			}
			g.lead, g.state = rd.SoftState.Lead, rd.SoftState.RaftState
		}
		if hs := rd.HardState; !raft.IsEmptyHardState(hs) {
			if hs.GetTerm() != g.term || hs.GetVote() != g.vote {
				g.election.restart()
			}
			g.term, g.vote, g.committed = hs.GetTerm(), hs.GetVote(), hs.GetCommit()
		}
		w.ReadStates = append(w.ReadStates, rd.ReadStates...)
		for _, m := range rd.Messages {
			switch m.GetTo() {
			case raft.LocalAppendThread:
				stepped, err := g.append(b, m, &w)
				if err != nil {
					return Work{}, g.fail(err)
				}
				again = again || stepped
			case raft.LocalApplyThread:
				g.held = append(g.held, m)
			default:
				w.Send = append(w.Send, m)
			}
		}
		more, err := g.applyHeld(b, &w)
		if err != nil {
			return Work{}, g.fail(err)
		}
		again = again || more
	}
	g.dirty = full
	if w.Applied {
		if err := g.truncate(b); err != nil {
			return Work{}, g.fail(err)
		}
	}
	w.appliedIndex, _ = g.log.Applied()
	if w.NeedsSync {
		g.unsynced++
	}
	return w, nil
}

// append stages what a MsgStorageAppend asks for. It reports whether it gave
// raft its answers already.
func (g *Group) append(b *pebble.Batch, m *raftpb.Message, w *Work) (stepped bool, err error) {
	if m.GetSnapshot() != nil {
		panic(fmt.Sprintf("raftgroup: group %d: raft took a snapshot", g.id))
	}
	needsSync := len(m.GetEntries()) > 0
	if err := g.log.Append(b, m.GetEntries()); err != nil {
		return false, err
	}
	if m.Term != nil {
		staged, err := g.log.SetHardState(b, raftlog.HardState{Term: m.GetTerm(), Vote: m.GetVote(), Commit: m.GetCommit()})
		if err != nil {
			return false, err
		}
		needsSync = needsSync || staged
	}
	if !needsSync && g.unsynced == 0 && !w.NeedsSync {
		// All that these answers promise is durable already.
		for _, r := range m.GetResponses() {
			if r.GetTo() == g.replica {
				g.mustStep(r)
				stepped = true
			} else {
				w.Send = append(w.Send, r)
			}
		}
		return stepped, nil
	}
	w.NeedsSync = w.NeedsSync || needsSync
	w.WhenDurable = append(w.WhenDurable, m.GetResponses()...)
	return false, nil
}

// applyHeld applies what raft has asked for, up to an entry that must wait for the
// commit of those before it. It reports whether raft has more then.
func (g *Group) applyHeld(b *pebble.Batch, w *Work) (again bool, err error) {
	for len(g.held) > 0 {
		m := g.held[0]
		entries := m.GetEntries()[g.heldDone:]
		n := g.settled(entries)
		if n > 0 {
			confChanged, err := g.apply(b, entries[:n])
			if err != nil {
				return false, err
			}
			w.Applied, g.uncommitted = true, true
			g.heldDone += n
			// After that raft has more only if it held entries back, or if what was
			// applied makes it leave a joint configuration.
			again = again || confChanged || g.autoLeave
		}
		if n < len(entries) {
			return again, nil // BatchCommitted goes on
		}
		g.held, g.heldDone = g.held[1:], 0
		// Effects need not be durable before raft counts them as applied: the synced
		// log replays them.
		for _, r := range m.GetResponses() {
			g.mustStep(r)
		}
		again = again || entries[n-1].GetIndex() < g.committed
	}
	return again, nil
}

// settled returns how many of the entries can be applied now.
func (g *Group) settled(entries []*raftpb.Entry) int {
	if g.settler == nil {
		return len(entries)
	}
	for i, e := range entries {
		if (i > 0 || g.uncommitted) && e.GetType() == raftpb.EntryNormal && g.settler.NeedsCommitted(e.GetData()) {
			return i
		}
	}
	return len(entries)
}

// BatchCommitted says that the batches of all Readies so far are committed. Call Ready
// after it. Only who drives the group of a Settler needs to call it.
func (g *Group) BatchCommitted() {
	g.uncommitted = false
	g.dirty = g.dirty || len(g.held) > 0
}

// apply runs committed entries through the machine and stages the applied state
// that covers them: at once, not at the end of Ready, and also when an entry
// fails. The batch belongs to others, too, and never holds the effects of a
// whole entry without the index that says so.
func (g *Group) apply(b *pebble.Batch, entries []*raftpb.Entry) (confChanged bool, err error) {
	done := 0
	for _, e := range entries {
		changed, applyErr := g.applyEntry(b, e)
		if applyErr != nil {
			err = fmt.Errorf("%w: entry %d: %w", ErrApply, e.GetIndex(), applyErr)
			break
		}
		confChanged = confChanged || changed
		done++
	}
	if done > 0 {
		last := entries[done-1]
		setErr := g.log.SetApplied(b, last.GetIndex(), last.GetTerm(), g.keepTail(), g.machine.AppliedState)
		err = errors.Join(err, setErr)
	}
	return confChanged, err
}

func (g *Group) applyEntry(b *pebble.Batch, e *raftpb.Entry) (confChanged bool, err error) {
	data := e.GetData()
	if e.GetType() != raftpb.EntryNormal {
		cc, context, err := confChange(e)
		if err != nil {
			return false, fmt.Errorf("configuration change: %w", err)
		}
		cs := g.rn.ApplyConfChange(cc)
		if err := g.log.SetConfState(b, cs); err != nil {
			return false, err
		}
		g.setConfState(cs)
		data, confChanged = context, true
	}
	return confChanged, g.machine.Apply(b, e.GetIndex(), e.GetTerm(), data)
}

// Durable is called when a Work is durable, in the order of the Works, and for
// every Work that has NeedsSync or WhenDurable. It returns the answers to peers
// that may leave now. Call Ready after it.
func (g *Group) Durable(w Work) (send []*raftpb.Message, err error) {
	if g.failed != nil {
		return nil, g.failed
	}
	defer g.guard(&err)
	if w.NeedsSync {
		if g.unsynced == 0 {
			panic(fmt.Sprintf("raftgroup: group %d: more durable works than there are", g.id))
		}
		g.unsynced--
		// Only a sync that was asked for with this batch, or after it, is known
		// to cover it. Without NeedsSync the answers wait for the syncs of
		// batches before this one, and what this one applied for the next.
		g.durableApplied = max(g.durableApplied, w.appliedIndex)
	}
	for _, m := range w.WhenDurable {
		if m.GetTo() == g.replica {
			g.mustStep(m)
		} else {
			send = append(send, m)
		}
	}
	return send, nil
}

// mustStep gives raft one of its own answers. raft refuses one only when this
// replica has left the configuration, and then it does not matter.
func (g *Group) mustStep(m *raftpb.Message) {
	g.dirty = true
	if err := g.rn.Step(m); err != nil && !errors.Is(err, raft.ErrStepPeerNotFound) {
		panic(fmt.Sprintf("raftgroup: group %d: raft refuses its own %s: %v", g.id, m.GetType(), err))
	}
}

// keepTail is how much of the applied log stays in memory for followers.
func (g *Group) keepTail() uint64 {
	if g.soleVoter {
		return 0
	}
	return g.keepBytes
}

// truncate cuts the log when that is worth it. A sole voter needs only what is
// not durably applied. A leader of several keeps what the slowest of them lacks,
// for there are no snapshots yet, and followers keep everything that a leader
// did not tell them is no longer needed, which is all.
func (g *Group) truncate(b *pebble.Batch) error {
	limit := g.durableApplied
	var keepEntries, keepBytes uint64
	if !g.soleVoter {
		if g.state != raft.StateLeader {
			return nil
		}
		first, _ := g.log.FirstIndex()
		if limit < first+truncateEntries {
			return nil // spares the visit
		}
		limit = min(limit, g.slowestMatch())
		keepEntries, keepBytes = g.keepEntries, g.keepBytes
	}
	first, _ := g.log.FirstIndex()
	if limit+1 < first+truncateEntries && (limit < first || g.log.Bytes() < truncateBytes+keepBytes) {
		return nil
	}
	at := g.log.TruncateAt(limit, keepEntries, keepBytes)
	if at < first {
		return nil
	}
	return g.log.Truncate(b, at)
}

// slowestMatch is the highest index that every other replica has, as far as
// this leader knows.
func (g *Group) slowestMatch() uint64 {
	slowest := uint64(math.MaxUint64)
	g.rn.WithProgress(func(id uint64, _ raft.ProgressType, pr tracker.Progress) {
		if id != g.replica {
			slowest = min(slowest, pr.Match)
		}
	})
	return slowest
}

// fail makes a fault of this group stick.
func (g *Group) fail(err error) error {
	g.failed = fmt.Errorf("group %d: %w", g.id, err)
	return g.failed
}
