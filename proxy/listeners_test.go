package proxy

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hawser-kv/hawser/proxy/router"
)

// startOn serves with one of the Serve methods and returns the address.
func startOn(t *testing.T, s *Server, serve func(net.Listener) error) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-ended; !errors.Is(err, ErrServerStopped) {
			t.Errorf("serving ended: %v", err)
		}
	})
	return l.Addr().String()
}

// TestListenersServeOnlyWhatTheyAreFor: --listen-client-http-urls
// and --listen-metrics-urls.
func TestListenersServeOnlyWhatTheyAreFor(t *testing.T) {
	b := newBackend(t, router.Config{})
	s, _ := startServer(t, b, func(c *Config) {
		c.Debug = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("debug")) })
	})
	grpcOnly, httpOnly, metrics := startOn(t, s, s.ServeGRPC), startOn(t, s, s.ServeHTTP1), startOn(t, s, s.ServeMetrics)

	if _, err := newClient(t, grpcOnly).Put(t.Context(), "a", "1"); err != nil {
		t.Errorf("gRPC where only gRPC is served: %v", err)
	}
	client := http.Client{Timeout: 10 * time.Second}
	if resp, err := client.Get("http://" + grpcOnly + "/health"); err == nil {
		resp.Body.Close()
		t.Errorf("HTTP where only gRPC is served: %s", resp.Status)
	}
	for _, addr := range []string{httpOnly, metrics} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_, err := pb.NewKVClient(dial(t, addr)).Range(ctx, &pb.RangeRequest{Key: []byte("a")})
		cancel()
		if status.Code(err) != codes.Unavailable {
			t.Errorf("gRPC where only HTTP is served: %v", err)
		}
	}
	for path, onMetrics := range map[string]int{
		"/health": 200, "/livez": 200, "/readyz": 200, "/metrics": 200, "/version": 404, "/debug/pprof/": 404,
	} {
		if code, body, _ := httpGet(t, httpOnly, path); code != 200 {
			t.Errorf("%s: %d %s", path, code, body)
		}
		if code, body, _ := httpGet(t, metrics, path); code != onMetrics {
			t.Errorf("%s where only metrics are served: %d %s, want %d", path, code, body, onMetrics)
		}
	}
	if err := s.Drain(t.Context()); err != nil {
		t.Errorf("drain: %v", err)
	}
	if resp, err := client.Get("http://" + metrics + "/health"); err == nil {
		resp.Body.Close()
		t.Errorf("after the drain: %s", resp.Status)
	}
}

// TestExtensiveMetricsHaveLatencies: --metrics.
func TestExtensiveMetricsHaveLatencies(t *testing.T) {
	const line = `grpc_server_handling_seconds_count{grpc_method="Put",grpc_service="etcdserverpb.KV",grpc_type="unary"} 1`
	for _, extensive := range []bool{false, true} {
		_, addr := startServer(t, newBackend(t, router.Config{}), func(c *Config) { c.ExtensiveMetrics = extensive })
		if _, err := newClient(t, addr).Put(t.Context(), "a", "1"); err != nil {
			t.Fatal(err)
		}
		if _, body, _ := httpGet(t, addr, "/metrics"); strings.Contains(body, "\n"+line+"\n") != extensive {
			t.Errorf("extensive %v, but the histogram is there: %v", extensive, !extensive)
		}
	}
}

// TestQuotaIsShownOnlyWhenThereIsOne: an alert that divides by it must not see 0.
func TestQuotaIsShownOnlyWhenThereIsOne(t *testing.T) {
	for _, quota := range []int64{0, 4 << 30} {
		_, addr := startServer(t, newBackend(t, router.Config{}), func(c *Config) { c.QuotaBytes = quota })
		s, err := newClient(t, addr).Status(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		if s.DbSizeQuota != quota {
			t.Errorf("quota %d, want %d", s.DbSizeQuota, quota)
		}
		_, body, _ := httpGet(t, addr, "/metrics")
		if got := strings.Contains(body, "\netcd_server_quota_backend_bytes "); got != (quota > 0) {
			t.Errorf("quota %d: the metric is there: %v", quota, got)
		}
	}
}
