package proxy

import (
	"os"
	"slices"
	"strconv"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/hawser-kv/hawser/proto/adminpb"
)

// collector gives what is known at the moment of a scrape: it reads the node
// once and keeps nothing. Per-range metrics exist for the busiest loaded replicas
// only (Config.BusiestRanges).
type collector struct {
	cfg *Config
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	descHasLeader       = desc("etcd_server_has_leader", "Whether or not a leader exists. 1 is existence, 0 is not.")
	descIsLeader        = desc("etcd_server_is_leader", "Whether or not this member is a leader. 1 if is, 0 otherwise.")
	descIsLearner       = desc("etcd_server_is_learner", "Whether or not this member is a learner. 1 if is, 0 otherwise.")
	descCommitted       = desc("etcd_server_proposals_committed_total", "The total number of consensus proposals committed.")
	descApplied         = desc("etcd_server_proposals_applied_total", "The total number of consensus proposals applied.")
	descPending         = desc("etcd_server_proposals_pending", "The current number of pending proposals to commit.")
	descQuota           = desc("etcd_server_quota_backend_bytes", "Current backend storage quota size in bytes.")
	descSize            = desc("etcd_mvcc_db_total_size_in_bytes", "Total size of the underlying database physically allocated in bytes.")
	descInUse           = desc("etcd_mvcc_db_total_size_in_use_in_bytes", "Total size of the underlying database logically in use in bytes.")
	descRevision        = desc("etcd_debugging_mvcc_current_revision", "The current revision of store.")
	descAlarms          = desc("etcd_debugging_server_alarms", "Alarms for every member in cluster. 1 for 'server_id' label with current ID. 2 for 'alarm_type' label with type of this alarm", "server_id", "alarm_type")
	descKeys            = desc("etcd_debugging_mvcc_keys_total", "Total number of keys.")
	descCompacted       = desc("etcd_debugging_mvcc_compact_revision", "The revision of the last compaction in store.")
	descPendingEvents   = desc("etcd_debugging_mvcc_pending_events_total", "Total number of pending events to be sent.")
	descCompactedKeys   = desc("etcd_debugging_mvcc_db_compaction_keys_total", "Total number of db keys compacted.")
	descWatchStreams    = desc("etcd_debugging_mvcc_watch_stream_total", "Total number of watch streams.")
	descWatchers        = desc("etcd_debugging_mvcc_watcher_total", "Total number of watchers.")
	descSlowWatchers    = desc("etcd_debugging_mvcc_slow_watcher_total", "Total number of unsynced slow watchers.")
	descFsync           = desc("etcd_disk_wal_fsync_duration_seconds", "The latency distributions of fsync called by WAL.")
	descWALBytes        = desc("etcd_disk_wal_write_bytes_total", "Total number of bytes written in WAL.")
	descRounds          = desc("hawser_store_rounds_total", "Rounds of the ranges' workers.")
	descCommits         = desc("hawser_store_commits_total", "Engine batches committed by rounds.")
	descSyncs           = desc("hawser_store_syncs_total", "Syncs that rounds waited for.")
	descHistoryReads    = desc("hawser_watch_history_reads_total", "Reads of history for watchers that are behind, each for many.")
	descHistoryRows     = desc("hawser_watch_history_rows_total", "Rows of the revision index that these reads walked.")
	descSlowReads       = desc("etcd_server_slow_read_indexes_total", "The total number of pending read indexes not in sync with leader's or timed out read index requests.")
	descFailedReads     = desc("etcd_server_read_indexes_failed_total", "The total number of failed read indexes seen.")
	descFDUsed          = desc("os_fd_used", "The number of used file descriptors.")
	descFDLimit         = desc("os_fd_limit", "The file descriptor limit.")
	descTransactions    = desc("hawser_router_transactions_total", "Tries of transactions over several ranges.")
	descRetries         = desc("hawser_router_retries_total", "Tries inside the proxy that ended with another one.", "kind")
	descRecuts          = desc("hawser_router_transaction_recuts_total", "Times that a transaction found a range split before its latch, and went on with the newer ones.")
	descRereads         = desc("hawser_router_rereads_total", "Writes without effect that were answered as reads.")
	descResponseBytes   = desc("hawser_responses_held_bytes", "Memory that large responses hold, until they have been written.")
	descDamaged         = desc("hawser_ranges_damaged", "Number of ranges whose replica on this node is damaged and not served.")
	descRanges          = desc("hawser_ranges", "Number of ranges of the keyspace.")
	descLoaded          = desc("hawser_ranges_loaded", "Number of ranges whose replica on this node is in memory.")
	descRequests        = desc("hawser_requests_pending", "Requests under way in the router of this node.")
	descRangeResolved   = desc("hawser_range_resolved_revision", "The revision up to which the replica of the range has everything. The busiest loaded replicas only.", "range")
	descRangeKeys       = desc("hawser_range_live_keys", "Live keys of the range. The busiest loaded replicas only.", "range")
	descRangeBytes      = desc("hawser_range_bytes", "Bytes on disk of the range's span, all versions, approximately. The busiest loaded replicas only.", "range")
	descRangeTerm       = desc("hawser_range_raft_term", "Raft term of the replica. The busiest loaded replicas only.", "range")
	descRangeAppliedIdx = desc("hawser_range_raft_applied_index", "Raft index the replica has applied. The busiest loaded replicas only.", "range")
	descRangeQueued     = desc("hawser_range_queued_writes", "Writes of the range that wait for evaluation, a latch or a grant. The busiest loaded replicas only.", "range")
	descRangeLatches    = desc("hawser_range_latches", "Latches on the range held by transactions over ranges. The busiest loaded replicas only.", "range")
)

