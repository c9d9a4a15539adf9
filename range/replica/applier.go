package replica

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/range/shortage"
)

// applier applies the committed entries of a range's log. It is the state machine
// of the range's Raft group (raftgroup.Settler), and a function of the state and
// the entries alone: it does not know whether this replica leads, nor what any
// leader waits for. What it did it says in an outcome.
type applier struct {
	nodeID      uint64
	db          *pebble.DB
	mvcc        *mvcc.Store
	wantsEvents bool
	log         *zap.Logger

	// staged is the state with everything that was applied into engine batches,
	// committed or not; visible is the state that readers see.
	staged, visible appliedState
	// outcome gathers what the entries since the last takeOutcome did.
	outcome outcome
	// commands is scratch for Apply.
	commands []decodedCommand
}

// newApplier returns the applier of a range whose rows say saved; term is that of
// the last entry applied.
func newApplier(cfg *Config, log *zap.Logger, saved Saved, term uint64) *applier {
	state := appliedState{desc: saved.Descriptor, resolved: saved.Resolved, term: term}
	return &applier{
		nodeID: cfg.NodeID, db: cfg.DB, mvcc: cfg.MVCC,
		wantsEvents: cfg.Events != nil, log: log, staged: state, visible: state,
	}
}

// String says which range it is and what readers see of it.
func (a *applier) String() string {
	d := a.visible.desc
	return fmt.Sprintf("r%d:{%q-%q} epoch=%d resolved=%d", d.RangeId, d.Start, d.End, d.Epoch, a.visible.resolved)
}

// Apply implements raftgroup.Machine: it stages the effects of one committed
// entry. An error is damage (ErrCorrupt) or a shortage, and stops the replica.
func (a *applier) Apply(b *pebble.Batch, index, term uint64, data []byte) error {
	a.staged.term = term
	a.outcome.state = a.staged
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
	done := appliedEntry{term: e.term, seq: e.seq}
	if e.epoch != a.staged.desc.Epoch {
		done.refusedWhole = fmt.Sprintf("entry %d names epoch %d, applied is %d", index, e.epoch, a.staged.desc.Epoch)
		a.logRefusal(done.refusedWhole)
		a.outcome.entries = append(a.outcome.entries, done)
		return nil
	}
	// Decoded as a whole before anything is staged: a damaged entry has no
	// effects at all.
	commands := a.commands[:0]
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
	a.commands = commands
	done.commands = len(commands)
	for i := range commands {
		why, err := a.applyCommand(b, &commands[i])
		if err != nil {
			return shortage.OrDamage(ErrCorrupt, fmt.Errorf("entry %d: %w", index, err))
		}
		if why != "" {
			a.logRefusal(why)
			done.refused = append(done.refused, refusal{command: i, why: why})
		}
	}
	clear(commands)
	a.outcome.state = a.staged
	a.outcome.entries = append(a.outcome.entries, done)
	return nil
}

// NeedsCommitted implements raftgroup.Settler: the deletion of a span counts, in the
// engine, what it ends.
func (a *applier) NeedsCommitted(data []byte) bool {
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
func (a *applier) AppliedState(dst []byte) []byte { return appendRangeState(dst, a.staged.resolved) }

// stagedState implements rangeState.
func (a *applier) stagedState() appliedState { return a.staged }

// visibleState implements rangeState.
func (a *applier) visibleState() appliedState { return a.visible }

// takeOutcome returns what the entries since the last call did. It counts as visible
// when committed is called with it.
func (a *applier) takeOutcome() outcome {
	o := a.outcome
	a.outcome = outcome{}
	return o
}

// committed says that the batch of an outcome is visible. It must be called before
// readers hear of the outcome.
func (a *applier) committed(o *outcome) error {
	a.visible = o.state
	for i := range o.began {
		// After a shortage its replica ensures them, before anything is applied there.
		if err := a.ensureBoundaries(o.began[i].Descriptor); err != nil && !shortage.Is(err) {
			return err
		}
	}
	return nil
}

// applyCommand applies one command, or says why it refuses it, as every replica does.
func (a *applier) applyCommand(b *pebble.Batch, c *decodedCommand) (refused string, err error) {
	writes := c.kind == commandWrite || c.kind == commandTxn
	if c.revision < a.staged.resolved || writes && c.revision == a.staged.resolved {
		return fmt.Sprintf("%s at %d, resolved is %d (I1)", c.kind, c.revision, a.staged.resolved), nil
	}
	span := a.staged.desc.Span()
	for i := range c.decoded {
		if c.decoded[i].CreateRevision > c.revision {
			return "", fmt.Errorf("%s at %d: key %q was created at %d", c.kind, c.revision, c.decoded[i].Key, c.decoded[i].CreateRevision)
		}
		if c.decoded[i].Prior.Revision >= c.revision {
			return "", fmt.Errorf("%s at %d: key %q was changed before at %d", c.kind, c.revision, c.decoded[i].Key, c.decoded[i].Prior.Revision)
		}
		if !holdsEffect(span, &c.decoded[i]) {
			return fmt.Sprintf("%s at %d: key %q is outside the span", c.kind, c.revision, c.decoded[i].Key), nil
		}
	}
	switch c.kind {
	case commandWrite, commandTxn:
		if err := a.mvcc.Apply(b, c.revision, c.decoded); err != nil {
			return "", err
		}
		if a.wantsEvents {
			for i := range c.decoded {
				a.outcome.events = append(a.outcome.events, mvcc.EventOf(c.decoded[i], c.revision))
			}
		}
	case commandSplit:
		if err := a.applySplit(b, &c.command); err != nil {
			return "", err
		}
	}
	a.staged.resolved = c.revision
	return "", nil
}

// holdsEffect reports that all keys of an effect lie in a span.
func holdsEffect(s rangepb.Span, e *mvcc.Effect) bool {
	return s.Contains(e.Key) && (!e.IsSpan() || s.Covers(rangepb.Span{Start: e.Key, End: e.End}))
}

// logRefusal is loud: a leader knows its log, so it never proposes what is refused.
func (a *applier) logRefusal(why string) {
	a.log.Error("command refused at apply: "+why, zap.Stringer("state", a))
}
