package watch

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
)

// Service drives a Hub: it is what the node's cuts and applied events go to
// and what the Watch calls take from. Writers never wait for watchers: what
// they bring is put into the hub's inbox, and everything else happens on the
// service's own goroutines.
type Service struct {
	cfg      Config
	frontier *Frontier
	hub      *Hub
	kick     chan struct{}
	work     chan struct{}
	stop     context.CancelFunc
	done     sync.WaitGroup
	mu       struct {
		sync.Mutex
		streams map[*Stream]struct{}
	}
}

// Config says how a Service runs.
type Config struct {
	// History is where watchers that are behind read.
	History History
	// EventsComplete returns the revision up to which History has all events above
	// after of the keys of [start, end), end empty for the end of the keyspace, that
	// were applied; see HistoryGrew. Nil: it always has.
	EventsComplete func(start, end []byte, after int64) int64
	// ProgressInterval is the time between progress notifications of the
	// watchers that asked for them (etcd/W15). Default 10 minutes.
	ProgressInterval time.Duration
	// Readers is the number of history reads under way at once. Default 2:
	// enough to keep a disk busy without taking the CPU from the writers.
	Readers int
	Limits  Limits
	Logger  *zap.Logger
}

// NewService returns a service over frontier that is not running yet.
func NewService(frontier *Frontier, cfg Config) *Service {
	if cfg.ProgressInterval <= 0 {
		cfg.ProgressInterval = 10 * time.Minute
	}
	if cfg.Readers <= 0 {
		cfg.Readers = 2
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	s := &Service{
		cfg:      cfg,
		frontier: frontier,
		hub:      NewHub(frontier, cfg.Limits),
		kick:     make(chan struct{}, 1),
		work:     make(chan struct{}, cfg.Readers),
	}
	if cfg.EventsComplete != nil {
		s.hub.eventsComplete = cfg.EventsComplete
	}
	s.mu.streams = make(map[*Stream]struct{})
	return s
}

// Start starts the service's goroutines; Stop ends them.
func (s *Service) Start() {
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	s.done.Add(1 + s.cfg.Readers)
	go s.run(ctx)
	for range s.cfg.Readers {
		go s.read(ctx)
	}
}

// Stop ends the service's goroutines and waits for them.
func (s *Service) Stop() {
	s.stop()
	s.done.Wait()
}

// Frontier returns the frontier that the service emits by.
func (s *Service) Frontier() *Frontier { return s.frontier }

// Cut takes a cut of S. It does not block.
func (s *Service) Cut(c *placementpb.Cut) {
	s.frontier.Cut(c)
	s.wake()
}

// Applied takes what a range of this node has applied: its events, in
// revision order, and the revision it has resolved. The batch must be visible
// in the engine. It does not block.
func (s *Service) Applied(rangeID uint64, resolved int64, events []mvcc.Event) {
	if len(events) > 0 {
		s.hub.Applied(events)
	}
	if s.frontier.Resolved(rangeID, resolved) || len(events) > 0 {
		s.wake()
	}
}

// Loaded takes what a replica of this node had resolved when its state was
// found on disk: to be called for each before the first cut.
func (s *Service) Loaded(rangeID uint64, resolved int64) {
	s.mu.Lock()
	s.hub.Loaded(resolved)
	s.mu.Unlock()
	s.frontier.Resolved(rangeID, resolved)
}

// Damaged says that the keys of [start, end) are not served here any more: their
// watchers end, and so do those that are created later.
func (s *Service) Damaged(start, end []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hub.Damaged(start, end)
}

// HistoryGrew says that EventsComplete may have grown.
func (s *Service) HistoryGrew() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hub.HistoryGrew()
	s.wakeReadersLocked()
}

// AwaitsHistory says whether a watcher waits for EventsComplete to grow.
func (s *Service) AwaitsHistory() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hub.AwaitsHistory()
}

func (s *Service) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

func (s *Service) run(ctx context.Context) {
	defer s.done.Done()
	ticker := time.NewTicker(s.cfg.ProgressInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.kick:
			s.Step()
		case <-ticker.C:
			s.mu.Lock()
			for st := range s.mu.streams {
				st.ProgressTick()
			}
			s.mu.Unlock()
		}
	}
}

// Step emits what the frontier allows. Start's goroutine does it whenever there
// is news; a simulation calls it instead of Start.
func (s *Service) Step() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hub.Step()
	s.wakeReadersLocked()
}

func (s *Service) wakeReadersLocked() {
	for range min(len(s.hub.tasks), s.cfg.Readers) {
		select {
		case s.work <- struct{}{}:
		default:
			return
		}
	}
}

// read carries out reads of history, one after the other.
func (s *Service) read(ctx context.Context) {
	defer s.done.Done()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.work:
		}
		for ctx.Err() == nil {
			began := time.Now()
			if !s.ReadHistory() {
				break
			}
			s.rest(ctx, time.Since(began))
		}
	}
}

