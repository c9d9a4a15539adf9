package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// load parses args and an environment as the server does.
func load(t *testing.T, args []string, environ ...string) (Config, []string, error) {
	t.Helper()
	fs := pflag.NewFlagSet("hawser", pflag.ContinueOnError)
	src := NewSource(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatalf("parse %q: %v", args, err)
	}
	return src.Load(environ)
}

func TestNothingSetIsEtcdsOneNodeServer(t *testing.T) {
	c, warnings, err := load(t, nil, "PATH=/bin", "HOME=/")
	if err != nil || len(warnings) != 0 {
		t.Fatalf("warnings %q, error %v", warnings, err)
	}
	if got := formatURLs(c.ListenClientURLs); got != "http://localhost:2379" {
		t.Errorf("listens on %s", got)
	}
	if got := formatURLs(c.AdvertiseClientURLs); got != "http://localhost:2379" {
		t.Errorf("advertises %s", got)
	}
	if c.DataDir != "default.hawser" || c.InitialCluster != "default=http://localhost:2380" {
		t.Errorf("data dir %q, initial cluster %q", c.DataDir, c.InitialCluster)
	}
	if c.QuotaBackendBytes != 0 {
		t.Errorf("a quota of %d bytes that nobody asked for", c.QuotaBackendBytes)
	}
	if c.MaxConcurrentStreams != DefaultMaxConcurrentStreams {
		t.Errorf("max concurrent streams %d is not the finite default", c.MaxConcurrentStreams)
	}
}

