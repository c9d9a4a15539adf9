package router

import (
	"errors"
	"fmt"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// write is one request that may change something:
//
//	            ┌── all spans in one range ──► the range's leader ──┐
//	begin ──────┤                                                   ├──► done
//	  ▲         └── several ranges ──► coordinator (proxy/txn) ─────┤
//	  │                                                             │ changes nothing
//	  └──────── would change something now ◄── read at R (R4) ◄─────┘
//
// A write in one range that reads too much for the leader's worker takes the
// coordinator's way, too.
//
// A stale epoch, a missing leader or a refusal of S that proves that nothing was
// applied leads back to begin, with the newer directory or after a backoff.
type write struct {
	r   *Router
	req *mvcc.Request
	// share is what the response holds, if it is evaluated here.
	share *Share
	exec  Exec
	// done is called once, unless the write is cancelled.
	done func(*mvcc.Result, error)

	spans []mvcc.Access
	// size of the request in memory, in bytes.
	size int64
	// checked: the explicit revisions of the transaction were held against
	// point; strict: one of them is out of bounds or negative, so the
	// evaluation must see point (it runs here, under latches).
	checked, strict bool
	point           Point
	// waited is how long it has waited for the deletions of spans before it.
	waited time.Duration
	// wide: a leader found that it reads too much to be evaluated on its worker,
	// so that is done here, too.
	wide bool

	mu struct {
		sync.Mutex
		ended   bool
		attempt int
		// multi or read is what the try under way waits for, if anything.
		multi *multi
		read  *read
		// turn is taken when a split has sent the write back.
		turn *turn
	}
	dir *Directory
}

func (o *write) start() {
	o.spans = o.req.Spans()
	o.size = requestBytes(o.req)
	o.begin()
}

// requestBytes is about what a request takes in memory.
func requestBytes(req *mvcc.Request) int64 {
	const overhead = 512
	switch {
	case req.Put != nil:
		return int64(overhead + len(req.Put.Key) + len(req.Put.Value))
	case req.Txn != nil:
		return int64(overhead + proto.Size(req.Txn))
	}
	return int64(overhead + len(req.DeleteRange.GetKey()) + len(req.DeleteRange.GetRangeEnd()))
}

// hold counts the write as held by a range or by S until letGo. False: there is
// no room; without takes it all the same.
func (o *write) hold(without bool) bool {
	if o.r.held.Add(o.size) <= o.r.cfg.MaxHeldBytes || without {
		return true
	}
	o.r.held.Add(-o.size)
	return false
}

func (o *write) letGo() { o.r.held.Add(-o.size) }

var errHeld = errors.New("router: the ranges hold too many writes")

// cancel leaves the write. What was sent goes on; latches are given back.
func (o *write) cancel() {
	o.mu.Lock()
	o.mu.ended = true
	m, rd, turn := o.mu.multi, o.mu.read, o.mu.turn
	o.mu.Unlock()
	o.r.turns.end(turn)
	if rd != nil {
		rd.cancel()
	}
	if m != nil {
		m.step(m.coord.Cancel)
	}
}

func (o *write) finish(res *mvcc.Result, err error) {
	o.mu.Lock()
	if o.mu.ended {
		o.mu.Unlock()
		return
	}
	o.mu.ended = true
	turn := o.mu.turn
	o.mu.Unlock()
	o.r.turns.end(turn)
	o.done(res, err)
}

// finishAt gives the response of a write that was applied at rev.
func (o *write) finishAt(res *mvcc.Result, rev int64) {
	o.exec(func() {
		res.Finish(rev)
		o.r.sawRevision(rev)
		o.finish(res, nil)
	})
}

func (o *write) begin() {
	o.mu.Lock()
	if o.mu.ended {
		o.mu.Unlock()
		return
	}
	o.mu.attempt++
	o.mu.multi, o.mu.read = nil, nil
	o.dir = o.r.dir.Load()
	o.mu.Unlock()

	if o.dir == nil {
		o.again(nil)
		return
	}
	if !o.checked {
		if revs := explicitRevisions(o.req.Txn, nil); len(revs) > 0 {
			o.checkRevisions(revs)
			return
		}
		o.checked = true
	}
	parts := o.dir.cut(o.spans)
	switch {
	case len(parts) == 0: // a transaction of no operation but nested ones
		o.asRead()
	case len(parts) == 1 && !o.strict && !o.wide:
		if !o.hold(false) {
			o.finish(nil, fmt.Errorf("%w (%w)", ErrTooManyRequests, errHeld))
			return
		}
		d := parts[0].desc
		o.r.cfg.Ranges.Write(d.RangeId, d.Epoch, o.req, o.written)
	default:
		o.coordinate()
	}
}

// again starts over: with the newer directory, or after a backoff.
func (o *write) again(err error) {
	var re *rangepb.Error
	if errors.As(err, &re) {
		o.r.learn(re.Descriptors)
	}
	if isSentBack(err) {
		o.takeTurn()
	}
	o.mu.Lock()
	attempt := o.mu.attempt
	o.mu.Unlock()
	o.r.retryLater(o.dir, attempt, o.begin)
}

// takeTurn makes the splits to come wait until the write is done: one has sent it
// back.
func (o *write) takeTurn() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.turn == nil && !o.mu.ended {
		o.mu.turn = o.r.turns.take(o.spans)
	}
}

