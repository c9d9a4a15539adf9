package proxy

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/soheilhy/cmux"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip" // accepted when a client asks for it (etcd/X16)
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/adminpb"
)

// maxHeaderBytes bounds the metadata of a request: tokens are some kilobytes at
// most, and gRPC's own bound of 16 MiB is an invitation.
const maxHeaderBytes = 256 * 1024

// maxSendBytes is the size of the largest message that is sent: etcd's, and gRPC's
// own.
const maxSendBytes = math.MaxInt32

// streamWorkers is the number of goroutines that gRPC keeps for requests: they
// have grown their stacks, which saves a tenth of a small request's CPU time.
// More requests at a time than that get goroutines of their own. An idle one
// costs some KiB of stack.
const streamWorkers = 512

// Server serves etcd's API, the admin service and the HTTP endpoints, gRPC and
// HTTP on the same listener.
type Server struct {
	cfg     Config
	metrics *Metrics
	grpc    *grpc.Server
	http    *http.Server
	// metricsHTTP serves what ServeMetrics serves.
	metricsHTTP *http.Server
	health      *health.Server

	stop    chan struct{}
	running sync.WaitGroup

	mu struct {
		sync.Mutex
		stopped   bool
		listeners []net.Listener
	}
}

// NewServer returns a server that is not serving yet.
func NewServer(cfg Config) (*Server, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, metrics: cfg.Metrics, stop: make(chan struct{})}
	if s.metrics == nil {
		s.metrics = NewMetrics()
	}
	s.metrics.describe(cfg.MemberID, cfg.Version)
	if err := s.metrics.registry.Register(&collector{cfg: &s.cfg}); err != nil {
		return nil, fmt.Errorf("proxy: metrics are in use by another server: %w", err)
	}

	around := newCalls(s.metrics, cfg.Meta, cfg.SlowRequest, cfg.Logger)
	s.grpc = grpc.NewServer(
		grpc.ForceServerCodecV2(newCountingCodec(s.metrics, cfg.Router.Responses())),
		grpc.UnaryInterceptor(around.unaryInterceptor),
		grpc.StreamInterceptor(around.streamInterceptor),
		grpc.MaxRecvMsgSize(cfg.MaxRequestBytes+grpcOverheadBytes),
		grpc.MaxSendMsgSize(maxSendBytes),
		grpc.MaxConcurrentStreams(cfg.MaxConcurrentStreams),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ConnectionTimeout(cfg.HeaderTimeout),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: cfg.KeepaliveMinTime, PermitWithoutStream: false}),
		// Who stops a server closes the engine next, that handlers may still read.
		grpc.WaitForHandlers(true),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: cfg.KeepaliveInterval, Timeout: cfg.KeepaliveTimeout}),
	)
	s.register()
	around.bindMethods(s.metrics, s.grpc, cfg.ExtensiveMetrics)

	s.http, s.metricsHTTP = s.newHTTPServer(s.newHandler()), s.newHTTPServer(s.newMetricsHandler())
	s.running.Add(1)
	go func() {
		defer s.running.Done()
		t := time.NewTicker(cfg.ElectionTimeout)
		defer t.Stop()
		around.watchLeader(t.C, s.stop)
	}()
	return s, nil
}

func (s *Server) register() {
	c := &s.cfg
	hdr := &header{clusterID: c.ClusterID, memberID: c.MemberID, meta: c.Meta, revision: c.Router.LocalRevision}
	pb.RegisterKVServer(s.grpc, &kvServer{
		router: c.Router, hdr: hdr, storage: c.Storage, metrics: s.metrics,
		limits: mvcc.Limits{MaxTxnOps: c.MaxTxnOps}, maxRequestBytes: c.MaxRequestBytes,
		logID: c.MemberID<<48 | 1,
	})
	pb.RegisterWatchServer(s.grpc, c.Watch)
	pb.RegisterLeaseServer(s.grpc, leaseServer{})
	pb.RegisterAuthServer(s.grpc, authServer{hdr: hdr})
	pb.RegisterClusterServer(s.grpc, &clusterServer{hdr: hdr, router: c.Router, members: c.Members})
	pb.RegisterMaintenanceServer(s.grpc, &maintenanceServer{
		hdr: hdr, router: c.Router, meta: c.Meta, storage: c.Storage, metrics: s.metrics,
		memberID: c.MemberID, quotaBytes: c.QuotaBytes, logger: c.Logger,
	})
	adminpb.RegisterAdminServer(s.grpc, &adminServer{
		router: c.Router, replicas: c.Replicas, clusterID: c.ClusterID, memberID: c.MemberID, version: c.Version,
	})
	s.health = health.NewServer()
	healthpb.RegisterHealthServer(s.grpc, s.health)
}

