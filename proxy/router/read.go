package router

import (
	"errors"
	"fmt"
	"sync"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// Exec runs f, which may take its time: on the goroutine that waits for the
// request, or inline in the simulation. It does not wait for f. A request has
// at most one f outstanding, and one more that has become void.
type Exec func(f func())

// Point is where a read stands: R and the compacted revision as S says them (or
// the node's newest satisfied cut), and the revision that is read.
type Point struct {
	// Revision is R, what the response header says (etcd/R4).
	Revision int64
	// Compacted is the compacted revision, -1 while nothing was compacted.
	Compacted int64
	// At is the revision of the view: R, or an older one that was asked for.
	At int64
}

// resolve says which revision a read that asks for rev gets: 0 and below mean
// the current one (etcd/R3).
func (p *Point) resolve(rev int64) (int64, error) {
	switch {
	case rev <= 0:
		return p.Revision, nil
	case rev > p.Revision:
		return 0, mvcc.ErrFutureRev
	case rev < p.Compacted:
		return 0, mvcc.ErrCompacted
	}
	return rev, nil
}

// errAskAgain is returned by an evaluation that needs a new R.
var errAskAgain = errors.New("router: ask for a new revision")

// read is one linearizable read: one query names all ranges of the spans with
// their epochs; then each range must have resolved min(r, m); then one view is
// opened over all of them and evaluated (R5). Whatever does not fit on the way
// starts it again with a new query.
type read struct {
	r     *Router
	spans []mvcc.Access
	// rev is the revision asked for, 0 or below: current.
	rev  int64
	exec Exec
	// eval evaluates the pieces on the view; on Exec's goroutine. errAskAgain
	// starts again.
	eval func(p Point, v mvcc.OpenView, pieces []rangepb.Piece) error
	// noView: eval opens what it needs itself and gets a nil view.
	noView bool
	// share: see readPlan.
	share *Share
	// done is called once, unless the read is cancelled.
	done func(error)

	mu struct {
		sync.Mutex
		cancelled bool
		// attempt numbers the tries, from 0; callbacks of older ones are dropped.
		attempt int
		// resolved tells of each piece of this try whether its range has
		// resolved what it must; left counts those that have not.
		resolved  []bool
		left      int
		issued    bool
		stopNudge func()
		// turn is taken when a split has sent the read back, until it has its view.
		turn *turn
	}
	// Of the current attempt, written before its callbacks can see them.
	dir    *Directory
	pieces []rangepb.Piece
	point  Point
}

// cancel makes the read silent: no callback of it does anything any more.
func (o *read) cancel() {
	o.mu.Lock()
	o.mu.cancelled = true
	o.stopNudgeLocked()
	o.mu.Unlock()
	o.endTurn()
}

// takeTurn makes the splits to come wait: one has sent the read back. It needs no
// turn any more once it has its view.
func (o *read) takeTurn() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.turn == nil && !o.mu.cancelled {
		o.mu.turn = o.r.turns.take(o.spans)
	}
}

func (o *read) endTurn() {
	o.mu.Lock()
	turn := o.mu.turn
	o.mu.turn = nil
	o.mu.Unlock()
	o.r.turns.end(turn)
}

func (o *read) stopNudgeLocked() {
	if o.mu.stopNudge != nil {
		o.mu.stopNudge()
		o.mu.stopNudge = nil
	}
}

func (o *read) finish(err error) {
	o.mu.Lock()
	if o.mu.cancelled {
		o.mu.Unlock()
		return
	}
	o.mu.cancelled = true
	o.stopNudgeLocked()
	o.mu.Unlock()
	o.endTurn()
	o.done(err)
}

