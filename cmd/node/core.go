package node

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/placement"
	"github.com/hawser-kv/hawser/placement/client"
	"github.com/hawser-kv/hawser/placement/meta"
	"github.com/hawser-kv/hawser/placement/sequencer"
	"github.com/hawser-kv/hawser/proto/adminpb"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/proxy/router"
	"github.com/hawser-kv/hawser/proxy/watch"
	"github.com/hawser-kv/hawser/range/compactor"
	"github.com/hawser-kv/hawser/range/engine"
	"github.com/hawser-kv/hawser/range/keys"
	"github.com/hawser-kv/hawser/range/materialiser"
	"github.com/hawser-kv/hawser/range/raftlog"
	"github.com/hawser-kv/hawser/range/replica"
	"github.com/hawser-kv/hawser/range/shortage"
	"github.com/hawser-kv/hawser/range/store"
)

// metaReplicaID is the Raft id of this node in the meta group: the first of a
// cluster.
const metaReplicaID = 1

// CoreConfig says what a Core is made of.
type CoreConfig struct {
	Engine    engine.Config // Logger is filled in
	MVCC      mvcc.Options
	Store     store.Config // DB, Loader, Fault are filled in
	Sequencer sequencer.Config
	Limits    replica.Limits
	// ElectionTicks is Raft's election timeout; how long the frontier waits for a
	// range before it is nudged, too. 0: 10.
	ElectionTicks int
	Watch         watch.Config // History is filled in
	Router        router.Config
	// CompactionBatch and the rest of the compactor's manners.
	Compactor compactor.Config
	// Materialiser's manners; what it works on is filled in.
	Materialiser materialiser.Config
	// Registry takes what the node measures of its own work. nil: nothing is
	// measured, and no clock is read for it.
	Registry prometheus.Registerer
	Logger   *zap.Logger
}

// Core is everything of a node below its listeners: engine, ranges, placement
// service, router and watch hub, wired together. It starts no goroutine before
// Start; a simulation drives its parts from one thread instead.
type Core struct {
	ClusterID, NodeID uint64

	DB        *pebble.DB
	MVCC      *mvcc.Store
	Readers   *replica.Readers
	Store     *store.Store
	Placement *placement.Service
	Client    *client.Client
	Frontier  *watch.Frontier
	Watch     *watch.Service
	Router    *router.Router
	Compactor *compactor.Compactor
	// Materialiser writes out large deletions.
	Materialiser *materialiser.Materialiser

	engine *engine.Engine
	log    *zap.Logger
	cfg    CoreConfig
	detach func()
	meta   metaStatus
	// metaMember is the meta group's, for the store to load.
	metaMember *metaMember
	measures   *measures // nil: nothing is measured
	// hashAwaits is the newest revision whose hash was asked for while a deletion at or
	// below it was pending.
	hashAwaits atomic.Int64
	// damage is what was found damaged.
	damage *damage

	mu struct {
		sync.Mutex
		// loaded are the replicas in memory, told of a new session.
		loaded  map[uint64]struct{}
		awaited awaited
	}
	closeOnce sync.Once
	closeErr  error
}

// OpenCore opens a data directory, or makes a new one, and wires a node over
// it. The error names what to do where the user can do something; the data is
// untouched then.
func OpenCore(cfg CoreConfig) (_ *Core, err error) {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	cfg.ElectionTicks = cmp.Or(cfg.ElectionTicks, 10)
	cfg.Engine.Logger = cfg.Logger
	var m *measures
	if cfg.Registry != nil {
		m = newMeasures(cfg.Registry)
		cfg.Engine.Stalled = m.stalls.set
	}
	e, err := engine.Open(cfg.Engine)
	if err != nil {
		return nil, err
	}
	c := &Core{
		ClusterID: e.Identity.ClusterID, NodeID: e.Identity.NodeID,
		DB: e.DB, engine: e, log: cfg.Logger, cfg: cfg, measures: m, damage: newDamage(),
	}
	c.mu.loaded = make(map[uint64]struct{})
	defer func() {
		if err != nil {
			err = errors.Join(err, c.closeEngine(false))
		}
	}()
	if err := e.Fault.Write(c.open); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Core) open() (err error) {
	if c.MVCC, err = mvcc.Open(c.DB, c.cfg.MVCC); err != nil {
		return c.explain("open the engine", err)
	}
	if err := c.bootstrap(); err != nil {
		return err
	}
	return c.wire()
}

