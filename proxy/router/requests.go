package router

import (
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/mvcc"
)

// Do runs a put, a delete or a transaction and returns its finished result. The
// request has passed mvcc.CheckRequest and is not changed any more, also not
// after an error: it may still be under way.
func (r *Router) Do(ctx context.Context, req *mvcc.Request) (*mvcc.Result, error) {
	if req.IsReadOnly() {
		return r.readTxn(ctx, req)
	}
	return wait(ctx, r, true, func(exec Exec, done func(*mvcc.Result, error)) func() {
		o := &write{r: r, req: req, exec: exec, done: done}
		o.start()
		return o.cancel
	})
}

// readTxn evaluates a transaction that only reads, at one R (contract T10).
func (r *Router) readTxn(ctx context.Context, req *mvcc.Request) (*mvcc.Result, error) {
	var res *mvcc.Result
	err := r.readAt(ctx, readPlan{
		spans: req.Spans(), serializable: req.IsSerializable(),
		eval: func(p Point, v View, _ []Piece) (err error) {
			if res, err = evaluate(p, v, req, r.env()); err == nil {
				res.Finish(p.Revision)
			}
			return err
		},
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}

// Range reads (contract R1-R10). header.revision is R, also when an older
// revision was asked for. mvcc.ErrFutureRev, mvcc.ErrCompacted.
func (r *Router) Range(ctx context.Context, req *pb.RangeRequest) (*pb.RangeResponse, error) {
	var resp *pb.RangeResponse
	asked := req.GetRevision()
	if asked != 0 { // the view is at the revision already
		req = proto.CloneOf(req)
		req.Revision = 0
	}
	whole := mvcc.Request{Range: req}
	err := r.readAt(ctx, readPlan{
		spans: whole.Spans(), rev: asked, serializable: req.GetSerializable(),
		eval: func(p Point, v View, _ []Piece) (err error) {
			if resp, err = mvcc.EvaluateRange(v, req); err != nil {
				return forgotten(err)
			}
			resp.Header = &pb.ResponseHeader{Revision: p.Revision}
			return nil
		},
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
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
	err := r.readAt(ctx, readPlan{noView: true, eval: func(p Point, _ View, _ []Piece) error {
		rev = p.Revision
		return nil
	}})
	return rev, err
}

// LocalRevision is the newest revision this node knows of without asking S: for
// the headers of what is answered locally. 1, that of an empty keyspace, before
// anything is known.
func (r *Router) LocalRevision() int64 {
	rev := max(r.answered.Load(), 1)
	if f := r.cfg.Frontier; f != nil {
		if complete, _, ok := f.Complete(nil, nil); ok {
			rev = max(rev, complete)
		}
	}
	return rev
}

// Hash is the answer of HashKV.
type Hash struct {
	Hash uint32
	// Revision is the current one, HashRevision the one that was hashed,
	// Compacted -1 while nothing was compacted.
	Revision, HashRevision, Compacted int64
}

// HashKV hashes the whole keyspace at rev, 0: the current revision (contract
// MA4). mvcc.ErrFutureRev, mvcc.ErrCompacted.
func (r *Router) HashKV(ctx context.Context, rev int64) (Hash, error) {
	var h Hash
	err := r.readAt(ctx, readPlan{
		spans: []mvcc.Access{{Start: []byte{}}}, rev: rev, noView: true,
		eval: func(p Point, _ View, pieces []Piece) error {
			h = Hash{Revision: p.Revision, HashRevision: p.At, Compacted: p.Compacted}
			if rev < 0 { // etcd hashes what is at or below it: nothing
				h.HashRevision = rev
				h.Hash = mvcc.CombineHash(nil)
				return nil
			}
			entries, err := r.cfg.Ranges.HashEntries(p.At, p.Compacted, pieces)
			if err != nil {
				return forgotten(err)
			}
			h.Hash = mvcc.CombineHash(entries)
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
	eval         func(Point, View, []Piece) error
}

// readAt runs a read. eval runs on this goroutine, more than once when the read
// starts again.
func (r *Router) readAt(ctx context.Context, plan readPlan) error {
	if plan.serializable && r.cfg.Frontier != nil {
		if done, err := r.readLocally(ctx, plan); done {
			return err
		}
	}
	return r.readFromS(ctx, plan)
}

func (r *Router) readFromS(ctx context.Context, plan readPlan) error {
	_, err := wait(ctx, r, false, func(exec Exec, done func(struct{}, error)) func() {
		o := &read{
			r: r, spans: plan.spans, rev: plan.rev, exec: exec, noView: plan.noView, eval: plan.eval,
			done: func(err error) { done(struct{}{}, err) },
		}
		o.start()
		return o.cancel
	})
	return err
}

// readLocally serves a serializable read from the newest revision that is
// complete on this node (R5). done is false when it cannot, and S must be asked.
//
// etcd's member never answers below what it answered before, so while the
// complete revision lags behind that, S is asked like for a linearizable read;
// only when S is silent the older state is served: it is what the read allows.
func (r *Router) readLocally(ctx context.Context, plan readPlan) (done bool, err error) {
	p, ok := r.localPoint(plan.spans)
	if !ok {
		return false, nil
	}
	if p.Revision < r.answered.Load() {
		short, cancel := context.WithTimeout(ctx, serializableWait)
		defer cancel()
		err := r.readFromS(short, plan)
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return true, err
		}
		if p, ok = r.localPoint(plan.spans); !ok {
			return false, nil
		}
	}
	if p.At, err = p.resolve(plan.rev); err != nil {
		return true, err
	}
	dir := r.dir.Load()
	if dir == nil {
		return false, nil
	}
	pieces := dir.Pieces(plan.spans)
	v, err := r.cfg.Ranges.View(p.At, pieces)
	if err != nil {
		return false, nil // S knows better
	}
	defer v.Close()
	err = plan.eval(p, v, pieces)
	if errors.Is(err, errAskAgain) {
		return false, nil
	}
	return true, err
}

func (r *Router) localPoint(spans []mvcc.Access) (Point, bool) {
	p := Point{Revision: Newest, Compacted: -1}
	if len(spans) == 0 {
		spans = []mvcc.Access{{Start: []byte{}}}
	}
	for _, s := range spans {
		rev, compacted, ok := r.cfg.Frontier.Complete(s.Start, s.End)
		if !ok {
			return Point{}, false
		}
		p.Revision = min(p.Revision, rev)
		p.Compacted = max(p.Compacted, compactedOf(compacted))
	}
	return p, true
}
