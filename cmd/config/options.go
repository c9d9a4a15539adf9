package config

import (
	"errors"
	"fmt"
	"math"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// options is every flag that has an effect, in the order of --help. An option
// whose meaning depends on another comes after it.
var options = []option{
	textOption("name", "name of this node", func(c *Config) *string { return &c.Name }, checkName),
	textOption("data-dir", "folder for all data (default NAME.hawser)", func(c *Config) *string { return &c.DataDir }, checkPath),

	urlsOption("listen-client-urls", "addresses to listen on for clients: http://host:port, unix:///path/of/socket",
		func(c *Config) *[]url.URL { return &c.ListenClientURLs }, canListen),
	urlsOption("advertise-client-urls", "addresses that clients are told to connect to (default: those listened on)",
		func(c *Config) *[]url.URL { return &c.AdvertiseClientURLs }, canAdvertise),
	urlsOption("listen-client-http-urls", "addresses for HTTP alone, which then leaves the client addresses",
		func(c *Config) *[]url.URL { return &c.ListenClientHTTPURLs }, canListen),
	urlsOption("listen-metrics-urls", "further addresses for metrics and health",
		func(c *Config) *[]url.URL { return &c.ListenMetricsURLs }, canListen),
	peerURLsOption("listen-peer-urls", "addresses for other nodes (a single node opens no peer port)",
		func(c *Config) *[]url.URL { return &c.ListenPeerURLs }, canListen),
	peerURLsOption("initial-advertise-peer-urls", "addresses of this node in initial-cluster",
		func(c *Config) *[]url.URL { return &c.InitialAdvertisePeerURLs }, canAdvertise),
	textOption("initial-cluster", "members of the cluster, NAME=URL[,...]; this node alone, for now",
		func(c *Config) *string { return &c.InitialCluster }, checkNotBlank),
	textOption("initial-cluster-state", "new, or existing to refuse an empty data directory",
		func(c *Config) *string { return &c.InitialClusterState }, oneOf(ClusterNew, ClusterExisting)),
	textOption("initial-cluster-token", "tells apart clusters made from the same settings",
		func(c *Config) *string { return &c.InitialClusterToken }, checkNotBlank),

	millisecondsOption("heartbeat-interval", "milliseconds between heartbeats",
		func(c *Config) *time.Duration { return &c.HeartbeatInterval }, time.Millisecond, 10*time.Second),
	millisecondsOption("election-timeout", "milliseconds of silence before an election, at least 5 heartbeats",
		func(c *Config) *time.Duration { return &c.ElectionTimeout }, time.Millisecond, maxElectionTimeout),

	quotaOption(),
	integerOption("shards", "workers that the ranges are spread over (default: one for each core, 16 at most)",
		func(c *Config) *int { return &c.Shards }, 1, maxShards),
	integerOption("engine-cache-bytes", "bound of the engine's memory for blocks of tables and for memtables",
		func(c *Config) *int64 { return &c.EngineCacheBytes }, minEngineBytes, maxEngineCacheBytes),
	integerOption("engine-memtable-bytes", "what is written is gathered to so much before it goes to a table; at most half of the cache",
		func(c *Config) *int64 { return &c.EngineMemTableBytes }, minEngineBytes, maxMemTableBytes),
	integerOption("max-txn-ops", "operations allowed in a transaction",
		func(c *Config) *int { return &c.MaxTxnOps }, 1, maxTxnOpsLimit),
	integerOption("max-request-bytes", "largest request in bytes",
		func(c *Config) *int { return &c.MaxRequestBytes }, 1, maxRequestBytesLimit),
	integerOption("max-response-bytes", "memory for large responses, all together; twice the largest one",
		func(c *Config) *int64 { return &c.MaxResponseBytes }, 16<<20, 1<<40),
	integerOption("max-concurrent-streams", "gRPC streams of one connection",
		func(c *Config) *uint32 { return &c.MaxConcurrentStreams }, 1, math.MaxUint32),
	durationOption("grpc-keepalive-min-time", "shortest interval of client pings that is allowed",
		func(c *Config) *time.Duration { return &c.GRPCKeepAliveMinTime }, time.Millisecond, maxInterval),
	switchableDurationOption("grpc-keepalive-interval", "silence after which the server pings a client, 0 for never",
		func(c *Config) *time.Duration { return &c.GRPCKeepAliveInterval }, time.Second, maxInterval),
	switchableDurationOption("grpc-keepalive-timeout", "wait for the answer to a ping before closing, 0 for gRPC's default",
		func(c *Config) *time.Duration { return &c.GRPCKeepAliveTimeout }, time.Millisecond, maxInterval),

	{
		name: "auto-compaction-mode", usage: "what the retention counts: periodic (time) or revision (number)",
		get: func(c *Config) string { return string(c.AutoCompactionMode) },
		set: func(c *Config, text string) error {
			if err := oneOf(string(Periodic), string(Revision))(text); err != nil {
				return err
			}
			c.AutoCompactionMode = AutoCompactionMode(text)
			return nil
		},
	},
	{
		name: "auto-compaction-retention", usage: "hours, a duration such as 30m, or revisions to keep; 0 for no automatic compaction",
		get: formatRetention,
		set: parseRetention,
	},
	integerOption("compaction-batch-limit", "revisions removed in one step of a compaction",
		func(c *Config) *int { return &c.CompactionBatchLimit }, 1, math.MaxInt32),
	switchableDurationOption("compaction-sleep-interval", "least pause between the steps of a compaction, 0 for none",
		func(c *Config) *time.Duration { return &c.CompactionSleepInterval }, time.Microsecond, time.Hour),
	durationOption("watch-progress-notify-interval", "interval of progress notifications of an idle watch",
		func(c *Config) *time.Duration { return &c.WatchProgressNotifyInterval }, 10*time.Millisecond, maxInterval),

	textOption("log-level", "debug, info, warn, error, panic or fatal", func(c *Config) *string { return &c.LogLevel },
		oneOf("debug", "info", "warn", "error", "panic", "fatal")),
	textOption("log-format", "json or console", func(c *Config) *string { return &c.LogFormat }, oneOf("json", "console")),
	listOption("log-outputs", "default, stdout, stderr, or files", func(c *Config) *[]string { return &c.LogOutputs }, checkLogOutputs),
	boolOption("enable-pprof", "serve profiles at /debug/pprof", func(c *Config) *bool { return &c.EnablePprof }),
	textOption("metrics", "basic, or extensive for latency histograms", func(c *Config) *string { return &c.Metrics },
		oneOf("basic", "extensive")),
	durationOption("warning-unary-request-duration", "time from which a request is logged as slow",
		func(c *Config) *time.Duration { return &c.WarningUnaryRequestDuration }, time.Millisecond, maxInterval),
	boolOption("unsafe-no-fsync", "never wait for the disk; a crash of the machine loses data",
		func(c *Config) *bool { return &c.UnsafeNoFsync }),
}

func quotaOption() option {
	return option{
		name: "quota-backend-bytes", usage: "bytes in use in the store at which puts are refused; 0 or less for no bound but the disk",
		get: func(c *Config) string { return strconv.FormatInt(c.QuotaBackendBytes, 10) },
		set: func(c *Config, text string) error {
			v, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return errors.New("must be a whole number of bytes")
			}
			c.QuotaBackendBytes = v
			return nil
		},
	}
}

