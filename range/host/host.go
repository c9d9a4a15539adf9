// Package host holds a node's ranges as others ask them: it loads the replicas when
// they are needed, gives them writes and latches, opens views of them, and keeps in mind
// which are damaged. Who asks is on the same node; the messages and errors are those of
// proto/rangepb.
package host

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/range/replica"
	"github.com/hawser-kv/hawser/range/store"
)

// Config says what a Host works with. All fields without a default are required.
type Config struct {
	NodeID uint64
	DB     *pebble.DB
	MVCC   *mvcc.Store
	// Link is the node's end of the conversation with the sequencer.
	Link replica.SequencerLink
	// Events takes what the replicas have applied, and where a new one begins.
	Events replica.EventSink
	// Failed is called when a range was found damaged and noted in Host.Damaged, on any
	// goroutine; it must not block, nor call Readers. May be nil.
	Failed func()
	// Meta is the member of the meta group, which the store drives beside the replicas.
	Meta store.Member
	// Measures takes what the ranges do. nil: nothing is measured, and no clock is
	// read for it.
	Measures Measures
	Limits   replica.Limits
	// ElectionTicks is Raft's election timeout; 0: raftgroup's default.
	ElectionTicks int
	// Logger may be nil.
	Logger *zap.Logger
}

// Measures takes what the ranges do. All methods are called by many goroutines.
type Measures interface {
	// Wrote takes a write that a range has answered, with the time since it was
	// posted.
	Wrote(rangeID uint64, req *mvcc.Request, took time.Duration, err error)
	// Read takes a view of a range that was closed, with its share of the time since
	// it was opened.
	Read(rangeID uint64, took time.Duration)
	// ReadBytes takes bytes of keys and values that were read of a range.
	ReadBytes(rangeID uint64, n int)
}

// Host is the ranges of one node. All methods are safe for concurrent use once Open
// has returned.
type Host struct {
	// Readers is the reading side of the replicas.
	Readers *replica.Readers
	// Store drives the replicas; nil before Open.
	Store *store.Store
	// Damaged are the ranges whose replica here is not served any more.
	Damaged *DamagedRanges

	cfg Config
	log *zap.Logger
	// hashAwaited is the newest revision whose hash was asked for while a deletion at
	// or below it was pending.
	hashAwaited atomic.Int64

	mu struct {
		sync.Mutex
		// loaded are the replicas in memory, told of a new session.
		loaded  map[uint64]struct{}
		awaited awaited
	}
}

// New returns the ranges of a node for reading. Nothing is loaded before Open.
func New(cfg Config) *Host {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	h := &Host{
		Readers: replica.NewReaders(cfg.DB, cfg.MVCC), Damaged: newDamagedRanges(),
		cfg: cfg, log: cfg.Logger,
	}
	h.Readers.Failed = h.failed
	h.mu.loaded = make(map[uint64]struct{})
	return h
}

// EnsureBoundaries tells the counts where ranges begin, before anything is
// applied: a crash may have come between a split's batch and that note.
func (h *Host) EnsureBoundaries(ids []uint64) error {
	b := h.cfg.DB.NewBatch()
	defer func() { _ = b.Close() }() // committed or given up
	for _, id := range ids {
		d := h.Readers.Descriptor(id)
		if d == nil || len(d.Start) == 0 {
			continue
		}
		if err := h.cfg.MVCC.EnsureBoundary(b, d.Start); err != nil {
			return err
		}
	}
	if b.Empty() {
		return nil
	}
	return b.Commit(pebble.NoSync)
}

// Open opens the store that drives the replicas; DB, Loader and Logger of its
// configuration are filled in. Who opens it starts and stops it.
func (h *Host) Open(cfg store.Config) (err error) {
	cfg.DB, cfg.Loader, cfg.Logger = h.cfg.DB, h.load, h.log
	h.Store, err = store.Open(cfg)
	return err
}

// HashAwaited returns the newest revision whose hash was asked for while a deletion at
// or below it was pending; 0 if none was.
func (h *Host) HashAwaited() int64 { return h.hashAwaited.Load() }
