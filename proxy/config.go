package proxy

import (
	"context"
	"errors"
	"math"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/adminpb"
	"github.com/hawser-kv/hawser/proxy/router"
)

// The versions that clients see: digits and dots only, for they parse them
// (etcd/MA2). Ours stands in Config.Version.
const (
	EtcdVersion    = "3.7.3"
	ClusterVersion = "3.7.0"
	StorageVersion = "3.7.0"
)

// Meta is the Raft group that stands for the one group of an etcd cluster in
// what describes one (etcd/S10): the meta group. Safe for concurrent use;
// called for every response.
type Meta interface {
	// Leader returns the member id of the leader, 0 while none is known.
	Leader() uint64
	// Term returns the Raft term.
	Term() uint64
	// Indexes returns the committed and the applied index.
	Indexes() (committed, applied uint64)
}

// Storage is what the services need of the node's engine. Safe for concurrent
// use.
type Storage interface {
	// Size returns the bytes on disk, and those of them that hold what is live.
	Size() (total, inUse int64)
	// LiveKeys returns the number of live keys on this node; cheap.
	LiveKeys() int64
	// LowSpace reports that the disk has less room than the reserve: puts are
	// refused with NOSPACE (etcd/X12).
	LowSpace() bool
	// Damaged returns the ranges whose replica on this node is damaged and not
	// served, and whether there is damage that belongs to no single range; cheap.
	Damaged() (ranges []uint64, outside bool)
	// Defragment compacts the engine's key space and returns when done.
	Defragment(ctx context.Context) error
	// WaitCompacted returns when what the compaction at rev makes garbage is
	// gone from the engine (etcd/C2, physical).
	WaitCompacted(ctx context.Context, rev int64) error
}

// Replicas is what the admin service and the metrics need of the ranges on this
// node. Safe for concurrent use.
type Replicas interface {
	// Info fills a range's figures beside its descriptor (active, live keys,
	// size, resolved).
	Info(id uint64, info *adminpb.RangeInfo)
	// Raft returns the Raft state of the replica, nil while it is not loaded.
	Raft(id uint64) *adminpb.RaftInfo
	// Loaded returns the ids of the loaded replicas.
	Loaded() []uint64
}

// Stats are figures of the node at one moment, for the metrics.
type Stats struct {
	// Compacted is the compacted revision, 0 while nothing was compacted.
	Compacted int64
	// Watch streams, watchers, and those of them that read history.
	WatchStreams, Watchers, SlowWatchers int
	// Events that wait to be sent.
	PendingEvents int
	// DiskFree is the room on the disk, 0 if it is not known; ReserveBytes of it
	// are kept free.
	DiskFree, ReserveBytes uint64
	// RemovedVersions were removed by compactions since the start.
	RemovedVersions uint64
	// Reads of history for watchers, and rows of the revision index they walked.
	HistoryReads, HistoryRows uint64
	// FsyncNanoseconds is the histogram of the WAL's syncs, nil if there is
	// none. WALBytes were written to the WAL.
	FsyncNanoseconds prometheus.Histogram
	WALBytes         uint64
	// Rounds of the ranges' workers, engine batches they committed, and syncs.
	Rounds, Commits, Syncs uint64
}

// Member is one line of MemberList.
type Member struct {
	ID         uint64
	Name       string
	PeerURLs   []string
	ClientURLs []string
}

