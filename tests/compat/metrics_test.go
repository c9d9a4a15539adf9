package compat

import (
	"bufio"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
)

// missingMetrics are those of etcd that Hawser does not have, by reason; the same groups are in docs/metrics.md.
var missingMetrics = map[string][]string{
	"leases are not built": {
		"etcd_debugging_lease_granted_total", "etcd_debugging_lease_renewed_total", "etcd_debugging_lease_revoked_total",
		"etcd_debugging_lease_ttl_total", "etcd_debugging_server_lease_expired_total",
	},
	"authentication is not built": {"etcd_debugging_auth_revision"},
	"clusters of several nodes are not built": {
		"etcd_network_known_peers", "etcd_server_learner_promote_successes", "etcd_server_snapshot_apply_in_progress_total",
	},
	"snapshots are not built": {
		"etcd_debugging_snap_save_marshalling_duration_seconds", "etcd_debugging_snap_save_total_duration_seconds",
		"etcd_snap_db_fsync_duration_seconds", "etcd_snap_db_save_total_duration_seconds", "etcd_snap_fsync_duration_seconds",
		"etcd_disk_backend_snapshot_duration_seconds",
	},
	"a part of bbolt": {
		"etcd_debugging_disk_backend_commit_rebalance_duration_seconds", "etcd_debugging_disk_backend_commit_spill_duration_seconds",
		"etcd_debugging_disk_backend_commit_write_duration_seconds", "etcd_mvcc_db_open_read_transactions",
	},
	"a part of etcd's index of keys in memory": {"etcd_debugging_mvcc_index_compaction_pause_duration_milliseconds"},
	"etcd's v2 store": {
		"etcd_debugging_store_expires_total", "etcd_debugging_store_watch_requests_total", "etcd_debugging_store_watchers",
	},
	"etcd's proxy": {
		"etcd_grpc_proxy_cache_hits_total", "etcd_grpc_proxy_cache_keys_total", "etcd_grpc_proxy_cache_misses_total",
		"etcd_grpc_proxy_events_coalescing_total", "etcd_grpc_proxy_watchers_coalescing_total",
	},
	"a loop that is not made like etcd's": {
		"etcd_debugging_server_watch_send_loop_control_stream_duration_seconds", "etcd_debugging_server_watch_send_loop_progress_duration_seconds",
		"etcd_debugging_server_watch_send_loop_watch_stream_duration_per_event_seconds",
		"etcd_debugging_server_watch_send_loop_watch_stream_duration_seconds",
	},
	"feature gates have no effect": {"etcd_server_feature_enabled"},
}

// metric is what a dashboard must know of one.
type metric struct {
	kind    string
	labels  []string // sorted
	buckets []string // bounds, in order
}

var (
	sampleLine = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? `)
	labelPair  = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"`)
)

// scrapeMetrics returns the metrics of a server by name.
func scrapeMetrics(t *testing.T, endpoint string) map[string]*metric {
	t.Helper()
	response, err := http.Get("http://" + endpoint + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	found := make(map[string]*metric)
	var current string
	for lines := bufio.NewScanner(io.LimitReader(response.Body, 64<<20)); lines.Scan(); {
		line := lines.Text()
		if header, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, kind, _ := strings.Cut(header, " ")
			current = name
			found[name] = &metric{kind: kind}
			continue
		}
		m := sampleLine.FindStringSubmatch(line)
		if m == nil || current == "" {
			continue
		}
		for _, pair := range labelPair.FindAllStringSubmatch(m[2], -1) {
			f := found[current]
			if pair[1] == "le" {
				if !slices.Contains(f.buckets, pair[2]) {
					f.buckets = append(f.buckets, pair[2])
				}
			} else if !slices.Contains(f.labels, pair[1]) {
				f.labels = append(f.labels, pair[1])
				slices.Sort(f.labels)
			}
		}
	}
	return found
}

// TestMetricsAreEtcds compares names, types, labels and buckets of the metrics, after the same requests.
func TestMetricsAreEtcds(t *testing.T) {
	t.Parallel()
	settings := ReadSettings(t)
	scrapeAfterUse := func(target Target) map[string]*metric {
		server := target.Start(t)
		endpoint := server.Endpoint()
		s, err := newSide(target.Name(), server, answerWithin)
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
		key := []byte("k")
		for _, op := range []Op{
			{Kind: Put, Request: &pb.PutRequest{Key: key}},
			{Kind: Range, Request: &pb.RangeRequest{Key: key}},
			{Kind: DeleteRange, Request: &pb.DeleteRangeRequest{Key: key}},
			{Kind: Txn, Request: &pb.TxnRequest{Success: []*pb.RequestOp{putOp(&pb.PutRequest{Key: key})}}},
			{Kind: Compact, Request: &pb.CompactionRequest{Revision: 3, Physical: true}},
		} {
			if a := s.call(t.Context(), op); a.code != codes.OK {
				t.Fatalf("%s: %s", op, a)
			}
		}
		for _, path := range []string{"/health", "/readyz", "/livez"} {
			response, err := http.Get("http://" + endpoint + path)
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
		}
		return scrapeMetrics(t, endpoint)
	}
	wanted, got := scrapeAfterUse(Etcd{}), scrapeAfterUse(settings.Target)
	reasons := make(map[string]string)
	for reason, names := range missingMetrics {
		for _, name := range names {
			reasons[name] = reason
		}
	}
	if settings.Target.Name() == (Etcd{}).Name() {
		clear(reasons)
	}
	for name, w := range wanted {
		reason, missing := reasons[name]
		delete(reasons, name)
		g := got[name]
		switch {
		case missing && g != nil:
			t.Errorf("%s is there, and listed as missing because %s", name, reason)
		case missing:
		case g == nil:
			t.Errorf("%s is missing", name)
		case g.kind != w.kind || !slices.Equal(g.labels, w.labels) || !slices.Equal(g.buckets, w.buckets):
			t.Errorf("%s: %v, etcd has %v", name, *g, *w)
		}
	}
	for name := range reasons {
		t.Errorf("%s is listed as missing, and etcd does not have it", name)
	}
	for name := range got {
		if wanted[name] == nil && !strings.HasPrefix(name, "hawser_") {
			t.Errorf("%s is not etcd's, and does not begin with hawser_", name)
		}
	}
}
