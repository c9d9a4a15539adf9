package mvcc

import (
	"errors"

	"github.com/google/btree"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// DefaultMaxTxnOps is etcd's default of --max-txn-ops.
const DefaultMaxTxnOps = 128

// Limits of a request.
type Limits struct {
	// MaxTxnOps is the most compares, and the most operations in a branch, that
	// a transaction may have; a nested one may have that less what its parent
	// has (etcd/T1). Zero means DefaultMaxTxnOps.
	MaxTxnOps int
}

// CheckRequest tells whether a request is well formed, as far as that can be
// said without looking at any data: etcd/R1, etcd/R2, etcd/P1, etcd/P2, etcd/T1, etcd/T2, etcd/T3. It checks in
// etcd's order, so a request with several faults gets etcd's error.
func CheckRequest(r *Request, limits Limits) error {
	if limits.MaxTxnOps == 0 {
		limits.MaxTxnOps = DefaultMaxTxnOps
	}
	switch {
	case r.Put != nil:
		return checkPut(r.Put)
	case r.DeleteRange != nil:
		return checkDelete(r.DeleteRange)
	case r.Range != nil:
		return checkRange(r.Range)
	case r.Txn != nil:
		if err := checkTxn(r.Txn, limits.MaxTxnOps); err != nil {
			return err
		}
		if _, err := checkOverlaps(r.Txn.GetSuccess()); err != nil {
			return err
		}
		_, err := checkOverlaps(r.Txn.GetFailure())
		return err
	}
	return errors.New("mvcc: request without content")
}

func checkRange(r *pb.RangeRequest) error {
	if len(r.GetKey()) == 0 {
		return ErrEmptyKey
	}
	if _, ok := pb.RangeRequest_SortOrder_name[int32(r.GetSortOrder())]; !ok {
		return ErrInvalidSortOption
	}
	if _, ok := pb.RangeRequest_SortTarget_name[int32(r.GetSortTarget())]; !ok {
		return ErrInvalidSortOption
	}
	return nil
}

func checkPut(r *pb.PutRequest) error {
	switch {
	case len(r.GetKey()) == 0:
		return ErrEmptyKey
	case r.GetIgnoreValue() && len(r.GetValue()) != 0:
		return ErrValueProvided
	case r.GetIgnoreLease() && r.GetLease() != 0:
		return ErrLeaseProvided
	}
	return nil
}

func checkDelete(r *pb.DeleteRangeRequest) error {
	if len(r.GetKey()) == 0 {
		return ErrEmptyKey
	}
	return nil
}

func checkTxn(r *pb.TxnRequest, maxOps int) error {
	ops := max(len(r.GetCompare()), len(r.GetSuccess()), len(r.GetFailure()))
	if ops > maxOps {
		return ErrTooManyOps
	}
	for _, c := range r.GetCompare() {
		if len(c.GetKey()) == 0 {
			return ErrEmptyKey
		}
	}
	for _, branch := range [2][]*pb.RequestOp{r.GetSuccess(), r.GetFailure()} {
		for _, op := range branch {
			if err := checkOp(op, maxOps-ops); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkOp(op *pb.RequestOp, maxOps int) error {
	switch o := op.GetRequest().(type) {
	case *pb.RequestOp_RequestRange:
		return checkRange(o.RequestRange)
	case *pb.RequestOp_RequestPut:
		return checkPut(o.RequestPut)
	case *pb.RequestOp_RequestDeleteRange:
		return checkDelete(o.RequestDeleteRange)
	case *pb.RequestOp_RequestTxn:
		return checkTxn(o.RequestTxn, maxOps)
	}
	return ErrKeyNotFound
}

// written is what a branch writes, as far as the duplicate rule (etcd/T3) knows.
type written struct {
	puts    map[string]struct{}
	deletes *spanSet
}

// checkOverlaps applies the duplicate rule to a list of operations and the
// transactions nested in it. The order is etcd's and shows: what a nested
// transaction puts is held against the deletes of this level and of the nested
// ones before it, but not of those after it.
//
// As in etcd, a delete with range_end "\x00" (all from key on) counts as the
// interval [key, "\x00"), which is empty: nothing collides with it.
func checkOverlaps(ops []*pb.RequestOp) (written, error) {
	w := written{puts: make(map[string]struct{}), deletes: newSpanSet()}
	for _, op := range ops {
		if o, ok := op.GetRequest().(*pb.RequestOp_RequestDeleteRange); ok && o.RequestDeleteRange != nil {
			d := o.RequestDeleteRange
			if len(d.RangeEnd) == 0 {
				w.deletes.add(string(d.Key), string(d.Key)+"\x00")
			} else {
				w.deletes.add(string(d.Key), string(d.RangeEnd))
			}
		}
	}
	for _, op := range ops {
		o, ok := op.GetRequest().(*pb.RequestOp_RequestTxn)
		if !ok {
			continue
		}
		then, err := checkOverlaps(o.RequestTxn.GetSuccess())
		if err != nil {
			return w, err
		}
		otherwise, err := checkOverlaps(o.RequestTxn.GetFailure())
		if err != nil {
			return w, err
		}
		// In any order: the answer is the same for every key.
		for k := range then.puts {
			if !w.put(k) {
				return w, ErrDuplicateKey
			}
		}
		// In any order, likewise. Only one branch runs, so both may put the same key.
		for k := range otherwise.puts {
			if _, ok := then.puts[k]; !ok && !w.put(k) {
				return w, ErrDuplicateKey
			}
		}
		w.deletes.addAll(then.deletes)
		w.deletes.addAll(otherwise.deletes)
	}
	for _, op := range ops {
		if o, ok := op.GetRequest().(*pb.RequestOp_RequestPut); ok && o.RequestPut != nil {
			if !w.put(string(o.RequestPut.Key)) {
				return w, ErrDuplicateKey
			}
		}
	}
	return w, nil
}

// put notes a put and says whether it is the first write of the key.
func (w *written) put(key string) bool {
	if _, ok := w.puts[key]; ok || w.deletes.contains(key) {
		return false
	}
	w.puts[key] = struct{}{}
	return true
}

// spanSet is a union of key intervals, kept as disjoint spans: look-ups stay
// logarithmic however many deletes a request has.
type spanSet struct {
	spans *btree.BTreeG[keySpan] // nil until the first span
}

type keySpan struct{ start, end string }

func newSpanSet() *spanSet { return &spanSet{} }

func (s *spanSet) add(start, end string) {
	if start >= end {
		return
	}
	if s.spans == nil {
		s.spans = btree.NewG(16, func(a, b keySpan) bool { return a.start < b.start })
	}
	var swallowed []keySpan
	s.spans.DescendLessOrEqual(keySpan{start: start}, func(p keySpan) bool {
		if p.end >= start {
			swallowed = append(swallowed, p)
		}
		return false // spans before p end before p starts
	})
	s.spans.AscendGreaterOrEqual(keySpan{start: start}, func(p keySpan) bool {
		if p.start > end {
			return false
		}
		swallowed = append(swallowed, p)
		return true
	})
	for _, p := range swallowed {
		start, end = min(start, p.start), max(end, p.end)
		s.spans.Delete(p)
	}
	s.spans.ReplaceOrInsert(keySpan{start, end})
}

func (s *spanSet) addAll(o *spanSet) {
	if o.spans != nil {
		o.spans.Ascend(func(p keySpan) bool { s.add(p.start, p.end); return true })
	}
}

func (s *spanSet) contains(key string) bool {
	found := false
	if s.spans != nil {
		s.spans.DescendLessOrEqual(keySpan{start: key}, func(p keySpan) bool {
			found = key < p.end
			return false
		})
	}
	return found
}
