package proxy

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// calls is what happens around every RPC: one interceptor for unary ones and
// one for streams, each with counters bound beforehand.
type calls struct {
	meta        Meta
	slowRequest time.Duration
	logger      *zap.Logger

	methods       map[string]*methodMetrics
	unary, stream versions
	changes       prometheus.Counter
	// failures counts streams that ended with an error that is not the
	// client's leaving, by API; bound by method.
	failures *prometheus.CounterVec

	// leaderStreams are the streams that require a leader, to be cancelled
	// when there is none for long (etcd/X1).
	leaderStreams struct {
		sync.Mutex
		cancels map[*leaderStream]struct{}
	}
}

// methodMetrics are the counters of one method, with the names and labels of
// go-grpc-prometheus that dashboards know.
type methodMetrics struct {
	started, received, sent prometheus.Counter
	handled                 [codes.Unauthenticated + 1]prometheus.Counter
	// seconds is nil unless extensive metrics are asked for.
	seconds prometheus.Observer
}

// done counts the end of a call that began at start.
func (m *methodMetrics) done(start time.Time, err error) {
	if m.seconds != nil {
		m.seconds.Observe(time.Since(start).Seconds())
	}
	code := status.Code(err)
	if int(code) >= len(m.handled) {
		code = codes.Unknown
	}
	m.handled[code].Inc()
}

// bindMethods makes the counters of every method that srv serves, at zero, and
// if extensive its latency histogram.
func (c *calls) bindMethods(m *Metrics, srv *grpc.Server, extensive bool) {
	labels := []string{"grpc_type", "grpc_service", "grpc_method"}
	started := m.counters("grpc_server_started_total", "Total number of RPCs started on the server.", labels...)
	handled := m.counters("grpc_server_handled_total", "Total number of RPCs completed on the server, regardless of success or failure.", append(labels, "grpc_code")...)
	received := m.counters("grpc_server_msg_received_total", "Total number of RPC stream messages received on the server.", labels...)
	sent := m.counters("grpc_server_msg_sent_total", "Total number of gRPC stream messages sent by the server.", labels...)
	var seconds *prometheus.HistogramVec
	if extensive {
		seconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "grpc_server_handling_seconds", Buckets: prometheus.DefBuckets,
			Help: "Histogram of response latency (seconds) of gRPC that had been application-level handled by the server.",
		}, labels)
		m.registry.MustRegister(seconds)
	}
	for service, info := range srv.GetServiceInfo() {
		for _, method := range info.Methods {
			kind := "unary"
			switch {
			case method.IsClientStream && method.IsServerStream:
				kind = "bidi_stream"
			case method.IsClientStream:
				kind = "client_stream"
			case method.IsServerStream:
				kind = "server_stream"
			}
			mm := &methodMetrics{
				started:  started.WithLabelValues(kind, service, method.Name),
				received: received.WithLabelValues(kind, service, method.Name),
				sent:     sent.WithLabelValues(kind, service, method.Name),
			}
			if extensive {
				mm.seconds = seconds.WithLabelValues(kind, service, method.Name)
			}
			for code := range mm.handled {
				mm.handled[code] = handled.WithLabelValues(kind, service, method.Name, codes.Code(code).String())
			}
			c.methods["/"+service+"/"+method.Name] = mm
		}
	}
}

// maxClientVersions bounds the values of the label client_api_version, which
// clients choose.
const maxClientVersions = 64

// versions counts the requests of each client version (etcd/X2).
type versions struct {
	vec  *prometheus.CounterVec
	kind string
	mu   sync.RWMutex
	// bound has the counters of the versions seen, at most maxClientVersions;
	// what comes later is counted as "other".
	bound map[string]prometheus.Counter
}

func (v *versions) count(version string) {
	v.mu.RLock()
	c := v.bound[version]
	v.mu.RUnlock()
	if c == nil {
		v.mu.Lock()
		if len(v.bound) >= maxClientVersions {
			version = "other"
		}
		if c = v.bound[version]; c == nil {
			c = v.vec.WithLabelValues(v.kind, version)
			v.bound[version] = c
		}
		v.mu.Unlock()
	}
	c.Inc()
}

func newCalls(m *Metrics, meta Meta, slow time.Duration, logger *zap.Logger) *calls {
	c := &calls{meta: meta, slowRequest: slow, logger: logger, methods: make(map[string]*methodMetrics), failures: m.streamFailures, changes: m.leaderChanges}
	c.unary = versions{vec: m.clientRequests, kind: "unary", bound: make(map[string]prometheus.Counter)}
	c.stream = versions{vec: m.clientRequests, kind: "stream", bound: make(map[string]prometheus.Counter)}
	c.leaderStreams.cancels = make(map[*leaderStream]struct{})
	return c
}

// admit looks at the client's metadata (etcd/X1, etcd/X2). needsLeader: the
// stream is to end when there is no leader.
func (c *calls) admit(ctx context.Context, v *versions) (needsLeader bool, err error) {
	version := "unknown"
	if vs := metadata.ValueFromIncomingContext(ctx, rpctypes.MetadataClientAPIVersionKey); len(vs) > 0 {
		version = vs[0]
		if !utf8.ValidString(version) {
			return false, toGRPC(errClientAPIVersion)
		}
	}
	v.count(version)
	if vs := metadata.ValueFromIncomingContext(ctx, rpctypes.MetadataRequireLeaderKey); len(vs) > 0 && vs[0] == rpctypes.MetadataHasLeader {
		if c.meta.Leader() == 0 {
			return false, toGRPC(errNoLeader)
		}
		return true, nil
	}
	return false, nil
}

