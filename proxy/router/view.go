package router

import (
	"errors"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/hawser-kv/hawser/mvcc"
)

// evaluate evaluates a transaction or write on the view of a point. Explicit
// revisions of its ranges are judged by what S said (etcd/T6), never by
// what a range has. errAskAgain when one was forgotten under way.
func evaluate(p Point, v mvcc.View, req *mvcc.Request, env mvcc.Env) (*mvcc.Result, error) {
	env.Current, env.Compacted = p.Revision, p.Compacted
	noting := &notingView{View: v}
	res, err := mvcc.Evaluate(noting, req, env)
	if noting.forgotten {
		return nil, errAskAgain
	}
	return res, err
}

// notingView notes that a revision which S called readable was forgotten before
// it was read.
type notingView struct {
	mvcc.View
	forgotten bool
}

// Get reads a key.
func (n *notingView) Get(key []byte) (*mvccpb.KeyValue, error) {
	kv, err := n.View.Get(key)
	n.note(err)
	return kv, err
}

// Scan reads a span.
func (n *notingView) Scan(start, end []byte, opt mvcc.ScanOptions, fn func(*mvccpb.KeyValue) (bool, error)) error {
	err := n.View.Scan(start, end, opt, fn)
	n.note(err)
	return err
}

// Count counts the keys of a span.
func (n *notingView) Count(start, end []byte) (int64, error) {
	c, err := n.View.Count(start, end)
	n.note(err)
	return c, err
}

// At returns the state at rev.
func (n *notingView) At(rev int64) (mvcc.View, error) {
	v, err := n.View.At(rev)
	n.note(err)
	return v, err
}

func (n *notingView) note(err error) {
	if errors.Is(err, mvcc.ErrCompacted) {
		n.forgotten = true
	}
}

// allows is the check of an explicit revision inside a transaction, as
// mvcc.Evaluate does it on the branch that is taken (etcd/T6): only 0 means the
// current state. A negative one is compacted, but for -1 while nothing was.
func (p *Point) allows(rev int64) error {
	switch {
	case rev == 0:
		return nil
	case rev > p.Revision:
		return mvcc.ErrFutureRev
	case rev < p.Compacted:
		return mvcc.ErrCompacted
	}
	return nil
}