// Metrics returns the server's metrics.
func (s *Server) Metrics() *Metrics { return s.metrics }

// ErrServerStopped is returned by Serve after Stop.
var ErrServerStopped = errors.New("proxy: server stopped")

// Serve serves gRPC and HTTP on l until Stop, or until l fails. The first bytes
// of a connection tell which it speaks; they must come within HeaderTimeout. It
// may be called for several listeners; it closes l.
func (s *Server) Serve(l net.Listener) error {
	if !s.track(l, 2) {
		return ErrServerStopped
	}
	mux := cmux.New(l)
	mux.SetReadTimeout(s.cfg.HeaderTimeout)
	grpcL := mux.Match(cmux.HTTP2())
	httpL := mux.Match(cmux.Any())
	go func() {
		defer s.running.Done()
		s.ended("grpc", s.grpc.Serve(grpcL))
	}()
	go func() {
		defer s.running.Done()
		s.ended("http", s.http.Serve(httpL))
	}()
	err := mux.Serve()
	mux.Close()
	if s.isStopped() {
		return ErrServerStopped
	}
	return fmt.Errorf("proxy: listener %s: %w", l.Addr(), err)
}

func (s *Server) ended(what string, err error) {
	if err != nil && !s.isStopped() {
		s.cfg.Logger.Warn("serving ended", zap.String("protocol", what), zap.Error(err))
	}
}

// track takes a listener in, with as many goroutines as will call running.Done, so
// that Stop waits for those that begin as it is called. Once it was called the
// listener is closed.
func (s *Server) track(l net.Listener, goroutines int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.stopped {
		l.Close()
		return false
	}
	s.running.Add(goroutines)
	s.mu.listeners = append(s.mu.listeners, l)
	return true
}

func (s *Server) isStopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.stopped
}

// Drain makes health checks fail and stops taking connections and requests; it
// returns when those under way have ended, or with ctx. Streams have to be ended
// by who serves them (Watch).
func (s *Server) Drain(ctx context.Context) error {
	s.mu.Lock()
	s.mu.stopped = true
	listeners := s.mu.listeners
	s.mu.listeners = nil
	s.mu.Unlock()
	s.health.Shutdown()
	for _, l := range listeners {
		l.Close()
	}
	done := make(chan struct{})
	go func() {
		s.grpc.GracefulStop()
		close(done)
	}()
	err := s.shutdownHTTP(ctx)
	select {
	case <-done:
	case <-ctx.Done():
		err = errors.Join(err, ctx.Err())
		s.grpc.Stop()
		<-done
	}
	return err
}

// Stop ends everything at once. Call Drain first for a clean end.
func (s *Server) Stop() {
	s.mu.Lock()
	s.mu.stopped = true
	listeners := s.mu.listeners
	s.mu.listeners = nil
	s.mu.Unlock()
	for _, l := range listeners {
		l.Close()
	}
	select {
	case <-s.stop:
	default:
		close(s.stop)
	}
	s.grpc.Stop()
	s.http.Close()
	s.metricsHTTP.Close()
	s.running.Wait()
}

// FillHeader completes the header of a response that is made elsewhere (Watch).
func FillHeader(clusterID, memberID uint64, meta Meta) func(*pb.ResponseHeader) {
	h := &header{clusterID: clusterID, memberID: memberID, meta: meta}
	return h.fillWithoutRevision
}