func (c *calls) unaryInterceptor(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	m := c.methods[info.FullMethod]
	m.started.Inc()
	m.received.Inc()
	start := time.Now()
	_, err := c.admit(ctx, &c.unary)
	var resp any
	if err == nil {
		resp, err = handler(ctx, req)
	}
	m.sent.Inc()
	m.done(start, err)
	if took := time.Since(start); took > c.slowRequest {
		c.logSlow(ctx, info.FullMethod, took, req, resp)
	}
	return resp, err
}

// logSlow logs a slow request as etcd does (etcd/X11), keys but no values.
func (c *calls) logSlow(ctx context.Context, method string, took time.Duration, req, resp any) {
	remote := "unknown"
	if p, ok := peer.FromContext(ctx); ok {
		remote = p.Addr.String()
	}
	fields := []zap.Field{zap.Duration("time spent", took), zap.String("remote", remote), zap.String("response type", method)}
	if m, ok := req.(proto.Message); ok {
		fields = append(fields, zap.Int("request size", proto.Size(m)))
	}
	if m, ok := resp.(proto.Message); ok && m.ProtoReflect().IsValid() {
		fields = append(fields, zap.Int("response size", proto.Size(m)))
	}
	switch r := req.(type) {
	case *pb.RangeRequest:
		fields = append(fields, zap.ByteString("key", r.Key), zap.ByteString("range end", r.RangeEnd), zap.Int64("limit", r.Limit))
	case *pb.PutRequest:
		fields = append(fields, zap.ByteString("key", r.Key), zap.Int("value size", len(r.Value)))
	case *pb.DeleteRangeRequest:
		fields = append(fields, zap.ByteString("key", r.Key), zap.ByteString("range end", r.RangeEnd))
	case *pb.TxnRequest:
		fields = append(fields, zap.Int("compares", len(r.Compare)), zap.Int("success", len(r.Success)), zap.Int("failure", len(r.Failure)))
	}
	c.logger.Warn("request stats", fields...)
}

func (c *calls) streamInterceptor(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	m := c.methods[info.FullMethod]
	m.started.Inc()
	start := time.Now()
	needsLeader, err := c.admit(ss.Context(), &c.stream)
	if err != nil {
		m.done(start, err)
		return err
	}
	counted := &countedStream{ServerStream: ss, m: m}
	if needsLeader {
		l := &leaderStream{countedStream: counted}
		l.ctx, l.cancel = context.WithCancelCause(ss.Context())
		c.leaderStreams.Lock()
		c.leaderStreams.cancels[l] = struct{}{}
		c.leaderStreams.Unlock()
		err = handler(srv, l)
		c.leaderStreams.Lock()
		delete(c.leaderStreams.cancels, l)
		c.leaderStreams.Unlock()
		if errors.Is(context.Cause(l.ctx), errNoLeader) {
			err = toGRPC(errNoLeader)
		}
		l.cancel(nil)
	} else {
		err = handler(srv, counted)
	}
	m.done(start, err)
	switch status.Code(err) {
	case codes.OK, codes.Canceled, codes.DeadlineExceeded:
	default:
		service, method, _ := strings.Cut(strings.TrimPrefix(info.FullMethod, "/"), "/")
		c.failures.WithLabelValues("send", strings.ToLower(strings.TrimPrefix(service, "etcdserverpb.")+"/"+method)).Inc()
	}
	return err
}

// countedStream counts the messages of a stream.
type countedStream struct {
	grpc.ServerStream
	m *methodMetrics
}

func (s *countedStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if err == nil {
		s.m.received.Inc()
	}
	return err
}

func (s *countedStream) SendMsg(m any) error {
	err := s.ServerStream.SendMsg(m)
	if err == nil {
		s.m.sent.Inc()
	}
	return err
}

// leaderStream is a stream that ends when there is no leader.
type leaderStream struct {
	*countedStream
	ctx    context.Context
	cancel context.CancelCauseFunc
}

func (s *leaderStream) Context() context.Context { return s.ctx }

// noLeaderTimeouts is the number of election timeouts without a leader after
// which streams that require one are cancelled; ending them costs clients more
// than refusing new ones (etcd/X1).
const noLeaderTimeouts = 3

// watchLeader looks at the leader once a tick: it counts changes, and cancels
// streams that require a leader when none is known for noLeaderTimeouts ticks.
// It returns when stop is closed.
func (c *calls) watchLeader(tick <-chan time.Time, stop <-chan struct{}) {
	missing := 0
	var leader, term uint64
	for {
		select {
		case <-stop:
			return
		case <-tick:
		}
		if l, t := c.meta.Leader(), c.meta.Term(); l != 0 {
			if l != leader || t != term {
				leader, term = l, t
				c.changes.Inc()
			}
			missing = 0
			continue
		}
		missing++
		if missing < noLeaderTimeouts {
			continue
		}
		c.leaderStreams.Lock()
		for l := range c.leaderStreams.cancels {
			l.cancel(errNoLeader)
		}
		clear(c.leaderStreams.cancels)
		c.leaderStreams.Unlock()
	}
}
