// Package router answers requests over the whole keyspace from ranges: which
// ranges a request touches, one revision for all of them, and what to do when a
// range is split, has no leader, or the sequencer S is silent (revisions.md R4,
// R5, R7, R11).
//
// The core is a set of small state machines driven by callbacks: it starts no
// goroutine, never blocks and takes time only through Config.After, so the
// simulation runs it from one thread. The blocking façade for the gRPC handlers
// (wait.go) puts a goroutine's wait around it; what may take long (evaluating a
// read, finishing a response) runs there, not on the ranges' workers.
//
// What is tried again is only what proves that nothing was applied. Anything
// else reaches the client as Unavailable, as in etcd.
package router

import (
	"container/list"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// Config is what a Router is made of.
type Config struct {
	Ranges    Ranges
	Sequencer Sequencer
	// Frontier serves serializable reads without S. nil: they ask S.
	Frontier Frontier
	// LeaseExists tells whether a lease lives, as far as this node knows. nil:
	// none does.
	LeaseExists func(id int64) bool
	// After calls f once, d from now, unless stopped before. nil:
	// time.AfterFunc.
	After func(d time.Duration, f func()) (stop func())
	// RequestTimeout ends a request on the server's side (etcd/X8). 0:
	// 7 s, etcd's default of 5 s + 2 election timeouts.
	RequestTimeout time.Duration
	// MaxPending bounds the requests under way; above it the answer is
	// ErrTooManyRequests (etcd/X9). Each costs a few kilobytes. 0: 20,000.
	MaxPending int64
	// MaxHeldBytes bounds the writes that ranges and S hold, in bytes of
	// requests: what they were sent and have not answered, though its client
	// may have left. Above it the answer is ErrTooManyRequests. It matters when
	// the disk stands still and clients come again. 0: 512 MiB.
	MaxHeldBytes int64
	// Responses bounds the memory of large responses. nil: 1 GiB.
	Responses *Responses
	// SpanKeys is how many keys the deletes of one request over several ranges may end
	// one by one: beyond, they are deletions of spans, whose cost does not depend on
	// the number of keys. 0: 4,096.
	SpanKeys int64
	// PendingSpans returns how many deletions of spans this node has not written out
	// yet. nil: none.
	PendingSpans func() int
	// MaxPendingSpans bounds them: while there are as many, a request that would delete
	// spans waits, for half of RequestTimeout at most; then the answer is
	// ErrTooManyRequests. Every read of a version looks through them all, and a
	// watcher of the last waits for all before. One request may bring as many as there
	// are ranges. 0: 128.
	MaxPendingSpans int
	// Logger may be nil.
	Logger *zap.Logger
}

// Bounds of waiting inside the router.
const (
	// minBackoff and maxBackoff bound the wait before a try that cannot be
	// helped by a newer directory.
	minBackoff = time.Millisecond
	maxBackoff = 100 * time.Millisecond
	// nudgeAfter is how long a read waits for a range before it nudges it, and
	// again.
	nudgeAfter = 300 * time.Millisecond
	// serializableWait is how long a serializable read waits for S when the
	// node's newest cut is older than what the node has already answered.
	serializableWait = 100 * time.Millisecond
)

// EnsureDefaults fills what is zero.
func (c *Config) EnsureDefaults() {
	if c.After == nil {
		c.After = func(d time.Duration, f func()) func() {
			t := time.AfterFunc(d, f)
			return func() { t.Stop() }
		}
	}
	if c.RequestTimeout == 0 {
		c.RequestTimeout = 7 * time.Second
	}
	if c.MaxPending == 0 {
		c.MaxPending = 20_000
	}
	if c.SpanKeys == 0 {
		c.SpanKeys = 4096
	}
	if c.PendingSpans == nil {
		c.PendingSpans = func() int { return 0 }
	}
	if c.MaxPendingSpans == 0 {
		c.MaxPendingSpans = 128
	}
	if c.MaxHeldBytes == 0 {
		c.MaxHeldBytes = 512 << 20
	}
	if c.Responses == nil {
		c.Responses = NewResponses(1 << 30)
	}
	if c.LeaseExists == nil {
		c.LeaseExists = func(int64) bool { return false }
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
}

// Validate says what is missing.
func (c *Config) Validate() error {
	var errs []error
	if c.Ranges == nil {
		errs = append(errs, errors.New("router: Ranges is nil"))
	}
	if c.Sequencer == nil {
		errs = append(errs, errors.New("router: Sequencer is nil"))
	}
	return errors.Join(errs...)
}

// Errors of the router. proxy/errors.go maps them to etcd's.
var (
	// ErrTimeout: the request timeout passed. A write may have been applied.
	ErrTimeout = errors.New("router: request timed out")
	// ErrCanceled: the client left a write.
	ErrCanceled = errors.New("router: request canceled by the client")
	// ErrTooManyRequests: MaxPending requests are under way, MaxHeldBytes are
	// held, MaxPendingSpans are pending, or the queue of a range is full.
	ErrTooManyRequests = errors.New("router: too many requests")
	// ErrStopped: the router was stopped.
	ErrStopped = errors.New("router: stopped")
	// ErrUnknownFate: contact was lost after the write was sent; it may have
	// been applied.
	ErrUnknownFate = errors.New("router: fate of the request is unknown")
	// ErrNoSpace: a store is low on space.
	ErrNoSpace = errors.New("router: no space")
	// ErrBoundaryExists: the key is the start of a range already.
	ErrBoundaryExists = errors.New("router: key is a boundary already")
)

// Router routes requests. All methods are safe for concurrent use.
type Router struct {
	cfg Config
	dir atomic.Pointer[Directory]
	// answered is the highest revision given to a client of this node: what a
	// serializable read does not go below.
	answered atomic.Int64

	pending, pendingWrites atomic.Int64
	// held counts what MaxHeldBytes bounds.
	held atomic.Int64
	// spansUnderWay counts the deletions of spans that were evaluated and are not
	// decided: they may become pending.
	spansUnderWay atomic.Int64
	counters      counters

	// turns are those of the requests that splits have sent back.
	turns turns

	waiters waiterPool
	// stopped are closed by Stop. Requests wait on one of several: a channel that
	// all of them share is a lock that all of them meet.
	stopped  [16]chan struct{}
	stopOnce sync.Once

	mu struct {
		sync.Mutex
		// byCuts is the directory as the cuts tell it. The published one may
		// be ahead of it by a hint until the next change comes.
		byCuts *Directory
		// onDirectory holds the *directoryWait that the next change wakes, in
		// the order of their coming.
		onDirectory list.List
	}
}

// New returns a router. It serves when the first cut has come.
func New(cfg Config) (*Router, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	r := &Router{cfg: cfg}
	for i := range r.stopped {
		r.stopped[i] = make(chan struct{})
	}
	r.waiters.stopped = r.stopped[:]
	return r, nil
}

// Stop ends the waiting of every request under way and of those to come with
// ErrStopped.
func (r *Router) Stop() {
	r.stopOnce.Do(func() {
		for _, c := range r.stopped {
			close(c)
		}
	})
}

// Directory returns the newest picture of the ranges, nil before the first cut.
func (r *Router) Directory() *Directory { return r.dir.Load() }

// Responses returns the bound of what large responses hold.
func (r *Router) Responses() *Responses { return r.cfg.Responses }

// Pending returns the number of requests under way.
func (r *Router) Pending() int64 { return r.pending.Load() }

// PendingWrites returns the number of requests under way that may write.
func (r *Router) PendingWrites() int64 { return r.pendingWrites.Load() }

// Stats are counters of a router since New.
type Stats struct {
	// Transactions over several ranges that were begun, each try counted;
	// TransactionRetries are the tries that ended with another one.
	Transactions, TransactionRetries uint64
	// TransactionRecuts are the times that a try found a range split before it
	// was latched, and looked up newer ones while it kept its latches.
	TransactionRecuts uint64
	// ReadRetries and WriteRetries are tries of reads and of writes in one range
	// that ended with another one: a split, no leader, S between two terms.
	ReadRetries, WriteRetries uint64
	// SlowReads are waits of a read for a range that took so long that the range
	// was nudged; FailedQueries were given no answer by S.
	SlowReads, FailedQueries uint64
	// Rereads are writes without effect that were answered as reads (R4).
	Rereads uint64
	// RoomWaits are tries of requests that gave up what they had read, for other
	// responses had the memory, and waited for their turn.
	RoomWaits uint64
}

type counters struct {
	transactions, transactionRetries, transactionRecuts, readRetries, writeRetries, rereads, slowReads, failedQueries, roomWaits atomic.Uint64
}

// Stats returns the router's counters.
func (r *Router) Stats() Stats {
	c := &r.counters
	return Stats{
		Transactions: c.transactions.Load(), TransactionRetries: c.transactionRetries.Load(),
		TransactionRecuts: c.transactionRecuts.Load(),
		ReadRetries:       c.readRetries.Load(), WriteRetries: c.writeRetries.Load(), Rereads: c.rereads.Load(),
		SlowReads: c.slowReads.Load(), FailedQueries: c.failedQueries.Load(),
		RoomWaits: c.roomWaits.Load(),
	}
}

// Cut takes a cut of the node's subscription; the calls come in order. An error
// means that S sent a directory that does not tile: it is not taken.
func (r *Router) Cut(cut *placementpb.Cut) error {
	r.mu.Lock()
	d, err := r.mu.byCuts.Apply(cut)
	if err != nil || d == r.mu.byCuts {
		r.mu.Unlock()
		if err != nil {
			return fmt.Errorf("router: cut at revision %d: %w", cut.Revision, err)
		}
		return nil
	}
	r.mu.byCuts = d
	wake := r.publishLocked(d)
	r.mu.Unlock()
	wake()
	return nil
}

// learn takes newer descriptors from an error. They count until the next change
// that comes with a cut.
func (r *Router) learn(hints []*rangepb.RangeDescriptor) {
	if len(hints) == 0 {
		return
	}
	r.mu.Lock()
	old := r.dir.Load()
	if old == nil {
		r.mu.Unlock()
		return
	}
	d := old.Newer(hints)
	if d == old {
		r.mu.Unlock()
		return
	}
	wake := r.publishLocked(d)
	r.mu.Unlock()
	wake()
}

// publishLocked makes d the directory of new attempts and returns what to call
// without the lock.
func (r *Router) publishLocked(d *Directory) (wake func()) {
	r.dir.Store(d)
	var waits []*directoryWait
	for e := r.mu.onDirectory.Front(); e != nil; {
		next := e.Next()
		if w := e.Value.(*directoryWait); w.newer(d) {
			r.mu.onDirectory.Remove(e)
			w.elem = nil
			waits = append(waits, w)
		}
		e = next
	}
	return func() {
		for _, w := range waits {
			w.stop()
			w.f()
		}
	}
}

// directoryWait is one attempt that waits for a newer directory or its backoff,
// whichever comes first.
type directoryWait struct {
	// newer tells whether a directory is one to go on with.
	newer func(*Directory) bool
	f     func()
	stop  func()
	// elem is the place in onDirectory, nil once woken. Guarded by Router.mu.
	elem *list.Element
}

// retryLater calls f when the directory is another than seen, at once if it is
// already, or after the backoff of the attempt.
func (r *Router) retryLater(seen *Directory, attempt int, f func()) {
	r.retryWhen(func(d *Directory) bool { return d != seen }, attempt, f)
}

// retryWhen calls f when newer says so of the directory, at once if it does
// already, or after the backoff of the attempt.
func (r *Router) retryWhen(newer func(*Directory) bool, attempt int, f func()) {
	w := &directoryWait{newer: newer, f: f}
	r.mu.Lock()
	if newer(r.dir.Load()) {
		r.mu.Unlock()
		f()
		return
	}
	w.elem = r.mu.onDirectory.PushBack(w)
	// The timer's callback takes the lock, so it comes after w is complete.
	w.stop = r.cfg.After(backoff(attempt), func() {
		r.mu.Lock()
		mine := w.elem != nil
		if mine {
			r.mu.onDirectory.Remove(w.elem)
			w.elem = nil
		}
		r.mu.Unlock()
		if mine {
			w.f()
		}
	})
	r.mu.Unlock()
}

func backoff(attempt int) time.Duration {
	d := minBackoff
	for i := 1; i < attempt && d < maxBackoff; i++ {
		d *= 2
	}
	return min(d, maxBackoff)
}

// sawRevision remembers what a client was told.
func (r *Router) sawRevision(rev int64) {
	for {
		old := r.answered.Load()
		if old >= rev || r.answered.CompareAndSwap(old, rev) {
			return
		}
	}
}

func (r *Router) env(share *Share) mvcc.Env {
	return mvcc.Env{LeaseExists: r.cfg.LeaseExists, Response: share, SpanKeys: r.cfg.SpanKeys}
}
