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

	// barrier is the number of the newest proposal that what S says of the range
	// from now on rests on: it waits until that is applied (R0 b).
	barrier uint64
	// decided entries that the range has not reported, in order.
	decided []decided
	outbox  outbox
	// splits wait for the range to be open.
	splits []*splitRequest
	// listedSplits: the ledger is in Sequencer.splitting.
	listedSplits bool

	// Position in the list of changes (R6).
	prevChange, nextChange *ledger
	changed                uint64 // m or descriptor
	described              uint64 // descriptor
}

func newLedger(d *rangepb.RangeDescriptor) *ledger {
	return &ledger{id: d.RangeId, desc: d}
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

// outbox holds what S says of one range, in the order decided (R0).
type outbox struct {
	items []outboxItem
	// listed: the ledger is in Sequencer.waiting.
	listed bool
}

type outboxItem struct {
	node    *node
	message *placementpb.FromSequencer
	round   uint64 // must be confirmed (R0 a)
	barrier uint64 // proposal that must be applied (R0 b)
}

// say puts a message about the range into its outbox, or lets it out at once if
// nothing holds it back.
func (s *Sequencer) say(x *ledger, n *node, m *placementpb.FromSequencer, round uint64) {
	if len(x.outbox.items) == 0 && round <= s.confirmedRound && x.barrier <= s.applied {
		s.emit(n, m)
		return
	}
	x.outbox.items = append(x.outbox.items, outboxItem{n, m, round, x.barrier})
	if !x.outbox.listed {
		x.outbox.listed = true
		s.waiting = append(s.waiting, x)
	}
}

// emit lets a message out, unless the session it answers is over.
func (s *Sequencer) emit(n *node, m *placementpb.FromSequencer) {
	if m.Session == n.session {
		s.ready = append(s.ready, Envelope{n.id, m})
	}
}

func (s *Sequencer) flushOutboxes() {
	still := s.waiting[:0]
	for _, x := range s.waiting {
		items := x.outbox.items
		n := 0
		for n < len(items) && items[n].round <= s.confirmedRound && items[n].barrier <= s.applied {
			s.emit(items[n].node, items[n].message)
			items[n] = outboxItem{}
			n++
		}
		x.outbox.items = items[n:]
		if n == len(items) {
			x.outbox = outbox{items: items[:0]}
		} else {
			still = append(still, x)
		}
	}
	clear(s.waiting[len(still):])
	s.waiting = still
}

// reply is an answer that is about no range's leader.
type reply struct {
	node    *node
	message *placementpb.FromSequencer
	round   uint64 // must be confirmed
	barrier uint64 // proposal that must be applied
}

// replyQueue is a queue in the order of rounds.
type replyQueue struct {
	replies []reply
	head    int
}

// reply answers a node when the round is confirmed and the barrier applied.
func (s *Sequencer) reply(n *node, m *placementpb.FromSequencer, round, barrier uint64) {
	switch {
	case round <= s.confirmedRound && barrier <= s.applied:
		s.emit(n, m)
	case barrier <= s.applied:
		s.byRound.replies = append(s.byRound.replies, reply{n, m, round, 0})
	default:
		s.byBarrier = append(s.byBarrier, reply{n, m, round, barrier})
	}
}

func (s *Sequencer) flushReplies() {
	q := &s.byRound
	for q.head < len(q.replies) && q.replies[q.head].round <= s.confirmedRound {
		s.emit(q.replies[q.head].node, q.replies[q.head].message)
		q.replies[q.head] = reply{}
		q.head++
	}
	if q.head == len(q.replies) {
		q.replies, q.head = q.replies[:0], 0
	} else if q.head > len(q.replies)/2 {
		n := copy(q.replies, q.replies[q.head:])
		clear(q.replies[n:])
		q.replies, q.head = q.replies[:n], 0
	}
	if len(s.byBarrier) > 0 {
		s.byBarrier = slices.DeleteFunc(s.byBarrier, func(r reply) bool {
			if r.round > s.confirmedRound || r.barrier > s.applied {
				return false
			}
			s.emit(r.node, r.message)
			return true
		})
	}
}

// ledgerTable finds ledgers by id. Ids are given out one after the other, so a
// slice finds nearly all of them; the hot path does one look-up per request.
type ledgerTable struct {
	dense []*ledger
	rest  map[uint64]*ledger
}

// maxDense bounds the slice to 8 MiB.
const maxDense = 1 << 20

func (t *ledgerTable) get(id uint64) *ledger {
	if id < uint64(len(t.dense)) {
		return t.dense[id]
	}
	return t.rest[id]
}

// put adds a ledger; its id is new.
func (t *ledgerTable) put(x *ledger) {
	if old := t.get(x.id); old != nil {
		panic(fmt.Sprintf("sequencer: put %s over %s", x, old))
	}
	if x.id >= maxDense {
		if t.rest == nil {
			t.rest = map[uint64]*ledger{}
		}
		t.rest[x.id] = x
		return
	}
	if n := int(x.id) + 1 - len(t.dense); n > 0 {
		t.dense = append(t.dense, make([]*ledger, n)...)
	}
	t.dense[x.id] = x
}

// changeList keeps ledgers in the order of their last change, newest first, so
// that a cut costs what changed since the node's last one, whoever many nodes
// subscribe, and a grant O(1).
type changeList struct{ root ledger }

func (l *changeList) init() {
	l.root.prevChange, l.root.nextChange = &l.root, &l.root
}

func (l *changeList) toFront(x *ledger) {
	if x.prevChange == &l.root {
		return
	}
	if x.prevChange != nil {
		x.prevChange.nextChange, x.nextChange.prevChange = x.nextChange, x.prevChange
	}
	x.prevChange, x.nextChange = &l.root, l.root.nextChange
	x.prevChange.nextChange, x.nextChange.prevChange = x, x
}

// touch notes that m of the range changed.
func (s *Sequencer) touch(x *ledger) {
	s.changeSeq++
	x.changed = s.changeSeq
	s.changes.toFront(x)
}
