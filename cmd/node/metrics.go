package node

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/range/store"
)

// slowRound is etcd's default of --warning-apply-duration.
const slowRound = 100 * time.Millisecond

// measures are what a node measures of its own work, for the metrics. Everything
// is bound beforehand, so that measuring costs a few atomic additions.
type measures struct {
	write, commit    prometheus.Observer
	slowRounds       prometheus.Counter
	apply            [writeKinds][2]prometheus.Observer // by kind; failed and done
	step, compaction prometheus.Observer
	lastCompaction   prometheus.Gauge
	loads            loads
	stalls           stalls
}

// The kinds of writes, in the order of writeKindNames.
const (
	kindPut = iota
	kindDelete
	kindTxn
	writeKinds
)

var writeKindNames = [writeKinds]string{"Put", "DeleteRange", "Txn"}

// newMeasures registers the metrics with reg. Names, labels and buckets are
// etcd's; a meaning that differs is in docs/metrics.md.
func newMeasures(reg prometheus.Registerer) *measures {
	seconds := prometheus.ExponentialBuckets(0.001, 2, 14)
	histogram := func(name, help string, buckets []float64) prometheus.Observer {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
		reg.MustRegister(h)
		return h
	}
	m := &measures{
		write: histogram("etcd_disk_wal_write_duration_seconds", "The latency distributions of write called by WAL.", seconds),
		commit: histogram("etcd_disk_backend_commit_duration_seconds",
			"The latency distributions of commit called by backend.", seconds),
		step: histogram("etcd_debugging_mvcc_db_compaction_pause_duration_milliseconds",
			"Bucketed histogram of db compaction pause duration.", prometheus.ExponentialBuckets(1, 2, 13)),
		compaction: histogram("etcd_debugging_mvcc_db_compaction_total_duration_milliseconds",
			"Bucketed histogram of db compaction total duration.", prometheus.ExponentialBuckets(100, 2, 14)),
		slowRounds: prometheus.NewCounter(prometheus.CounterOpts{Name: "etcd_server_slow_apply_total",
			Help: "The total number of slow apply requests (likely overloaded from slow disk)."}),
		lastCompaction: prometheus.NewGauge(prometheus.GaugeOpts{Name: "etcd_debugging_mvcc_db_compaction_last",
			Help: "The unix time of the last db compaction. Resets to 0 on start."}),
	}
	apply := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "etcd_server_apply_duration_seconds", Buckets: prometheus.ExponentialBuckets(0.0001, 2, 20),
		Help: "The latency distributions of v2 apply called by backend.",
	}, []string{"version", "op", "success"})
	for kind, name := range writeKindNames {
		m.apply[kind] = [2]prometheus.Observer{apply.WithLabelValues("v3", name, "false"), apply.WithLabelValues("v3", name, "true")}
	}
	reg.MustRegister(apply, m.slowRounds, m.lastCompaction, &m.loads)
	return m
}

func (m *measures) timings() store.Timings {
	return store.Timings{
		Write:  func(d time.Duration) { m.write.Observe(d.Seconds()) },
		Commit: func(d time.Duration) { m.commit.Observe(d.Seconds()) },
		Round: func(d time.Duration) {
			if d > slowRound {
				m.slowRounds.Inc()
			}
		},
	}
}

func (m *measures) stepped(d time.Duration) { m.step.Observe(float64(d.Milliseconds())) }

func (m *measures) compacted(d time.Duration) {
	m.compaction.Observe(float64(d.Milliseconds()))
	m.lastCompaction.Set(float64(time.Now().Unix()))
}

// Wrote takes a write that a range has answered.
func (m *measures) Wrote(rangeID uint64, req *mvcc.Request, took time.Duration, err error) {
	kind := kindPut
	switch {
	case req.DeleteRange != nil:
		kind = kindDelete
	case req.Txn != nil:
		kind = kindTxn
	}
	done := 0
	if err == nil {
		done = 1
	}
	m.apply[kind][done].Observe(took.Seconds())
	m.loads.of(rangeID).wrote(took)
}

// Read takes a view of a range that was closed.
func (m *measures) Read(rangeID uint64, took time.Duration) { m.loads.of(rangeID).read(took) }

// ReadBytes takes bytes that were read of a range.
func (m *measures) ReadBytes(rangeID uint64, n int) { m.loads.of(rangeID).readBytes.Add(int64(n)) }
