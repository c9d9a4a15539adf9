package replica

import (
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/range/raftgroup"
)

// proposal is one Raft entry from its first command until its effects are
// visible.
type proposal struct {
	seq   uint64
	data  []byte // until it is proposed
	bytes int
	items []proposed
}

// proposed is one command of a proposal.
type proposed struct {
	revision int64
	request  *request // of a write
	decided  *decided // of a transaction or a split
}

// decided is what a command does that the meta log has decided.
type decided struct {
	metaIndex uint64
	effects   []mvcc.Effect            // of a transaction
	left      *rangepb.RangeDescriptor // of a split
}

// stage appends a command to the log, in effect: it will be proposed in the
// order of staging or the registration ends. The commands of a pass share an
// entry. what.revision is c's. It returns the proposal that has the command.
func (r *Replica) stage(c command, what proposed) *proposal {
	l := &r.lead
	what.revision = c.revision
	writes := c.kind == commandWrite || c.kind == commandTxn
	if c.revision < l.logRevision || writes && c.revision == l.logRevision {
		panic(fmt.Sprintf("replica: %s: %s at %d staged (I1)", r, c.kind, c.revision))
	}
	p := l.building
	if p == nil {
		p = &proposal{seq: l.nextProposal, data: r.takeBuffer()}
		l.nextProposal++
		p.data = appendEntryHeader(p.data, entryHeader{term: l.term, epoch: l.logDesc.Epoch, seq: p.seq})
		l.building = p
	}
	before := len(p.data)
	switch {
	case what.request != nil:
		p.data = appendWrite(p.data, c.revision, what.request.result.Effects)
	default:
		p.data = appendCommand(p.data, c)
	}
	p.items = append(p.items, what)
	p.bytes += len(p.data) - before
	l.inflightBytes += len(p.data) - before
	r.layOver(&what)
	if len(p.data) >= r.limits.TargetEntryBytes || c.kind == commandSplit {
		l.full = append(l.full, p)
		l.building = nil
	}
	return p
}

// layOver makes a command that is in the log, and not visible yet, count.
func (r *Replica) layOver(c *proposed) {
	l := &r.lead
	l.logRevision = c.revision
	switch {
	case c.request != nil:
		r.overlay.Add(c.revision, c.request.result.Effects)
	case c.decided == nil: // Resolve
	case c.decided.left != nil:
		l.logDesc = c.decided.left
	default:
		r.overlay.Add(c.revision, c.decided.effects)
	}
}

// Staged commands wait for more for at most so many passes, of some microseconds
// each, or until there are so many commands.
const (
	maxGatheredPasses   = 32
	maxGatheredCommands = 128
)

// mayGather reports that what is staged should wait for the next pass. A
// sequencer on the same node answers within the round, so writes that wait for
// each other, as those of one hot key do, are granted one a pass; gathered, they
// share an entry, and Raft's work for it.
func (r *Replica) mayGather() bool {
	l := &r.lead
	if l.building == nil || len(l.full) > 0 || !l.instant || r.free.len() == 0 ||
		l.gathered == maxGatheredPasses || len(l.building.items) >= maxGatheredCommands ||
		l.reg.phase != regOpen || l.deactivating || l.inflightBytes >= r.limits.MaxInflightBytes {
		return false
	}
	if e, session, ok := r.cfg.Link.Session(); !ok || e != l.reg.e || session != l.reg.session {
		return false
	}
	l.gathered++
	return true
}

// propose offers what is staged to raft.
func (r *Replica) propose(round Round) {
	l := &r.lead
	if l.building == nil && len(l.full) == 0 || !round.CanPropose() {
		return
	}
	l.gathered = 0
	if l.building != nil {
		l.full = append(l.full, l.building)
		l.building = nil
	}
	proposed, bytes := 0, 0
	for i, p := range l.full {
		if bytes >= raftgroup.MaxBatchBytes {
			round.Again() // raft gives all of it to one batch
			break
		}
		bytes += len(p.data)
		if err := r.group.Propose(p.data); err != nil {
			// Everything that was evaluated on top of it is wrong, too.
			r.log.Warn("proposal dropped", zap.Error(err), zap.Stringer("state", r))
			l.full = l.full[i:]
			r.dropStaged()
			r.dropRegistration()
			l.reg.notBefore = r.tick + 1
			return
		}
		for i := range p.items {
			if q := p.items[i].request; q != nil && q.stage == stageGranted {
				q.stage = stageProposed
			}
		}
		r.returnBuffer(p.data)
		p.data = nil
		l.inflight.push(p)
		proposed++
	}
	l.full = slices.Delete(l.full, 0, proposed)
}

// dropStaged gives up what is staged and not proposed. The revisions it had are
// lost; the registration that follows ends them with its Resolve.
func (r *Replica) dropStaged() {
	l := &r.lead
	dropped := l.full
	if l.building != nil {
		dropped = append(dropped, l.building)
	}
	l.full, l.building = nil, nil
	if len(dropped) == 0 {
		return
	}
	for _, p := range dropped {
		l.inflightBytes -= p.bytes
		r.returnBuffer(p.data)
		for i := range p.items {
			if q := p.items[i].request; q != nil {
				r.refuse(q, ErrDropped)
			}
		}
	}
	// What is left of the log beyond the visible state is in flight.
	r.overlay = mvcc.NewOverlay()
	l.logRevision, l.logDesc = r.applier.visible.resolved, r.applier.visible.desc
	for _, p := range l.inflight.all() {
		for i := range p.items {
			r.layOver(&p.items[i])
		}
	}
}

// maxSpareBytes bounds the buffer that is kept for the next entry.
const maxSpareBytes = 1 << 20

func (r *Replica) takeBuffer() []byte {
	b := r.buffer
	r.buffer = nil
	return b[:0]
}

func (r *Replica) returnBuffer(b []byte) {
	if cap(b) <= maxSpareBytes && cap(b) > cap(r.buffer) {
		r.buffer = b
	}
}
