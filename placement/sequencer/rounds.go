package sequencer

import "fmt"

// rounds are the confirmations that S still leads (R1). They count from 1.
//
// A question rides on a round that has not begun when it arrives, so that a
// quorum confirms the leadership after the question was sent; and a confirmed
// round confirms all before it. Always confirmed < next. A sole voter needs
// none.
type rounds struct {
	// next has not begun; wanted: something waits for it.
	next      uint64
	wanted    bool
	confirmed uint64
	sole      bool
}

func newRounds(sole bool) rounds { return rounds{next: 1, sole: sole} }

// needed returns the round that must be confirmed before what is judged now may
// leave, 0 for none, and wants it.
func (r *rounds) needed() uint64 {
	if r.sole {
		return 0
	}
	r.wanted = true
	return r.next
}

// begin returns the round to begin now, 0 for none.
func (r *rounds) begin() uint64 {
	if !r.wanted {
		return 0
	}
	r.wanted = false
	r.next++
	return r.next - 1
}

// confirm says that a round which has begun is confirmed.
func (r *rounds) confirm(round uint64) {
	if round <= r.confirmed {
		return
	}
	if round >= r.next {
		panic(fmt.Sprintf("sequencer: round %d confirmed, but the next to begin is %d", round, r.next))
	}
	r.confirmed = round
}

// becomeSole confirms every round, also the one that is wanted.
func (r *rounds) becomeSole() {
	r.begin()
	r.confirmed = r.next - 1
}

// tick wants a round if one that began is not confirmed: it may have been lost
// with a message, and a later one confirms it.
func (r *rounds) tick() {
	if r.confirmed+1 < r.next && !r.sole {
		r.wanted = true
	}
}