// begin starts a try.
func (o *read) begin() {
	o.mu.Lock()
	if o.mu.cancelled {
		o.mu.Unlock()
		return
	}
	attempt := o.mu.attempt
	o.mu.resolved, o.mu.left, o.mu.issued = nil, 0, false
	o.stopNudgeLocked()
	o.dir = o.r.dir.Load()
	o.mu.Unlock()

	if o.dir == nil {
		o.again(attempt)
		return
	}
	o.pieces = o.dir.Pieces(o.spans)
	o.r.cfg.Sequencer.Query(rangeEpochs(o.pieces), func(a *placementpb.QueryAnswer, err error) {
		o.answered(attempt, a, err)
	})
}

func rangeEpochs(pieces []rangepb.Piece) []*placementpb.RangeEpoch {
	all := make([]placementpb.RangeEpoch, len(pieces))
	out := make([]*placementpb.RangeEpoch, len(pieces))
	for i, p := range pieces {
		all[i].RangeId, all[i].Epoch = p.RangeID, p.Epoch
		out[i] = &all[i]
	}
	return out
}

// again starts the next try after a backoff, or at once with a newer directory.
func (o *read) again(attempt int) {
	o.mu.Lock()
	if o.mu.cancelled || o.mu.attempt != attempt {
		o.mu.Unlock()
		return
	}
	// The try is over: of the pieces that fail side by side one begins the next.
	o.mu.attempt++
	o.stopNudgeLocked()
	dir := o.dir
	o.mu.Unlock()
	o.r.counters.readRetries.Add(1)
	o.r.retryLater(dir, attempt+1, o.begin)
}

// waitForRoom starts the next try when there is room for the response.
func (o *read) waitForRoom(attempt int) {
	o.mu.Lock()
	if o.mu.cancelled || o.mu.attempt != attempt {
		o.mu.Unlock()
		return
	}
	o.mu.attempt++
	o.stopNudgeLocked()
	o.mu.Unlock()
	o.r.whenRoom(o.share, func(err error) {
		if err != nil {
			o.finish(err)
			return
		}
		o.begin()
	})
}

// current reports whether a callback belongs to the try that runs.
func (o *read) current(attempt int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.mu.cancelled && o.mu.attempt == attempt
}

func (o *read) answered(attempt int, a *placementpb.QueryAnswer, err error) {
	if !o.current(attempt) {
		return
	}
	if err != nil { // the session ended; a read may always ask again
		o.r.counters.failedQueries.Add(1)
		o.again(attempt)
		return
	}
	if a.Refused {
		switch a.Reason {
		case placementpb.RefusalReason_REFUSAL_REASON_STALE_EPOCH,
			placementpb.RefusalReason_REFUSAL_REASON_UNKNOWN_RANGE,
			placementpb.RefusalReason_REFUSAL_REASON_NOT_SERVING,
			placementpb.RefusalReason_REFUSAL_REASON_BUSY:
			if a.Reason == placementpb.RefusalReason_REFUSAL_REASON_STALE_EPOCH {
				o.takeTurn()
			}
			o.r.learn(a.Descriptors)
			o.again(attempt)
		default:
			o.finish(fmt.Errorf("router: query refused: %s", a.Reason))
		}
		return
	}
	if len(a.Marks) != len(o.pieces) {
		panic(fmt.Sprintf("router: query of %d ranges answered with %d marks", len(o.pieces), len(a.Marks)))
	}
	o.point = Point{Revision: a.Revision, Compacted: compactedOf(a.Compacted)}
	if o.point.At, err = o.point.resolve(o.rev); err != nil {
		o.finish(err)
		return
	}
	for i := range o.pieces {
		o.pieces[i].Resolve = min(o.point.At, a.Marks[i])
	}
	o.await(attempt)
}

// compactedOf returns etcd's form of the compacted revision: -1 while nothing
// was compacted (etcd/X6); 0 is a compaction like any other.
func compactedOf(rev int64) int64 { return max(rev, -1) }

