package replica

import (
	"fmt"
	"slices"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// proposals are the commands that a leader has put into its log, or is about to, and
// that are not visible yet. They belong to one leadership, from the moment it serves:
// from then on the leader has proposed everything that the log holds beyond the visible
// state, so revision, desc and overlay are the truth about the log, uncommitted
// tail included (R3 c).
type proposals struct {
	term        uint64
	targetBytes int // of an entry

	// revision is the highest revision in the log or staged for it, desc the
	// descriptor as the log leaves it: a split counts from its proposal.
	revision int64
	desc     *rangepb.RangeDescriptor
	// overlay has the effects of all of them.
	overlay *mvcc.Overlay

	// building is the entry that takes commands; full are closed ones. Neither is
	// proposed yet.
	building *proposal
	full     []*proposal
	// inflight are the proposals made and not visible yet, in the order of the
	// log; the first applied of them are applied into a batch.
	inflight fifo[*proposal]
	applied  int

	bytes   int    // of all of them
	nextSeq uint64 // from 1
	// visibleSeq is the last that became visible.
	visibleSeq uint64
	buffer     []byte // for the next entry
}

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

func newProposals(term uint64, targetBytes int) proposals {
	return proposals{term: term, targetBytes: targetBytes, nextSeq: 1, overlay: mvcc.NewOverlay()}
}

// begin says that the log holds nothing beyond the visible state.
func (p *proposals) begin(visible appliedState) {
	p.revision, p.desc = visible.resolved, visible.desc
}

// stage appends a command to the log, in effect: it will be proposed in the
// order of staging or the registration ends. The commands of a pass share an
// entry. what.revision is c's. It returns the proposal that has the command.
func (p *proposals) stage(c command, what proposed) *proposal {
	what.revision = c.revision
	writes := c.kind == commandWrite || c.kind == commandTxn
	if c.revision < p.revision || writes && c.revision == p.revision {
		panic(fmt.Sprintf("replica: range %d: %s at %d staged, the log has %d (I1)", p.desc.RangeId, c.kind, c.revision, p.revision))
	}
	e := p.building
	if e == nil {
		e = &proposal{seq: p.nextSeq, data: p.takeBuffer()}
		p.nextSeq++
		e.data = appendEntryHeader(e.data, entryHeader{term: p.term, epoch: p.desc.Epoch, seq: e.seq})
		p.building = e
	}
	before := len(e.data)
	if what.request != nil {
		e.data = appendWrite(e.data, c.revision, what.request.result.Effects)
	} else {
		e.data = appendCommand(e.data, c)
	}
	e.items = append(e.items, what)
	e.bytes += len(e.data) - before
	p.bytes += len(e.data) - before
	p.layOver(&what)
	if len(e.data) >= p.targetBytes || c.kind == commandSplit {
		p.close()
	}
	return e
}

// close ends the entry that takes commands.
func (p *proposals) close() {
	if p.building != nil {
		p.full = append(p.full, p.building)
		p.building = nil
	}
}

// layOver makes a command that is in the log, and not visible yet, count.
func (p *proposals) layOver(c *proposed) {
	p.revision = c.revision
	switch {
	case c.request != nil:
		p.overlay.Add(c.revision, c.request.result.Effects)
	case c.decided == nil: // Resolve
	case c.decided.left != nil:
		p.desc = c.decided.left
	default:
		p.overlay.Add(c.revision, c.decided.effects)
	}
}

// has reports that the log, uncommitted tail included, has a decided entry: a
// transaction if its highest revision is not below it, a split if its epoch is
// past it (R3 c).
func (p *proposals) has(d *placementpb.Decided) bool {
	if s := d.GetSplit(); s != nil {
		return p.desc.Epoch >= s.Left.GetEpoch()
	}
	return d.Revision <= p.revision
}

// staged reports that something waits to be proposed.
func (p *proposals) staged() bool { return p.building != nil || len(p.full) > 0 }

// none reports that everything is visible.
func (p *proposals) none() bool { return !p.staged() && p.inflight.len() == 0 }

// propose offers what is staged to raft, in about maxBytes, and reports whether all of it
// was. After an error nothing of the rest may be proposed: everything was evaluated on
// top of what raft dropped.
func (p *proposals) propose(offer func(data []byte) error, maxBytes int) (all bool, err error) {
	p.close()
	proposed, bytes := 0, 0
	defer func() { p.full = slices.Delete(p.full, 0, proposed) }()
	for _, e := range p.full {
		if bytes >= maxBytes {
			return false, nil
		}
		bytes += len(e.data)
		if err := offer(e.data); err != nil {
			return false, err
		}
		for i := range e.items {
			if q := e.items[i].request; q != nil && q.stage == stageGranted {
				q.stage = stageProposed
			}
		}
		p.returnBuffer(e.data)
		e.data = nil
		p.inflight.push(e)
		proposed++
	}
	return true, nil
}

// drop gives up what is staged and not proposed, and returns its writes. What is left
// of the log beyond the visible state is in flight.
func (p *proposals) drop(visible appliedState) (writes []*request) {
	p.close()
	if len(p.full) == 0 {
		return nil
	}
	for _, e := range p.full {
		p.bytes -= e.bytes
		p.returnBuffer(e.data)
		writes = e.appendWrites(writes)
	}
	p.full = nil
	p.overlay = mvcc.NewOverlay()
	p.begin(visible)
	for _, e := range p.inflight.all() {
		for i := range e.items {
			p.layOver(&e.items[i])
		}
	}
	return writes
}

// unapplied returns the writes that are in flight and not applied.
func (p *proposals) unapplied() (writes []*request) {
	for _, e := range p.inflight.all()[p.applied:] {
		writes = e.appendWrites(writes)
	}
	return writes
}

func (e *proposal) appendWrites(to []*request) []*request {
	for i := range e.items {
		if q := e.items[i].request; q != nil {
			to = append(to, q)
		}
	}
	return to
}

// finish says that the first n of those applied are visible, and with them what is
// resolved.
func (p *proposals) finish(n int, resolved int64) {
	for range n {
		e := p.inflight.pop()
		p.applied--
		p.bytes -= e.bytes
		p.visibleSeq = e.seq
	}
	p.overlay.Applied(resolved)
}

// maxSpareBytes bounds the buffer that is kept for the next entry.
const maxSpareBytes = 1 << 20

func (p *proposals) takeBuffer() []byte {
	b := p.buffer
	p.buffer = nil
	return b[:0]
}

func (p *proposals) returnBuffer(b []byte) {
	if cap(b) <= maxSpareBytes && cap(b) > cap(p.buffer) {
		p.buffer = b
	}
}
