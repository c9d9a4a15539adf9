// Package txn is the coordinator of a transaction over several ranges
// (revisions.md R7): a pure state machine without I/O, goroutines or clock. The
// router drives it: it performs the actions and feeds the results back.
//
//	latching ──► evaluating ──► committing ──► ended
//	 │   ▲ │          │              │
//	 │   │ └─ a latch └── nothing    └── refused: nothing was applied, latches
//	 ▼   │    refused     to change      given back; unknown: S is asked to abort
//	recutting: the range was split; newer ranges take its place
//
// The rules it keeps:
//
//   - Ranges are latched one after the other in key order, all spans of a range
//     at once, so two transactions never wait for each other.
//   - A range that was split before it was latched is replaced, with all that
//     come after it, by the ranges of a newer directory that cover the same
//     keys, and latching goes on from there: the latches that are held stay, as
//     nothing was said under this owner yet. So splits ahead of it cannot starve
//     a wide transaction. A range that is split while its latch is held makes S
//     refuse the commit (the latch names the old epoch), and that ends the
//     attempt: splits wait for latches to make it rare (router.Split).
//   - A latch that was given, and no commit sent: the coordinator gives it back
//     itself, on every path, also when it comes after the caller has left. Only
//     the coordinator sends the commit, so nobody can decide any more.
//   - A commit that was sent ends with what S says. While S is silent nothing
//     is given back: S may have decided. The coordinator then only asks S to
//     abort, and the leaders of the participants do the same on their own.
//   - A result exists only when the transaction is decided.
package txn

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// Coordinator is one attempt of one transaction. It is not safe for concurrent
// use; the owner of the request serializes the calls. A new attempt needs a new
// owner id and a new Coordinator.
type Coordinator struct {
	owner *placementpb.TxnID
	parts []Participant
	state state
	// next is the participant being latched while latching; the ones before
	// it hold a latch.
	next int
	// recuts counts how often the participant at next was refused as stale since
	// the last latch was given.
	recuts int
	// cancelled: the caller has left. A latch under way is given back when it
	// comes.
	cancelled bool
}

// Participant is a range that the transaction reads or writes.
type Participant struct {
	RangeID uint64
	Epoch   uint64
	// Start and End bound the range's span, End nil: to the end of the
	// keyspace.
	Start, End []byte
	// Spans are what the transaction touches in it.
	Spans []mvcc.Access

	// term and session come with the latch and go into the commit: S accepts
	// it only while the range is open under them (R7).
	term, session uint64
}

func (p *Participant) span() rangepb.Span { return rangepb.Span{Start: p.Start, End: p.End} }

// String prints the participant as r7@3.
func (p *Participant) String() string { return fmt.Sprintf("r%d@%d", p.RangeID, p.Epoch) }

type state int

const (
	stateNew state = iota
	stateLatching
	stateRecutting
	stateEvaluating
	stateCommitting
	stateEnded
)

func (s state) String() string {
	return [...]string{"new", "latching", "recutting", "evaluating", "committing", "ended"}[s]
}

// Latch is a range leader's word that it holds the latch, or why it does not.
type Latch struct {
	Term, Session uint64
	// Err: no latch was taken. Any error means that nothing is held.
	Err error
	// Refusal says what Err means, judged by the driver, which knows the errors
	// of its ranges. Unused without one.
	Refusal Refusal
}

// Refusal is what the error of a latch means for the attempt.
type Refusal int

const (
	// Final: the error is for the client.
	Final Refusal = iota
	// Passing: the attempt ends, another may succeed (no leader).
	Passing
	// Stale: the range is not what the participant names (it was split), so
	// others may take its place.
	Stale
)

// maxRecuts bounds how often in a row a place is refused as stale before the
// latches that are held are given back: with the driver's doubling pauses, some
// tenths of a second in which others wait for them.
const maxRecuts = 8

// ActionKind says what the driver has to do.
type ActionKind int

// The actions. Latch, Recut, Evaluate and Commit are answered by Latched, Recut,
// Evaluated and Decided; the others by nothing.
const (
	// ActLatch: ask the leader of Action.Participant for its latch.
	ActLatch ActionKind = iota
	// ActRecut: look up again what Action.Participant and those after it cover,
	// when the directory knows newer ranges there or after a pause that grows
	// with Action.Recut.
	ActRecut
	// ActEvaluate: evaluate on the committed values of the latched spans.
	ActEvaluate
	// ActCommit: send Action.Commit to S.
	ActCommit
	// ActUnlatch: give the latch of Action.Participant back.
	ActUnlatch
	// ActAbort: ask S never to commit the owner.
	ActAbort
	// ActEnd: the attempt is over with Action.Outcome. It comes once, unless
	// the caller cancelled: then never.
	ActEnd
)

func (k ActionKind) String() string {
	return [...]string{"latch", "recut", "evaluate", "commit", "unlatch", "abort", "end"}[k]
}

