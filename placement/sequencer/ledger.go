package sequencer

import (
	"fmt"
	"slices"

	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// ledger is what S knows of one range.
//
// The range is *open* for reg iff open is set; then grants flow to it. An
// inactive range is never open, and while a deactivation or split is proposed
// and not applied nothing new can be registered (I7).
type ledger struct {
	id uint64
	// desc with every proposed entry applied; committed is what S may let out
	// (I6), nil for the right half of a split that is only proposed.
	desc      *rangepb.RangeDescriptor
	committed *rangepb.RangeDescriptor
	active    bool

	// last is m(X): the last revision assigned to the range. It never falls.
	last int64
	// reg is the highest registration known in this term, open or not.
	reg  registration
	open bool
	// asking is a registration that waits for undecided entries of the range.
	asking *registration

	// decided entries that the range has not reported, in order.
	decided []decided
	outbox  outbox
	// splits wait for the range to be open.
	splits []*splitRequest
	// listedSplits: the ledger is in splitting.
	listedSplits bool

	// change is the place among changes (R6).
	change change
}

func newLedger(d *rangepb.RangeDescriptor) *ledger {
	x := &ledger{id: d.RangeId, desc: d}
	x.change.ledger = x
	return x
}

func (x *ledger) String() string {
	state := "inactive"
	switch {
	case x.open:
		state = "open " + x.reg.String()
	case x.active:
		state = "closed"
	}
	return fmt.Sprintf("r%d:{%q-%q} epoch=%d last=%d %s", x.id, x.desc.Start, x.desc.End, x.desc.Epoch, x.last, state)
}

// openFor says whether grants flow to the leader of the term on the session.
func (x *ledger) openFor(n *node, session, term uint64) bool {
	return x.open && x.reg.term == term && x.reg.session == session && x.reg.node == n.id
}

// mark notes the last revision assigned to the range.
func (x *ledger) mark(revision int64) {
	if revision < x.last {
		panic("sequencer: m of " + x.String() + " would fall")
	}
	x.last = revision
}

// unreported says whether a decided entry of the range waits for its report.
func (x *ledger) unreported() bool {
	return slices.ContainsFunc(x.decided, func(d decided) bool { return !d.reporting })
}

// registration is who leads a range: (e, T, session) of R3, e being S's own.
type registration struct {
	node, session, term uint64
}

func (r registration) String() string {
	return fmt.Sprintf("n%d/%d term=%d", r.node, r.session, r.term)
}

// below says whether o is known to be newer: a higher term, or the same term
// with a newer session. Two nodes never lead in one term.
func (r registration) below(o registration) bool {
	return r.term < o.term || r.term == o.term && (r.node != o.node || r.session < o.session)
}

// decided is an entry for one participant, proposed or committed.
type decided struct {
	entry *placementpb.Decided // MetaIndex is 0 until it is committed
	// reporting: Reported is proposed.
	reporting bool
}
