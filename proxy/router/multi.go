package router

import (
	"errors"
	"fmt"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proxy/txn"
)

// multi drives one attempt of a transaction over several ranges: it performs
// the actions of the coordinator and feeds the results back (R7).
type multi struct {
	o *write
	// coord is guarded by write.mu: results come from ranges, S and the caller.
	coord *txn.Coordinator
	// pieces are the ranges in key order, like the coordinator's participants.
	pieces []Piece
	// result is the evaluation; written and read on Exec's goroutine.
	result *mvcc.Result
}

// coordinate begins an attempt.
func (o *write) coordinate(parts []part) {
	ps := make([]txn.Participant, len(parts))
	for i, p := range parts {
		d := o.dir.ranges[p.index]
		ps[i] = txn.Participant{RangeID: d.RangeId, Epoch: d.Epoch, Start: d.Start, Spans: p.spans}
		if len(d.End) != 0 {
			ps[i].End = d.End
		}
	}
	m := &multi{
		o:      o,
		coord:  txn.New(o.r.cfg.Sequencer.NewOwner(), ps),
		pieces: o.dir.Pieces(o.spans),
	}
	o.mu.Lock()
	if o.mu.ended {
		o.mu.Unlock()
		return
	}
	o.mu.multi, o.mu.read = m, nil
	o.mu.Unlock()
	o.r.counters.transactions.Add(1)
	m.step(m.coord.Start)
}

// step feeds the coordinator and performs what it wants, without the lock: the
// answers may come inline.
func (m *multi) step(feed func() []txn.Action) {
	m.o.mu.Lock()
	acts := feed()
	m.o.mu.Unlock()
	for _, a := range acts {
		m.perform(a)
	}
}

func (m *multi) perform(a txn.Action) {
	cfg := &m.o.r.cfg
	switch a.Kind {
	case txn.ActLatch:
		p := a.Participant
		if !m.o.hold(false) {
			m.latched(p, LatchResult{Err: &RangeError{Kind: Busy, RangeID: p.RangeID, Err: errHeld}})
			return
		}
		cfg.Ranges.Latch(p.RangeID, p.Epoch, m.coord.Owner(), p.Spans, func(l LatchResult) {
			m.o.letGo()
			m.latched(p, l)
		})
	case txn.ActEvaluate:
		m.o.exec(m.evaluate)
	case txn.ActCommit:
		// It has its latches: to refuse it now would help nobody.
		m.o.hold(true)
		cfg.Sequencer.Commit(a.Commit, func(res *placementpb.TxnResult, err error) {
			m.o.letGo()
			m.step(func() []txn.Action { return m.coord.Decided(res, err) })
		})
	case txn.ActUnlatch:
		cfg.Ranges.Unlatch(a.Participant.RangeID, m.coord.Owner())
	case txn.ActAbort:
		cfg.Sequencer.Abort(m.coord.Owner())
	case txn.ActEnd:
		m.ended(a.Outcome)
	}
}

func (m *multi) latched(p *txn.Participant, l LatchResult) {
	if l.Err == nil {
		for i := range m.pieces {
			if m.pieces[i].RangeID == p.RangeID {
				m.pieces[i].Resolve = l.Resolved
			}
		}
	}
	m.step(func() []txn.Action {
		return m.coord.Latched(txn.Latch{Term: l.Term, Session: l.Session, Err: l.Err}, latchPasses(l.Err))
	})
}

// latchPasses: a latch that was not taken has changed nothing, whatever the
// reason.
func latchPasses(err error) bool {
	var re *RangeError
	return passes(err) || errors.As(err, &re) && re.Kind == Unknown
}

// evaluate runs on Exec's goroutine, on the committed values under the latches.
func (m *multi) evaluate() {
	res, err := m.evaluateLatched()
	m.result = res
	var effects []mvcc.Effect
	if err == nil {
		effects = res.Effects
	}
	retry := passes(err) || errors.Is(err, errAskAgain)
	m.step(func() []txn.Action { return m.coord.Evaluated(effects, err, retry) })
}

func (m *multi) evaluateLatched() (*mvcc.Result, error) {
	v, err := m.o.r.cfg.Ranges.View(Newest, m.pieces)
	if err != nil {
		return nil, err
	}
	defer v.Close()
	if m.o.point.Revision == 0 { // no explicit revisions
		return mvcc.Evaluate(v, m.o.req, m.o.r.env())
	}
	return evaluate(m.o.point, v, m.o.req, m.o.r.env())
}

// ended goes on after the attempt.
func (m *multi) ended(out txn.Outcome) {
	switch out.Verdict {
	case txn.Committed:
		m.o.finishAt(m.result, out.Revision)
	case txn.NothingToDo:
		m.o.asRead()
	case txn.Again:
		m.o.r.counters.transactionRetries.Add(1)
		m.o.again(out.Err)
	case txn.Refused:
		err := clientError(out.Err)
		if reason, ok := txn.IsRefusal(err); ok && reason == placementpb.RefusalReason_REFUSAL_REASON_NO_SPACE {
			err = fmt.Errorf("%w (%w)", ErrNoSpace, err)
		}
		m.o.finish(nil, err)
	case txn.Unknown:
		m.o.finish(nil, fmt.Errorf("%w (%w)", ErrUnknownFate, out.Err))
	}
}
