package node

import (
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// stalls counts the times in which the engine makes all writers wait.
type stalls struct {
	mu    sync.Mutex
	count int
	total time.Duration
	began time.Time // zero: none is under way
}

// set tells that a stall begins or goes on, or that there is none any more.
func (s *stalls) set(stalled bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case stalled && s.began.IsZero():
		s.began = time.Now()
		s.count++
	case !stalled && !s.began.IsZero():
		s.total += time.Since(s.began)
		s.began = time.Time{}
	}
}

// sum returns how many there were, and how long they took, the one under way
// included.
func (s *stalls) sum() (int, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	total := s.total
	if !s.began.IsZero() {
		total += time.Since(s.began)
	}
	return s.count, total
}

// engineCollector gives the state of the engine and its disk.
type engineCollector struct{ c *Core }

func engineDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("hawser_"+name, help, labels, nil)
}

var (
	descLevelFiles   = engineDesc("engine_level_files", "Tables in the level of the LSM.", "level")
	descLevelBytes   = engineDesc("engine_level_bytes", "Bytes of the tables in the level.", "level")
	descLevelScore   = engineDesc("engine_level_score", "How much the level needs a compaction: above 1 it does.", "level")
	descSublevels    = engineDesc("engine_sublevels", "Tables of level 0 that a read may have to look into.")
	descDebt         = engineDesc("engine_compaction_debt_bytes", "Bytes that compactions have still to go through until the LSM is in shape.")
	descCompacting   = engineDesc("engine_compactions_running", "LSM compactions under way.")
	descCompactions  = engineDesc("engine_compactions_total", "LSM compactions since the start.")
	descMemtables    = engineDesc("engine_memtable_bytes", "Memory of the memtables.")
	descLogFiles     = engineDesc("engine_log_bytes", "Bytes of the engine's log that a start would read.")
	descRecycled     = engineDesc("engine_log_obsolete_bytes", "Bytes of log files that are kept to be written again.")
	descCacheBytes   = engineDesc("engine_cache_bytes", "Memory of the block cache in use.")
	descCacheHits    = engineDesc("engine_cache_hits_total", "Blocks that were in the cache.")
	descCacheMisses  = engineDesc("engine_cache_misses_total", "Blocks that were read from a file.")
	descStalls       = engineDesc("engine_write_stalls_total", "Times in which the engine made all writers wait.")
	descStallSeconds = engineDesc("engine_write_stall_seconds_total", "How long these took.")
	descPending      = engineDesc("pending_deletions", "Large deletions that are not written out yet, one for each range that had keys.")
	descPendingKeys  = engineDesc("pending_deletion_keys", "Keys of these that are left.")
	descPendingFrom  = engineDesc("pending_deletions_oldest_revision", "Revision of the oldest of these, 0 if there is none.")
	descBlocked      = engineDesc("pending_deletions_blocked", "Those of these that damage keeps from being written out.")
	descDiskFree     = engineDesc("disk_free_bytes", "Room on the disk of the data directory.")
	descDiskTotal    = engineDesc("disk_total_bytes", "Size of the disk of the data directory.")
)

// Describe tells what there is.
func (e engineCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descLevelFiles, descLevelBytes, descLevelScore, descSublevels, descDebt, descCompacting, descCompactions, descMemtables,
		descLogFiles, descRecycled, descCacheBytes, descCacheHits, descCacheMisses, descStalls, descStallSeconds, descDiskFree, descDiskTotal,
		descPending, descPendingKeys, descPendingFrom, descBlocked,
	} {
		ch <- d
	}
}

// Collect reads the engine.
func (e engineCollector) Collect(ch chan<- prometheus.Metric) {
	send := func(kind prometheus.ValueType, d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	m := e.c.DB.Metrics()
	for i := range m.Levels {
		l, level := &m.Levels[i], strconv.Itoa(i)
		send(gauge, descLevelFiles, float64(l.TablesCount), level)
		send(gauge, descLevelBytes, float64(l.TablesSize), level)
		send(gauge, descLevelScore, l.Score, level)
	}
	send(gauge, descSublevels, float64(m.Levels[0].Sublevels))
	send(gauge, descDebt, float64(m.Compact.EstimatedDebt))
	send(gauge, descCompacting, float64(m.Compact.NumInProgress))
	send(counter, descCompactions, float64(m.Compact.Count))
	send(gauge, descMemtables, float64(m.MemTable.Size))
	send(gauge, descLogFiles, float64(m.WAL.Size))
	send(gauge, descRecycled, float64(m.WAL.ObsoletePhysicalSize))
	send(gauge, descCacheBytes, float64(m.BlockCache.Size))
	send(counter, descCacheHits, float64(m.BlockCache.Hits))
	send(counter, descCacheMisses, float64(m.BlockCache.Misses))
	count, total := e.c.measures.stalls.sum()
	send(counter, descStalls, float64(count))
	send(counter, descStallSeconds, total.Seconds())
	pending := e.c.MVCC.PendingStats()
	send(gauge, descPending, float64(pending.Spans))
	send(gauge, descPendingKeys, float64(pending.Keys))
	send(gauge, descPendingFrom, float64(pending.Oldest))
	send(gauge, descBlocked, float64(pending.Blocked))
	if usage, err := e.c.cfg.Engine.FS.GetDiskUsage(e.c.engine.Dir()); err == nil {
		send(gauge, descDiskFree, float64(usage.AvailBytes))
		send(gauge, descDiskTotal, float64(usage.TotalBytes))
	}
}