// Config is what a Server is made of.
type Config struct {
	// ClusterID and MemberID go into every response header; not 0.
	ClusterID, MemberID uint64
	// Members are the members of the cluster, this node first.
	Members []Member
	// Version is Hawser's own version, for Admin.ServerInfo and a metric.
	Version string

	Router   *router.Router
	Watch    pb.WatchServer
	Meta     Meta
	Storage  Storage
	Replicas Replicas
	// Stats is called for a scrape of the metrics. nil: they are left out.
	Stats func() Stats
	// BusiestRanges returns the ranges that have metrics of their own, if they are
	// loaded. nil: all that are loaded.
	BusiestRanges func() []uint64
	// Metrics may be made before the server, by who measures for it. nil: the
	// server makes its own.
	Metrics *Metrics

	// MaxRequestBytes bounds a write as etcd would log it; the gRPC receive
	// limit is 512 KiB above it (etcd/X7). 0: 1.5 MiB.
	MaxRequestBytes int
	// MaxTxnOps bounds the operations of a transaction (etcd/T1). 0: 128.
	MaxTxnOps int
	// MaxConcurrentStreams bounds the streams of one connection. etcd has no
	// bound, which invites rapid-reset floods (CVE-2023-44487). 0: 16,384,
	// more than any client uses; a watch is one stream for many watchers.
	MaxConcurrentStreams uint32
	// KeepaliveMinTime, KeepaliveInterval and KeepaliveTimeout: etcd/X10.
	// 0: 5 s, 2 h, 20 s.
	KeepaliveMinTime, KeepaliveInterval, KeepaliveTimeout time.Duration
	// RequestTimeout bounds a health check; the router has its own copy. 0: 7 s.
	RequestTimeout time.Duration
	// ElectionTimeout paces the watch over streams that require a leader
	// (etcd/X1). 0: 1 s.
	ElectionTimeout time.Duration
	// QuotaBytes is the quota that Status and the metrics report; Storage
	// enforces it. 0: there is none, and the metrics report the size at which the
	// disk would be full: etcd's alerts divide by it.
	QuotaBytes int64
	// SlowRequest is the duration above which a unary request is logged
	// (etcd/X11). 0: 300 ms.
	SlowRequest time.Duration
	// HeaderTimeout bounds the wait for the first bytes of a connection and for
	// the header of an HTTP request. 0: 10 s.
	HeaderTimeout time.Duration
	// ExtensiveMetrics adds a latency histogram of every gRPC method.
	ExtensiveMetrics bool
	// Debug serves /debug/ on the HTTP endpoints; nil for nothing there.
	Debug http.Handler
	// Logger may be nil.
	Logger *zap.Logger
}

// grpcOverheadBytes is what the gRPC receive limit has above MaxRequestBytes.
const grpcOverheadBytes = 512 * 1024

// EnsureDefaults fills what is zero.
func (c *Config) EnsureDefaults() {
	setDefault(&c.MaxRequestBytes, 1536*1024)
	setDefault(&c.MaxTxnOps, mvcc.DefaultMaxTxnOps)
	setDefault(&c.MaxConcurrentStreams, 16_384)
	setDefault(&c.KeepaliveMinTime, 5*time.Second)
	setDefault(&c.KeepaliveInterval, 2*time.Hour)
	setDefault(&c.KeepaliveTimeout, 20*time.Second)
	setDefault(&c.RequestTimeout, 7*time.Second)
	setDefault(&c.ElectionTimeout, time.Second)
	setDefault(&c.SlowRequest, 300*time.Millisecond)
	setDefault(&c.HeaderTimeout, 10*time.Second)
	setDefault(&c.Version, "unknown")
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
}

func setDefault[T comparable](p *T, def T) {
	var zero T
	if *p == zero {
		*p = def
	}
}

// Validate says all that is wrong.
func (c *Config) Validate() error {
	var errs []error
	bad := func(cond bool, text string) {
		if cond {
			errs = append(errs, errors.New("proxy: "+text))
		}
	}
	bad(c.ClusterID == 0, "ClusterID is 0")
	bad(c.MemberID == 0, "MemberID is 0")
	bad(len(c.Members) == 0, "Members is empty")
	bad(c.Router == nil, "Router is nil")
	bad(c.Watch == nil, "Watch is nil")
	bad(c.Meta == nil, "Meta is nil")
	bad(c.Storage == nil, "Storage is nil")
	bad(c.Replicas == nil, "Replicas is nil")
	bad(c.MaxRequestBytes < 0 || c.MaxRequestBytes > math.MaxInt32-grpcOverheadBytes, "MaxRequestBytes is out of range")
	return errors.Join(errs...)
}
