package node

import (
	"crypto/rand"
	"encoding/binary"
	"strconv"
	"time"

	"github.com/hawser-kv/hawser/cmd/config"
	"github.com/hawser-kv/hawser/placement/sequencer"
	"github.com/hawser-kv/hawser/proxy/router"
	"github.com/hawser-kv/hawser/proxy/watch"
	"github.com/hawser-kv/hawser/range/compactor"
	"github.com/hawser-kv/hawser/range/engine"
	"github.com/hawser-kv/hawser/range/replica"
	"github.com/hawser-kv/hawser/range/store"
)

// newIDs draws a cluster and a node id; both fit a positive int64, which some
// clients parse.
func newIDs() (clusterID, nodeID uint64) {
	draw := func() uint64 {
		var b [8]byte
		for {
			_, _ = rand.Read(b[:]) // never fails
			if id := binary.BigEndian.Uint64(b[:]) >> 1; id != 0 {
				return id
			}
		}
	}
	return draw(), draw()
}

func (n *Node) coreConfig() CoreConfig {
	c := &n.cfg
	ticks := func(d time.Duration) int { return ticksOf(d, c.HeartbeatInterval) }
	return CoreConfig{
		Engine: engine.Config{
			FS: c.FS, Dir: c.DataDir, NewIDs: newIDs, MustExist: c.InitialClusterState == config.ClusterExisting,
			CacheBytes: c.EngineCacheBytes, MemTableBytes: c.EngineMemTableBytes, MaxOpenFiles: n.openFiles, NoSync: c.UnsafeNoFsync,
		},
		Logger: n.log,
		Store: store.Config{
			Shards: c.Shards, MetaShard: true,
			TickInterval: c.HeartbeatInterval, ReserveBytes: reserveBytes,
			FreeBytes: func() (uint64, error) {
				if n.core == nil {
					return reserveBytes * 2, nil // opening: looked at with the first tick
				}
				n.core.engine.Poll()
				return n.core.freeBytes()
			},
			QuotaBytes: c.QuotaBackendBytes,
			UsedBytes: func() int64 {
				if n.core == nil {
					return 0
				}
				return n.core.engine.Size().InUse
			},
		},
		Sequencer: sequencer.Config{
			WakeTicks: ticks(c.ElectionTimeout), SplitTicks: ticks(5 * time.Second),
		},
		Limits: replica.Limits{
			IdleTicks: ticks(30 * time.Second), SilentTicks: ticks(5 * time.Second), RetryTicks: ticks(500 * time.Millisecond),
			AbdicateTicks: ticks(c.ElectionTimeout), WaitTicks: ticks(10 * time.Second),
			MaxDeletedKeys: wideDelete(),
		},
		ElectionTicks: ticks(c.ElectionTimeout),
		Watch:         watch.Config{ProgressInterval: c.WatchProgressNotifyInterval},
		Router: router.Config{
			RequestTimeout: 5*time.Second + 2*c.ElectionTimeout,
			SpanKeys:       int64(wideDelete()),
			Responses:      router.NewResponses(c.MaxResponseBytes),
		},
		Compactor: compactor.Config{
			BatchLimit: c.CompactionBatchLimit, Pause: c.CompactionSleepInterval,
		},
	}
}

// wideDeleteKeys is set by the linker (-X), in binaries for tests only: how many keys a
// request may delete before that is a large deletion. Empty: the defaults.
var wideDeleteKeys string

// wideDelete returns wideDeleteKeys, 0 for the defaults.
func wideDelete() int {
	if wideDeleteKeys == "" {
		return 0
	}
	n, err := strconv.Atoi(wideDeleteKeys)
	if err != nil {
		panic("node: wideDeleteKeys: " + err.Error())
	}
	return n
}

// ticksOf returns a duration in ticks of an interval, rounded up.
func ticksOf(d, interval time.Duration) int {
	return int((d + interval - 1) / interval)
}
