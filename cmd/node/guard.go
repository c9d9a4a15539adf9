package node

import (
	"bytes"
	"fmt"
	"runtime"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/proxy/watch"
	"github.com/hawser-kv/hawser/range/engine"
	"github.com/hawser-kv/hawser/range/replica"
	"github.com/hawser-kv/hawser/range/shortage"
)

// guard stops the replica whose data a read finds damaged: from then on the
// range answers that it is corrupt, until the node starts again.
type guard struct {
	c      *Core
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
	g.c.Store.Post(at, replica.Damage{Err: err})
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
	if m := v.c.measures; m != nil {
		took := time.Since(v.began) / time.Duration(max(len(v.pieces), 1))
		for _, p := range v.pieces {
			m.loads.of(p.RangeID).read(took)
		}
	}
	return v.close()
}

// returned counts bytes that were read at or behind key.
func (v *guardedView) returned(key []byte, size int) {
	if m := v.c.measures; m != nil && size > 0 && len(v.pieces) > 0 {
		m.loads.of(v.rangeOf(key)).readBytes.Add(int64(size))
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

// rowsWithoutYield take a walk of the revision index some tens of microseconds,
// or some hundreds if all their events are wanted; more with many watchers of
// spans that are neither a key nor a prefix.
const rowsWithoutYield = 64

// history is the history that watchers read.
type history struct{ store *mvcc.Store }

func (h history) PickEvents(after, upTo int64, pick func(mvcc.EventRow) (want, more bool), fn func(mvcc.Event) error) error {
	// A walk is long and never waits: on a machine with few cores all requests
	// would queue behind it.
	rows := 0
	return ofHistory(h.store.PickEvents(after, upTo, func(row mvcc.EventRow) (want, more bool) {
		if rows++; rows%rowsWithoutYield == 0 {
			runtime.Gosched()
		}
		return pick(row)
	}, fn))
}

// previous reads the version of a key at a revision.
func (h history) previous(key []byte, rev int64) (*mvccpb.KeyValue, error) {
	kv, err := h.store.PrevKV(key, rev+1)
	return kv, asCorrupt(err)
}

// ofHistory makes damage of the history, or a shortage, what ends the watchers that
// it concerns.
func ofHistory(err error) error {
	if shortage.Is(err) {
		return fmt.Errorf("%w: %w", watch.ErrShortage, err)
	}
	if err == nil || !engine.IsDamage(err) {
		return err
	}
	return fmt.Errorf("%w: %w", watch.ErrDamaged, err)
}

// asCorrupt makes damage, and a shortage, what clients know as such.
func asCorrupt(err error) error {
	if shortage.Is(err) {
		return routerError(0, err)
	}
	if err == nil || !engine.IsDamage(err) {
		return err
	}
	return &rangepb.Error{Kind: rangepb.Corrupt, Err: err}
}
