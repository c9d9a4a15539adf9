package proxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/hawser-kv/hawser/proxy/router"
)

func httpGet(t *testing.T, addr, path string) (int, string, http.Header) {
	t.Helper()
	resp, err := http.Get("http://" + addr + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body), resp.Header
}

// TestHTTPEndpoints: etcd's HTTP endpoints, on the port that gRPC uses.
func TestHTTPEndpoints(t *testing.T) {
	b := newBackend(t, router.Config{})
	_, addr := startServer(t, b)
	if _, err := newClient(t, addr).Put(t.Context(), "a", "1"); err != nil {
		t.Fatal(err)
	}
	expect := func(path string, code int, body string) {
		t.Helper()
		gotCode, gotBody, _ := httpGet(t, addr, path)
		if gotCode != code || gotBody != body {
			t.Errorf("%s: %d %q, want %d %q", path, gotCode, gotBody, code, body)
		}
	}
	expect("/health", 200, `{"health":"true","reason":""}`)
	expect("/livez", 200, "ok\n")
	expect("/livez?verbose", 200, "[+]serializable_read ok\nok\n")
	expect("/readyz", 200, "ok\n")
	expect("/readyz?verbose", 200, "[+]data_corruption ok\n[+]serializable_read ok\n[+]linearizable_read ok\n[+]non_learner ok\nok\n")
	expect("/readyz/linearizable_read", 200, "ok\n")
	expect("/version", 200, `{"etcdserver":"3.7.3","etcdcluster":"3.7.0","storage":"3.7.0"}`)
	if code, _, _ := httpGet(t, addr, "/nothing"); code != 404 {
		t.Errorf("/nothing: %d", code)
	}
	if _, _, h := httpGet(t, addr, "/version"); h.Get("Content-Type") != "application/json" {
		t.Errorf("/version is %s", h.Get("Content-Type"))
	}
	for _, path := range []string{"/health", "/livez", "/readyz", "/version"} {
		resp, err := http.Post("http://"+addr+path, "text/plain", strings.NewReader(""))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 405 || resp.Header.Get("Allow") != "GET" {
			t.Errorf("POST %s: %d, Allow %q", path, resp.StatusCode, resp.Header.Get("Allow"))
		}
	}

	options, err := http.NewRequest(http.MethodOptions, "http://"+addr+"/health", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(options)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 || resp.Header.Get("Access-Control-Allow-Origin") != "*" {
		t.Errorf("OPTIONS: %d, %v", resp.StatusCode, resp.Header)
	}

	b.lowSpace.Store(true)
	expect("/health", 503, `{"health":"false","reason":"ALARM NOSPACE"}`+"\n")
	expect("/health?exclude=NOSPACE", 200, `{"health":"true","reason":""}`)
	b.lowSpace.Store(false)
	b.noLeader.Store(true)
	expect("/health", 503, `{"health":"false","reason":"RAFT NO LEADER"}`+"\n")
	expect("/health?serializable=true", 200, `{"health":"true","reason":""}`)
	b.noLeader.Store(false)
	b.silent.Store(true)
	_, addr = startServer(t, b, b.impatient)
	if code, body, _ := httpGet(t, addr, "/health"); code != 503 || !strings.HasPrefix(body, `{"health":"false","reason":"RANGE ERROR:`) {
		t.Errorf("/health: %d %s", code, body)
	}
	expect("/livez", 200, "ok\n")
	if code, body, _ := httpGet(t, addr, "/readyz"); code != 503 || !strings.Contains(body, "[-]linearizable_read failed: ") || !strings.Contains(body, "[+]serializable_read ok\n") {
		t.Errorf("/readyz: %d %s", code, body)
	}
	expect("/readyz?exclude=linearizable_read", 200, "ok\n")
}

// TestMetricsHaveEtcdsNames: dashboards and alerts read them by name.
func TestMetricsHaveEtcdsNames(t *testing.T) {
	b := newBackend(t, router.Config{})
	fsync := prometheus.NewHistogram(prometheus.HistogramOpts{Buckets: []float64{500e3, 2.5e6, 4e6}})
	fsync.Observe(500e3) // nanoseconds
	fsync.Observe(2.5e6)
	_, addr := startServer(t, b, func(c *Config) {
		c.QuotaBytes = 2 << 30
		c.Stats = func() Stats { return Stats{Watchers: 5, Compacted: 3, FsyncNanoseconds: fsync} }
	})
	c := newClient(t, addr)
	for range 3 {
		if _, err := c.Put(t.Context(), "a", "1"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Put(t.Context(), "", "1"); err == nil {
		t.Fatal("a put without a key was accepted")
	}
	_, body, _ := httpGet(t, addr, "/metrics")
	for _, line := range []string{
		`etcd_server_has_leader 1`,
		`etcd_server_is_leader 1`,
		`etcd_server_is_learner 0`,
		`etcd_server_version{server_version="3.7.3"} 1`,
		`etcd_cluster_version{cluster_version="3.7"} 1`,
		`etcd_server_id{server_id="8e9e05c52164694d"} 1`,
		`etcd_server_proposals_committed_total 21`,
		`etcd_server_proposals_applied_total 20`,
		`etcd_server_proposals_pending 0`,
		`etcd_server_proposals_failed_total 0`,
		`etcd_server_quota_backend_bytes 2.147483648e+09`,
		`etcd_mvcc_db_total_size_in_bytes 4096`,
		`etcd_mvcc_db_total_size_in_use_in_bytes 2048`,
		`etcd_mvcc_put_total 3`,
		`etcd_debugging_mvcc_current_revision 4`,
		`grpc_server_started_total{grpc_method="Put",grpc_service="etcdserverpb.KV",grpc_type="unary"} 4`,
		`grpc_server_handled_total{grpc_code="OK",grpc_method="Put",grpc_service="etcdserverpb.KV",grpc_type="unary"} 3`,
		`grpc_server_handled_total{grpc_code="InvalidArgument",grpc_method="Put",grpc_service="etcdserverpb.KV",grpc_type="unary"} 1`,
		`grpc_server_started_total{grpc_method="Watch",grpc_service="etcdserverpb.Watch",grpc_type="bidi_stream"} 0`,
		`etcd_server_request_duration_seconds_count{success="true",type="Put"} 3`,
		`etcd_server_request_duration_seconds_count{success="false",type="Put"} 1`,
		`etcd_server_client_requests_total{client_api_version="3.7",type="unary"} 4`,
		`etcd_disk_wal_fsync_duration_seconds_bucket{le="0.001"} 1`,
		`etcd_disk_wal_fsync_duration_seconds_bucket{le="0.002"} 1`,
		`etcd_disk_wal_fsync_duration_seconds_bucket{le="0.004"} 2`,
		`etcd_disk_wal_fsync_duration_seconds_count 2`,
		`etcd_disk_wal_fsync_duration_seconds_sum 0.003`,
		`etcd_debugging_mvcc_watcher_total 5`,
		`etcd_server_slow_read_indexes_total 0`,
		`etcd_disk_defrag_inflight 0`,
		`etcd_debugging_mvcc_compact_revision 3`,
		`hawser_build_info{version="v0-test"} 1`,
		`hawser_ranges 1`,
		`hawser_ranges_loaded 1`,
		`hawser_range_raft_term{range="1"} 3`,
	} {
		if !strings.Contains(body, "\n"+line+"\n") {
			name, _, _ := strings.Cut(line, "{")
			name, _, _ = strings.Cut(name, " ")
			var have []string
			for _, l := range strings.Split(body, "\n") {
				if strings.HasPrefix(l, name) {
					have = append(have, l)
				}
			}
			t.Errorf("no line %s; have %q", line, have)
		}
	}
	for _, name := range []string{"process_resident_memory_bytes", "go_goroutines", "os_fd_used", "os_fd_limit", "etcd_server_leader_changes_seen_total", "etcd_network_client_grpc_received_bytes_total"} {
		if !strings.Contains(body, "\n"+name+" ") {
			t.Errorf("no %s", name)
		}
	}
}

func TestTwoServersInOneProcessHaveTheirOwnMetrics(t *testing.T) {
	_, first := startServer(t, newBackend(t, router.Config{}))
	_, second := startServer(t, newBackend(t, router.Config{}))
	if _, err := newClient(t, first).Put(t.Context(), "a", "1"); err != nil {
		t.Fatal(err)
	}
	if _, body, _ := httpGet(t, second, "/metrics"); !strings.Contains(body, "\netcd_mvcc_put_total 0\n") {
		t.Error("the second server counted the first one's put")
	}
}

// TestClientVersionsAreBounded: etcd/X2. What clients send as their version is a
// label, so there is an end to it.
func TestClientVersionsAreBounded(t *testing.T) {
	b := newBackend(t, router.Config{})
	_, addr := startServer(t, b)
	kv := pb.NewKVClient(dial(t, addr))
	for i := range 2 * maxClientVersions {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "client-api-version", fmt.Sprint(i))
		if _, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte("a")}); err != nil {
			t.Fatal(err)
		}
	}
	_, body, _ := httpGet(t, addr, "/metrics")
	if n := strings.Count(body, "\netcd_server_client_requests_total{"); n > maxClientVersions+1 {
		t.Errorf("%d versions", n)
	}
	if !strings.Contains(body, `etcd_server_client_requests_total{client_api_version="other",type="unary"} 64`) {
		t.Error("the rest is not counted")
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "client-api-version", "\xff")
	if _, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte("a")}); err == nil {
		t.Error("a version that is not UTF-8 was accepted")
	}
}

