package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// etcdDefaults returns every flag of etcd's help with its default; tests/compat
// compares the list with the real etcd.
func etcdDefaults(t *testing.T) []string {
	t.Helper()
	content, err := os.ReadFile("testdata/etcd-defaults.txt")
	if err != nil {
		t.Fatal(err)
	}
	var args []string
	for line := range strings.Lines(string(content)) {
		if line = strings.TrimRight(line, "\n"); !strings.HasPrefix(line, "#") {
			args = append(args, line)
		}
	}
	return args
}

// toldDefaults are the defaults of etcd that an operator is told of when they are
// written down, with a part of the warning.
var toldDefaults = map[string]string{
	"--enable-grpc-gateway=true":          "the JSON gateway is not supported yet",
	"--max-concurrent-streams=4294967295": "unlimited",
}

func checkDefaultIsAccepted(t *testing.T, source, arg string, warnings []string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s from %s: %v", arg, source, err)
	}
	told := toldDefaults[arg]
	if joined := strings.Join(warnings, "\n"); (joined == "") != (told == "") || !strings.Contains(joined, told) {
		t.Errorf("%s from %s: warnings %q, want %q", arg, source, warnings, told)
	}
}

func TestEtcdsDefaultsGivenExplicitlyAskForNothing(t *testing.T) {
	all := etcdDefaults(t)
	if len(all) < 100 {
		t.Fatalf("%d flags are not all of etcd's", len(all))
	}
	var file strings.Builder
	var variables []string
	for _, arg := range all {
		name, value, ok := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if !ok {
			t.Fatalf("line %q has no value", arg)
		}
		line := name + ": '" + value + "'\n"
		file.WriteString(line)
		variables = append(variables, variableOf(name)+"="+value)

		_, warnings, err := load(t, []string{arg})
		checkDefaultIsAccepted(t, "the command line", arg, warnings, err)
		_, warnings, err = load(t, nil, variableOf(name)+"="+value)
		checkDefaultIsAccepted(t, "the environment", arg, warnings, err)
		_, warnings, err = loadFile(t, line)
		checkDefaultIsAccepted(t, "a file", arg, warnings, err)
	}

	want, _, err := load(t, []string{"--max-concurrent-streams=4294967295"})
	if err != nil {
		t.Fatal(err)
	}
	for source, got := range map[string]func() (Config, []string, error){
		"the command line": func() (Config, []string, error) { return load(t, all) },
		"the environment":  func() (Config, []string, error) { return load(t, nil, variables...) },
		"a file":           func() (Config, []string, error) { return loadFile(t, file.String()) },
	} {
		c, warnings, err := got()
		if err != nil || len(warnings) != len(toldDefaults) {
			t.Errorf("all from %s: warnings %q, error %v", source, warnings, err)
		}
		for _, o := range options {
			if o.get(&c) != o.get(&want) {
				t.Errorf("all from %s: --%s=%s, want Hawser's default %s", source, o.name, o.get(&c), o.get(&want))
			}
		}
	}
}

func loadFile(t *testing.T, content string) (Config, []string, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hawser.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return load(t, []string{"--config-file", path})
}