// Describe sends nothing: the collector is unchecked, for its label sets come
// and go with loaded replicas.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect reads the node.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	leader := c.cfg.Meta.Leader()
	committed, applied := c.cfg.Meta.Indexes()
	gauge(descHasLeader, bit(leader != 0))
	gauge(descIsLeader, bit(leader == c.cfg.MemberID))
	gauge(descIsLearner, 0)
	gauge(descCommitted, float64(committed))
	gauge(descApplied, float64(applied))
	pending := float64(c.cfg.Router.Pending())
	gauge(descPending, float64(c.cfg.Router.PendingWrites()))
	gauge(descRequests, pending)
	held, _ := c.cfg.Router.Responses().Held()
	gauge(descResponseBytes, float64(held))

	size, inUse := c.cfg.Storage.Size()
	if c.cfg.QuotaBytes > 0 {
		gauge(descQuota, float64(c.cfg.QuotaBytes))
	}
	gauge(descSize, float64(size))
	gauge(descInUse, float64(inUse))
	gauge(descRevision, float64(c.cfg.Router.LocalRevision()))
	for _, a := range alarms(c.cfg.Storage, c.cfg.MemberID) {
		gauge(descAlarms, 1, strconv.FormatUint(c.cfg.MemberID, 16), a.Alarm.String())
	}
	damaged, _ := c.cfg.Storage.Damaged()
	gauge(descDamaged, float64(len(damaged)))
	if used, limit, err := fileDescriptors(); err == nil {
		gauge(descFDUsed, float64(used))
		gauge(descFDLimit, float64(limit))
	}
	c.collectRouter(ch)
	c.collectStats(ch, gauge, size)
	c.collectRanges(gauge)
}

// fileDescriptors returns how many this process has and may have. An error
// where the system has no /proc.
func fileDescriptors() (used int, limit uint64, err error) {
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0, 0, err
	}
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return 0, 0, err
	}
	return len(open) - 1, r.Cur, nil // one of them was for reading the directory
}

func (c *collector) collectRouter(ch chan<- prometheus.Metric) {
	s := c.cfg.Router.Stats()
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	counter(descSlowReads, s.SlowReads)
	counter(descFailedReads, s.FailedQueries)
	counter(descTransactions, s.Transactions)
	counter(descRecuts, s.TransactionRecuts)
	counter(descRereads, s.Rereads)
	counter(descRetries, s.TransactionRetries, "transaction")
	counter(descRetries, s.WriteRetries, "write")
	counter(descRetries, s.ReadRetries, "read")
	counter(descRetries, s.RoomWaits, "room")
}

