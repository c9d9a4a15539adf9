// Package config is the configuration of a Hawser server: a plain struct, and
// the three places it is read from (command line, ETCD_* environment, file).
//
// Names, meanings and defaults are etcd's wherever etcd has the option, so
// that an operator's unit file or static pod works unchanged. An option of
// etcd that Hawser does not have is refused by name, never taken in silence;
// see options.go for the table and unsupported.go for what is refused.
package config

import (
	"fmt"
	"math"
	"net/url"
	"runtime"
	"time"
)

// Disabled is the value of a duration that is switched off. It is not zero,
// because a zero field means "the default"; on the command line it is 0, as in
// etcd.
const Disabled time.Duration = -1

// Defaults, those of etcd 3.7 unless a comment says otherwise.
const (
	DefaultName                        = "default"
	DefaultClientURL                   = "http://localhost:2379"
	DefaultPeerURL                     = "http://localhost:2380"
	DefaultClusterToken                = "etcd-cluster"
	DefaultHeartbeatInterval           = 100 * time.Millisecond
	DefaultElectionTimeout             = time.Second
	DefaultMaxTxnOps                   = 128
	DefaultMaxRequestBytes             = 1536 << 10
	DefaultMaxResponseBytes            = 2 << 30 // not etcd's
	DefaultGRPCKeepAliveMinTime        = 5 * time.Second
	DefaultGRPCKeepAliveInterval       = 2 * time.Hour
	DefaultGRPCKeepAliveTimeout        = 20 * time.Second
	DefaultCompactionBatchLimit        = 1000
	DefaultCompactionSleepInterval     = 10 * time.Millisecond
	DefaultWatchProgressNotifyInterval = 10 * time.Minute
	DefaultWarningUnaryRequestDuration = 300 * time.Millisecond

	// DefaultMaxConcurrentStreams bounds the streams of one connection. etcd
	// has no bound; a client that opens streams without end then takes the
	// server's memory. 16,384 is above what one Kubernetes API server opens.
	DefaultMaxConcurrentStreams = 16384

	// Of the engine; etcd has none like these.
	DefaultEngineCacheBytes    = 128 << 20
	DefaultEngineMemTableBytes = 16 << 20
)

// DefaultShards is a worker for each core, 16 at most: beyond that they wait for
// what they share, the engine and the sequencer. etcd has one.
func DefaultShards() int { return min(runtime.GOMAXPROCS(0), 16) }

// The values of --initial-cluster-state.
const (
	ClusterNew      = "new"
	ClusterExisting = "existing"
)

// Bounds of what is accepted. They are wide: they catch a slip of the unit or
// of the sign, not a choice.
const (
	maxRequestBytesLimit = 512 << 20
	maxShards            = 256
	minEngineBytes       = 1 << 20
	maxEngineCacheBytes  = 1 << 40
	maxMemTableBytes     = 1 << 30
	maxTxnOpsLimit       = 1 << 16
	maxElectionTimeout   = 50 * time.Second // as in etcd
	maxInterval          = 365 * 24 * time.Hour

	// warnRequestBytes is where etcd warns that requests are large.
	warnRequestBytes = 10 << 20
)

// AutoCompactionMode says what AutoCompaction's retention counts.
type AutoCompactionMode string

// The modes of --auto-compaction-mode.
const (
	// Periodic keeps the revisions of a window of time.
	Periodic AutoCompactionMode = "periodic"
	// Revision keeps a number of revisions.
	Revision AutoCompactionMode = "revision"
)