func (o *read) await(attempt int) {
	o.mu.Lock()
	if o.mu.cancelled || o.mu.attempt != attempt {
		o.mu.Unlock()
		return
	}
	o.mu.resolved, o.mu.left = make([]bool, len(o.pieces)), len(o.pieces)
	o.mu.Unlock()
	for i, p := range o.pieces {
		o.r.cfg.Ranges.Await(p.RangeID, p.Epoch, p.Resolve, func(err error) { o.resolved(attempt, i, err) })
	}
	o.mu.Lock()
	if o.mu.cancelled || o.mu.attempt != attempt {
		o.mu.Unlock()
		return
	}
	o.mu.issued = true
	ready := o.mu.left == 0
	if !ready {
		o.armNudgeLocked(attempt)
	}
	o.mu.Unlock()
	if ready {
		o.exec(func() { o.evaluate(attempt) })
	}
}

func (o *read) armNudgeLocked(attempt int) {
	o.mu.stopNudge = o.r.cfg.After(nudgeAfter, func() { o.nudge(attempt) })
}

// nudge wakes the ranges that this read waits for too long.
func (o *read) nudge(attempt int) {
	o.mu.Lock()
	if o.mu.cancelled || o.mu.attempt != attempt || o.mu.left == 0 {
		o.mu.Unlock()
		return
	}
	var slow []uint64
	for i, p := range o.pieces {
		if !o.mu.resolved[i] {
			slow = append(slow, p.RangeID)
		}
	}
	o.armNudgeLocked(attempt)
	o.mu.Unlock()
	o.r.counters.slowReads.Add(uint64(len(slow)))
	for _, id := range slow {
		o.r.cfg.Ranges.Nudge(id)
	}
}

func (o *read) resolved(attempt, piece int, err error) {
	o.mu.Lock()
	if o.mu.cancelled || o.mu.attempt != attempt {
		o.mu.Unlock()
		return
	}
	if err == nil {
		if o.mu.resolved[piece] {
			panic(fmt.Sprintf("router: range %d answered an await twice", o.pieces[piece].RangeID))
		}
		o.mu.resolved[piece] = true
		o.mu.left--
		ready := o.mu.issued && o.mu.left == 0
		if ready {
			o.stopNudgeLocked()
		}
		o.mu.Unlock()
		if ready {
			o.exec(func() { o.evaluate(attempt) })
		}
		return
	}
	o.mu.Unlock()
	o.failed(attempt, err)
}

// failed goes on after an error of a range: again, or to the client.
func (o *read) failed(attempt int, err error) {
	var re *rangepb.Error
	if errors.As(err, &re) {
		if isSentBack(err) {
			o.takeTurn()
		}
		o.r.learn(re.Descriptors)
		if passes(err) || re.Kind == rangepb.Unknown {
			o.again(attempt)
			return
		}
	}
	o.finish(err)
}

// evaluate runs on Exec's goroutine.
func (o *read) evaluate(attempt int) {
	if !o.current(attempt) {
		return
	}
	o.share.again()
	var v mvcc.OpenView
	if !o.noView {
		var err error
		if v, err = o.r.cfg.Ranges.View(o.point.At, o.pieces); err != nil {
			if errors.Is(err, mvcc.ErrCompacted) {
				err = errAskAgain
			}
			o.evaluated(attempt, err)
			return
		}
		defer v.Close()
		o.endTurn()
	}
	o.evaluated(attempt, o.eval(o.point, v, o.pieces))
}

func (o *read) evaluated(attempt int, err error) {
	if err == nil {
		o.r.sawRevision(o.point.Revision)
		o.finish(nil)
		return
	}
	var re *rangepb.Error
	switch {
	case errors.Is(err, errAskAgain):
		// Forgotten between the query and the read: S says compacted now, or
		// gives a newer R (R9).
		o.again(attempt)
	case errors.Is(err, errNoRoom):
		o.waitForRoom(attempt)
	case errors.As(err, &re):
		o.failed(attempt, err)
	default:
		o.finish(err)
	}
}