// waitForRoom starts over when there is room for the response.
func (o *write) waitForRoom() {
	o.r.whenRoom(o.share, func(err error) {
		if err != nil {
			o.finish(nil, err)
			return
		}
		o.begin()
	})
}

// written takes the answer of the range's leader; on the range's worker.
func (o *write) written(res *mvcc.Result, w rangepb.WriteAnswer) {
	o.letGo()
	switch {
	case w.NoEffect || isEvaluationError(w.Err):
		o.asRead()
	case w.Err == nil:
		if w.Revision <= 0 || res == nil {
			panic(fmt.Sprintf("router: write answered with revision %d, result %v", w.Revision, res))
		}
		o.finishAt(res, w.Revision)
	case isTooWide(w.Err):
		o.wide = true
		o.begin()
	case passes(w.Err):
		o.r.counters.writeRetries.Add(1)
		o.again(w.Err)
	default:
		o.finish(nil, clientError(w.Err))
	}
}

func isTooWide(err error) bool {
	var re *rangepb.Error
	return errors.As(err, &re) && re.Kind == rangepb.TooWide
}

// isEvaluationError reports whether err is what mvcc.Evaluate says of a state.
func isEvaluationError(err error) bool {
	for _, e := range []error{mvcc.ErrKeyNotFound, mvcc.ErrLeaseNotFound, mvcc.ErrCompacted, mvcc.ErrFutureRev, mvcc.ErrTooLarge} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// clientError turns an error of a range that ends a write into the router's.
func clientError(err error) error {
	var re *rangepb.Error
	if !errors.As(err, &re) {
		return err
	}
	switch re.Kind {
	case rangepb.NoSpace:
		return fmt.Errorf("%w (%w)", ErrNoSpace, err)
	case rangepb.Busy:
		return fmt.Errorf("%w (%w)", ErrTooManyRequests, err)
	case rangepb.Unknown:
		return fmt.Errorf("%w (%w)", ErrUnknownFate, err)
	case rangepb.Stopped:
		return fmt.Errorf("%w (%w)", ErrStopped, err)
	}
	return err
}

// asRead answers what changed nothing, or was refused, as a read at R of all
// its ranges (R4). If it would change something there, it is a write again.
func (o *write) asRead() {
	o.r.counters.rereads.Add(1)
	var res *mvcc.Result
	wouldChange := false
	rd := &read{
		r: o.r, spans: o.spans, exec: o.exec, share: o.share,
		eval: func(p Point, v mvcc.OpenView, _ []rangepb.Piece) error {
			var err error
			res, err = evaluate(p, v, o.req, o.r.env(o.share))
			if err != nil {
				return err
			}
			if wouldChange = len(res.Effects) > 0; !wouldChange {
				res.Finish(p.Revision)
			}
			return nil
		},
	}
	rd.done = func(err error) {
		switch {
		case err != nil:
			o.finish(nil, err)
		case wouldChange:
			o.checked = false // R has moved: a revision may be in bounds now
			o.begin()
		default:
			o.finish(res, nil)
		}
	}
	o.startRead(rd)
}

func (o *write) startRead(rd *read) {
	o.mu.Lock()
	if o.mu.ended {
		o.mu.Unlock()
		return
	}
	o.mu.multi, o.mu.read = nil, rd
	o.mu.Unlock()
	rd.begin()
}

// checkRevisions asks S for the bounds of the explicit revisions (etcd/T6). In
// bounds they stay so (a revision that is not in the future never is again, and
// a compaction meanwhile may be ordered after this request), so the range's
// leader can evaluate the transaction. Out of bounds they matter only in the
// branch that is taken, which the evaluation finds.
func (o *write) checkRevisions(revs []int64) {
	rd := &read{
		r: o.r, exec: o.exec, noView: true,
		eval: func(p Point, _ mvcc.OpenView, _ []rangepb.Piece) error {
			o.point = p
			o.strict = false
			for _, rev := range revs {
				if rev < 0 || p.allows(rev) != nil {
					o.strict = true
				}
			}
			return nil
		},
	}
	rd.done = func(err error) {
		if err != nil {
			o.finish(nil, err)
			return
		}
		o.checked = true
		o.begin()
	}
	o.startRead(rd)
}

// explicitRevisions appends the revisions that ranges of the transaction ask
// for, in both branches and in nested transactions.
func explicitRevisions(t *pb.TxnRequest, dst []int64) []int64 {
	for _, ops := range [2][]*pb.RequestOp{t.GetSuccess(), t.GetFailure()} {
		for _, op := range ops {
			switch u := op.GetRequest().(type) {
			case *pb.RequestOp_RequestRange:
				if rev := u.RequestRange.GetRevision(); rev != 0 {
					dst = append(dst, rev)
				}
			case *pb.RequestOp_RequestTxn:
				dst = explicitRevisions(u.RequestTxn, dst)
			}
		}
	}
	return dst
}
