package node

import (
	"github.com/hawser-kv/hawser/proxy"
)

// Stats returns the figures of this moment for the metrics.
func (c *Core) Stats() proxy.Stats {
	engine, rounds, watch := c.DB.Metrics(), c.Store.Stats(), c.Watch.Stats()
	_, compacted := c.Frontier.Revision()
	return proxy.Stats{
		Compacted:    max(compacted, c.MVCC.Forgotten()),
		WatchStreams: watch.Streams, Watchers: watch.Watchers, SlowWatchers: watch.Behind,
		HistoryReads: uint64(watch.Reads), HistoryRows: uint64(watch.ReadRows),
		FsyncNanoseconds: engine.LogWriter.FsyncLatency, WALBytes: engine.WAL.BytesWritten,
		Rounds: rounds.Rounds, Commits: rounds.Commits, Syncs: rounds.Syncs,
	}
}
