// Package store runs all replicas of a node on one engine: a worker per shard
// goes round its members that have something to do, and everything they stage
// in a round is one engine batch with at most one sync. It knows neither Raft
// nor requests: members bring these.
package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/range/engine"
	"github.com/hawser-kv/hawser/range/keys"
)

// metaGroup is the slot that always goes first.
const metaGroup = keys.MetaGroupID

var (
	// ErrStopped answers what is sent to a store that has stopped.
	ErrStopped = errors.New("store: stopped")
	// ErrNoSpace refuses new writes while the disk is nearly full. It is also in
	// the chain of the fault when the engine ran into the end of the disk.
	ErrNoSpace = engine.ErrNoSpace
	// ErrNotServed is wrapped by the error of a Loader that another attempt would
	// not change: the group's data is damaged, or a newer release wrote it.
	ErrNotServed = errors.New("store: group is not served")
)

// Config says how a store works. Zero values mean defaults.
type Config struct {
	// DB is the node's engine. The store commits to it and does not close it.
	DB *pebble.DB
	// Loader makes the member of a group, on the worker. An error refuses what
	// waited for it; one that wraps ErrNotServed, raftlog.ErrCorrupt or
	// raftlog.ErrFormat closes the slot for good.
	Loader func(id uint64) (Member, error)
	// Fault is shared with others who write to DB; see there. Default: the
	// store's own.
	Fault  *engine.Fault
	Logger *zap.Logger
	// Transport may be nil: messages to peers are dropped.
	Transport Transport
	// Shards is the number of workers that the ranges are spread over: group id
	// modulo Shards says whose a group is. Ids are given out in order, so no shard
	// has many more than another. Default 1.
	Shards int
	// MetaShard gives the meta group a worker of its own, with the index Shards, so
	// that its work never waits behind that of a range. Else it is the first
	// shard's, where it goes first in each pass.
	MetaShard bool
	// TickInterval is the time between two ticks. Default 100 ms.
	TickInterval time.Duration
	// MaxSyncs bounds the syncs of a shard in flight beyond which members are
	// asked not to append (Round.CanPropose). 2 keep the disk busy. Default 2.
	MaxSyncs int
	// MaxBatchBytes ends a round: members that are still ready come first in
	// the next. A member may stage more than that at once. Default 4 MiB.
	MaxBatchBytes int
	// MaxPasses bounds how often a round goes over members that have got
	// something new meanwhile. Default 16.
	MaxPasses int
	// MaxItems bounds the items of one inbox that are handled before the next
	// member has its turn. Default 1024.
	MaxItems int

	// FreeBytes says how much room the engine's disk has; see LowSpace. Default:
	// none, and room is never low.
	FreeBytes func() (uint64, error)
	// ReserveBytes is the room that is left for what is under way, compactions
	// and deletes. Default 256 MiB.
	ReserveBytes uint64
	// QuotaBytes bounds what UsedBytes says; see LowSpace. Default: no bound.
	QuotaBytes int64
	// UsedBytes says how much of the quota is used. Not nil with a quota.
	UsedBytes func() int64

	// Timings are told how long things take. Under Start only: who drives the store
	// itself has a time of its own.
	Timings Timings

	// BeforeCommit is called by the worker before each engine commit. An error
	// is a fault, as if the engine had answered it. For tests: a crash between
	// any two engine writes.
	BeforeCommit func(shard int, b *pebble.Batch, sync bool) error
	// ManualSync leaves the end of each sync to the caller of SyncNext, who is
	// also the caller of RunRound. Start is not allowed.
	ManualSync bool
}

// Timings take durations. All are called by the shards' workers, or all are nil.
type Timings struct {
	// Write: a batch was given to the engine, which put it into its log's buffer and
	// its memtable.
	Write func(time.Duration)
	// Commit: a batch was given to the engine and became durable.
	Commit func(time.Duration)
	// Round: a worker did a round in which there was something to do. All ranges of
	// the shard waited for it.
	Round func(time.Duration)
}

func (c *Config) ensureDefaults() {
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	if c.Fault == nil {
		c.Fault = engine.NewFault()
	}
	c.Shards = cmp.Or(c.Shards, 1)
	c.TickInterval = cmp.Or(c.TickInterval, 100*time.Millisecond)
	c.MaxSyncs = cmp.Or(c.MaxSyncs, 2)
	c.MaxBatchBytes = cmp.Or(c.MaxBatchBytes, 4<<20)
	c.MaxPasses = cmp.Or(c.MaxPasses, 16)
	c.MaxItems = cmp.Or(c.MaxItems, 1024)
	c.ReserveBytes = cmp.Or(c.ReserveBytes, 256<<20)
}

