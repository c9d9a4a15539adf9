package mvcc

import (
	"bytes"
	"errors"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Env is what an evaluation must know beside the data.
type Env struct {
	// LeaseExists tells whether a client lease lives (etcd/P3). Nil: not checked
	// here, the sequencer will (revisions.md R8).
	LeaseExists func(id int64) bool
	// Current is the newest revision given out before the evaluation: a range
	// in a transaction that asks for a larger one is refused (etcd/T6). 0: not
	// checked here.
	Current int64
	// Compacted is the compacted revision, -1 while there is none: a range in a
	// transaction that asks for a smaller one, but not for 0, is refused (etcd/T6).
	Compacted int64
	// Budget bounds the evaluation: ErrTooWide. Nil: no bounds. A Range request
	// by itself and a single put are not bounded.
	Budget *Budget
	// Response bounds what the response keeps. Nil: no bounds.
	Response Holder
	// SpanKeys is how many keys the deletes of intervals may end one by one: what
	// would go beyond becomes the deletion of a span, one effect. 0: none does.
	SpanKeys int64
	// MaxEffectsBytes is what the effects may weigh: ErrTooLarge. 0, and anything
	// above it, means the constant MaxEffectsBytes.
	MaxEffectsBytes int64
}

func (env *Env) maxEffectsBytes() int64 {
	if env.MaxEffectsBytes <= 0 {
		return MaxEffectsBytes
	}
	return min(env.MaxEffectsBytes, MaxEffectsBytes)
}

// Result is what a request evaluates to: its effects, and its response, which
// Finish completes. One of the responses is set.
type Result struct {
	// Effects are empty if the request changes nothing: it takes no revision
	// then and is answered as a read (revisions.md R4).
	Effects []Effect

	Put         *pb.PutResponse
	DeleteRange *pb.DeleteRangeResponse
	Txn         *pb.TxnResponse
	Range       *pb.RangeResponse

	// before and after are the headers inside a transaction that carry the
	// revision before the transaction's first write, and its own.
	before, after []*pb.ResponseHeader
	// own are the key-values in the response that the request itself wrote.
	own []*mvccpb.KeyValue
	// late are ranges over own key-values: filter and sort may look at the
	// revision, so they are put together when it is known.
	late []lateRange

	finished bool
}

type lateRange struct {
	plan  RangePlan
	piece RangePiece
	resp  *pb.RangeResponse
}

// Evaluate runs a checked request (CheckRequest) against a view of the newest
// state. It changes nothing. The errors are those of the request (ErrLeaseNotFound,
// ErrKeyNotFound, ErrCompacted, ErrFutureRev, ErrTooLarge), or faults of the view.
//
// The revision of the request itself is not known yet: effects with
// CreateRevision 0 stand for it, and the response is complete after Finish.
func Evaluate(v View, r *Request, env Env) (*Result, error) {
	switch {
	case r.Put != nil:
		return evaluatePut(v, r.Put, env)
	case r.DeleteRange != nil:
		e := evaluator{base: v, env: env, result: &Result{}}
		var err error
		e.result.DeleteRange, err = e.deleteRange(r.DeleteRange)
		return e.result, err
	case r.Txn != nil:
		return evaluateTxn(v, r.Txn, env)
	case r.Range != nil:
		resp, err := EvaluateRange(v, r.Range, env.Response)
		return &Result{Range: resp}, err
	}
	return nil, errors.New("mvcc: request without content")
}

// Finish completes the response with the revision: the granted one if there are
// effects, else the one that was read. It is called once.
func (r *Result) Finish(rev int64) {
	if r.finished {
		panic(fmt.Sprintf("mvcc: result finished again, at revision %d", rev))
	}
	r.finished = true
	switch {
	case r.Put != nil:
		r.Put.Header.Revision = rev
		return
	case r.DeleteRange != nil:
		r.DeleteRange.Header.Revision = rev
		return
	case r.Range != nil:
		r.Range.Header.Revision = rev
		return
	}
	before := rev
	if len(r.Effects) > 0 {
		// Revisions are dense for who reads this: what the transaction saw before
		// its first write is the state just before it.
		before = rev - 1
	}
	r.Txn.Header.Revision = rev
	for _, h := range r.before {
		h.Revision = before
	}
	for _, h := range r.after {
		h.Revision = rev
	}
	for _, kv := range r.own {
		kv.ModRevision = rev
		if kv.CreateRevision == ownRevision {
			kv.CreateRevision = rev
		}
	}
	for _, l := range r.late {
		l.piece.filter(l.plan.req)
		l.plan.assemble(l.resp, []RangePiece{l.piece})
	}
}

// putResult is what evaluatePut returns, made at once.
type putResult struct {
	Result
	effect   [1]Effect
	response pb.PutResponse
	header   pb.ResponseHeader
}

func evaluatePut(v View, p *pb.PutRequest, env Env) (*Result, error) {
	if err := checkLease(p, env); err != nil {
		return nil, err
	}
	r := &putResult{}
	r.response.Header = &r.header
	r.Put = &r.response
	r.Effects = r.effect[:]
	e := evaluator{base: v, env: env}
	if err := e.put(v, p, &r.effect[0], &r.response); err != nil {
		return nil, err
	}
	if r.effect[0].weight() > env.maxEffectsBytes() {
		return nil, ErrTooLarge
	}
	return &r.Result, nil
}

func checkLease(p *pb.PutRequest, env Env) error {
	if p.GetLease() != 0 && env.LeaseExists != nil && !env.LeaseExists(p.GetLease()) {
		return ErrLeaseNotFound
	}
	return nil
}

// put fills the effect and the response of a put on v, the state so far.
func (e *evaluator) put(v View, p *pb.PutRequest, eff *Effect, resp *pb.PutResponse) error {
	var h head
	eff.Key, eff.Value, eff.Lease = p.GetKey(), p.GetValue(), p.GetLease()
	if p.GetPrevKv() || p.GetIgnoreValue() {
		kv, err := v.Get(eff.Key)
		if err != nil {
			return err
		}
		if kv != nil {
			h = headOf(kv)
			if p.GetIgnoreValue() {
				eff.Value = kv.Value
			}
			if p.GetPrevKv() {
				if err := hold(e.env.Response, kv); err != nil {
					return err
				}
				resp.PrevKv = kv
			}
		}
	} else {
		var err error
		if e.own == nil { // v is the state before
			h, err = e.baseHead(eff.Key)
		} else {
			h, err = readHead(v, eff.Key)
		}
		if err != nil {
			return err
		}
	}
	if h.version == 0 && (p.GetIgnoreValue() || p.GetIgnoreLease()) {
		return ErrKeyNotFound
	}
	if p.GetIgnoreLease() {
		eff.Lease = h.lease
	}
	eff.Version, eff.OldLease, eff.Prior = h.version+1, h.lease, h.place
	if h.version > 0 && h.createRevision != ownRevision {
		eff.CreateRevision = h.createRevision
	}
	return nil
}

// evaluator evaluates deletes and transactions.
type evaluator struct {
	base   View
	env    Env
	result *Result

	weight  int64  // of the effects so far
	sub     uint32 // of the next change
	deleted int64  // by deletes of intervals, one by one

	own       *overlayView // the effects so far over base; nil until needed
	ownSynced int          // effects that own has

	lastKey  []byte // last key read by baseHead, nil if none
	lastHead head
}

// view returns the state with the request's own effects so far.
func (e *evaluator) view() View {
	effs := e.result.Effects
	if len(effs) == 0 {
		return e.base
	}
	if e.own == nil {
		e.own = &overlayView{o: NewOverlay(), base: e.base, rev: ownRevision, own: func(kv *mvccpb.KeyValue) {
			e.result.own = append(e.result.own, kv)
		}}
	}
	// Copies: the array behind effs still moves.
	for _, eff := range effs[e.ownSynced:] {
		e.own.o.insert(ownRevision, []Effect{eff})
	}
	e.ownSynced = len(effs)
	return e.own
}

// note files the header of an operation for Finish: after the first effect it
// carries the request's own revision, before it the one before (etcd/T9).
func (e *evaluator) note(h *pb.ResponseHeader) {
	if len(e.result.Effects) > 0 {
		e.result.after = append(e.result.after, h)
	} else {
		e.result.before = append(e.result.before, h)
	}
}

func (e *evaluator) delete(key []byte, h head) error {
	return e.add(Effect{
		Key: key, Sub: e.sub, OldLease: h.lease, Tombstone: true, Prior: h.place,
	})
}

// add adds an effect, unless they would be too many bytes.
func (e *evaluator) add(eff Effect) error {
	if e.weight += eff.weight(); e.weight > e.env.maxEffectsBytes() {
		return ErrTooLarge
	}
	e.result.Effects = append(e.result.Effects, eff)
	e.sub += uint32(eff.subs())
	return nil
}

func (e *evaluator) deleteRange(d *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	resp := &pb.DeleteRangeResponse{Header: &pb.ResponseHeader{}}
	start, end := interval(d.GetKey(), d.GetRangeEnd())
	v := e.view()
	if wide, err := e.isWide(v, d, start, end); err != nil {
		return nil, err
	} else if wide {
		if err := e.deleteSpan(v, d, start, end, resp); err != nil {
			return nil, err
		}
		e.note(resp.Header)
		return resp, nil
	}
	visit := func(kv *mvccpb.KeyValue) (bool, error) {
		if err := e.delete(kv.Key, headOf(kv)); err != nil {
			return false, err
		}
		resp.Deleted++
		if d.GetPrevKv() {
			if err := hold(e.env.Response, kv); err != nil {
				return false, err
			}
			resp.PrevKvs = append(resp.PrevKvs, kv)
		}
		return true, nil
	}
	if len(d.GetRangeEnd()) == 0 && !d.GetPrevKv() {
		h, err := readHead(v, start)
		if err != nil {
			return nil, err
		}
		if h.version > 0 {
			if err := e.delete(start, h); err != nil {
				return nil, err
			}
			resp.Deleted++
		}
	} else if len(d.GetRangeEnd()) == 0 {
		kv, err := v.Get(start)
		if err != nil {
			return nil, err
		}
		if kv != nil {
			if err := e.env.Budget.single(kv); err != nil {
				return nil, err
			}
			if _, err := visit(kv); err != nil {
				return nil, err
			}
		}
	} else {
		opt := ScanOptions{KeysOnly: !d.GetPrevKv(), Budget: e.env.Budget, LiveIsFree: !d.GetPrevKv()}
		if err := v.Scan(start, end, opt, func(kv *mvccpb.KeyValue) (bool, error) {
			if err := e.env.Budget.deletes(); err != nil {
				return false, err
			}
			e.deleted++
			return visit(kv)
		}); err != nil {
			return nil, err
		}
	}
	e.note(resp.Header)
	return resp, nil
}

// EvaluateDeletes returns the effects of deleting those of the keys that live,
// all in one revision, sub-revisions in the order given: the revoke of a lease,
// for which the keys are sorted (etcd/L3).
func EvaluateDeletes(v View, keys [][]byte) ([]Effect, error) {
	e := evaluator{base: v, result: &Result{}}
	for _, key := range keys {
		h, err := readHead(v, key)
		if err != nil {
			return nil, err
		}
		if h.version > 0 {
			if err := e.delete(key, h); err != nil {
				return nil, err
			}
		}
	}
	return e.result.Effects, nil
}

// baseHead reads the head of a key in the state before. The key that a
// transaction compares is most often the one that it writes: the last head
// read is remembered.
func (e *evaluator) baseHead(key []byte) (head, error) {
	if e.lastKey != nil && bytes.Equal(e.lastKey, key) {
		return e.lastHead, nil
	}
	h, err := readHead(e.base, key)
	if err == nil {
		e.lastKey, e.lastHead = key, h
	}
	return h, err
}
