package mvcc

import (
	"bytes"
	"cmp"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

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