// holdWatch is a Watch service whose streams last until their context ends.
type holdWatch struct {
	pb.UnimplementedWatchServer
	began chan struct{}
}

func (h holdWatch) Watch(s grpc.BidiStreamingServer[pb.WatchRequest, pb.WatchResponse]) error {
	h.began <- struct{}{}
	<-s.Context().Done()
	return s.Context().Err()
}

// TestRequireLeader: etcd/X1. Requests that require a leader fail without one; open
// streams are ended after three election timeouts.
func TestRequireLeader(t *testing.T) {
	b := newBackend(t, router.Config{})
	hold := holdWatch{began: make(chan struct{})}
	_, addr := startServer(t, b, func(c *Config) {
		c.ElectionTimeout = 5 * time.Millisecond
		c.Watch = hold
	})
	conn := dial(t, addr)
	kv, watch := pb.NewKVClient(conn), pb.NewWatchClient(conn)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "hasleader", "true")
	if _, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte("a")}); err != nil {
		t.Fatal(err)
	}
	strict, err := watch.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	<-hold.began
	loose, err := watch.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	<-hold.began
	b.noLeader.Store(true)
	if _, err := strict.Recv(); !isStatus(err, codes.Unavailable, "etcdserver: no leader") {
		t.Errorf("open stream: %v", err)
	}
	if loose.Context().Err() != nil {
		t.Error("a stream that requires no leader was ended")
	}
	if _, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte("a")}); !isStatus(err, codes.Unavailable, "etcdserver: no leader") {
		t.Errorf("unary: %v", err)
	}
	again, err := watch.Watch(ctx)
	if err == nil {
		_, err = again.Recv()
	}
	if !isStatus(err, codes.Unavailable, "etcdserver: no leader") {
		t.Errorf("new stream: %v", err)
	}
	if _, err := kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("a")}); err != nil {
		t.Errorf("a request that requires no leader: %v", err)
	}
}