// accepted is one line of the flags that have an effect, with a value other
// than the default and a look at the field.
var accepted = []struct {
	flag, value string
	holds       func(Config) bool
}{
	{"name", "n1", func(c Config) bool {
		return c.Name == "n1" && c.DataDir == "n1.hawser" && c.InitialCluster == "n1=http://localhost:2380"
	}},
	{"data-dir", "/var/lib/hawser", func(c Config) bool { return c.DataDir == "/var/lib/hawser" }},
	{"listen-client-urls", "http://127.0.0.1:0,http://[::1]:2379", func(c Config) bool {
		return formatURLs(c.ListenClientURLs) == "http://127.0.0.1:0,http://[::1]:2379" &&
			formatURLs(c.AdvertiseClientURLs) == formatURLs(c.ListenClientURLs)
	}},
	{"advertise-client-urls", "http://node1.example:2379", func(c Config) bool {
		return formatURLs(c.AdvertiseClientURLs) == "http://node1.example:2379"
	}},
	{"listen-client-http-urls", "http://127.0.0.1:2382", func(c Config) bool {
		return formatURLs(c.ListenClientHTTPURLs) == "http://127.0.0.1:2382"
	}},
	{"listen-metrics-urls", "http://127.0.0.1:2381", func(c Config) bool {
		return formatURLs(c.ListenMetricsURLs) == "http://127.0.0.1:2381"
	}},
	{"listen-peer-urls", "http://10.0.0.1:2380", func(c Config) bool {
		return formatURLs(c.ListenPeerURLs) == "http://10.0.0.1:2380"
	}},
	{"initial-advertise-peer-urls", "http://10.0.0.1:2380", func(c Config) bool {
		return c.InitialCluster == "default=http://10.0.0.1:2380"
	}},
	{"initial-cluster", "default=http://localhost:2380", func(c Config) bool {
		return c.InitialCluster == "default=http://localhost:2380"
	}},
	{"initial-cluster-state", "existing", func(c Config) bool { return c.InitialClusterState == ClusterExisting }},
	{"listen-client-urls", "unix:///run/hawser.sock,unix://localhost:23790", func(c Config) bool {
		_, first := ListenAddress(c.ListenClientURLs[0])
		_, second := ListenAddress(c.ListenClientURLs[1])
		return first == "/run/hawser.sock" && second == "localhost:23790"
	}},
	{"initial-cluster-token", "tok", func(c Config) bool { return c.InitialClusterToken == "tok" }},
	{"heartbeat-interval", "50", func(c Config) bool { return c.HeartbeatInterval == 50*time.Millisecond }},
	{"election-timeout", "5000", func(c Config) bool { return c.ElectionTimeout == 5*time.Second }},
	{"quota-backend-bytes", "-1", func(c Config) bool { return c.QuotaBackendBytes == -1 }},
	{"quota-backend-bytes", "0", func(c Config) bool { return c.QuotaBackendBytes == 0 }},
	{"quota-backend-bytes", "8589934592", func(c Config) bool { return c.QuotaBackendBytes == 8<<30 }},
	{"shards", "3", func(c Config) bool { return c.Shards == 3 }},
	{"engine-cache-bytes", "1073741824", func(c Config) bool { return c.EngineCacheBytes == 1<<30 }},
	{"engine-memtable-bytes", "67108864", func(c Config) bool { return c.EngineMemTableBytes == 64<<20 }},
	{"max-txn-ops", "10000", func(c Config) bool { return c.MaxTxnOps == 10000 }},
	{"max-request-bytes", "33554432", func(c Config) bool { return c.MaxRequestBytes == 32<<20 }},
	{"max-response-bytes", "8589934592", func(c Config) bool { return c.MaxResponseBytes == 8<<30 }},
	{"max-concurrent-streams", "4294967295", func(c Config) bool { return c.MaxConcurrentStreams == 1<<32-1 }},
	{"grpc-keepalive-min-time", "1s", func(c Config) bool { return c.GRPCKeepAliveMinTime == time.Second }},
	{"grpc-keepalive-interval", "0", func(c Config) bool { return c.GRPCKeepAliveInterval == Disabled }},
	{"grpc-keepalive-interval", "30s", func(c Config) bool { return c.GRPCKeepAliveInterval == 30*time.Second }},
	{"grpc-keepalive-timeout", "0s", func(c Config) bool { return c.GRPCKeepAliveTimeout == Disabled }},
	{"auto-compaction-mode", "revision", func(c Config) bool { return c.AutoCompactionMode == Revision }},
	{"auto-compaction-retention", "5", func(c Config) bool { return c.AutoCompactionWindow == 5*time.Hour }},
	{"auto-compaction-retention", "30m", func(c Config) bool { return c.AutoCompactionWindow == 30*time.Minute }},
	{"compaction-batch-limit", "10", func(c Config) bool { return c.CompactionBatchLimit == 10 }},
	{"compaction-sleep-interval", "0", func(c Config) bool { return c.CompactionSleepInterval == Disabled }},
	{"compaction-sleep-interval", "1ms", func(c Config) bool { return c.CompactionSleepInterval == time.Millisecond }},
	{"watch-progress-notify-interval", "5s", func(c Config) bool { return c.WatchProgressNotifyInterval == 5*time.Second }},
	{"log-level", "debug", func(c Config) bool { return c.LogLevel == "debug" }},
	{"log-format", "console", func(c Config) bool { return c.LogFormat == "console" }},
	{"log-outputs", "stderr,hawser.log", func(c Config) bool { return slices.Equal(c.LogOutputs, []string{"stderr", "hawser.log"}) }},
	{"enable-pprof", "true", func(c Config) bool { return c.EnablePprof }},
	{"metrics", "extensive", func(c Config) bool { return c.Metrics == "extensive" }},
	{"warning-unary-request-duration", "1s", func(c Config) bool { return c.WarningUnaryRequestDuration == time.Second }},
	{"unsafe-no-fsync", "true", func(c Config) bool { return c.UnsafeNoFsync }},
}

