package store

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/hawser-kv/hawser/range/engine"
)

// RunRound does one round of a shard and reports whether there was anything to
// do; call it until there is not. Only for who drives the store instead of
// Start. An error is the store's fault, after which everything is refused.
//
// The order within a round: callbacks of batches that have become durable,
// ticks, passes over the ready members (the meta group first in each), one
// commit, callbacks of the commit, messages.
func (s *Store) RunRound(shard int) (worked bool, err error) {
	return s.shards[shard].run()
}

// Tick delivers one tick to all loaded members that want it, in the next round
// of each shard.
func (s *Store) Tick() {
	for _, sh := range s.shards {
		sh.mu.Lock()
		// A worker that is late gets the ticks it missed, but not an age's worth:
		// they would all come at once and start elections for nothing.
		sh.mu.ticks = min(sh.mu.ticks+1, maxLateTicks)
		sh.mu.Unlock()
		sh.wakeUp()
	}
}

// maxLateTicks is below any election timeout.
const maxLateTicks = 3

// run does a round. Members and their callbacks write to the engine themselves now
// and then, so all of it is guarded: what the engine makes of a failed write is the
// store's fault wherever it comes.
func (s *shard) run() (worked bool, err error) {
	if s.store.Err() == nil {
		if err := engine.Guard(func() (err error) { worked, err = s.doRound(); return err }); err != nil {
			s.store.fail(err)
		}
	}
	if err := s.store.Err(); err != nil {
		s.shut(err)
		return worked, err
	}
	return worked, nil
}

// doRound is run without what becomes of a fault: its error is one, and the store
// may have another when it returns.
func (s *shard) doRound() (worked bool, err error) {
	worked = s.finishSyncs()
	if s.store.Err() != nil {
		return worked, nil
	}
	worked = s.deliverTicks() || worked
	r := &s.round
	if r.Batch == nil {
		r.Batch = s.store.cfg.DB.NewBatch()
	}
	for range s.store.cfg.MaxPasses {
		s.takeReady()
		if len(s.taken) == 0 {
			break
		}
		worked = true
		for i, sl := range s.taken {
			if r.Batch.Len() >= s.store.cfg.MaxBatchBytes {
				s.putBack(s.taken[i:])
				break
			}
			s.visit(sl)
		}
		clear(s.taken)
		if r.Batch.Len() >= s.store.cfg.MaxBatchBytes {
			break
		}
	}
	if !worked {
		return false, nil
	}
	s.counters.rounds.Add(1)
	if err := s.commit(r); err != nil {
		return true, err
	}
	if s.store.Err() == nil {
		s.settle()
	}
	return true, nil
}

// commit commits the round's batch and runs what waited for that.
func (s *shard) commit(r *Round) error {
	if err := s.store.Err(); err != nil {
		return err // a member has found a fault: the batch is worth nothing
	}
	sync := r.sync && !r.Batch.Empty()
	var began time.Time
	if !r.Batch.Empty() {
		if fn := s.store.cfg.BeforeCommit; fn != nil {
			if err := fn(s.index, r.Batch, sync); err != nil {
				return fmt.Errorf("commit: %w", err)
			}
		}
		s.counters.commits.Add(1)
		s.counters.batchBytes.Add(uint64(r.Batch.Len()))
		began = s.now()
		if err := s.write(r.Batch, sync); err != nil {
			return fmt.Errorf("commit: %w", err)
		}
		s.took(s.store.cfg.Timings.Write, began)
	}
	durable := append([]slotFunc(nil), r.durable...)
	switch {
	case sync:
		s.counters.syncs.Add(1)
		s.syncing = append(s.syncing, &pendingSync{batch: r.Batch, durable: durable})
		s.counters.syncing.Store(int64(len(s.syncing)))
		if s.toSync != nil {
			s.toSync <- syncing{r.Batch, began}
		}
		r.Batch = nil
	case len(s.syncing) > 0:
		newest := s.syncing[len(s.syncing)-1]
		newest.durable = append(newest.durable, durable...)
	default:
		s.due = append(s.due, durable...)
		if len(durable) > 0 {
			s.wakeUp()
		}
	}
	if r.Batch != nil {
		if err := r.Batch.Close(); err != nil {
			return fmt.Errorf("close batch: %w", err)
		}
		r.Batch = nil
	}
	committed, sends := r.committed, r.sends
	for _, c := range committed {
		c.fn()
	}
	for _, o := range sends {
		if t := s.store.cfg.Transport; t != nil {
			t.Send(o.group, o.msgs)
		}
	}
	clear(committed)
	clear(r.durable)
	clear(sends)
	r.committed, r.durable, r.sends, r.sync = committed[:0], r.durable[:0], sends[:0], false
	return nil
}