// TestSlowConnectionsAreClosed: a connection that says nothing, or never ends
// its HTTP header, does not stay.
func TestSlowConnectionsAreClosed(t *testing.T) {
	b := newBackend(t, router.Config{})
	_, addr := startServer(t, b, func(c *Config) { c.HeaderTimeout = 50 * time.Millisecond })
	for name, first := range map[string]string{
		"silent":         "",
		"half a preface": http2.ClientPreface[:10],
		"endless header": "GET /health HTTP/1.1\r\nHost: x\r\n",
		"preface only":   http2.ClientPreface,
		"endless body":   "POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc",
		"endless chunk":  "GET /version HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n50\r\nabc",
	} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, first); err != nil {
			t.Fatal(err)
		}
		if err := conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, conn); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestHTTPClientThatDoesNotReadIsDropped: one that asks and asks, and never
// reads an answer.
func TestHTTPClientThatDoesNotReadIsDropped(t *testing.T) {
	b := newBackend(t, router.Config{})
	_, addr := startServer(t, b, func(c *Config) { c.HeaderTimeout = 50 * time.Millisecond })
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = io.WriteString(conn, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection is still there: %v", err)
	}
}

// TestTooManyPingsEndTheConnection: etcd/X10.
func TestTooManyPingsEndTheConnection(t *testing.T) {
	b := newBackend(t, router.Config{})
	_, addr := startServer(t, b)
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	fr := http2.NewFramer(conn, conn)
	fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if err := fr.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	for range 8 {
		if err := fr.WritePing(false, [8]byte{1}); err != nil {
			break // the server has closed
		}
	}
	maxStreams := false
	for {
		f, err := fr.ReadFrame()
		if err != nil {
			t.Fatalf("no GOAWAY: %v", err)
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if v, ok := f.Value(http2.SettingMaxConcurrentStreams); ok {
				maxStreams = v == 16_384
			}
		case *http2.GoAwayFrame:
			if f.ErrCode != http2.ErrCodeEnhanceYourCalm || string(f.DebugData()) != "too_many_pings" {
				t.Errorf("GOAWAY %v %q", f.ErrCode, f.DebugData())
			}
			if !maxStreams {
				t.Error("the number of streams is not bounded")
			}
			return
		}
	}
}

// TestDrainLetsRequestsEnd: new requests find no server, those under way end.
func TestDrainLetsRequestsEnd(t *testing.T) {
	b := newBackend(t, router.Config{RequestTimeout: 200 * time.Millisecond})
	s, addr := startServer(t, b)
	kv := pb.NewKVClient(dial(t, addr))
	b.silent.Store(true)
	under := make(chan error, 1)
	go func() {
		_, err := kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("a")})
		under <- err
	}()
	<-b.asked // the request is under way
	if err := s.Drain(t.Context()); err != nil {
		t.Errorf("drain: %v", err)
	}
	if err := <-under; !isStatus(err, codes.Unavailable, "etcdserver: request timed out") {
		t.Errorf("request under way: %v", err)
	}
	if _, err := kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("a")}); status.Code(err) != codes.Unavailable {
		t.Errorf("after the drain: %v", err)
	}
}