func (c *collector) collectStats(ch chan<- prometheus.Metric, gauge func(*prometheus.Desc, float64, ...string), size int64) {
	if c.cfg.Stats == nil {
		return
	}
	s := c.cfg.Stats()
	counter := func(d *prometheus.Desc, v uint64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v))
	}
	gauge(descCompacted, float64(s.Compacted))
	if c.cfg.QuotaBytes <= 0 && s.DiskFree > 0 {
		gauge(descQuota, float64(size)+max(float64(s.DiskFree)-float64(s.ReserveBytes), 0))
	}
	gauge(descPendingEvents, float64(s.PendingEvents))
	counter(descCompactedKeys, s.RemovedVersions)
	gauge(descWatchStreams, float64(s.WatchStreams))
	gauge(descWatchers, float64(s.Watchers))
	gauge(descSlowWatchers, float64(s.SlowWatchers))
	gauge(descWALBytes, float64(s.WALBytes)) // a gauge in etcd, too
	counter(descHistoryReads, s.HistoryReads)
	counter(descHistoryRows, s.HistoryRows)
	counter(descRounds, s.Rounds)
	counter(descCommits, s.Commits)
	counter(descSyncs, s.Syncs)
	if s.FsyncNanoseconds != nil {
		if m, err := fsyncSeconds(s.FsyncNanoseconds); err == nil {
			ch <- m
		}
	}
}

// fsyncSeconds puts a histogram in nanoseconds into etcd's buckets. What lies
// between a bound of etcd's and the next one below it of the source counts into
// the next bucket, so nothing looks faster than it was.
func fsyncSeconds(h prometheus.Histogram) (prometheus.Metric, error) {
	var m dto.Metric
	if err := h.Write(&m); err != nil {
		return nil, err
	}
	counts := make(map[float64]uint64, len(latencyBuckets))
	for _, bound := range latencyBuckets {
		counts[bound] = 0
		for _, b := range m.GetHistogram().GetBucket() {
			if b.GetUpperBound() <= bound*1e9 {
				counts[bound] = max(counts[bound], b.GetCumulativeCount())
			}
		}
	}
	return prometheus.NewConstHistogram(descFsync, m.GetHistogram().GetSampleCount(), m.GetHistogram().GetSampleSum()/1e9, counts)
}

func (c *collector) collectRanges(gauge func(*prometheus.Desc, float64, ...string)) {
	dir := c.cfg.Router.Directory()
	if dir == nil {
		return
	}
	loaded := c.cfg.Replicas.Loaded()
	gauge(descRanges, float64(dir.Len()))
	gauge(descLoaded, float64(len(loaded)))
	gauge(descKeys, float64(c.cfg.Storage.LiveKeys()))
	if c.cfg.BusiestRanges != nil {
		isLoaded := make(map[uint64]bool, len(loaded))
		for _, id := range loaded {
			isLoaded[id] = true
		}
		loaded = slices.DeleteFunc(c.cfg.BusiestRanges(), func(id uint64) bool { return !isLoaded[id] })
	}
	for _, id := range loaded {
		label := strconv.FormatUint(id, 10)
		info := adminpb.RangeInfo{Desc: dir.ByID(id)}
		if info.Desc == nil {
			continue // begun here, its cut is still to come
		}
		c.cfg.Replicas.Info(id, &info)
		gauge(descRangeResolved, float64(info.Resolved), label)
		gauge(descRangeKeys, float64(info.LiveKeys), label)
		gauge(descRangeBytes, float64(info.ApproximateBytes), label)
		if raft := c.cfg.Replicas.Raft(id); raft != nil {
			gauge(descRangeTerm, float64(raft.Term), label)
			gauge(descRangeAppliedIdx, float64(raft.AppliedIndex), label)
			gauge(descRangeQueued, float64(raft.Queued), label)
			gauge(descRangeLatches, float64(raft.Latches), label)
		}
	}
}

func bit(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
