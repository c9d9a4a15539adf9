package mvcc

import (
	"bytes"
	"cmp"
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

// evaluateTxn evaluates a transaction as etcd does: all compares first, also
// those of the nested transactions on the way they lead, against the state
// before (etcd/T5); then the checks of all operations on that way, also against the
// state before (etcd/T6, etcd/T7); then the operations, each on what those before it left.
func evaluateTxn(v View, txn *pb.TxnRequest, env Env) (*Result, error) {
	e := evaluator{base: v, env: env, result: &Result{}}
	var few [8]bool
	path, err := e.compareAll(few[:0], txn)
	if err != nil {
		return nil, err
	}
	if _, err := e.checkPath(txn, path); err != nil {
		return nil, err
	}
	resp, _, err := e.execute(txn, path)
	if err != nil {
		return nil, err
	}
	e.result.Txn = resp
	return e.result, nil
}

// compareAll appends, in the order in which execute meets them, whether the
// compares of the transaction and of the nested ones on its way hold.
func (e *evaluator) compareAll(path []bool, txn *pb.TxnRequest) ([]bool, error) {
	holds := true
	for _, c := range txn.GetCompare() {
		var err error
		if holds, err = e.compareHolds(c); err != nil {
			return nil, err
		}
		if !holds {
			break
		}
	}
	path = append(path, holds)
	for _, op := range branch(txn, holds) {
		if o, ok := op.GetRequest().(*pb.RequestOp_RequestTxn); ok {
			var err error
			if path, err = e.compareAll(path, o.RequestTxn); err != nil {
				return nil, err
			}
		}
	}
	return path, nil
}

func branch(txn *pb.TxnRequest, succeeded bool) []*pb.RequestOp {
	if succeeded {
		return txn.GetSuccess()
	}
	return txn.GetFailure()
}

// checkPath checks the operations on the way and returns the rest of the path.
func (e *evaluator) checkPath(txn *pb.TxnRequest, path []bool) (rest []bool, err error) {
	ops := branch(txn, path[0])
	path = path[1:]
	for _, op := range ops {
		switch o := op.GetRequest().(type) {
		case *pb.RequestOp_RequestRange:
			err = e.checkRevision(o.RequestRange.GetRevision())
		case *pb.RequestOp_RequestPut:
			err = e.checkPut(o.RequestPut)
		case *pb.RequestOp_RequestTxn:
			path, err = e.checkPath(o.RequestTxn, path)
		}
		if err != nil {
			return nil, err
		}
	}
	return path, nil
}

func (e *evaluator) checkRevision(rev int64) error {
	switch {
	case rev == 0:
		return nil
	case e.env.Current != 0 && rev > e.env.Current:
		return ErrFutureRev
	case rev < e.env.Compacted:
		return ErrCompacted
	}
	return nil
}

func (e *evaluator) checkPut(p *pb.PutRequest) error {
	if err := checkLease(p, e.env); err != nil {
		return err
	}
	if !p.GetIgnoreValue() && !p.GetIgnoreLease() {
		return nil
	}
	h, err := e.baseHead(p.GetKey())
	if err == nil && h.version == 0 {
		err = ErrKeyNotFound
	}
	return err
}

// execute runs the operations on the way and returns the rest of the path.
func (e *evaluator) execute(txn *pb.TxnRequest, path []bool) (resp *pb.TxnResponse, rest []bool, err error) {
	ops := branch(txn, path[0])
	// The header of a nested response stays empty (etcd/X5).
	made := &struct {
		resp   pb.TxnResponse
		header pb.ResponseHeader
		one    [1]*pb.ResponseOp
	}{}
	resp = &made.resp
	resp.Header, resp.Succeeded, resp.Responses = &made.header, path[0], made.one[:]
	if len(ops) != 1 {
		resp.Responses = make([]*pb.ResponseOp, len(ops))
	}
	path = path[1:]
	for i, op := range ops {
		switch o := op.GetRequest().(type) {
		case *pb.RequestOp_RequestRange:
			resp.Responses[i], err = e.rangeOp(o.RequestRange)
		case *pb.RequestOp_RequestPut:
			resp.Responses[i], err = e.putOp(o.RequestPut)
		case *pb.RequestOp_RequestDeleteRange:
			var dr *pb.DeleteRangeResponse
			dr, err = e.deleteRange(o.RequestDeleteRange)
			resp.Responses[i] = &pb.ResponseOp{Response: &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: dr}}
		case *pb.RequestOp_RequestTxn:
			var tr *pb.TxnResponse
			tr, path, err = e.execute(o.RequestTxn, path)
			resp.Responses[i] = &pb.ResponseOp{Response: &pb.ResponseOp_ResponseTxn{ResponseTxn: tr}}
		default:
			err = ErrKeyNotFound // not a checked request
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return resp, path, nil
}

// putOpResult and rangeOpResult are what an operation answers with, made at once.
type putOpResult struct {
	op       pb.ResponseOp
	oneof    pb.ResponseOp_ResponsePut
	response pb.PutResponse
	header   pb.ResponseHeader
}

type rangeOpResult struct {
	op       pb.ResponseOp
	oneof    pb.ResponseOp_ResponseRange
	response pb.RangeResponse
	header   pb.ResponseHeader
}

func (e *evaluator) putOp(p *pb.PutRequest) (*pb.ResponseOp, error) {
	r := &putOpResult{}
	r.op.Response, r.oneof.ResponsePut, r.response.Header = &r.oneof, &r.response, &r.header
	eff := Effect{Sub: e.sub}
	if err := e.put(e.view(), p, &eff, &r.response); err != nil {
		return nil, err
	}
	if err := e.env.Budget.single(r.response.PrevKv); err != nil {
		return nil, err
	}
	if err := e.add(eff); err != nil {
		return nil, err
	}
	e.note(&r.header)
	return &r.op, nil
}

func (e *evaluator) rangeOp(rr *pb.RangeRequest) (*pb.ResponseOp, error) {
	r := &rangeOpResult{}
	r.op.Response, r.oneof.ResponseRange, r.response.Header = &r.oneof, &r.response, &r.header
	p := PlanRange(rr)
	p.budget, p.response = e.env.Budget, e.env.Response
	v := e.view()
	if p.Revision > 0 {
		var err error
		if v, err = v.At(p.Revision); err != nil {
			return nil, err
		}
	}
	own := len(e.result.own)
	p.rowsFilteredLater = len(e.result.Effects) > 0 && p.Revision == 0
	piece, err := p.readAll(v)
	if err != nil {
		return nil, err
	}
	e.note(&r.header)
	if len(e.result.own) > own {
		e.result.late = append(e.result.late, lateRange{p, piece, &r.response})
		return &r.op, nil
	}
	piece.filter(rr)
	p.assemble(&r.response, []RangePiece{piece})
	return &r.op, nil
}

// compareHolds evaluates a compare, which must hold for every key of its
// interval. Without a key it compares with zeros, but a value is never equal,
// unequal or anything to that of a missing key (etcd/T4).
func (e *evaluator) compareHolds(c *pb.Compare) (bool, error) {
	if len(c.GetRangeEnd()) == 0 {
		if c.GetTarget() == pb.Compare_VALUE {
			kv, err := e.base.Get(c.GetKey())
			return err == nil && kv != nil && compares(bytes.Compare(kv.Value, c.GetValue()), c.GetResult()), err
		}
		h, err := e.baseHead(c.GetKey())
		return err == nil && compareHead(h, c), err
	}
	v := e.base
	start, end := interval(c.GetKey(), c.GetRangeEnd())
	holds, found := true, false
	err := v.Scan(start, end, ScanOptions{KeysOnly: c.GetTarget() != pb.Compare_VALUE, Budget: e.env.Budget}, func(kv *mvccpb.KeyValue) (bool, error) {
		found = true
		if c.GetTarget() == pb.Compare_VALUE {
			holds = compares(bytes.Compare(kv.Value, c.GetValue()), c.GetResult())
		} else {
			holds = compareHead(headOf(kv), c)
		}
		return holds, nil
	})
	if err != nil || found {
		return err == nil && holds, err
	}
	return c.GetTarget() != pb.Compare_VALUE && compareHead(head{}, c), nil
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

// compareHead compares with what the request gives for the target; a target
// union of another kind, or none, counts as zero.
func compareHead(h head, c *pb.Compare) bool {
	order := 0
	switch c.GetTarget() {
	case pb.Compare_CREATE:
		order = cmp.Compare(h.createRevision, c.GetCreateRevision())
	case pb.Compare_MOD:
		order = cmp.Compare(h.modRevision, c.GetModRevision())
	case pb.Compare_VERSION:
		order = cmp.Compare(h.version, c.GetVersion())
	case pb.Compare_LEASE:
		order = cmp.Compare(h.lease, c.GetLease())
	}
	return compares(order, c.GetResult())
}

// compares says whether a result holds; one that etcd does not know does.
func compares(order int, result pb.Compare_CompareResult) bool {
	switch result {
	case pb.Compare_EQUAL:
		return order == 0
	case pb.Compare_NOT_EQUAL:
		return order != 0
	case pb.Compare_GREATER:
		return order > 0
	case pb.Compare_LESS:
		return order < 0
	}
	return true
}