func (c *Config) validate() error {
	var errs []error
	if c.DB == nil {
		errs = append(errs, errors.New("no engine"))
	}
	if c.Loader == nil {
		errs = append(errs, errors.New("no loader"))
	}
	if c.QuotaBytes > 0 && c.UsedBytes == nil {
		errs = append(errs, errors.New("a quota, and nobody who knows what is used"))
	}
	if c.Shards < 1 || c.MaxSyncs < 1 || c.MaxBatchBytes < 1 || c.MaxPasses < 1 || c.MaxItems < 1 {
		errs = append(errs, fmt.Errorf("limits below 1: %d shards, %d syncs, %d bytes, %d passes, %d items",
			c.Shards, c.MaxSyncs, c.MaxBatchBytes, c.MaxPasses, c.MaxItems))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("store: config: %w", err)
	}
	return nil
}

// Store hosts the members of a node.
type Store struct {
	cfg    Config
	shards []*shard

	// low: see LowSpace.
	low atomic.Bool
	// lowDisk and lowQuota are why. Only PollSpace uses them.
	lowDisk, lowQuota bool

	stop     context.CancelFunc
	workers  sync.WaitGroup
	stopOnce sync.Once
}

// Open returns a store that has loaded nothing. Drive it with Start, or with
// RunRound, Tick and, under ManualSync, SyncNext from one thread.
func Open(cfg Config) (*Store, error) {
	cfg.ensureDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg}
	for i := range cfg.workers() {
		s.shards = append(s.shards, newShard(s, i))
	}
	if err := s.PollSpace(); err != nil {
		return nil, err
	}
	return s, nil
}

func (c *Config) workers() int {
	if c.MetaShard {
		return c.Shards + 1
	}
	return c.Shards
}

// Workers is the number of shards, that of the meta group included: RunRound and
// SyncNext take an index below it.
func (s *Store) Workers() int { return len(s.shards) }

func (s *Store) shardOf(id uint64) *shard {
	if id == metaGroup && s.cfg.MetaShard {
		return s.shards[s.cfg.Shards]
	}
	return s.shards[id%uint64(s.cfg.Shards)]
}

// Post puts an item into the inbox of a group, whose member is loaded if it is
// not in memory, and wakes the worker. Safe for concurrent use, also from
// members and callbacks; it never calls the member.
func (s *Store) Post(id uint64, ev any) {
	if err := s.shardOf(id).post(id, ev); err != nil {
		refuse(ev, err)
	}
}

func refuse(ev any, err error) {
	if r, ok := ev.(Refuser); ok {
		r.Refuse(err)
	}
}

// Load has the member of a group loaded if it is not, and flushed.
func (s *Store) Load(id uint64) { s.Post(id, nil) }

// Failed is closed when a fault has stopped the store. Err tells which.
func (s *Store) Failed() <-chan struct{} { return s.cfg.Fault.Failed() }

// Err returns the fault that stopped the store, nil if none did.
func (s *Store) Err() error { return s.cfg.Fault.Err() }

// fail stops the store: nothing is committed from here on. The first fault
// counts. Members are closed by their workers.
func (s *Store) fail(err error) {
	if s.cfg.Fault.Set(err) {
		s.cfg.Logger.Error("store stops", zap.Error(s.Err()))
	}
}

// Stats are counters of a shard since Open.
type Stats struct {
	Rounds, Commits, Syncs, Flushes, BatchBytes, Loads, Unloads uint64
	// Loaded members and syncs in flight now.
	Loaded, Syncing int
}

// Stats returns the counters of all shards together. Safe for concurrent use.
func (s *Store) Stats() Stats {
	var sum Stats
	for _, sh := range s.shards {
		c := &sh.counters
		sum.Rounds += c.rounds.Load()
		sum.Commits += c.commits.Load()
		sum.Syncs += c.syncs.Load()
		sum.Flushes += c.flushes.Load()
		sum.BatchBytes += c.batchBytes.Load()
		sum.Loads += c.loads.Load()
		sum.Unloads += c.unloads.Load()
		sum.Loaded += int(c.loaded.Load())
		sum.Syncing += int(c.syncing.Load())
	}
	return sum
}
