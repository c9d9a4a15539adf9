package node

import (
	"cmp"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/placement"
	"github.com/hawser-kv/hawser/placement/client"
	"github.com/hawser-kv/hawser/placement/sequencer"
	"github.com/hawser-kv/hawser/proxy/router"
	"github.com/hawser-kv/hawser/proxy/watch"
	"github.com/hawser-kv/hawser/range/compactor"
	"github.com/hawser-kv/hawser/range/engine"
	"github.com/hawser-kv/hawser/range/host"
	"github.com/hawser-kv/hawser/range/keys"
	"github.com/hawser-kv/hawser/range/materialiser"
	"github.com/hawser-kv/hawser/range/replica"
	"github.com/hawser-kv/hawser/range/store"
)

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

	DB   *pebble.DB
	MVCC *mvcc.Store
	// Ranges are those of this node, and Store, which drives them, theirs.
	Ranges    *host.Host
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
	// damagedElsewhere: there is damage that belongs to no single range.
	damagedElsewhere atomic.Bool

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
		DB: e.DB, engine: e, log: cfg.Logger, cfg: cfg, measures: m,
	}
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

// Begin attaches the node to its placement service and loads the meta group.
// Everything else follows from what these say. The store must be driven.
func (c *Core) Begin() {
	c.detach = c.Placement.Attach(c.NodeID, c.Client.Deliver)
	c.Store.Load(keys.MetaGroupID)
	c.Client.Start()
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
