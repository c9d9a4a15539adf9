package sequencer

import (
	"slices"

	"github.com/hawser-kv/hawser/proto/placementpb"
)

// speech is what S says, and what it may not say yet.
//
// A message leaves when the round it needs is confirmed (R0 a) and the newest
// proposal that it rests on, its barrier, is applied (R0 b, I6). What S says of
// one range leaves in the order decided: each waits for all before it. A message
// to a session that is over goes nowhere.
type speech struct {
	// clusterID and epoch stand at the head of each message.
	clusterID, epoch uint64

	rounds rounds
	// applied is the number of the newest proposal that is applied.
	applied uint64

	waiting   []*outbox  // those that hold something
	byRound   replyQueue // replies that wait for a round
	byBarrier []reply    // replies that wait for a barrier, too

	// ready may leave at the next Ready.
	ready []Envelope
	// grants is memory for the next grant messages.
	grants []grantMessage
}

// outbox holds what S says of one range, in the order decided (R0).
type outbox struct {
	items []reply
	// barrier of what S says of the range from now on.
	barrier uint64
	// listed: it is in speech.waiting.
	listed bool
}

// reply is a message and what it waits for.
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

// settled says whether the proposal with the number is applied, and so all
// before it.
func (p *speech) settled(barrier uint64) bool { return barrier <= p.applied }

func (p *speech) free(r *reply) bool {
	return r.round <= p.rounds.confirmed && r.barrier <= p.applied
}

// say puts a message about the range into its outbox, or lets it out at once if
// nothing holds it back.
func (p *speech) say(o *outbox, n *node, m *placementpb.FromSequencer, round uint64) {
	if len(o.items) == 0 && round <= p.rounds.confirmed && o.barrier <= p.applied {
		p.emit(n, m)
		return
	}
	o.items = append(o.items, reply{n, m, round, o.barrier})
	if !o.listed {
		o.listed = true
		p.waiting = append(p.waiting, o)
	}
}

// reply answers a node, about no range's leader, when the round is confirmed
// and the barrier applied.
func (p *speech) reply(n *node, m *placementpb.FromSequencer, round, barrier uint64) {
	switch r := (reply{n, m, round, barrier}); {
	case p.free(&r):
		p.emit(n, m)
	case p.settled(barrier):
		p.replyInOrder(n, m, round)
	default:
		p.byBarrier = append(p.byBarrier, r)
	}
}

// replyInOrder answers a node in the next flushReplies or later, behind what
// waits for a round.
func (p *speech) replyInOrder(n *node, m *placementpb.FromSequencer, round uint64) {
	p.byRound.replies = append(p.byRound.replies, reply{n, m, round, 0})
}

// emit lets a message out, unless the session it answers is over.
func (p *speech) emit(n *node, m *placementpb.FromSequencer) {
	if m.Session == n.session {
		p.ready = append(p.ready, Envelope{n.id, m})
	}
}

// flushOutboxes lets out what nothing holds back any more of what S says of
// ranges.
func (p *speech) flushOutboxes() {
	still := p.waiting[:0]
	for _, o := range p.waiting {
		n := 0
		for n < len(o.items) && p.free(&o.items[n]) {
			p.emit(o.items[n].node, o.items[n].message)
			o.items[n] = reply{}
			n++
		}
		if n == len(o.items) {
			o.items, o.listed = o.items[:0], false
		} else {
			o.items = o.items[n:]
			still = append(still, o)
		}
	}
	clear(p.waiting[len(still):])
	p.waiting = still
}

// flushReplies lets out what nothing holds back any more of the other answers.
func (p *speech) flushReplies() {
	q := &p.byRound
	for q.head < len(q.replies) && q.replies[q.head].round <= p.rounds.confirmed {
		p.emit(q.replies[q.head].node, q.replies[q.head].message)
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
	if len(p.byBarrier) > 0 {
		p.byBarrier = slices.DeleteFunc(p.byBarrier, func(r reply) bool {
			if !p.free(&r) {
				return false
			}
			p.emit(r.node, r.message)
			return true
		})
	}
}

// swap returns what may leave and uses the memory of what left before.
func (p *speech) swap(left []Envelope) (leave []Envelope) {
	leave, p.ready = p.ready, left[:0]
	return leave
}

// drain appends what may leave.
func (p *speech) drain(leave []Envelope) []Envelope {
	leave = append(leave, p.ready...)
	p.ready = p.ready[:0]
	return leave
}