// write commits a batch; with sync, its sync is in flight afterwards.
func (s *shard) write(b *pebble.Batch, sync bool) error {
	db := s.store.cfg.DB
	if sync && !s.store.cfg.ManualSync {
		return db.ApplyNoSyncWait(b, pebble.Sync)
	}
	// ManualSync writes without: SyncNext syncs the engine's log.
	return db.Apply(b, pebble.NoSync)
}

// SyncLog makes durable, under ManualSync, what all shards have committed, and
// reports nothing: SyncNext does. What is committed between the two is not
// covered, as on a real disk, where a sync has begun before later batches are
// written and ends after them. An error is the store's fault.
func (s *Store) SyncLog() error {
	if !s.cfg.ManualSync {
		panic("store: SyncLog without ManualSync")
	}
	if err := s.Err(); err != nil {
		return err
	}
	if err := engine.Guard(func() error { return s.cfg.DB.LogData(nil, pebble.Sync) }); err != nil {
		s.fail(fmt.Errorf("sync: %w", err))
		return s.Err()
	}
	for _, sh := range s.shards {
		for _, p := range sh.syncing {
			p.onDisk = true
		}
	}
	return nil
}

// SyncNext ends the oldest sync in flight of a shard, under ManualSync: the
// callbacks of its batch run in the next round. It reports whether there was
// one. If no sync has covered the batch yet, it syncs first, and then the sync
// covers every batch that is committed: the engine has one log and syncs it to
// its end. For the one batch without the next there is SyncLog between them.
func (s *Store) SyncNext(shard int) (bool, error) {
	sh := s.shards[shard]
	if !s.cfg.ManualSync {
		panic("store: SyncNext without ManualSync")
	}
	sh.mu.Lock()
	done := sh.mu.synced
	sh.mu.Unlock()
	if s.Err() != nil || done >= len(sh.syncing) {
		return false, s.Err()
	}
	if !sh.syncing[done].onDisk {
		if err := s.SyncLog(); err != nil {
			return true, err
		}
	}
	sh.syncDone(nil)
	return true, nil
}

// syncDone says that the oldest batch whose sync was in flight is durable, or
// that it cannot be known to be.
func (s *shard) syncDone(err error) {
	s.mu.Lock()
	s.mu.synced++
	if err != nil && s.mu.syncErr == nil {
		s.mu.syncErr = fmt.Errorf("sync: %w", err)
	}
	s.mu.Unlock()
	s.wakeUp()
}

// finishSyncs runs the callbacks of batches that have become durable.
func (s *shard) finishSyncs() (worked bool) {
	s.mu.Lock()
	n, err := s.mu.synced, s.mu.syncErr
	s.mu.synced = 0
	s.mu.Unlock()
	if err != nil {
		s.store.fail(err)
		return true
	}
	due := s.due
	s.due = nil
	for _, p := range s.syncing[:n] {
		due = append(due, p.durable...)
		if err := p.batch.Close(); err != nil {
			s.store.fail(fmt.Errorf("close batch: %w", err))
			return true
		}
	}
	if n > 0 {
		s.syncing = slices.Delete(s.syncing, 0, n)
		s.counters.syncing.Store(int64(len(s.syncing)))
		for _, sl := range s.gated {
			sl.gated = false
			s.queue(sl)
		}
		clear(s.gated)
		s.gated = s.gated[:0]
	}
	for _, d := range due {
		d.slot.inFlight--
		// A member that was closed meanwhile has answered everybody.
		if d.slot.member == d.member && d.slot.failure == nil {
			d.fn()
		}
		s.queue(d.slot)
	}
	return n > 0 || len(due) > 0
}

func (s *shard) deliverTicks() (worked bool) {
	s.mu.Lock()
	ticks := s.mu.ticks
	s.mu.ticks = 0
	s.mu.Unlock()
	for range ticks {
		for _, sl := range s.loaded {
			if sl.member.WantsTicks() {
				sl.member.Tick()
				s.queue(sl)
				worked = true
			}
		}
	}
	return worked
}

// shut closes all members and refuses all items: the store has a fault or
// stops. It is the shard's end.
func (s *shard) shut(err error) {
	if s.closed {
		return
	}
	s.closed = true
	s.mu.Lock()
	s.mu.refusing = err
	var items []any
	for _, id := range slices.Sorted(maps.Keys(s.mu.slots)) {
		sl := s.mu.slots[id]
		items = append(items, sl.inbox...)
		sl.inbox = nil
	}
	clear(s.mu.slots)
	s.mu.ready, s.mu.metaReady = nil, false
	s.mu.Unlock()
	for len(s.loaded) > 0 {
		s.close(s.loaded[0], err)
	}
	for _, ev := range items {
		refuse(ev, err)
	}
	if s.round.Batch != nil {
		// It was never committed; the error of dropping it changes nothing.
		_ = s.round.Batch.Close()
		s.round.Batch = nil
	}
}