// TestEveryOptionReadsTheSameFromFlagVariableAndFile also proves that no
// option is without a line above.
func TestEveryOptionReadsTheSameFromFlagVariableAndFile(t *testing.T) {
	tested := make(map[string]bool)
	for _, tc := range accepted {
		tested[tc.flag] = true
		file := filepath.Join(t.TempDir(), "hawser.yaml")
		if err := os.WriteFile(file, []byte(tc.flag+": '"+tc.value+"'\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		for source, got := range map[string]func() (Config, []string, error){
			"flag":     func() (Config, []string, error) { return load(t, []string{"--" + tc.flag + "=" + tc.value}) },
			"variable": func() (Config, []string, error) { return load(t, nil, variableOf(tc.flag)+"="+tc.value) },
			"file":     func() (Config, []string, error) { return load(t, []string{"--config-file", file}) },
		} {
			c, _, err := got()
			if err != nil {
				t.Errorf("%s from %s: %v", tc.flag, source, err)
			} else if !tc.holds(c) {
				t.Errorf("%s=%s from %s: got %+v", tc.flag, tc.value, source, c)
			}
		}
	}
	for _, o := range options {
		if !tested[o.name] {
			t.Errorf("--%s has no line in the table of this test", o.name)
		}
	}
}

func TestBadValuesAreRefusedWithTheFlagAndTheRule(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"--name=", "--name=: must not be empty"},
		{"--name=a,b", "without '='"},
		{"--name=a=b", "without '='"},
		{"--name=" + strings.Repeat("x", 300), "at most 255 bytes"},
		{"--data-dir=/", "root of the file system"},
		{"--listen-client-urls=", "must not be empty"},
		{"--listen-client-urls=localhost:2379", "form http://host:port"},
		{"--listen-client-urls=https://localhost:2379", "not supported yet"},
		{"--listen-client-urls=unixs:///tmp/s", "TLS is not supported yet"},
		{"--advertise-client-urls=unixs:///tmp/s", "TLS is not supported yet"},
		{"--listen-client-urls=unix://", "form unix:///path"},
		{"--listen-client-urls=unix:relative", "form unix:///path"},
		{"--listen-client-urls=unix:///tmp/", "must name a file"},
		{"--listen-client-urls=unix:///" + strings.Repeat("x", 107), "at most 107 bytes"},
		{"--listen-metrics-urls=unix:///tmp/s --listen-client-urls=unix:///tmp/s", "both want /tmp/s"},
		{"--listen-peer-urls=ftp://localhost:2380", "form http://host:port"},
		{"--initial-cluster-state=old", "new, existing"},
		{"--listen-client-urls=http://localhost", "form host:port"},
		{"--listen-client-urls=http://localhost:99999", "0 to 65535"},
		{"--listen-client-urls=http://example.com:2379", "IP address or localhost"},
		{"--listen-client-urls=http://127.0.0.1:2379/x", "nothing may come"},
		{"--listen-client-urls=http://u:p@127.0.0.1:2379", "nothing may come"},
		{"--listen-client-urls=http://127.0.0.1:2379,", "form http://host:port"},
		{"--listen-client-urls=http://0.0.0.0:2379", "--advertise-client-urls must be set"},
		{"--listen-client-urls=http://[::]:2379", "--advertise-client-urls must be set"},
		{"--advertise-client-urls=http://:2379", "host is empty"},
		{"--listen-metrics-urls=http://localhost:2379", "both want localhost:2379"},
		{"--initial-cluster=a=http://localhost:2380", "does not contain this node"},
		{"--initial-cluster=default=http://localhost:2380,b=http://localhost:2390", "several nodes are not supported yet"},
		{"--initial-cluster=default=http://10.0.0.1:2380", "is not --initial-advertise-peer-urls"},
		{"--initial-cluster=default", "form name=url"},
		{"--heartbeat-interval=0", "1 to 10000"},
		{"--heartbeat-interval=-5", "1 to 10000"},
		{"--heartbeat-interval=100ms", "whole number of milliseconds"},
		{"--election-timeout=50001", "1 to 50000"},
		{"--election-timeout=400", "at least five times"},
		{"--quota-backend-bytes=2GiB", "whole number of bytes"},
		{"--quota-backend-bytes=99999999999999999999", "whole number of bytes"},
		{"--max-txn-ops=0", "1 to 65536"},
		{"--max-txn-ops=-1", "1 to 65536"},
		{"--max-txn-ops=18446744073709551615", "1 to 65536"},
		{"--max-request-bytes=0", "1 to 536870912"},
		{"--max-request-bytes=4294967296", "1 to 536870912"},
		{"--max-concurrent-streams=0", "1 to 4294967295"},
		{"--max-concurrent-streams=4294967296", "1 to 4294967295"},
		{"--grpc-keepalive-min-time=0s", "duration with a unit"},
		{"--grpc-keepalive-min-time=5", "duration with a unit"},
		{"--grpc-keepalive-interval=-1s", "0 to switch it off"},
		{"--grpc-keepalive-timeout=-1ns", "0 to switch it off"},
		{"--grpc-keepalive-timeout=9000000h", "duration with a unit"},
		{"--auto-compaction-mode=sometimes", "periodic, revision"},
		{"--auto-compaction-retention=-1", "in periodic mode"},
		{"--auto-compaction-retention=-5m", "in periodic mode"},
		{"--auto-compaction-retention=99999999", "in periodic mode"},
		{"--auto-compaction-retention=often", "in periodic mode"},
		{"--auto-compaction-retention=5m --auto-compaction-mode=revision", "in revision mode"},
		{"--auto-compaction-retention=-1 --auto-compaction-mode=revision", "in revision mode"},
		{"--compaction-batch-limit=0", "1 to 2147483647"},
		{"--compaction-sleep-interval=-1ms", "0 to switch it off"},
		{"--watch-progress-notify-interval=0s", "duration with a unit"},
		{"--log-level=loud", "must be one of"},
		{"--log-format=xml", "must be one of"},
		{"--log-outputs=default,stdout", "default stands alone"},
		{"--log-outputs=systemd/journal", "not supported yet"},
		{"--log-outputs=stderr,,a", "empty entry"},
		{"--enable-pprof=maybe", "true or false"},
		{"--metrics=all", "must be one of"},
		{"--warning-unary-request-duration=-1s", "duration with a unit"},
	} {
		_, _, err := load(t, strings.Fields(tc.args))
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want it to contain %q", tc.args, err, tc.want)
			continue
		}
		flag, _, _ := strings.Cut(tc.args, "=")
		if !strings.Contains(err.Error(), flag) {
			t.Errorf("%s: error %q does not name the flag", tc.args, err)
		}
	}
}

