package router

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/proxy/txn"
)

// multi drives one attempt of a transaction over several ranges: it performs
// the actions of the coordinator and feeds the results back (R7).
type multi struct {
	o *write
	// coord is guarded by write.mu: results come from ranges, S and the caller.
	coord *txn.Coordinator
	// pieces are the ranges in key order, like the coordinator's participants.
	pieces []rangepb.Piece
	// result is the evaluation; written and read on Exec's goroutine.
	result *mvcc.Result
	// spans of the result count as under way until S has answered the commit, or none
	// was sent; of Exec's goroutine.
	spans int64
}

// coordinate begins an attempt.
func (o *write) coordinate() {
	parts, pieces := o.dir.participants(o.spans)
	m := &multi{
		o:      o,
		coord:  txn.New(o.r.cfg.Sequencer.NewOwner(), parts),
		pieces: pieces,
	}
	o.mu.Lock()
	if o.mu.ended {
		o.mu.Unlock()
		return
	}
	o.mu.multi, o.mu.read = m, nil
	o.mu.Unlock()
	o.r.counters.transactions.Add(1)
	o.r.wakeAll(parts)
	m.step(m.coord.Start)
}

// wakeAll wakes the ranges of a transaction side by side (R7): latched one after
// the other, each that sleeps would wait for its own election and registration.
// The first is asked for its latch at once.
func (r *Router) wakeAll(parts []txn.Participant) {
	for i := 1; i < len(parts); i++ {
		r.cfg.Ranges.Wake(parts[i].RangeID)
	}
}

