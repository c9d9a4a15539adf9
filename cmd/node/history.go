package node

import (
	"fmt"
	"runtime"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proxy/watch"
	"github.com/hawser-kv/hawser/range/engine"
	"github.com/hawser-kv/hawser/range/shortage"
)

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