// bootstrap stages, once and durably, the first replica of the meta group and
// of the range that covers everything. A crash before leaves nothing behind.
func (c *Core) bootstrap() error {
	b := c.DB.NewBatch()
	defer func() { _ = b.Close() }() // committed or given up
	if _, err := raftlog.ReadApplied(c.DB, keys.MetaGroupID); err == nil {
		return c.engine.Complete()
	} else if !errors.Is(err, raftlog.ErrNotFound) {
		return c.explain(metaPart, err)
	}
	if !c.engine.IsNew() {
		return c.explain(metaPart, fmt.Errorf("%w: no applied state", raftlog.ErrCorrupt))
	}
	if err := raftlog.Bootstrap(c.DB, b, keys.MetaGroupID, []uint64{metaReplicaID}, nil); err != nil {
		if errors.Is(err, raftlog.ErrExists) {
			err = fmt.Errorf("%w: no applied state: %w", raftlog.ErrCorrupt, err)
		}
		return c.explain(metaPart, err)
	}
	for _, d := range c.firstRanges().Ranges {
		if _, err := replica.Stage(c.DB, b, c.NodeID, d, meta.FirstRevision); err != nil {
			return err
		}
	}
	if err := b.Commit(pebble.Sync); err != nil {
		return fmt.Errorf("%s: first write: %w", c.engine.Dir(), err)
	}
	return c.engine.Complete()
}

// firstRanges is the directory of a new cluster: one range over everything.
func (c *Core) firstRanges() *placementpb.Bootstrap {
	return meta.NewBootstrap(c.ClusterID, nil, []*rangepb.Replica{{NodeId: c.NodeID, ReplicaId: 1}})
}

// nextSession takes the node's next block of session numbers: a session is
// never used twice, over restarts too (R3).
func (c *Core) nextSession() (uint64, error) {
	const block = 1 << 20
	key := keys.Node("session")
	var last uint64
	v, closer, err := c.DB.Get(key)
	switch {
	case err == nil:
		if len(v) == 8 {
			last = binary.BigEndian.Uint64(v)
		}
		size := len(v)
		if err := closer.Close(); err != nil {
			return 0, err
		}
		if size != 8 {
			return 0, fmt.Errorf("%w: %d bytes", pebble.ErrCorruption, size)
		}
	case !errors.Is(err, pebble.ErrNotFound):
		return 0, err
	}
	next := last + block
	if err := c.DB.Set(key, binary.BigEndian.AppendUint64(nil, next), pebble.Sync); err != nil {
		return 0, err
	}
	return last + 1, nil
}

func (c *Core) wire() (err error) {
	c.Readers = replica.NewReaders(c.DB, c.MVCC)
	c.Readers.Failed = c.rangeFailed
	c.Frontier = watch.NewFrontier()
	ids, err := replica.List(c.DB)
	if err != nil {
		return c.explain("list of the replicas", err)
	}

	// What the node cannot be without is read first: if it is damaged, nothing
	// was written yet.
	sc := c.cfg.Sequencer
	sc.Bootstrap = c.firstRanges()
	c.Placement, err = placement.Open(c.DB, placement.Config{
		Sequencer: sc, Logger: c.log,
		Wake: func() { c.Store.Load(keys.MetaGroupID) },
	})
	if err != nil {
		return c.explain(metaPart, err)
	}
	if id := c.Placement.ClusterID(); id != 0 && id != c.ClusterID {
		return fmt.Errorf("the meta group is of cluster %x, the directory of %x: %w", id, c.ClusterID, engine.ErrOtherCluster)
	}
	if c.metaMember, err = c.openMeta(); err != nil {
		return c.explain(metaPart, err)
	}
	first, err := c.nextSession()
	if err != nil {
		return c.explain("session row", err)
	}

	if err := c.ensureBoundaries(ids); err != nil {
		return c.explain("boundaries of the counts", err)
	}

	wc := c.cfg.Watch
	wc.History, wc.EventsComplete, wc.Logger = history{c.MVCC}, c.MVCC.EventsComplete, c.log
	c.Watch = watch.NewService(c.Frontier, wc)
	served := 0
	for _, id := range ids {
		if resolved, ok := c.Readers.Resolved(id); ok {
			c.Watch.Loaded(id, resolved)
			served++
			continue
		}
		// Its range answers so. Others go on.
		_, err := replica.Load(c.DB, id)
		if shortage.Is(err) {
			return c.explain("list of the replicas", err)
		}
		c.log.Error("replica is not served", zap.Uint64("range", id), zap.Error(err))
	}
	c.log.Info("found the replicas of this node", zap.Int("served", served), zap.Int("not-served", len(ids)-served))

	cc := c.cfg.Compactor
	cc.Store, cc.Logger = compacting{c}, c.log
	// What is forgotten must be in the revision index.
	cc.Complete = func() int64 { return min(c.Frontier.Complete(nil, nil), c.MVCC.PendingFrom()-1) }
	cc.Hurry = c.LowSpace
	if c.measures != nil {
		cc.Stepped, cc.Finished = c.measures.stepped, c.measures.compacted
	}
	c.Compactor = compactor.New(cc)
	mc := c.cfg.Materialiser
	mc.Store, mc.Logger = compacting{c}, c.log
	mc.Finished = func() {
		c.Watch.HistoryGrew()
		if c.Compactor.Waiting() {
			c.Compactor.Kick()
		}
	}
	mc.Awaited = func() bool {
		return c.Compactor.Awaited() || c.hashAwaits.Load() >= c.MVCC.PendingFrom() || c.Watch.AwaitsHistory()
	}
	c.Materialiser = materialiser.New(mc)

	st := c.cfg.Store
	st.DB, st.Loader, st.Fault, st.Logger = c.DB, c.load, c.engine.Fault, c.log
	if c.measures != nil {
		st.Timings = c.measures.timings()
		if err := c.cfg.Registry.Register(engineCollector{c}); err != nil {
			return err
		}
	}
	if c.Store, err = store.Open(st); err != nil {
		return err
	}

	c.Client, err = client.New(client.Config{
		ClusterID: c.ClusterID, NodeID: c.NodeID, FirstSession: first, Link: c.Placement,
		Range:      func(id uint64, m *placementpb.FromSequencer) { c.Store.Post(id, m) },
		NewSession: c.sessionBegan,
		Cut:        c.takeCut,
	})
	if err != nil {
		return err
	}
	rc := c.cfg.Router
	rc.Ranges, rc.Sequencer, rc.Frontier, rc.Logger = ranges{c}, c.Client, frontier{c.Frontier}, c.log
	rc.PendingSpans = c.MVCC.PendingSpans
	if c.Router, err = router.New(rc); err != nil {
		return err
	}
	// What is answered before the first cut comes is not below what is stored.
	c.Router.Saw(c.MVCC.Forgotten())
	for _, id := range ids {
		if resolved, ok := c.Readers.Resolved(id); ok {
			c.Router.Saw(resolved)
		}
	}
	return nil
}

