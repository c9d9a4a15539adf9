package replica

import (
	"fmt"

	"github.com/hawser-kv/hawser/proto/rangepb"
)

// answers is what the leader has to say, and to whom, once an outcome is visible:
// the outcome as its proposals and requests see it. It outlives the leadership: what
// is applied is answered, whoever leads by then.
type answers struct {
	// term is that of the leadership, and finished how many of its proposals the
	// outcome has; 0 if none.
	term     uint64
	finished int
	writes   []answer
	// reports are the meta indices of decided entries that were applied.
	reports []uint64
	// refused: a command was refused that the leader has proposed.
	refused bool
}

// answer is for one write: its revision, or why it was not applied.
type answer struct {
	request  *request
	revision int64
	err      error
}

// match finds the entries of an outcome that the leader has proposed. It is called
// when the outcome is staged, before anything else can end the leadership. An error
// is a fault: the log has, under a proposal's number, what was not proposed.
func (p *proposals) match(entries []appliedEntry) (answers, error) {
	var a answers
	own := p.inflight.all()[p.applied:]
	for i := range entries {
		e := &entries[i]
		if e.term != p.term || len(own) == 0 {
			continue // of an earlier leader
		}
		mine := own[0]
		own = own[1:]
		if mine.seq != e.seq {
			panic(fmt.Sprintf("replica: range %d: proposal %d applied, %d is next", p.desc.RangeId, e.seq, mine.seq))
		}
		if e.refusedWhole == "" && e.commands != len(mine.items) {
			return a, fmt.Errorf("%w: proposal %d has %d commands in the log, %d were proposed", ErrCorrupt, mine.seq, e.commands, len(mine.items))
		}
		a.term = p.term
		a.finished++
		p.applied++
		a.add(mine, e)
	}
	return a, nil
}

// add adds what became of the commands of one proposal.
func (a *answers) add(p *proposal, e *appliedEntry) {
	refused := e.refused
	for i := range p.items {
		c := &p.items[i]
		var err error
		switch {
		case e.refusedWhole != "":
			err = fmt.Errorf("%w: refused at apply: %s", ErrDropped, e.refusedWhole)
		case len(refused) > 0 && refused[0].command == i:
			err = fmt.Errorf("%w: refused at apply: %s", ErrDropped, refused[0].why)
			refused = refused[1:]
		}
		a.refused = a.refused || err != nil
		if c.decided != nil && err == nil {
			a.reports = append(a.reports, c.decided.metaIndex)
		}
		if c.request != nil {
			a.writes = append(a.writes, answer{request: c.request, revision: c.revision, err: err})
		}
	}
}

// say says the answers, now that what they tell is visible.
func (l *leader) say(a *answers) {
	if l.term != 0 && l.term == a.term {
		l.proposals.finish(a.finished, l.state.visibleState().resolved)
		for _, metaIndex := range a.reports {
			l.reg.report(metaIndex)
		}
		if a.refused {
			// The leader throws away what it evaluated on top of it and registers anew,
			// which resolves the revision.
			l.dropStaged()
			l.distrust("a command was refused at apply")
		}
	}
	for i := range a.writes {
		w := &a.writes[i]
		if w.err != nil {
			l.requests.finish(w.request, nil, rangepb.WriteAnswer{Err: w.err})
			continue
		}
		l.requests.finish(w.request, w.request.result, rangepb.WriteAnswer{Revision: w.revision})
	}
}