// What those who deploy etcd set, for one node without TLS on the client port.
func TestWhatDeployersOfEtcdSetIsAccepted(t *testing.T) {
	for _, tc := range []struct {
		what, args, environ string
		wantWarnings        []string // a part of each, in order
	}{
		{
			what: "kubeadm's static pod",
			args: `--advertise-client-urls=http://192.168.1.5:2379 --data-dir=/var/lib/etcd --feature-gates=InitialCorruptCheck=true
				--initial-advertise-peer-urls=https://192.168.1.5:2380 --initial-cluster=master=https://192.168.1.5:2380
				--listen-client-urls=http://127.0.0.1:2379,http://192.168.1.5:2379 --listen-metrics-urls=http://127.0.0.1:2381
				--listen-peer-urls=https://192.168.1.5:2380 --name=master --snapshot-count=10000 --watch-progress-notify-interval=5s
				--peer-cert-file=/etc/kubernetes/pki/etcd/peer.crt --peer-client-cert-auth=true
				--peer-key-file=/etc/kubernetes/pki/etcd/peer.key --peer-trusted-ca-file=/etc/kubernetes/pki/etcd/ca.crt`,
			wantWarnings: []string{"peer-cert-file", "peer-key-file", "peer-trusted-ca-file", "peer-client-cert-auth", "InitialCorruptCheck"},
		},
		{
			what: "kubeadm after a join",
			args: `--advertise-client-urls=http://10.0.0.1:2379 --data-dir=/var/lib/etcd --initial-advertise-peer-urls=http://10.0.0.1:2380
				--initial-cluster=cp=http://10.0.0.1:2380 --initial-cluster-state=existing --listen-client-urls=http://127.0.0.1:2379,http://10.0.0.1:2379
				--listen-peer-urls=http://10.0.0.1:2380 --name=cp --snapshot-count=10000`,
		},
		{
			what: "kubespray's environment file",
			environ: `ETCD_DATA_DIR=/var/lib/etcd ETCD_ADVERTISE_CLIENT_URLS=http://10.0.0.1:2379 ETCD_INITIAL_ADVERTISE_PEER_URLS=https://10.0.0.1:2380
				ETCD_INITIAL_CLUSTER_STATE=existing ETCD_METRICS=basic ETCD_LISTEN_CLIENT_URLS=http://10.0.0.1:2379,http://127.0.0.1:2379
				ETCD_ELECTION_TIMEOUT=5000 ETCD_HEARTBEAT_INTERVAL=250 ETCD_INITIAL_CLUSTER_TOKEN=k8s_etcd ETCD_LISTEN_PEER_URLS=https://10.0.0.1:2380
				ETCD_NAME=etcd1 ETCD_PROXY=off ETCD_INITIAL_CLUSTER=etcd1=https://10.0.0.1:2380 ETCD_AUTO_COMPACTION_RETENTION=8
				ETCD_SNAPSHOT_COUNT=100000 ETCD_QUOTA_BACKEND_BYTES=2147483648 ETCD_CLIENT_CERT_AUTH=false
				ETCD_PEER_TRUSTED_CA_FILE=/etc/ssl/etcd/ssl/ca.pem ETCD_PEER_CERT_FILE=/etc/ssl/etcd/ssl/member-node1.pem
				ETCD_PEER_KEY_FILE=/etc/ssl/etcd/ssl/member-node1-key.pem ETCD_PEER_CLIENT_CERT_AUTH=True ETCD_UNSUPPORTED_ARCH=arm64`,
			wantWarnings: []string{"PEER_CERT_FILE", "PEER_KEY_FILE", "PEER_TRUSTED_CA_FILE", "PEER_CLIENT_CERT_AUTH", "SNAPSHOT_COUNT", "ETCD_PROXY"},
		},
		{
			what: "bitnami's chart, one replica, without authentication",
			environ: `ETCDCTL_API=3 ETCD_ON_K8S=yes ETCD_START_FROM_SNAPSHOT=no ETCD_DISASTER_RECOVERY=no ETCD_NAME=etcd-0
				ETCD_DATA_DIR=/bitnami/etcd/data ETCD_LOG_LEVEL=info ALLOW_NONE_AUTHENTICATION=yes
				ETCD_ADVERTISE_CLIENT_URLS=http://etcd-0.etcd-headless.default.svc.cluster.local:2379,http://etcd.default.svc.cluster.local:2379
				ETCD_LISTEN_CLIENT_URLS=http://0.0.0.0:2379 ETCD_LISTEN_PEER_URLS=http://0.0.0.0:2380
				ETCD_INITIAL_ADVERTISE_PEER_URLS=http://etcd-0.etcd-headless.default.svc.cluster.local:2380
				ETCD_AUTO_COMPACTION_MODE= ETCD_AUTO_COMPACTION_RETENTION= ETCD_MAX_PROCS=
				ETCD_AUTH_TOKEN=jwt,priv-key=/opt/bitnami/etcd/certs/token/jwt-token.pem,sign-method=RS256,ttl=10m
				ETCD_CLUSTER_DOMAIN=etcd-headless.default.svc.cluster.local ETCD_INITIAL_CLUSTER_STATE=new`,
			wantWarnings: []string{"AUTH_TOKEN", "CLUSTER_DOMAIN", "DISASTER_RECOVERY", "MAX_PROCS", "ON_K8S", "START_FROM_SNAPSHOT"},
		},
		{
			what:         "milvus' compose file",
			args:         `--advertise-client-urls=http://127.0.0.1:2379 --listen-client-urls http://0.0.0.0:2379 --data-dir /etcd`,
			environ:      `ETCD_AUTO_COMPACTION_MODE=revision ETCD_AUTO_COMPACTION_RETENTION=1000 ETCD_QUOTA_BACKEND_BYTES=4294967296 ETCD_SNAPSHOT_COUNT=50000`,
			wantWarnings: []string{"SNAPSHOT_COUNT"},
		},
		{
			what: "etcd-operator's first pod",
			args: `--data-dir=/var/etcd/data --name=example-0000 --initial-advertise-peer-urls=http://example-0000.example.default.svc:2380
				--listen-peer-urls=http://0.0.0.0:2380 --listen-client-urls=http://0.0.0.0:2379
				--advertise-client-urls=http://example-0000.example.default.svc:2379
				--initial-cluster=example-0000=http://example-0000.example.default.svc:2380 --initial-cluster-state=new
				--initial-cluster-token=0b1c4c2e-7f0e-4a0c-9d6f-3c1b1a2f7b55`,
		},
		{
			what: "a local Unix socket beside the port",
			args: `--listen-client-urls=http://127.0.0.1:2379,unix:///run/etcd.sock --advertise-client-urls=http://127.0.0.1:2379`,
		},
	} {
		_, warnings, err := load(t, strings.Fields(tc.args), strings.Fields(tc.environ)...)
		if err != nil {
			t.Errorf("%s: %v", tc.what, err)
		}
		if !slices.EqualFunc(warnings, tc.wantWarnings, strings.Contains) {
			t.Errorf("%s: warnings\n%s\nwant %q", tc.what, strings.Join(warnings, "\n"), tc.wantWarnings)
		}
	}
}
