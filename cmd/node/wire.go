package node

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/placement"
	"github.com/hawser-kv/hawser/placement/client"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proxy/router"
	"github.com/hawser-kv/hawser/proxy/watch"
	"github.com/hawser-kv/hawser/range/compactor"
	"github.com/hawser-kv/hawser/range/engine"
	"github.com/hawser-kv/hawser/range/host"
	"github.com/hawser-kv/hawser/range/keys"
	"github.com/hawser-kv/hawser/range/materialiser"
	"github.com/hawser-kv/hawser/range/replica"
	"github.com/hawser-kv/hawser/range/shortage"
)

// wire makes the parts of the node over its engine, lowest first, and tells each of the
// others.
func (c *Core) wire() error {
	ids, err := replica.List(c.DB)
	if err != nil {
		return c.explain("list of the replicas", err)
	}
	// What the node cannot be without is read first: if it is damaged, nothing
	// was written yet.
	if err := c.wirePlacement(); err != nil {
		return err
	}
	c.Ranges = host.New(c.hostConfig())
	if err := c.Ranges.EnsureBoundaries(ids); err != nil {
		return c.explain("boundaries of the counts", err)
	}
	if err := c.wireWatch(ids); err != nil {
		return err
	}
	c.wireCompaction()
	if err := c.wireStore(); err != nil {
		return err
	}
	return c.wireRouter(ids)
}

// wirePlacement opens the placement service with its meta group, and this node's
// end of the conversation with the sequencer.
func (c *Core) wirePlacement() (err error) {
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
	c.Client, err = client.New(client.Config{
		ClusterID: c.ClusterID, NodeID: c.NodeID, FirstSession: first, Link: c.Placement,
		Range:      func(id uint64, m *placementpb.FromSequencer) { c.Store.Post(id, m) },
		NewSession: func(_, _ uint64) { c.Ranges.SessionBegan() },
		Cut:        c.takeCut,
	})
	return err
}

func (c *Core) hostConfig() host.Config {
	hc := host.Config{
		NodeID: c.NodeID, DB: c.DB, MVCC: c.MVCC, Link: c.Client, Events: c, Failed: c.tellWatchers, Meta: c.metaMember,
		Limits: c.cfg.Limits, ElectionTicks: c.cfg.ElectionTicks, Logger: c.log,
	}
	if c.measures != nil {
		hc.Measures = c.measures
	}
	return hc
}

// wireWatch makes the frontier and the watch hub, and tells them of the replicas of
// this node.
func (c *Core) wireWatch(ids []uint64) error {
	c.Frontier = watch.NewFrontier()
	wc := c.cfg.Watch
	wc.History, wc.EventsComplete, wc.Logger = history{c.MVCC}, c.MVCC.EventsComplete, c.log
	c.Watch = watch.NewService(c.Frontier, wc)
	served := 0
	for _, id := range ids {
		if resolved, ok := c.Ranges.Readers.Resolved(id); ok {
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
	return nil
}

// wireCompaction makes what works on the data in the background.
func (c *Core) wireCompaction() {
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
	mc.Damaged = c.deletionDamaged
	mc.Awaited = func() bool {
		return c.Compactor.Awaited() || c.Ranges.HashAwaited() >= c.MVCC.PendingFrom() || c.Watch.AwaitsHistory()
	}
	c.Materialiser = materialiser.New(mc)
}

func (c *Core) wireStore() error {
	st := c.cfg.Store
	st.Fault = c.engine.Fault
	if c.measures != nil {
		st.Timings = c.measures.timings()
		if err := c.cfg.Registry.Register(engineCollector{c}); err != nil {
			return err
		}
	}
	if err := c.Ranges.Open(st); err != nil {
		return err
	}
	c.Store = c.Ranges.Store
	return nil
}

func (c *Core) wireRouter(ids []uint64) (err error) {
	rc := c.cfg.Router
	rc.Ranges, rc.Sequencer, rc.Frontier, rc.Logger = c.Ranges, c.Client, frontier{c.Frontier}, c.log
	rc.PendingSpans = c.MVCC.PendingSpans
	if c.Router, err = router.New(rc); err != nil {
		return err
	}
	// What is answered before the first cut comes is not below what is stored.
	c.Router.Saw(c.MVCC.Forgotten())
	for _, id := range ids {
		if resolved, ok := c.Ranges.Readers.Resolved(id); ok {
			c.Router.Saw(resolved)
		}
	}
	return nil
}