// ensureBoundaries tells the counts where ranges begin, before anything is
// applied: a crash may have come between a split's batch and that note.
func (c *Core) ensureBoundaries(ids []uint64) error {
	b := c.DB.NewBatch()
	defer func() { _ = b.Close() }() // committed or given up
	for _, id := range ids {
		d := c.Readers.Descriptor(id)
		if d == nil || len(d.Start) == 0 {
			continue
		}
		if err := c.MVCC.EnsureBoundary(b, d.Start); err != nil {
			return err
		}
	}
	if b.Empty() {
		return nil
	}
	return b.Commit(pebble.NoSync)
}

// Begin attaches the node to its placement service and loads the meta group.
// Everything else follows from what these say. The store must be driven.
func (c *Core) Begin() {
	c.detach = c.Placement.Attach(c.NodeID, c.Client.Deliver)
	c.Store.Load(keys.MetaGroupID)
	c.Client.Start()
}

// sessionBegan tells the loaded replicas to register (R3).
func (c *Core) sessionBegan(_, _ uint64) {
	c.mu.Lock()
	ids := make([]uint64, 0, len(c.mu.loaded))
	for id := range c.mu.loaded {
		ids = append(ids, id)
	}
	c.mu.Unlock()
	sortIDs(ids)
	for _, id := range ids {
		c.Store.Post(id, replica.SessionChanged{})
	}
}

func (c *Core) takeCut(cut *placementpb.Cut) {
	if err := c.Router.Cut(cut); err != nil {
		// S would have to be wrong: serving on would break the order of
		// revisions, so the node stops loudly.
		panic(fmt.Sprintf("node: cut at revision %d: %v", cut.Revision, err))
	}
	c.Watch.Cut(cut)
	c.tellWatchers()
	c.Compactor.Request(cut.Compacted)
	if c.Compactor.Waiting() {
		c.Compactor.Kick()
	}
}

// Tick passes one tick, the heartbeat interval, to what the store does not drive:
// reads that have waited for more than awaitTicks are given up, and ranges that
// keep the frontier back are nudged.
func (c *Core) Tick(awaitTicks int) {
	c.Readers.Tick(awaitTicks)
	for _, id := range c.Frontier.Tick(c.cfg.ElectionTicks) {
		if c.damage.has(id) {
			continue // nothing would come of it
		}
		c.log.Info("the frontier waits for a range: nudged", zap.Uint64("range", id))
		c.Store.Post(id, replica.Nudge{})
	}
}

