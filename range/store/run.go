package store

import (
	"context"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"
)

// Start runs the store: per shard a worker and a goroutine that waits for
// syncs, and one for time. Stop ends them; so does a fault.
func (s *Store) Start(ctx context.Context) {
	if s.cfg.ManualSync {
		panic("store: Start with ManualSync")
	}
	ctx, s.stop = context.WithCancel(ctx)
	for _, sh := range s.shards {
		sh.toSync = make(chan syncing, syncQueue)
		s.workers.Go(func() { sh.waitForSyncs() })
		s.workers.Go(func() { sh.work(ctx) })
	}
	s.workers.Go(func() { s.keepTime(ctx) })
}

// syncQueue bounds the syncs in flight of a shard that appends without asking
// CanPropose; the worker then waits for the disk.
const syncQueue = 64

// Stop stops the store in order: what was posted before is handled, syncs in
// flight end, then every member is closed with ErrStopped. When it returns,
// no callback is outstanding and no goroutine runs. Also without Start. It may not
// return once Fault.Locked is closed.
func (s *Store) Stop() {
	s.stopOnce.Do(func() {
		if s.stop == nil {
			for _, sh := range s.shards {
				sh.drain()
			}
			return
		}
		s.stop()
	})
	s.workers.Wait()
}

func (s *Store) keepTime(ctx context.Context) {
	t := time.NewTicker(s.cfg.TickInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.Failed():
			return
		case <-t.C:
			s.Tick()
			if err := s.PollSpace(); err != nil {
				s.cfg.Logger.Warn("free space is not known", zap.Error(err))
			}
		}
	}
}

func (s *shard) work(ctx context.Context) {
	defer close(s.toSync)
	for {
		began := s.now()
		worked, err := s.run()
		if err != nil {
			return // run has shut the shard
		}
		if worked {
			s.took(s.store.cfg.Timings.Round, began)
		}
		if ctx.Err() != nil {
			s.drain()
			return
		}
		if worked {
			continue
		}
		select {
		case <-s.wake:
		case <-s.store.Failed():
		case <-ctx.Done():
		}
	}
}

// waitForSyncs waits for the syncs of batches in the order of their commits.
func (s *shard) waitForSyncs() {
	for b := range s.toSync {
		err := b.batch.SyncWait()
		s.took(s.store.cfg.Timings.Commit, b.began)
		s.syncDone(err)
	}
}

// syncing is a batch whose sync is waited for.
type syncing struct {
	batch *pebble.Batch
	began time.Time // of its write; see now
}

// now is the time for took: zero if nobody is told, or the store is driven from
// outside.
func (s *shard) now() time.Time {
	if s.toSync == nil || s.store.cfg.Timings.Write == nil {
		return time.Time{}
	}
	return time.Now()
}

func (s *shard) took(tell func(time.Duration), began time.Time) {
	if !began.IsZero() {
		tell(time.Since(began))
	}
}

// drainRounds bounds the rounds in which a shard that stops goes on, should
// somebody not stop posting.
const drainRounds = 1000

// drain handles what was posted, also by members to each other meanwhile, until
// nothing is left to do or to wait for, then shuts the shard. What members wait
// for from elsewhere they answer in Close.
func (s *shard) drain() {
	for range drainRounds {
		worked, err := s.run()
		if err != nil {
			return
		}
		if worked {
			continue
		}
		if len(s.syncing) == 0 {
			break
		}
		if s.store.cfg.ManualSync {
			if _, err := s.store.SyncNext(s.index); err != nil {
				continue // the fault, with which run shuts the shard
			}
		} else if s.toSync != nil {
			select {
			case <-s.wake:
			case <-s.store.Failed():
			}
		}
	}
	s.shut(ErrStopped)
}