// Action is one thing to do. Participant and Commit belong to the coordinator
// and stay unchanged until the attempt has ended.
type Action struct {
	Kind        ActionKind
	Participant *Participant
	// Index is the place of Participant in key order; with ActLatch and ActRecut.
	Index int
	// Recut counts from 1 how often in a row this place was refused as stale.
	Recut   int
	Commit  *placementpb.TxnCommit
	Outcome Outcome
}

// Verdict is how an attempt ended.
type Verdict int

const (
	// Committed: decided at Outcome.Revision.
	Committed Verdict = iota
	// NothingToDo: the evaluation changes nothing or was refused. The request
	// is answered as a read (R4); nothing was applied.
	NothingToDo
	// Again: nothing was applied and the reason passes; try again.
	Again
	// Refused: nothing was applied and Outcome.Err is for the client.
	Refused
	// Unknown: whether it was applied is not known.
	Unknown
)

func (v Verdict) String() string {
	return [...]string{"committed", "nothing to do", "again", "refused", "unknown"}[v]
}

// Outcome is the end of an attempt.
type Outcome struct {
	Verdict  Verdict
	Revision int64
	// Err is the reason of every verdict but Committed and NothingToDo.
	Err error
}

// RefusedError is S's refusal of a transaction: nothing was applied.
type RefusedError struct{ Reason placementpb.RefusalReason }

func (e *RefusedError) Error() string {
	return "transaction refused by the sequencer: " + e.Reason.String()
}

// New returns the coordinator of one attempt. parts are in key order and do not
// overlap; at least one. owner was never used before.
func New(owner *placementpb.TxnID, parts []Participant) *Coordinator {
	if err := checkOrder(nil, parts); err != nil {
		panic(err.Error())
	}
	return &Coordinator{owner: owner, parts: parts}
}

// Participants returns the ranges, in key order. The caller does not change them.
func (c *Coordinator) Participants() []Participant { return c.parts }

// Owner returns the id under which latches are held.
func (c *Coordinator) Owner() *placementpb.TxnID { return c.owner }

// Start begins the attempt, unless the caller has left before.
func (c *Coordinator) Start() []Action {
	if c.cancelled {
		return nil
	}
	c.expect(stateNew, "Start")
	c.state = stateLatching
	return []Action{c.latchNext()}
}

func (c *Coordinator) latchNext() Action {
	return Action{Kind: ActLatch, Participant: &c.parts[c.next], Index: c.next}
}

// Latched takes the answer to the last ActLatch.
func (c *Coordinator) Latched(l Latch) []Action {
	if c.cancelled && c.state == stateEnded {
		if l.Err != nil {
			return nil
		}
		return []Action{{Kind: ActUnlatch, Participant: &c.parts[c.next]}}
	}
	c.expect(stateLatching, "Latched")
	p := &c.parts[c.next]
	switch {
	case l.Err == nil:
	case l.Refusal == Stale && c.recuts < maxRecuts:
		c.recuts++
		c.state = stateRecutting
		return []Action{{Kind: ActRecut, Participant: p, Index: c.next, Recut: c.recuts}}
	case l.Refusal == Final:
		return c.end(c.unlatch(c.next), Outcome{Verdict: Refused, Err: l.Err})
	default:
		return c.end(c.unlatch(c.next), Outcome{Verdict: Again, Err: l.Err})
	}
	p.term, p.session = l.Term, l.Session
	c.next++
	c.recuts = 0
	if c.next < len(c.parts) {
		return []Action{c.latchNext()}
	}
	c.state = stateEvaluating
	return []Action{{Kind: ActEvaluate}}
}

// Evaluated takes the effects of the transaction on the latched state. err is a
// failed evaluation: the latched values may be those of a leader that is
// deposed and does not know, so an error is no answer; the read that follows
// finds the right one. Reading the latched state may itself have failed with
// something that passes: retry.
func (c *Coordinator) Evaluated(effects []mvcc.Effect, err error, retry bool) []Action {
	if c.cancelled {
		return nil
	}
	c.expect(stateEvaluating, "Evaluated")
	switch {
	case err != nil && retry:
		return c.end(c.unlatch(len(c.parts)), Outcome{Verdict: Again, Err: err})
	case err != nil || len(effects) == 0:
		return c.end(c.unlatch(len(c.parts)), Outcome{Verdict: NothingToDo, Err: err})
	}
	c.state = stateCommitting
	return []Action{{Kind: ActCommit, Commit: c.commit(effects)}}
}