func TestAllProblemsAreReportedAtOnce(t *testing.T) {
	_, _, err := load(t, []string{"--max-txn-ops=0", "--log-level=x", "--cert-file=c.pem", "--election-timeout=100"}, "ETCD_METRICS=none")
	if err == nil {
		t.Fatal("accepted")
	}
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != 5 {
		t.Fatalf("want 5 lines, got:\n%v", err)
	}
}

func TestFlagAndVariableTogetherAreRefused(t *testing.T) {
	for _, tc := range []struct{ flag, variable string }{
		{"--name=a", "ETCD_NAME=b"},
		{"--name=a", "ETCD_NAME=a"},
		{"--name=a", "ETCD_NAME="},
		{"--snapshot-count=5", "ETCD_SNAPSHOT_COUNT=5"},
	} {
		_, _, err := load(t, []string{tc.flag}, tc.variable)
		if err == nil || !strings.Contains(err.Error(), "are both set") {
			t.Errorf("%s with %s: %v", tc.flag, tc.variable, err)
		}
	}
}

func TestUnknownVariableIsWarnedOfWithoutItsValue(t *testing.T) {
	_, warnings, err := load(t, nil, "ETCD_NAMEE=secret", "ETCD_UNSUPPORTED_ARCH=arm", "ETCD_NAME=", "ETCDCTL_API=3")
	if err != nil || !slices.Equal(warnings, []string{"unrecognized environment variable ETCD_NAMEE"}) {
		t.Fatalf("warnings %q, error %v", warnings, err)
	}
}