// Applied is the replicas' event sink.
func (c *Core) Applied(rangeID uint64, resolved int64, events []mvcc.Event) {
	if c.measures != nil && len(events) > 0 {
		bytes := 0
		for i := range events {
			bytes += len(events[i].Kv.Key) + len(events[i].Kv.Value)
		}
		c.measures.loads.of(rangeID).applied(len(events), bytes)
	}
	c.Watch.Applied(rangeID, resolved, events)
	c.Materialiser.Kick()
	if c.Compactor.Waiting() {
		c.Compactor.Kick()
	}
}

func (c *Core) replicaConfig(id uint64) replica.Config {
	return replica.Config{
		RangeID: id, NodeID: c.NodeID, DB: c.DB, MVCC: c.MVCC, Readers: c.Readers,
		Link: c.Client, Events: c, Logger: c.log, Limits: c.cfg.Limits,
		ElectionTicks: c.cfg.ElectionTicks, Began: c.began,
	}
}

// load is the store's loader.
func (c *Core) load(id uint64) (store.Member, error) {
	if id == keys.MetaGroupID {
		return c.metaMember, nil
	}
	r, err := replica.New(c.replicaConfig(id))
	if errors.Is(err, replica.ErrNoReplica) {
		c.mu.Lock()
		c.mu.awaited.add(id)
		c.mu.Unlock()
		// If its replica began meanwhile, began may have come too early for that.
		if c.Readers.Descriptor(id) != nil && c.takeAwaited(id) {
			return c.load(id)
		}
	}
	if isDamage(err) || isNewer(err) {
		// Another attempt would find the same; clients are told at once.
		return nil, fmt.Errorf("%w: %w", store.ErrNotServed, err)
	}
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.mu.loaded[id] = struct{}{}
	c.mu.Unlock()
	return &rangeMember{Replica: r, core: c, id: id}, nil
}

// began tells the frontier of a replica that a split has begun, and loads it
// if somebody waits for it: the sequencer's Wake comes once.
func (c *Core) began(d *rangepb.RangeDescriptor) {
	resolved, ok := c.Readers.Resolved(d.RangeId)
	if ok {
		c.Applied(d.RangeId, resolved, nil)
	}
	c.log.Info("split: a range begins", zap.Uint64("range", d.RangeId), zap.String("at", adminpb.KeyText(d.Start)),
		zap.Uint64("epoch", d.Epoch), zap.Int64("revision", resolved))
	if c.takeAwaited(d.RangeId) {
		c.Store.Load(d.RangeId)
	}
}

func (c *Core) takeAwaited(id uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.awaited.take(id)
}

// Loaded returns the ids of the replicas in memory, ascending.
func (c *Core) Loaded() []uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids := make([]uint64, 0, len(c.mu.loaded))
	for id := range c.mu.loaded {
		ids = append(ids, id)
	}
	sortIDs(ids)
	return ids
}

// Err returns the fault of the engine, nil if there was none: whatever else is
// written to it may panic or never return.
func (c *Core) Err() error { return c.engine.Fault.Err() }

// Close closes the engine and the data directory. The store must have stopped.
// After a fault (Err) nothing is written any more.
func (c *Core) Close() error {
	c.closeOnce.Do(func() {
		if c.detach != nil {
			c.detach()
		}
		c.closeErr = c.closeEngine(c.Err() == nil)
	})
	return c.closeErr
}

// closeEngine closes what is open, and with checkpoint spares the next start
// to count what came after the last one.
func (c *Core) closeEngine(checkpoint bool) error {
	var errs []error
	if c.MVCC != nil && checkpoint {
		errs = append(errs, c.engine.Fault.Write(c.MVCC.Close))
	}
	return errors.Join(append(errs, c.engine.Close())...)
}

// rangeMember is a replica as the store drives it.
type rangeMember struct {
	*replica.Replica
	core *Core
	id   uint64
}

// Flush stages into the round's batch.
func (m *rangeMember) Flush(r *store.Round) { m.Replica.Flush(r.Batch, r) }

// Close closes the replica and forgets it.
func (m *rangeMember) Close(err error) {
	m.core.mu.Lock()
	delete(m.core.mu.loaded, m.id)
	m.core.mu.Unlock()
	m.Replica.Close(err)
}

// metaStatus is what others read of the meta group.
type metaStatus struct {
	term, leader, committed, applied atomic.Uint64
}

// frontier is the watch frontier as the router asks it.
type frontier struct{ f *watch.Frontier }

// Complete returns the newest revision complete here, and the compacted one.
func (f frontier) Complete(start, end []byte) (rev, compacted int64, ok bool) {
	rev = f.f.Complete(start, end)
	_, compacted = f.f.Revision()
	return rev, compacted, rev > 0
}

// Revision returns what the newest cut said.
func (f frontier) Revision() (rev, compacted int64) { return f.f.Revision() }
