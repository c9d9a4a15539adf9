package replica

import (
	"bytes"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// outcome is what to do once the batch into which entries were applied is
// visible.
type outcome struct {
	state    appliedState
	ledTerm  uint64 // the leadership whose proposals are among them
	finished int    // proposals of it
	answers  []answer
	events   []mvcc.Event
	reports  []uint64
	began    []Saved // replicas that splits have begun here
	needSync bool
	// broken: an own command was refused; see refuseEntry.
	broken bool
}

type answer struct {
	request  *request
	revision int64
	err      error
}

// Apply implements raftgroup.Machine: it stages the effects of one committed
// entry. It is a function of the applied state and the entry alone; what it
// adds on a leader is only who is to be answered. An error is damage, and stops
// the replica.
func (r *Replica) Apply(b *pebble.Batch, index, term uint64, data []byte) error {
	r.staged.term = term
	r.outcome.state = r.staged
	if len(data) == 0 {
		return nil // a leader's first entry
	}
	e, err := openEntry(data)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if e.term != term {
		// Evaluated in another term: no effect, on every replica (R0).
		return nil
	}
	p := r.takeProposal(e.entryHeader)
	if e.epoch != r.staged.desc.Epoch {
		r.refuseEntry(p, fmt.Sprintf("entry %d names epoch %d, applied is %d", index, e.epoch, r.staged.desc.Epoch))
		return nil
	}
	// Decoded as a whole before anything is staged: a damaged entry has no
	// effects at all.
	commands := r.commands[:0]
	for {
		c, ok, err := e.next()
		if err != nil {
			return fmt.Errorf("%w: entry %d: %w", ErrCorrupt, index, err)
		}
		if !ok {
			break
		}
		d := decodedCommand{command: c}
		if c.kind == commandWrite || c.kind == commandTxn {
			if d.decoded, err = mvcc.DecodeEffects(c.effects); err != nil {
				return fmt.Errorf("%w: entry %d: %w", ErrCorrupt, index, err)
			}
		}
		commands = append(commands, d)
	}
	r.commands = commands
	if p != nil && len(p.items) != len(commands) {
		return fmt.Errorf("%w: entry %d has %d commands, %d were proposed", ErrCorrupt, index, len(commands), len(p.items))
	}
	for i := range commands {
		var q *request
		if p != nil {
			q = p.items[i].request
		}
		if err := r.applyCommand(b, &commands[i], q, p != nil); err != nil {
			return fmt.Errorf("%w: entry %d: %w", ErrCorrupt, index, err)
		}
	}
	clear(commands)
	r.outcome.state = r.staged
	return nil
}

// NeedsCommitted implements raftgroup.Settler: the deletion of a span counts, in the
// engine, what it ends.
func (r *Replica) NeedsCommitted(data []byte) bool {
	e, err := openEntry(data)
	for ok := err == nil; ok; {
		var c command
		if c, ok, err = e.next(); ok && err == nil && mvcc.MayHaveSpan(c.effects) {
			return true
		}
		ok = ok && err == nil
	}
	return false // Apply finds what is wrong with it
}

// decodedCommand is a command with its effects.
type decodedCommand struct {
	command
	decoded []mvcc.Effect
}

// AppliedState implements raftgroup.Machine.
func (r *Replica) AppliedState(dst []byte) []byte { return appendRangeState(dst, r.staged.resolved) }

// takeProposal returns the proposal of this leadership that an entry is, nil if
// it is none.
func (r *Replica) takeProposal(h entryHeader) *proposal {
	l := &r.lead
	if l.term != h.term || l.applied == l.inflight.len() {
		return nil
	}
	p := l.inflight.all()[l.applied]
	if p.seq != h.seq {
		panic(fmt.Sprintf("replica: %s: proposal %d applied, %d is next", r, h.seq, p.seq))
	}
	l.applied++
	r.outcome.ledTerm = l.term
	r.outcome.finished++
	return p
}

// applyCommand applies one command, or refuses it as every replica does.
func (r *Replica) applyCommand(b *pebble.Batch, c *decodedCommand, q *request, own bool) error {
	writes := c.kind == commandWrite || c.kind == commandTxn
	if c.revision < r.staged.resolved || writes && c.revision == r.staged.resolved {
		r.refuseCommand(q, fmt.Sprintf("%s at %d, resolved is %d (I1)", c.kind, c.revision, r.staged.resolved))
		return nil
	}
	for i := range c.decoded {
		if c.decoded[i].CreateRevision > c.revision {
			return fmt.Errorf("%s at %d: key %q was created at %d", c.kind, c.revision, c.decoded[i].Key, c.decoded[i].CreateRevision)
		}
		if c.decoded[i].Prior.Revision >= c.revision {
			return fmt.Errorf("%s at %d: key %q was changed before at %d", c.kind, c.revision, c.decoded[i].Key, c.decoded[i].Prior.Revision)
		}
		if !holdsEffect(r.staged.desc, &c.decoded[i]) {
			r.refuseCommand(q, fmt.Sprintf("%s at %d: key %q is outside the span", c.kind, c.revision, c.decoded[i].Key))
			return nil
		}
	}
	switch c.kind {
	case commandWrite, commandTxn:
		if err := r.cfg.MVCC.Apply(b, c.revision, c.decoded); err != nil {
			return err
		}
		if r.cfg.Events != nil {
			for i := range c.decoded {
				r.outcome.events = append(r.outcome.events, mvcc.EventOf(c.decoded[i], c.revision))
			}
		}
	case commandSplit:
		if err := r.applySplit(b, &c.command); err != nil {
			return err
		}
	}
	r.staged.resolved = c.revision
	if own && (c.kind == commandTxn || c.kind == commandSplit) {
		r.outcome.reports = append(r.outcome.reports, c.metaIndex)
	}
	if q != nil {
		r.outcome.answers = append(r.outcome.answers, answer{request: q, revision: c.revision})
	}
	return nil
}

// holds reports that a key lies in the span of a range.
func holds(desc *rangepb.RangeDescriptor, key []byte) bool {
	return bytes.Compare(key, desc.Start) >= 0 && (len(desc.End) == 0 || bytes.Compare(key, desc.End) < 0)
}

func holdsEffect(desc *rangepb.RangeDescriptor, e *mvcc.Effect) bool {
	if !e.IsSpan() || len(desc.End) == 0 {
		return holds(desc, e.Key)
	}
	return holds(desc, e.Key) && e.End != nil && bytes.Compare(e.End, desc.End) <= 0
}

// refuseEntry refuses all commands of an entry.
func (r *Replica) refuseEntry(p *proposal, why string) {
	if p == nil {
		r.refuseCommand(nil, why)
		return
	}
	for i := range p.items {
		r.refuseCommand(p.items[i].request, why)
	}
}

// refuseCommand refuses a command, on every replica alike: it was definitely not
// applied. A leader knows its log, so it never proposes one that is refused: if
// it happens the leader throws away what it evaluated on top of it and registers
// anew, which resolves the revision.
func (r *Replica) refuseCommand(q *request, why string) {
	r.log.Error("command refused at apply: "+why, zap.Stringer("state", r))
	r.outcome.broken = true
	if q != nil {
		r.outcome.answers = append(r.outcome.answers, answer{request: q, err: fmt.Errorf("%w: refused at apply: %s", ErrDropped, why)})
	}
}

// committed runs when the batch with applied entries is visible: it publishes,
// tells the watchers, and answers.
func (r *Replica) committed(o *outcome) {
	if r.failed != nil {
		return
	}
	r.visible = o.state
	for i := range o.began {
		y := &o.began[i]
		if err := r.ensureBoundaries(y.Descriptor); err != nil {
			r.fail(err)
			return
		}
		r.cfg.Readers.begin(y.Descriptor.RangeId, y)
	}
	r.read.publish(o.state.desc, o.state.resolved)
	if r.cfg.Events != nil {
		r.cfg.Events.Applied(r.cfg.RangeID, o.state.resolved, o.events)
	}
	for _, y := range o.began {
		if r.cfg.Began != nil {
			r.cfg.Began(y.Descriptor)
		}
	}
	l := &r.lead
	if l.term != 0 && l.term == o.ledTerm {
		for range o.finished {
			p := l.inflight.pop()
			l.applied--
			l.inflightBytes -= p.bytes
			l.visibleProposal = p.seq
		}
		r.overlay.Applied(o.state.resolved)
		for _, metaIndex := range o.reports {
			r.report(metaIndex)
		}
		if o.broken {
			r.dropStaged()
			r.distrust("a command was refused at apply")
		}
	}
	for i := range o.answers {
		a := &o.answers[i]
		if a.err != nil {
			r.finish(a.request, WriteResult{Err: a.err})
			continue
		}
		r.finish(a.request, WriteResult{Result: a.request.result, Revision: a.revision})
	}
}