// participants divides spans over the ranges, for the coordinator and for the
// view of what it has latched: the same ranges in the same order.
func (d *Directory) participants(spans []mvcc.Access) ([]txn.Participant, []rangepb.Piece) {
	cut := d.cut(spans)
	parts, pieces := make([]txn.Participant, len(cut)), make([]rangepb.Piece, len(cut))
	for i, p := range cut {
		r := p.desc
		whole := r.Span()
		parts[i] = txn.Participant{RangeID: r.RangeId, Epoch: r.Epoch, Start: whole.Start, End: whole.End, Spans: p.spans}
		pieces[i] = pieceOf(r, p.spans)
	}
	return parts, pieces
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
			m.latched(a.Index, rangepb.LatchAnswer{Err: &rangepb.Error{Kind: rangepb.Busy, RangeID: p.RangeID, Err: errHeld}})
			return
		}
		cfg.Ranges.Latch(p.RangeID, p.Epoch, m.coord.Owner(), p.Spans, func(l rangepb.LatchAnswer) {
			m.o.letGo()
			m.latched(a.Index, l)
		})
	case txn.ActRecut:
		m.recut(a.Participant, a.Index, a.Recut)
	case txn.ActEvaluate:
		m.o.exec(m.evaluate)
	case txn.ActCommit:
		// It has its latches: to refuse it now would help nobody.
		m.o.hold(true)
		spans := m.spans
		m.spans = 0
		cfg.Sequencer.Commit(a.Commit, func(res *placementpb.TxnResult, err error) {
			m.o.letGo()
			m.o.r.giveSpans(spans)
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

func (m *multi) latched(index int, l rangepb.LatchAnswer) {
	var re *rangepb.Error
	if errors.As(l.Err, &re) {
		m.o.r.learn(re.Descriptors)
	}
	if isSentBack(l.Err) {
		m.o.takeTurn()
	}
	if l.Err == nil {
		m.pieces[index].Resolve = l.Resolved
	}
	m.step(func() []txn.Action {
		return m.coord.Latched(txn.Latch{Term: l.Term, Session: l.Session, Err: l.Err, Refusal: latchRefusal(l.Err)})
	})
}

// latchRefusal: a latch that was not taken has changed nothing, whatever the
// reason.
func latchRefusal(err error) txn.Refusal {
	var re *rangepb.Error
	switch {
	case errors.As(err, &re) && re.Kind == rangepb.Stale:
		return txn.Stale
	case passes(err) || re != nil && re.Kind == rangepb.Unknown:
		return txn.Passing
	}
	return txn.Final
}

// recut looks up again what a participant that is stale, and those after it,
// cover: when the directory has something newer in its place, or after the
// backoff of the try, for a range that is to begin on its node may only be late.
func (m *multi) recut(p *txn.Participant, index, try int) {
	newer := func(d *Directory) bool {
		r := d.Lookup(p.Start)
		return r.RangeId != p.RangeID || r.Epoch > p.Epoch
	}
	m.o.r.counters.transactionRecuts.Add(1)
	m.o.r.retryWhen(newer, try, func() {
		m.o.dir = m.o.r.dir.Load()
		parts, pieces := m.o.dir.participants(from(p.Start, m.o.spans))
		m.pieces = slices.Concat(m.pieces[:index], pieces)
		m.o.r.wakeAll(parts)
		m.step(func() []txn.Action { return m.coord.Recut(parts) })
	})
}

// from returns the part of the spans at and above key.
func from(key []byte, spans []mvcc.Access) (out []mvcc.Access) {
	for _, s := range spans {
		if s.End != nil && bytes.Compare(s.End, key) <= 0 {
			continue
		}
		if bytes.Compare(s.Start, key) < 0 {
			s.Start = key
		}
		out = append(out, s)
	}
	return out
}

// evaluate runs on Exec's goroutine, on the committed values under the latches.
func (m *multi) evaluate() {
	res, err := m.evaluateLatched()
	m.result = res
	var effects []mvcc.Effect
	if err == nil {
		effects = res.Effects
	}
	retry := passes(err) || errors.Is(err, errManySpans) || errors.Is(err, errAskAgain)
	m.step(func() []txn.Action { return m.coord.Evaluated(effects, err, retry) })
	m.o.r.giveSpans(m.spans) // no commit was sent
	m.spans = 0
}

func (m *multi) evaluateLatched() (*mvcc.Result, error) {
	v, err := m.o.r.cfg.Ranges.View(Newest, m.pieces)
	if err != nil {
		return nil, err
	}
	defer v.Close()
	m.o.share.again()
	var res *mvcc.Result
	if m.o.point.Revision == 0 { // no explicit revisions
		res, err = mvcc.Evaluate(v, m.o.req, m.o.r.env(m.o.share))
	} else {
		res, err = evaluate(m.o.point, v, m.o.req, m.o.r.env(m.o.share))
	}
	if err != nil {
		return nil, err
	}
	if res.Effects, err = mvcc.CutSpans(v, res.Effects, m.starts()); err != nil {
		return nil, err
	}
	if m.spans, err = m.o.r.takeSpans(res.Effects); err != nil {
		return nil, err
	}
	return res, nil
}

// starts returns the first keys of the participants, ascending.
func (m *multi) starts() (keys [][]byte) {
	m.o.mu.Lock()
	defer m.o.mu.Unlock()
	for _, p := range m.coord.Participants() {
		keys = append(keys, p.Start)
	}
	return keys
}

// ended goes on after the attempt.
func (m *multi) ended(out txn.Outcome) {
	switch out.Verdict {
	case txn.Committed:
		m.o.finishAt(m.result, out.Revision)
	case txn.NothingToDo:
		m.o.asRead()
	case txn.Again:
		if errors.Is(out.Err, errManySpans) { // its latches are given back
			m.o.waitForSpans()
			return
		}
		m.o.r.counters.transactionRetries.Add(1)
		m.o.again(out.Err)
	case txn.Refused:
		if errors.Is(out.Err, errNoRoom) { // its latches are given back
			m.o.waitForRoom()
			return
		}
		err := clientError(out.Err)
		if reason, ok := txn.IsRefusal(err); ok && reason == placementpb.RefusalReason_REFUSAL_REASON_NO_SPACE {
			err = fmt.Errorf("%w (%w)", ErrNoSpace, err)
		}
		m.o.finish(nil, err)
	case txn.Unknown:
		m.o.finish(nil, fmt.Errorf("%w (%w)", ErrUnknownFate, out.Err))
	}
}
