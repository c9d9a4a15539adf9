package proxy

import (
	"runtime"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// Metrics are the metrics of one server, in a registry of its own: several
// servers in one process do not share any. Names, types and labels are etcd's
// where the thing exists here; what is ours begins with hawser_.
//
// Everything on the path of a request is bound beforehand: counting costs an
// atomic addition and allocates nothing.
type Metrics struct {
	registry *prometheus.Registry

	sentBytes, receivedBytes prometheus.Counter
	clientRequests           *prometheus.CounterVec
	streamFailures           *prometheus.CounterVec

	requests struct{ put, deleteRange, txn, readonlyTxn, rng, compaction duration }

	puts, deletes, txns, ranges prometheus.Counter
	putBytes                    prometheus.Gauge
	rangeSeconds                [2]prometheus.Observer
	hashSeconds                 prometheus.Observer
	wholeHashSeconds            prometheus.Observer
	defragSeconds               prometheus.Observer
	defragInflight              prometheus.Gauge
	leaderChanges               prometheus.Counter
	proposalsFailed             prometheus.Counter

	// events were sent to watchers.
	events prometheus.Counter

	healthSuccess, healthFailures prometheus.Counter
	healthcheck                   *prometheus.GaugeVec
	healthchecks                  *prometheus.CounterVec
}

// latencyBuckets are etcd's, in seconds: 1 ms to 8.192 s.
var latencyBuckets = prometheus.ExponentialBuckets(0.001, 2, 14)

// duration is a latency histogram, bound for failure and success.
type duration [2]prometheus.Observer

// NewMetrics returns metrics in a new registry.
func NewMetrics() *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	m.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	m.sentBytes = m.counter("etcd_network_client_grpc_sent_bytes_total",
		"The total number of bytes sent to grpc clients.")
	m.receivedBytes = m.counter("etcd_network_client_grpc_received_bytes_total",
		"The total number of bytes received from grpc clients.")
	m.clientRequests = m.counters("etcd_server_client_requests_total",
		"The total number of client requests per client version.", "type", "client_api_version")
	m.streamFailures = m.counters("etcd_network_server_stream_failures_total",
		"The total number of stream failures from the local server.", "Type", "API")

	requests := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "etcd_server_request_duration_seconds", Buckets: latencyBuckets,
		Help: "Response latency distribution in seconds for each type.",
	}, []string{"type", "success"})
	m.registry.MustRegister(requests)
	bind := func(name string) duration {
		return duration{requests.WithLabelValues(name, "false"), requests.WithLabelValues(name, "true")}
	}
	m.requests.put, m.requests.deleteRange = bind("Put"), bind("DeleteRange")
	m.requests.txn, m.requests.readonlyTxn = bind("Txn"), bind("ReadonlyTxn")
	m.requests.rng, m.requests.compaction = bind("Range"), bind("Compaction")

	m.puts = m.counter("etcd_mvcc_put_total", "Total number of puts seen by this member.")
	m.deletes = m.counter("etcd_mvcc_delete_total", "Total number of deletes seen by this member.")
	m.txns = m.counter("etcd_mvcc_txn_total", "Total number of txns seen by this member.")
	m.ranges = m.counter("etcd_mvcc_range_total", "Total number of ranges seen by this member.")
	m.putBytes = m.gauge("etcd_debugging_mvcc_total_put_size_in_bytes", "The total size of put kv pairs seen by this member.")
	ranges := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "etcd_server_range_duration_seconds", Buckets: prometheus.ExponentialBuckets(0.0001, 2, 20),
		Help: "The latency distributions of txn.Range",
	}, []string{"success"})
	m.registry.MustRegister(ranges)
	m.rangeSeconds = [2]prometheus.Observer{ranges.WithLabelValues("false"), ranges.WithLabelValues("true")}
	m.hashSeconds = m.histogram("etcd_mvcc_hash_rev_duration_seconds",
		"The latency distribution of storage hash by revision operation.", prometheus.ExponentialBuckets(.01, 2, 15))
	m.wholeHashSeconds = m.histogram("etcd_mvcc_hash_duration_seconds",
		"The latency distribution of storage hash operation.", prometheus.ExponentialBuckets(.01, 2, 15))
	m.defragSeconds = m.histogram("etcd_disk_backend_defrag_duration_seconds",
		"The latency distribution of backend defragmentation.", prometheus.ExponentialBuckets(.1, 2, 13))
	m.defragInflight = m.gauge("etcd_disk_defrag_inflight", "Whether or not defrag is active on the member. 1 means active, 0 means not.")
	m.leaderChanges = m.counter("etcd_server_leader_changes_seen_total", "The number of leader changes seen.")
	m.events = m.counter("etcd_debugging_mvcc_events_total", "Total number of events sent by this member.")
	// There is nobody to send to on a single node.
	m.counter("etcd_server_heartbeat_send_failures_total", "The total number of leader heartbeat send failures (likely overloaded from slow disk).")
	m.proposalsFailed = m.counter("etcd_server_proposals_failed_total", "The total number of failed proposals seen.")

	m.healthSuccess = m.counter("etcd_server_health_success", "The total number of successful health checks")
	m.healthFailures = m.counter("etcd_server_health_failures", "The total number of failed health checks")
	m.healthcheck = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "etcd_server_healthcheck", Help: "The result of each kind of healthcheck.",
	}, []string{"type", "name"})
	m.healthchecks = m.counters("etcd_server_healthchecks_total",
		"The total number of each kind of healthcheck.", "type", "name", "status")
	m.registry.MustRegister(m.healthcheck)
	return m
}

