package router

import (
	"context"
	"errors"
	"runtime"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// Start begins a request and returns how to leave it. done is called once, unless
// it is left: with the finished result of a range, put, delete or transaction.
// The request has passed mvcc.CheckRequest and is not changed any more, also not
// after it was left: it may still be under way. What the response holds counts
// until done returns.
func (r *Router) Start(req *mvcc.Request, exec Exec, done func(*mvcc.Result, error)) (cancel func()) {
	share := r.cfg.Responses.NewShare()
	leave := r.start(req, share, exec, func(res *mvcc.Result, err error) {
		done(res, err)
		share.Release()
	})
	return func() {
		leave()
		share.Release()
	}
}

func (r *Router) start(req *mvcc.Request, share *Share, exec Exec, done func(*mvcc.Result, error)) (cancel func()) {
	if !req.IsReadOnly() {
		o := &write{r: r, req: req, share: share, exec: exec, done: done}
		o.start()
		return o.cancel
	}
	var res *mvcc.Result
	plan := r.planTxn(req, share, &res)
	if req.Range != nil {
		plan = planRange(req, share, &res)
	}
	return r.startRead(plan, exec, func(err error) {
		if err != nil {
			res = nil
		}
		done(res, err)
	})
}

// DoShared runs a request and waits for it; see Start. The errors are those of mvcc
// and of this package, and for what only reads the context's. The share is what the
// response holds; the caller releases it, or has that done (Responses.Attach). After
// an error it is nil.
func (r *Router) DoShared(ctx context.Context, req *mvcc.Request) (*mvcc.Result, *Share, error) {
	share := r.cfg.Responses.NewShare()
	res, err := wait(ctx, r, !req.IsReadOnly(), func(exec Exec, done func(*mvcc.Result, error)) func() {
		return r.start(req, share, exec, done)
	})
	if err != nil {
		share.Release()
		return nil, nil, err
	}
	return res, share, nil
}

// Do is DoShared for who needs the response for a moment.
func (r *Router) Do(ctx context.Context, req *mvcc.Request) (*mvcc.Result, error) {
	res, share, err := r.DoShared(ctx, req)
	if err == nil {
		share.Release()
	}
	return res, err
}

// Range reads (etcd/R1 to etcd/R10). header.revision is R, also when an older
// revision was asked for. mvcc.ErrFutureRev, mvcc.ErrCompacted.
func (r *Router) Range(ctx context.Context, req *pb.RangeRequest) (*pb.RangeResponse, error) {
	res, err := r.Do(ctx, &mvcc.Request{Range: req})
	if err != nil {
		return nil, err
	}
	return res.Range, nil
}

func planRange(req *mvcc.Request, share *Share, res **mvcc.Result) readPlan {
	rng := req.Range
	if rng.Revision != 0 { // the view is at the revision already
		rng = proto.CloneOf(rng)
		rng.Revision = 0
	}
	return readPlan{
		spans: req.Spans(), rev: req.Range.Revision, serializable: req.Range.Serializable, share: share,
		eval: func(p Point, v mvcc.OpenView, _ []rangepb.Piece) error {
			resp, err := mvcc.EvaluateRange(v, rng, share)
			if err != nil {
				return forgotten(err)
			}
			*res = &mvcc.Result{Range: resp}
			(*res).Finish(p.Revision)
			return nil
		},
	}
}

// planTxn evaluates a transaction that only reads, at one R (etcd/T10).
func (r *Router) planTxn(req *mvcc.Request, share *Share, res **mvcc.Result) readPlan {
	return readPlan{
		spans: req.Spans(), serializable: req.IsSerializable(), share: share,
		eval: func(p Point, v mvcc.OpenView, _ []rangepb.Piece) error {
			found, err := evaluate(p, v, req, r.env(share))
			if err != nil {
				return err
			}
			found.Finish(p.Revision)
			*res = found
			return nil
		},
	}
}

// forgotten turns the error of a view whose revision was forgotten after it was
// opened into one that asks S again.
func forgotten(err error) error {
	if errors.Is(err, mvcc.ErrCompacted) {
		return errAskAgain
	}
	return err
}

// Confirm asks S for the current revision: a linearizable read of nothing. It
// fails while S cannot be reached.
func (r *Router) Confirm(ctx context.Context) (int64, error) {
	var rev int64
	err := r.readAt(ctx, readPlan{noView: true, eval: func(p Point, _ mvcc.OpenView, _ []rangepb.Piece) error {
		rev = p.Revision
		return nil
	}})
	return rev, err
}

// LocalRevision is the newest revision this node knows of without asking S:
// whatever says a revision and has none of its own says this one (headers,
// metrics, what decides on compactions). It never falls, is not below what this
// node's store has or has compacted (Saw), and not below any revision that a
// client was told. 1, that of an empty keyspace, before anything is known.
//
// It does not wait for the ranges: one that lags, or is damaged, keeps the frontier
// back, and the revision of the keyspace is what S says.
func (r *Router) LocalRevision() int64 {
	rev := max(r.answered.Load(), 1)
	if f := r.cfg.Frontier; f != nil {
		newest, compacted := f.Revision()
		rev = max(rev, newest, compacted)
	}
	return rev
}

// Saw tells of a revision that this node's store has or has compacted, or that S
// has named to somebody else than the router.
func (r *Router) Saw(rev int64) { r.sawRevision(rev) }

// Hash is the answer of HashKV.
type Hash struct {
	Hash uint32
	// Revision is the current one, HashRevision the one that was hashed,
	// Compacted -1 while nothing was compacted.
	Revision, HashRevision, Compacted int64
}

// HashKV hashes the whole keyspace at rev, 0: the current revision
// (etcd/MA4). mvcc.ErrFutureRev, mvcc.ErrCompacted.
func (r *Router) HashKV(ctx context.Context, rev int64) (Hash, error) {
	var h Hash
	err := r.readAt(ctx, readPlan{
		spans: []mvcc.Access{{Start: []byte{}}}, rev: rev, noView: true,
		eval: func(p Point, _ mvcc.OpenView, pieces []rangepb.Piece) error {
			h = Hash{Revision: p.Revision, HashRevision: p.At, Compacted: p.Compacted}
			if rev < 0 { // etcd hashes what is at or below it: nothing
				h.HashRevision = rev
				h.Hash = mvcc.NewHasher(0).Sum()
				return nil
			}
			sum := mvcc.NewHasher(0)
			sum.Pause = func() error {
				// On a machine with few cores all requests would queue behind it.
				runtime.Gosched()
				return ctx.Err()
			}
			for more := true; more; more = sum.EndWalk() {
				if err := r.cfg.Ranges.HashVersions(p.At, p.Compacted, pieces, sum); err != nil {
					return forgotten(err)
				}
			}
			h.Hash = sum.Sum()
			return nil
		},
	})
	return h, err
}

// readPlan is a read of several spans at one revision.
type readPlan struct {
	spans        []mvcc.Access
	rev          int64
	serializable bool
	noView       bool
	// share is what eval counts the response in, empty at each try. nil: it holds
	// little.
	share *Share
	eval  func(Point, mvcc.OpenView, []rangepb.Piece) error
}

// startRead begins a read. eval runs through exec, again when the read starts
// again.
func (r *Router) startRead(plan readPlan, exec Exec, done func(error)) (cancel func()) {
	if plan.serializable && r.cfg.Frontier != nil {
		o := &localRead{r: r, plan: plan, exec: exec, done: done}
		o.start()
		return o.cancel
	}
	o := &read{r: r, spans: plan.spans, rev: plan.rev, exec: exec, noView: plan.noView, share: plan.share, eval: plan.eval, done: done}
	o.begin()
	return o.cancel
}

// readAt runs a read and waits for it; eval runs on this goroutine.
func (r *Router) readAt(ctx context.Context, plan readPlan) error {
	_, err := wait(ctx, r, false, func(exec Exec, done func(struct{}, error)) func() {
		return r.startRead(plan, exec, func(err error) { done(struct{}{}, err) })
	})
	return err
}
