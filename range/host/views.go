package host

import (
	"bytes"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/range/engine"
	"github.com/hawser-kv/hawser/range/replica"
	"github.com/hawser-kv/hawser/range/shortage"
)

// View opens a view of the local engine.
func (h *Host) View(rev int64, pieces []rangepb.Piece) (mvcc.OpenView, error) {
	v, err := h.Readers.View(rev, pieces...)
	if err != nil {
		return nil, viewError(pieces, err)
	}
	view := &guardedView{View: v, guard: guard{h, pieces}, close: v.Close}
	if h.cfg.Measures != nil {
		view.began = time.Now()
	}
	return view, nil
}

// HashVersions gives hasher the versions of the pieces in the local engine.
func (h *Host) HashVersions(rev, compacted int64, pieces []rangepb.Piece, hasher *mvcc.Hasher) error {
	if err := h.Readers.Check(pieces...); err != nil {
		return viewError(pieces, err)
	}
	for _, p := range pieces {
		if err := h.cfg.MVCC.HashVersions(p.Start, p.End, rev, compacted, hasher); err != nil {
			if errors.Is(err, mvcc.ErrPending) {
				h.hashAwaited.Store(max(rev, h.hashAwaited.Load())) // a lost race asks again
			}
			return viewError(pieces, guard{h, pieces}.check(p.Start, err))
		}
	}
	return nil
}

// HalfKey halves the piece by the sizes of the local engine.
func (h *Host) HalfKey(p rangepb.Piece) ([]byte, error) {
	pieces := []rangepb.Piece{p}
	if err := h.Readers.Check(pieces...); err != nil {
		return nil, viewError(pieces, err)
	}
	key, err := h.cfg.MVCC.HalfKey(p.Start, p.End)
	if err != nil {
		return nil, viewError(pieces, guard{h, pieces}.check(p.Start, err))
	}
	return key, nil
}

// guard stops the replica whose data a read finds damaged: from then on the
// range answers that it is corrupt, until the node starts again.
type guard struct {
	h      *Host
	pieces []rangepb.Piece
}

// check turns the damage of the data at or behind key, and a shortage, into the
// range's error. Other errors pass.
func (g guard) check(key []byte, err error) error {
	if shortage.Is(err) {
		return viewError(g.pieces, err)
	}
	if err == nil || !engine.IsDamage(err) || len(g.pieces) == 0 {
		return err
	}
	at := g.rangeOf(key)
	g.h.Store.Post(at, replica.Damage{Err: err})
	return &rangepb.Error{Kind: rangepb.Corrupt, RangeID: at, Err: err}
}

// rangeOf returns the range of the pieces that has the key.
func (g guard) rangeOf(key []byte) uint64 {
	at := g.pieces[0].RangeID
	for _, p := range g.pieces[1:] {
		if bytes.Compare(p.Start, key) <= 0 {
			at = p.RangeID
		}
	}
	return at
}

// guardedView is a view that looks for damage in what it reads.
type guardedView struct {
	mvcc.View
	guard
	close func() error
	// began is when it was opened, zero if nobody measures.
	began time.Time
}

func (v *guardedView) Close() error {
	if m := v.h.cfg.Measures; m != nil {
		took := time.Since(v.began) / time.Duration(max(len(v.pieces), 1))
		for _, p := range v.pieces {
			m.Read(p.RangeID, took)
		}
	}
	return v.close()
}

// returned counts bytes that were read at or behind key.
func (v *guardedView) returned(key []byte, size int) {
	if m := v.h.cfg.Measures; m != nil && size > 0 && len(v.pieces) > 0 {
		m.ReadBytes(v.rangeOf(key), size)
	}
}

func (v *guardedView) Get(key []byte) (*mvccpb.KeyValue, error) {
	kv, err := v.View.Get(key)
	if kv != nil {
		v.returned(key, len(kv.Key)+len(kv.Value))
	}
	return kv, v.check(key, err)
}

func (v *guardedView) Scan(start, end []byte, opt mvcc.ScanOptions, fn func(*mvccpb.KeyValue) (bool, error)) error {
	at, size := start, 0
	err := v.View.Scan(start, end, opt, func(kv *mvccpb.KeyValue) (bool, error) {
		at = kv.Key
		size += len(kv.Key) + len(kv.Value)
		return fn(kv)
	})
	v.returned(start, size)
	return v.check(at, err)
}

func (v *guardedView) Count(start, end []byte) (int64, error) {
	n, err := v.View.Count(start, end)
	return n, v.check(start, err)
}

func (v *guardedView) At(rev int64) (mvcc.View, error) {
	other, err := v.View.At(rev)
	if err != nil {
		return nil, v.check(nil, err)
	}
	return &guardedView{View: other, guard: v.guard}, nil
}