// SentEvents counts events that were sent to watchers.
func (m *Metrics) SentEvents(n int) { m.events.Add(float64(n)) }

// Registry returns the registry, for what others measure.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }

func (m *Metrics) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	m.registry.MustRegister(c)
	return c
}

func (m *Metrics) gauge(name, help string) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	m.registry.MustRegister(g)
	return g
}

func (m *Metrics) counters(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	m.registry.MustRegister(c)
	return c
}

func (m *Metrics) histogram(name, help string, buckets []float64) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	m.registry.MustRegister(h)
	return h
}

// observe takes the duration of a request; deferred, so err points to what the
// request returns.
func (m *Metrics) observe(d duration, start time.Time, err *error) {
	if *err == nil {
		d[1].Observe(time.Since(start).Seconds())
		return
	}
	d[0].Observe(time.Since(start).Seconds())
}

func (m *Metrics) observeRange(start time.Time, err *error) {
	m.ranges.Inc()
	m.observe(m.requests.rng, start, err)
	m.observe(m.rangeSeconds, start, err)
}

// countTxn counts what a transaction did, as etcd does: its operations by kind,
// and itself if it had more than one.
func (m *Metrics) countTxn(r *pb.TxnRequest, resp *pb.TxnResponse) {
	var n txnCount
	n.add(r, resp)
	if n.puts > 0 {
		m.puts.Add(float64(n.puts))
		m.putBytes.Add(float64(n.putBytes))
	}
	if n.deletes > 0 {
		m.deletes.Add(float64(n.deletes))
	}
	if n.ranges > 0 {
		m.ranges.Add(float64(n.ranges))
	}
	if n.puts+n.deletes+n.ranges > 1 {
		m.txns.Inc()
	}
}

type txnCount struct{ puts, putBytes, deletes, ranges int }

func (n *txnCount) add(r *pb.TxnRequest, resp *pb.TxnResponse) {
	ops := r.GetFailure()
	if resp.GetSucceeded() {
		ops = r.GetSuccess()
	}
	for i, op := range ops {
		switch u := op.GetRequest().(type) {
		case *pb.RequestOp_RequestPut:
			n.puts++
			n.putBytes += len(u.RequestPut.Key) + len(u.RequestPut.Value)
		case *pb.RequestOp_RequestDeleteRange:
			n.deletes++
		case *pb.RequestOp_RequestRange:
			n.ranges++
		case *pb.RequestOp_RequestTxn:
			n.add(u.RequestTxn, resp.GetResponses()[i].GetResponseTxn())
		}
	}
}

// describe sets what stays the same while the server lives.
func (m *Metrics) describe(memberID uint64, version string) {
	one := func(name, help, label, value string) {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{label})
		m.registry.MustRegister(g)
		g.WithLabelValues(value).Set(1)
	}
	one("etcd_server_version", "Which version is running. 1 for 'server_version' label with current version.", "server_version", EtcdVersion)
	one("etcd_cluster_version", "Which version is running. 1 for 'cluster_version' label with current cluster version", "cluster_version", clusterMinor)
	one("etcd_server_go_version", "Which Go version server is running with. 1 for 'server_go_version' label with current version.", "server_go_version", runtime.Version())
	one("etcd_server_id", "Server or member ID in hexadecimal format. 1 for 'server_id' label with current ID.", "server_id", strconv.FormatUint(memberID, 16))
	one("hawser_build_info", "Which version of Hawser is running. 1 for the 'version' label with it.", "version", version)
}

// clusterMinor is the label of etcd_cluster_version: etcd gives major.minor.
const clusterMinor = "3.7"