// Config is the configuration of one server. The zero value of a field means
// its default; EnsureDefaults fills it in, Validate finds what is wrong.
type Config struct {
	// Name of the node, as MemberList shows it.
	Name string
	// DataDir holds everything the node keeps; "<name>.hawser" by default. One
	// process at a time.
	DataDir string

	// ListenClientURLs are the addresses for clients: gRPC, and HTTP unless
	// ListenClientHTTPURLs is set. The host is an IP address or "localhost";
	// port 0 lets the system choose. unix:///path is a Unix socket.
	ListenClientURLs []url.URL
	// AdvertiseClientURLs are what MemberList tells clients to connect to. By
	// default ListenClientURLs, if these can be connected to: a wildcard
	// address needs an explicit value. A port 0 is replaced by the real port
	// when it is known.
	AdvertiseClientURLs []url.URL
	// ListenClientHTTPURLs moves HTTP away from ListenClientURLs when set.
	ListenClientHTTPURLs []url.URL
	// ListenMetricsURLs are further addresses for /metrics, /health, /livez and
	// /readyz. None by default.
	ListenMetricsURLs []url.URL

	// ListenPeerURLs and InitialAdvertisePeerURLs are where the other nodes of
	// a cluster connect to. A server of one node opens no peer port; they are
	// what MemberList shows and what InitialCluster is checked against.
	ListenPeerURLs           []url.URL
	InitialAdvertisePeerURLs []url.URL
	// InitialCluster is "name=peer-url[,...]"; it may name this node alone.
	InitialCluster string
	// InitialClusterState is ClusterNew, or ClusterExisting: the data directory
	// must have data then. What an empty one would do, join a cluster of others,
	// is not built. A directory with data makes no difference of it, as in etcd.
	InitialClusterState string
	// InitialClusterToken keeps apart clusters that are made from the same
	// settings.
	InitialClusterToken string

	// HeartbeatInterval is Raft's tick, ElectionTimeout the silence after which
	// a follower stands for election; at least five heartbeats, at most 50 s.
	HeartbeatInterval time.Duration
	ElectionTimeout   time.Duration

	// QuotaBackendBytes is the size of what is in use in the store at which puts are
	// refused with NOSPACE. Zero, the default, or negative: no quota, the disk is the bound;
	// etcd's default of 2 GiB guards against a store that it would have to keep
	// in memory, which Hawser does not.
	QuotaBackendBytes int64
	// Shards is how many workers the ranges are spread over; see DefaultShards.
	Shards int
	// EngineCacheBytes bounds the engine's memory: blocks of tables that were read,
	// and memtables. It is taken as it is needed.
	EngineCacheBytes int64
	// EngineMemTableBytes is how much of what was written is gathered in memory
	// before it goes to a table, at most half of EngineCacheBytes.
	EngineMemTableBytes int64
	// MaxTxnOps bounds the operations of a transaction, per list (etcd/T1).
	MaxTxnOps int
	// MaxRequestBytes bounds a request as it is stored (etcd/X7).
	MaxRequestBytes int
	// MaxResponseBytes bounds the memory that large responses hold together. etcd
	// has no such bound.
	MaxResponseBytes int64
	// MaxConcurrentStreams bounds the gRPC streams of one client connection.
	MaxConcurrentStreams uint32

	// GRPCKeepAliveMinTime is the shortest interval of pings that a client is
	// allowed (etcd/X10).
	GRPCKeepAliveMinTime time.Duration
	// GRPCKeepAliveInterval is how long a connection may be silent before the
	// server pings it; Disabled: never.
	GRPCKeepAliveInterval time.Duration
	// GRPCKeepAliveTimeout is how long the server waits for the answer to its
	// ping before it closes the connection; Disabled: as long as gRPC does.
	GRPCKeepAliveTimeout time.Duration

	// AutoCompactionMode and the retention that belongs to it. No automatic
	// compaction when the retention is zero.
	AutoCompactionMode AutoCompactionMode
	// AutoCompactionWindow is the retention in Periodic mode.
	AutoCompactionWindow time.Duration
	// AutoCompactionRevisions is the retention in Revision mode.
	AutoCompactionRevisions int64
	// CompactionBatchLimit is how many revisions one step of a compaction
	// removes; CompactionSleepInterval is the pause between two steps, Disabled
	// for none.
	CompactionBatchLimit    int
	CompactionSleepInterval time.Duration

	// WatchProgressNotifyInterval is how often an idle watcher that asked for
	// progress notifications gets one.
	WatchProgressNotifyInterval time.Duration

	// LogLevel is debug, info, warn, error, panic or fatal.
	LogLevel string
	// LogFormat is json or console.
	LogFormat string
	// LogOutputs are default (stderr), stderr, stdout, or paths of files that
	// are appended to.
	LogOutputs []string

	// EnablePprof serves /debug/pprof on the HTTP addresses.
	EnablePprof bool
	// Metrics is basic, or extensive for latency histograms of every gRPC
	// method.
	Metrics string
	// WarningUnaryRequestDuration is the time from which a unary request is
	// logged as slow.
	WarningUnaryRequestDuration time.Duration

	// UnsafeNoFsync never waits for the disk. A crash of the machine loses
	// data. For tests.
	UnsafeNoFsync bool
}

