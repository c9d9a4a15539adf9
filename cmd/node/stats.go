package node

import (
	"github.com/hawser-kv/hawser/proxy"
)

// busiestRanges returns the ranges that have metrics of their own.
func (c *Core) busiestRanges() []uint64 {
	if c.measures == nil {
		return nil
	}
	return c.measures.loads.busiestIDs()
}

// Stats returns the figures of this moment for the metrics.
func (c *Core) Stats() proxy.Stats {
	engine, rounds, watch := c.DB.Metrics(), c.Store.Stats(), c.Watch.Stats()
	_, compacted := c.Frontier.Revision()
	var free uint64
	if usage, err := c.cfg.Engine.FS.GetDiskUsage(c.engine.Dir()); err == nil {
		free = usage.AvailBytes
	}
	return proxy.Stats{
		PendingEvents: c.Watch.PendingEvents(), RemovedVersions: c.MVCC.Removed(),
		DiskFree: free, ReserveBytes: c.cfg.Store.ReserveBytes,
		Compacted:    max(compacted, c.MVCC.Forgotten()),
		WatchStreams: watch.Streams, Watchers: watch.Watchers, SlowWatchers: watch.Behind,
		HistoryReads: uint64(watch.Reads), HistoryRows: uint64(watch.ReadRows),
		FsyncNanoseconds: engine.LogWriter.FsyncLatency, WALBytes: engine.WAL.BytesWritten,
		Rounds: rounds.Rounds, Commits: rounds.Commits, Syncs: rounds.Syncs,
	}
}