// commit divides the effects over the participants.
func (c *Coordinator) commit(effects []mvcc.Effect) *placementpb.TxnCommit {
	own := make([][]mvcc.Effect, len(c.parts))
	var leases []int64
	seen := make(map[int64]bool)
	for _, e := range effects {
		i := c.partOf(e.Key)
		own[i] = append(own[i], e)
		if e.Lease != 0 && !e.Tombstone && !seen[e.Lease] {
			seen[e.Lease] = true
			leases = append(leases, e.Lease)
		}
	}
	msg := &placementpb.TxnCommit{Owner: c.owner, Leases: leases}
	for i := range c.parts {
		p := &c.parts[i]
		part := &placementpb.Participant{RangeId: p.RangeID, Epoch: p.Epoch, Term: p.term, Session: p.session}
		if len(own[i]) > 0 {
			part.Effects = mvcc.AppendEffects(nil, own[i])
		}
		msg.Participants = append(msg.Participants, part)
	}
	return msg
}

// partOf returns the participant that holds key. An effect outside all of them
// means that the evaluation wrote what was not latched.
func (c *Coordinator) partOf(key []byte) int {
	// The last that does not start after the key.
	i, found := slices.BinarySearchFunc(c.parts, key, func(p Participant, key []byte) int { return bytes.Compare(p.Start, key) })
	if !found {
		i--
	}
	if i >= 0 && c.parts[i].span().Contains(key) {
		return i
	}
	panic(fmt.Sprintf("txn: effect on key %q outside the participants %v", key, c.parts))
}

// Decided takes S's answer to ActCommit. err: no answer will come (the session
// with S is over), so the fate is not known.
func (c *Coordinator) Decided(res *placementpb.TxnResult, err error) []Action {
	if c.state == stateEnded {
		// The caller left while S was silent. If it is decided the latches go
		// with the entries; without an answer the leaders ask S themselves.
		if err == nil && res.GetRefused() {
			return c.unlatch(len(c.parts))
		}
		return nil
	}
	c.expect(stateCommitting, "Decided")
	switch {
	case err != nil:
		return c.end([]Action{{Kind: ActAbort}}, Outcome{Verdict: Unknown, Err: err})
	case !res.GetRefused():
		if res.GetRevision() <= 0 {
			panic(fmt.Sprintf("txn: %v decided at revision %d", c.owner, res.GetRevision()))
		}
		// The decided entry releases the latches of those that write, S's
		// Unlatch those of the others.
		return c.end(nil, Outcome{Verdict: Committed, Revision: res.GetRevision()})
	}
	refusal := &RefusedError{Reason: res.GetReason()}
	out := Outcome{Verdict: Refused, Err: refusal}
	switch res.GetReason() {
	case placementpb.RefusalReason_REFUSAL_REASON_LEASE_NOT_FOUND:
		out.Err = fmt.Errorf("%w (%w)", mvcc.ErrLeaseNotFound, refusal)
	case placementpb.RefusalReason_REFUSAL_REASON_NOT_REGISTERED,
		placementpb.RefusalReason_REFUSAL_REASON_STALE_EPOCH,
		placementpb.RefusalReason_REFUSAL_REASON_UNKNOWN_RANGE,
		placementpb.RefusalReason_REFUSAL_REASON_NOT_SERVING,
		placementpb.RefusalReason_REFUSAL_REASON_ABORTED,
		placementpb.RefusalReason_REFUSAL_REASON_BUSY:
		out.Verdict = Again
	}
	return c.end(c.unlatch(len(c.parts)), out)
}

// Cancel says that the caller has left (deadline, client gone, server
// stopping). No ActEnd follows. A commit under way goes on: it may be decided
// already, and only S can tell; S is asked to abort.
func (c *Coordinator) Cancel() []Action {
	if c.cancelled || c.state == stateEnded {
		return nil
	}
	c.cancelled = true
	was := c.state
	c.state = stateEnded
	switch was {
	case stateLatching, stateRecutting:
		return c.unlatch(c.next)
	case stateEvaluating:
		return c.unlatch(len(c.parts))
	case stateCommitting:
		return []Action{{Kind: ActAbort}}
	}
	return nil
}

// unlatch gives back the latches of the first n participants, last first.
func (c *Coordinator) unlatch(n int) []Action {
	var out []Action
	for i := n - 1; i >= 0; i-- {
		out = append(out, Action{Kind: ActUnlatch, Participant: &c.parts[i]})
	}
	return out
}

func (c *Coordinator) end(acts []Action, o Outcome) []Action {
	c.state = stateEnded
	return append(acts, Action{Kind: ActEnd, Outcome: o})
}

func (c *Coordinator) expect(s state, call string) {
	if c.state != s {
		panic(fmt.Sprintf("txn: %s of %v in state %v, want %v", call, c.owner, c.state, s))
	}
}

// IsRefusal returns the reason S gave when err is its refusal.
func IsRefusal(err error) (placementpb.RefusalReason, bool) {
	var r *RefusedError
	if errors.As(err, &r) {
		return r.Reason, true
	}
	return placementpb.RefusalReason_REFUSAL_REASON_UNSPECIFIED, false
}