func parseRetention(c *Config, text string) error {
	n, err := strconv.ParseInt(text, 10, 64)
	isNumber := err == nil
	if c.AutoCompactionMode == Revision {
		if !isNumber || n < 0 {
			return errors.New("must be a number of revisions, 0 or more, in revision mode")
		}
		c.AutoCompactionRevisions = n
		return nil
	}
	maxHours := int64(maxInterval / time.Hour)
	var window time.Duration
	if isNumber {
		if n < 0 || n > maxHours {
			return fmt.Errorf("must be a number of hours from 0 to %d, or a duration such as 30m, in periodic mode", maxHours)
		}
		window = time.Duration(n) * time.Hour
	} else {
		window, err = time.ParseDuration(text)
		if err != nil || window < 0 || window > maxInterval {
			return fmt.Errorf("must be a number of hours from 0 to %d, or a duration such as 30m, in periodic mode", maxHours)
		}
	}
	c.AutoCompactionWindow = window
	return nil
}

func formatRetention(c *Config) string {
	if c.AutoCompactionMode == Revision {
		return strconv.FormatInt(c.AutoCompactionRevisions, 10)
	}
	return c.AutoCompactionWindow.String()
}

func checkNotBlank(s string) error {
	if strings.TrimSpace(s) == "" {
		return errors.New("must not be empty")
	}
	return nil
}

func checkName(s string) error {
	if err := checkNotBlank(s); err != nil {
		return err
	}
	if len(s) > 255 || strings.ContainsAny(s, "=,") || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return errors.New("must be at most 255 bytes, without '=', ',' and control characters")
	}
	return nil
}

func checkPath(s string) error {
	if err := checkNotBlank(s); err != nil {
		return err
	}
	if strings.ContainsRune(s, 0) {
		return errors.New("must not contain a NUL byte")
	}
	if filepath.Clean(s) == string(filepath.Separator) {
		return errors.New("must not be the root of the file system")
	}
	return nil
}

func checkLogOutputs(outputs []string) error {
	for _, o := range outputs {
		switch {
		case o == "":
			return errors.New("must not have an empty entry")
		case o == "systemd/journal":
			return errors.New("systemd/journal is not supported yet; write to stderr, which systemd collects")
		case o == "default" && len(outputs) > 1:
			return errors.New("default stands alone; name stderr or stdout beside files")
		}
	}
	return nil
}