// EnsureDefaults fills in every field that is zero.
func (c *Config) EnsureDefaults() {
	setDefault(&c.Name, DefaultName)
	setDefault(&c.DataDir, c.Name+".hawser")
	if len(c.ListenClientURLs) == 0 {
		c.ListenClientURLs = mustParseURLs(DefaultClientURL)
	}
	if len(c.AdvertiseClientURLs) == 0 && firstWildcard(c.ListenClientURLs) == nil {
		c.AdvertiseClientURLs = c.ListenClientURLs
	}
	if len(c.ListenPeerURLs) == 0 {
		c.ListenPeerURLs = mustParseURLs(DefaultPeerURL)
	}
	if len(c.InitialAdvertisePeerURLs) == 0 {
		c.InitialAdvertisePeerURLs = mustParseURLs(DefaultPeerURL)
	}
	if c.InitialCluster == "" {
		c.InitialCluster = formatCluster(c.Name, c.InitialAdvertisePeerURLs)
	}
	setDefault(&c.InitialClusterState, ClusterNew)
	setDefault(&c.InitialClusterToken, DefaultClusterToken)
	setDefault(&c.HeartbeatInterval, DefaultHeartbeatInterval)
	setDefault(&c.ElectionTimeout, DefaultElectionTimeout)
	setDefault(&c.Shards, DefaultShards())
	setDefault(&c.EngineCacheBytes, DefaultEngineCacheBytes)
	setDefault(&c.EngineMemTableBytes, DefaultEngineMemTableBytes)
	setDefault(&c.MaxTxnOps, DefaultMaxTxnOps)
	setDefault(&c.MaxRequestBytes, DefaultMaxRequestBytes)
	setDefault(&c.MaxResponseBytes, DefaultMaxResponseBytes)
	setDefault(&c.MaxConcurrentStreams, DefaultMaxConcurrentStreams)
	setDefault(&c.GRPCKeepAliveMinTime, DefaultGRPCKeepAliveMinTime)
	setDefault(&c.GRPCKeepAliveInterval, DefaultGRPCKeepAliveInterval)
	setDefault(&c.GRPCKeepAliveTimeout, DefaultGRPCKeepAliveTimeout)
	setDefault(&c.AutoCompactionMode, Periodic)
	setDefault(&c.CompactionBatchLimit, DefaultCompactionBatchLimit)
	setDefault(&c.CompactionSleepInterval, DefaultCompactionSleepInterval)
	setDefault(&c.WatchProgressNotifyInterval, DefaultWatchProgressNotifyInterval)
	setDefault(&c.LogLevel, "info")
	setDefault(&c.LogFormat, "json")
	if len(c.LogOutputs) == 0 {
		c.LogOutputs = []string{"default"}
	}
	setDefault(&c.Metrics, "basic")
	setDefault(&c.WarningUnaryRequestDuration, DefaultWarningUnaryRequestDuration)
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// ServerKeepalive returns GRPCKeepAliveInterval and GRPCKeepAliveTimeout as a
// gRPC server takes them: "never" is a time that does not come, and a timeout
// that is switched off is gRPC's own, because there is none without an end.
func (c *Config) ServerKeepalive() (interval, timeout time.Duration) {
	interval, timeout = c.GRPCKeepAliveInterval, c.GRPCKeepAliveTimeout
	if interval == Disabled {
		interval = math.MaxInt64
	}
	if timeout == Disabled {
		timeout = DefaultGRPCKeepAliveTimeout
	}
	return interval, timeout
}

// Warnings are what an operator should know about a valid configuration.
func (c *Config) Warnings() []string {
	var w []string
	if c.MaxRequestBytes > warnRequestBytes {
		w = append(w, fmt.Sprintf("--max-request-bytes=%d is above %d: requests that large make everybody wait", c.MaxRequestBytes, warnRequestBytes))
	}
	if c.MaxConcurrentStreams == math.MaxUint32 {
		w = append(w, "--max-concurrent-streams is unlimited: one connection can take all memory")
	}
	if c.UnsafeNoFsync {
		w = append(w, "--unsafe-no-fsync is set: a crash of the machine will lose data")
	}
	return w
}