func TestOptionsOfEtcdThatDoNotExistAreNamed(t *testing.T) {
	for _, tc := range []struct{ arg, wantError, wantWarning string }{
		{"--cert-file=c", "TLS is not supported yet", ""},
		{"--client-cert-auth", "TLS is not supported yet", ""},
		{"--client-cert-auth=false", "", ""},
		{"--auto-tls=0", "", ""},
		{"--tls-min-version=TLS1.2", "", ""},
		{"--tls-min-version=TLS1.3", "", "no effect"},
		{"--cipher-suites=TLS_AES_128_GCM_SHA256", "", "no effect"},
		{"--peer-auto-tls", "", "no peer port"},
		{"--discovery-endpoints=a:2379", "discovery is not supported yet", ""},
		{"--discovery-token=t", "discovery is not supported yet", ""},
		{"--discovery-dial-timeout=2000ms", "", ""},
		{"--discovery-dial-timeout=3s", "", "no effect"},
		{"--discovery-dial-timeout=3", "duration with a unit", ""},
		{"--enable-distributed-tracing", "tracing is not supported yet", ""},
		{"--enable-log-rotation", "log rotation is not supported", ""},
		{"--log-rotation-config-json={}", "", "no effect"},
		{"--auth-token=jwt,priv-key=k,sign-method=RS256", "", "no effect"},
		{"--auth-token=ldap", "must be simple, or jwt", ""},
		{"--auth-token-ttl=60", "", "no effect"},
		{"--max-learners=many", "whole number", ""},
		{"--strict-reconfig-check=false", "", "single node"},
		{"--socket-reuse-address", "", ""},
		{"--socket-reuse-port", "not supported yet", ""},
		{"--discovery-srv=example.com", "discovery is not supported yet", ""},
		{"--initial-cluster-state=new", "", ""},
		{"--initial-cluster-state=existing", "", ""},
		{"--force-new-cluster", "", "single node"},
		{"--pre-vote=false", "", "single node"},
		{"--pre-vote=maybe", "true or false", ""},
		{"--pre-vote", "", ""},
		{"--enable-grpc-gateway=true", "", "JSON gateway is not supported yet"},
		{"--enable-grpc-gateway=false", "", ""},
		{"--cors=*", "", ""},
		{"--cors=http://a", "not supported yet", ""},
		{"--host-whitelist=a", "not supported yet", ""},
		{"--wal-dir=w", "one engine", ""},
		{"--corrupt-check-time=0s", "", ""},
		{"--corrupt-check-time=1m", "", "single node"},
		{"--snapshot-count=10000", "", ""},
		{"--snapshot-count=50000", "", "no effect"},
		{"--backend-batch-limit=5", "", "no effect"},
		{"--feature-gates=InitialCorruptCheck=true", "", "InitialCorruptCheck"},
		{"--feature-gates=PriorityRequest=true", "not supported yet", ""},
		{"--feature-gates=PriorityRequest=false", "", "PriorityRequest"},
		{"--feature-gates=NoSuch=true", "unknown feature gate", ""},
		{"--feature-gates=NoSuch", "not of the form", ""},
	} {
		_, warnings, err := load(t, []string{tc.arg})
		if (err == nil) != (tc.wantError == "") || err != nil && !strings.Contains(err.Error(), tc.wantError) {
			t.Errorf("%s: error %v, want %q", tc.arg, err, tc.wantError)
		}
		if joined := strings.Join(warnings, "\n"); (joined == "") != (tc.wantWarning == "") || !strings.Contains(joined, tc.wantWarning) {
			t.Errorf("%s: warnings %q, want %q", tc.arg, warnings, tc.wantWarning)
		}
	}
}

func TestPasswordIsNotRepeatedInMessages(t *testing.T) {
	_, warnings, err := load(t, []string{"--discovery-password=hunter2", "--discovery-user=u:hunter2"}, "ETCD_OTHER=hunter2")
	if err != nil || len(warnings) == 0 || strings.Contains(strings.Join(warnings, ""), "hunter2") {
		t.Fatalf("error %v, warnings %q", err, warnings)
	}
}

