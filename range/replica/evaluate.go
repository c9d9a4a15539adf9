package replica

import (
	"errors"
	"fmt"
	"slices"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/range/shortage"
)

// evaluate evaluates free writes on the log plus the queue and asks the sequencer for
// revisions (R4).
//
// A write whose keys have an ungranted version is not free (conflicts), so every
// version it can read has a revision, and refusing one write takes no
// other along.
func (l *leader) evaluate(round Round) {
	if l.requests.free.len() == 0 || !l.serving || l.reg.phase != regOpen || l.sleep.deactivating ||
		l.inflightBytes() >= l.limits.MaxInflightBytes || !round.CanPropose() {
		return
	}
	view := l.proposals.overlay.Over(l.latest)
	for l.requests.free.len() > 0 && l.inflightBytes() < l.limits.MaxInflightBytes && l.fault == nil {
		q := l.requests.free.pop()
		switch {
		case q.stage != stageWaiting:
		case q.epoch() > l.proposals.desc.Epoch:
			l.requests.early = append(l.requests.early, q)
		case !q.within(l.proposals.desc.Span()):
			l.requests.refuse(q, staleEpoch(l.rangeID, l.proposals.desc))
		case q.latch != nil:
			l.settle(q)
		default:
			l.evaluateWrite(view, q)
		}
	}
	l.grants.ask(l.flushes, func(seq uint64, count int, leases []int64) {
		l.reg.ask(l.proposals.desc.Epoch, seq, count, leases)
	})
}

func (l *leader) evaluateWrite(view mvcc.View, q *request) {
	l.budget = mvcc.Budget{Rows: int64(l.limits.MaxEvaluationRows), Bytes: int64(l.limits.MaxEvaluationBytes), Deletes: int64(l.limits.MaxDeletedKeys)}
	res, err := mvcc.Evaluate(view, q.write.Req, mvcc.Env{Budget: &l.budget})
	switch {
	case errors.Is(err, mvcc.ErrTooWide):
		l.requests.refuse(q, ErrTooWide)
		return
	case shortage.Is(err):
		l.requests.refuse(q, err)
		return
	case err != nil && !mvccRefusal(err):
		l.requests.refuse(q, ErrFailed)
		l.fail(fmt.Errorf("evaluate: %w", err))
		return
	case err != nil:
		l.requests.finish(q, nil, rangepb.WriteAnswer{NoEffect: true, Err: err})
		return
	case len(res.Effects) == 0:
		l.requests.finish(q, nil, rangepb.WriteAnswer{NoEffect: true})
		return
	}
	q.result = res
	l.grants.push(q, int(mvcc.EffectsWeight(res.Effects)))
}

// mvccRefusals are the errors with which an evaluation answers a request, as
// opposed to faults.
var mvccRefusals = []error{
	mvcc.ErrEmptyKey, mvcc.ErrInvalidSortOption, mvcc.ErrValueProvided, mvcc.ErrLeaseProvided,
	mvcc.ErrTooManyOps, mvcc.ErrDuplicateKey, mvcc.ErrKeyNotFound, mvcc.ErrLeaseNotFound,
	mvcc.ErrCompacted, mvcc.ErrFutureRev, mvcc.ErrTooLarge,
}

func mvccRefusal(err error) bool {
	return slices.ContainsFunc(mvccRefusals, func(refusal error) bool { return errors.Is(err, refusal) })
}