// rest lets watchers gather for the next read for as long as the last one took:
// those of a client that creates one after the other would each find a reader
// free, and share nothing. So trickles of them cost half of a reader's time at
// most, and those that come when nothing is read do not wait.
func (s *Service) rest(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(min(d, maxRest)):
	}
}

const maxRest = 100 * time.Millisecond

// ReadHistory carries out one read of history for watchers that are behind and
// reports whether there was one. Start's goroutines do it; a simulation calls it
// instead.
func (s *Service) ReadHistory() bool {
	s.mu.Lock()
	task, ok := s.hub.NextTask()
	s.mu.Unlock()
	if !ok {
		return false
	}
	res := task.Run(s.cfg.History)
	if res.err != nil && !errors.Is(res.err, mvcc.ErrCompacted) { // that one is for the clients
		s.cfg.Logger.Warn("reading history for watchers", zap.Error(res.err), zap.Int("watchers", len(task.riders)))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hub.TaskDone(task, res)
	return true
}

// Stats are figures for metrics and tests.
type Stats struct {
	Streams, Watchers, Behind int
	// BufferedBytes are held for watchers until the frontier allows to emit them,
	// QueuedBytes wait to be sent on streams or are being sent: Limits bounds both.
	BufferedBytes, QueuedBytes int
	// Reads of history that were begun since the start, and the rows of the
	// revision index that they have walked: watchers that are behind together
	// share them.
	Reads, ReadRows int64
}

// Stats returns the service's figures of this moment.
func (s *Service) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, behind := s.hub.Watchers()
	return Stats{
		Streams: len(s.mu.streams), Watchers: all, Behind: behind, BufferedBytes: s.hub.Buffered(), QueuedBytes: s.hub.queued,
		Reads: s.hub.reads, ReadRows: s.hub.readRows,
	}
}

// Client is one Watch call. Its methods may be called from any goroutine; Next by
// one at a time. While the stream's queue is full, because its client does not
// read, requests wait: their answers would come on top of it.
type Client struct {
	s      *Service
	stream *Stream
	ready  chan struct{}
	// room tells that the queue was drained, closed that the call has ended.
	room   chan struct{}
	closed chan struct{}
	taken  bool
}

// Open opens a stream. The caller closes it.
func (s *Service) Open() *Client {
	c := &Client{s: s, ready: make(chan struct{}, 1), room: make(chan struct{}, 1), closed: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	c.stream = s.hub.NewStream(func() {
		select {
		case c.ready <- struct{}{}:
		default:
		}
	})
	s.mu.streams[c.stream] = struct{}{}
	return c
}

// Create makes a watcher or queues its refusal.
func (c *Client) Create(r CreateRequest) { c.do(func() { c.stream.Create(r) }) }

// Cancel ends a watcher; current is the header's revision.
func (c *Client) Cancel(id, current int64) { c.do(func() { c.stream.Cancel(id, current) }) }

// RequestProgress asks for progress up to current.
func (c *Client) RequestProgress(current int64) { c.do(func() { c.stream.RequestProgress(current) }) }

func (c *Client) do(fn func()) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	for !c.stream.closed && c.stream.full() {
		c.s.mu.Unlock()
		select {
		case <-c.room:
		case <-c.closed:
		}
		c.s.mu.Lock()
		if !c.stream.full() {
			c.hasRoom() // others may wait, too
		}
	}
	fn()
	c.s.wakeReadersLocked()
	if len(c.s.hub.progress) > 0 {
		c.s.wake()
	}
}

// Full reports whether a request would wait now. A simulation asks first: what
// drives it must never wait.
func (c *Client) Full() bool {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return !c.stream.closed && c.stream.full()
}

// hasRoom has the requests that wait look at the queue again.
func (c *Client) hasRoom() {
	select {
	case c.room <- struct{}{}:
	default:
	}
}

// Next waits for responses and hands them over; what it handed over before
// counts as sent. It fails with the context's error, or with the fault that
// ended the stream.
func (c *Client) Next(ctx context.Context) ([]*Response, error) {
	for {
		c.s.mu.Lock()
		if c.taken {
			c.taken = false
			c.stream.Drained()
			c.s.wakeReadersLocked()
			c.hasRoom()
		}
		out, err := c.stream.Take(), c.stream.Err()
		c.taken = len(out) > 0
		c.s.mu.Unlock()
		switch {
		case len(out) > 0:
			return out, nil
		case err != nil:
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-c.ready:
		}
	}
}

// Close ends the stream and its watchers.
func (c *Client) Close() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if !c.stream.closed {
		close(c.closed)
	}
	c.stream.Close()
	delete(c.s.mu.streams, c.stream)
}
