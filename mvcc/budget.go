package mvcc

import (
	"errors"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// ErrTooWide: the evaluation needs more than its Budget. It says nothing about
// the request, which is evaluated elsewhere.
var ErrTooWide = errors.New("mvcc: request is too wide to be evaluated here")

// Budget bounds what one evaluation may look at and hold, where others wait for
// it: it is charged for every key that a Range operation, an interval compare
// or a delete that returns what it deletes steps over, live or not, and for the
// bytes of those that are live; and for the dead keys of other deletes. Counts and the rows behind a limit are not read
// and not charged; live keys of other deletes are charged apart (Deletes), and keys of
// puts are not, for effects have to be made wherever the request is evaluated.
//
// A budget that is used up refuses the next row, so that one row, however large,
// is always in it. It belongs to one evaluation.
type Budget struct {
	// Rows and Bytes are what is left of each.
	Rows, Bytes int64
	// Deletes is how many live keys deletes of intervals may still end, below 0 none;
	// 0: as many as there are.
	Deletes int64
}

// deletes charges for a live key that a delete of an interval ends.
func (b *Budget) deletes() error {
	switch {
	case b == nil || b.Deletes == 0:
		return nil
	case b.Deletes < 0:
		return ErrTooWide
	}
	if b.Deletes--; b.Deletes == 0 {
		b.Deletes = -1
	}
	return nil
}

// step charges for a key that is looked at. A nil budget has no bounds.
func (b *Budget) step() error {
	if b == nil {
		return nil
	}
	if b.Rows <= 0 || b.Bytes <= 0 {
		return ErrTooWide
	}
	b.Rows--
	return nil
}

// took charges for a key-value.
func (b *Budget) took(kv *mvccpb.KeyValue) {
	if b != nil {
		b.Bytes -= int64(len(kv.Key) + len(kv.Value))
	}
}

// single charges for a key-value that was read by itself, nil if there is none.
func (b *Budget) single(kv *mvccpb.KeyValue) error {
	if b == nil || kv == nil {
		return nil
	}
	if err := b.step(); err != nil {
		return err
	}
	b.took(kv)
	return nil
}

// Holder is asked before an evaluation keeps a key-value for its response, and ends
// it with its error: responses can be larger than what can be sent, or than there is
// room for. It counts what is kept, also what a sort or a filter drops at last; what
// a scan only looks at is a Budget's.
type Holder interface {
	Hold(kv *mvccpb.KeyValue) error
}

// hold asks h; a nil one has no bounds.
func hold(h Holder, kv *mvccpb.KeyValue) error {
	if h == nil || kv == nil {
		return nil
	}
	return h.Hold(kv)
}