func TestConfigFile(t *testing.T) {
	for _, tc := range []struct {
		what, content string
		wantError     string
		holds         func(Config) bool
	}{
		{what: "YAML as in etcd's sample", content: `
# This is the configuration file for the etcd server.
name: 'default'
data-dir:
wal-dir:
snapshot-count: 10000
heartbeat-interval: 100
election-timeout: 1000
quota-backend-bytes: 0
listen-peer-urls: http://localhost:2380
listen-client-urls: http://localhost:2379
max-wals: 5
cors:
initial-advertise-peer-urls: http://localhost:2380
advertise-client-urls: http://localhost:2379
initial-cluster:
initial-cluster-token: 'etcd-cluster'
initial-cluster-state: 'new'
strict-reconfig-check: true
enable-pprof: true
client-transport-security:
  cert-file:
  key-file:
  client-cert-auth: false
  trusted-ca-file:
  auto-tls: false
peer-transport-security:
  cert-file:
  client-cert-auth: false
  auto-tls: false
  allowed-cn:
  allowed-hostname:
log-level: debug
logger: zap
log-outputs: [stderr]
force-new-cluster: false
auto-compaction-mode: periodic
auto-compaction-retention: "1"
tls-min-version: 'TLS1.2'
`, holds: func(c Config) bool {
			return c.EnablePprof && c.LogLevel == "debug" && c.AutoCompactionWindow == time.Hour && slices.Equal(c.LogOutputs, []string{"stderr"})
		}},
		{what: "JSON", content: `{"name":"j","max-txn-ops":5,"log-outputs":["stderr","x.log"],"enable-pprof":true}`,
			holds: func(c Config) bool { return c.Name == "j" && c.MaxTxnOps == 5 && len(c.LogOutputs) == 2 }},
		{what: "duration in nanoseconds", content: "grpc-keepalive-min-time: 2000000000\ngrpc-keepalive-interval: 0\n",
			holds: func(c Config) bool {
				return c.GRPCKeepAliveMinTime == 2*time.Second && c.GRPCKeepAliveInterval == Disabled
			}},
		{what: "duration with a unit", content: "grpc-keepalive-min-time: 2s", holds: func(c Config) bool { return c.GRPCKeepAliveMinTime == 2*time.Second }},
		{what: "empty", content: "", holds: func(c Config) bool { return c.Name == "default" }},
		{what: "null", content: "null", holds: func(c Config) bool { return c.Name == "default" }},
		{what: "misspelt option", content: "nam: x", wantError: `unknown option "nam"`},
		{what: "nested TLS", content: "client-transport-security: {cert-file: c}", wantError: "cert-file: c: TLS is not supported yet"},
		{what: "peer TLS", content: "peer-transport-security: {auto-tls: maybe}", wantError: "peer-auto-tls: maybe: must be true or false"},
		{what: "socket options", content: "socket-options: {reuse-port: true}", wantError: "socket-reuse-port: true: sharing a port"},
		{what: "bad value", content: "max-txn-ops: many", wantError: "max-txn-ops: many: must be a whole number"},
		{what: "set twice", content: "name: a\nname: b", wantError: "set twice"},
		{what: "two documents", content: "name: a\n---\nname: b", wantError: "more than one document"},
		{what: "list at the top", content: "- name", wantError: "expected `name: value`"},
		{what: "mapping as a value", content: "name: {a: b}", wantError: "expected a value or a list"},
		{what: "alias", content: "name: &a x\ndata-dir: *a", wantError: "expected a value or a list"},
		{what: "not YAML", content: "name: [", wantError: "yaml"},
	} {
		t.Run(tc.what, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "c.yaml")
			if err := os.WriteFile(file, []byte(tc.content), 0o600); err != nil {
				t.Fatal(err)
			}
			c, _, err := load(t, []string{"--config-file", file})
			if (err == nil) != (tc.wantError == "") || err != nil && !strings.Contains(err.Error(), tc.wantError) {
				t.Fatalf("error %v, want %q", err, tc.wantError)
			}
			if err == nil && !tc.holds(c) {
				t.Fatalf("got %+v", c)
			}
		})
	}
}

func TestConfigFileReplacesFlagsAndVariables(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("name: from-file"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, warnings, err := load(t, []string{"--max-txn-ops=7"}, "ETCD_CONFIG_FILE="+file, "ETCD_NAME=env")
	if err != nil || c.Name != "from-file" || c.MaxTxnOps != DefaultMaxTxnOps {
		t.Fatalf("config %+v, error %v", c, err)
	}
	if !slices.Equal(warnings, []string{"ignored because of the config file: --max-txn-ops, ETCD_NAME"}) {
		t.Fatalf("warnings %q", warnings)
	}
}

func TestConfigFileThatCannotBeReadIsAnError(t *testing.T) {
	dir := t.TempDir()
	big := filepath.Join(dir, "big")
	if err := os.WriteFile(big, make([]byte, maxFileBytes+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "missing"): "no such file",
		dir:                           "not a regular file",
		big:                           "not a config file",
	} {
		if _, _, err := load(t, []string{"--config-file", path}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

func FuzzConfigFile(f *testing.F) {
	f.Add([]byte("name: x\nlog-outputs: [a, b]\n"))
	f.Add([]byte(`{"client-transport-security":{"cert-file":""},"grpc-keepalive-interval":1}`))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, content []byte) {
		l := &loader{}
		parseFile(l, "f", content)
		l.config.EnsureDefaults()
		if len(l.problems) == 0 {
			_ = l.config.Validate() // may find problems, must not panic
		}
	})
}
