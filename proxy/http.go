package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.uber.org/zap"
)

// newHandler returns the HTTP endpoints of the client port.
func (s *Server) newHandler() http.Handler {
	mux := http.NewServeMux()
	s.addHealth(mux)
	mux.HandleFunc("/version", getOnly(serveVersion))
	if s.cfg.Debug != nil {
		mux.Handle("/debug/", s.cfg.Debug)
	}
	return allowOrigins(mux)
}

// newMetricsHandler returns what ServeMetrics serves.
func (s *Server) newMetricsHandler() http.Handler {
	mux := http.NewServeMux()
	s.addHealth(mux)
	return mux
}

// addHealth serves metrics and health.
func (s *Server) addHealth(mux *http.ServeMux) {
	mux.HandleFunc("/health", getOnly(s.serveHealth))
	mux.Handle("/metrics", promhttp.InstrumentMetricHandler(s.metrics.registry, promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError,
	})))
	serializable := healthCheck{"serializable_read", func(ctx context.Context) error { return s.readSomething(ctx, true) }}
	linearizable := healthCheck{"linearizable_read", func(ctx context.Context) error { return s.readSomething(ctx, false) }}
	intact := func(context.Context) error {
		for _, a := range alarms(s.cfg.Storage, s.cfg.MemberID) {
			if a.Alarm == pb.AlarmType_CORRUPT {
				return fmt.Errorf("alarm activated: %s", a.Alarm)
			}
		}
		return nil
	}
	passes := func(context.Context) error { return nil } // a node of this version is never a learner
	s.addChecks(mux, "livez", serializable)
	s.addChecks(mux, "readyz", healthCheck{"data_corruption", intact}, serializable, linearizable, healthCheck{"non_learner", passes})
}

// allowOrigins answers browsers of any origin, as etcd does by default (--cors
// "*"), and every OPTIONS request.
func allowOrigins(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Methods", "POST, GET, OPTIONS, PUT, DELETE")
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.Header().Set("Access-Control-Allow-Headers", "accept, content-type, authorization")
		if r.Method == http.MethodOptions {
			w.WriteHeader(http.StatusOK)
			return
		}
		h.ServeHTTP(w, r)
	})
}

func getOnly(f http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			w.Header().Set("Allow", http.MethodGet)
			http.Error(w, "Method Not Allowed", http.StatusMethodNotAllowed)
			return
		}
		f(w, r)
	}
}

// readSomething reads as etcd's health checks do: any key would do.
func (s *Server) readSomething(ctx context.Context, serializable bool) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.RequestTimeout)
	defer cancel()
	_, err := s.cfg.Router.Range(ctx, &pb.RangeRequest{Key: []byte{0}, KeysOnly: true, Limit: 1, Serializable: serializable})
	return toGRPC(err)
}

// healthBody is the body of /health.
type healthBody struct {
	Health string `json:"health"`
	Reason string `json:"reason"`
}

// serveHealth answers /health: alarms that are not excluded, then a leader, then
// a read; with serializable=true only what this node can tell alone.
func (s *Server) serveHealth(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	serializable := query.Get("serializable") == "true"
	reason := ""
	for _, a := range alarms(s.cfg.Storage, s.cfg.MemberID) {
		if !slices.Contains(query["exclude"], a.Alarm.String()) {
			reason = "ALARM " + a.Alarm.String()
			break
		}
	}
	if reason == "" && !serializable && s.cfg.Meta.Leader() == 0 {
		reason = "RAFT NO LEADER"
	}
	if reason == "" {
		if err := s.readSomething(r.Context(), serializable); err != nil {
			reason = fmt.Sprintf("RANGE ERROR:%s", err)
		}
	}
	body := healthBody{Health: "true", Reason: reason}
	if reason != "" {
		body.Health = "false"
	}
	b, err := json.Marshal(body)
	if err != nil {
		panic(fmt.Sprintf("proxy: health body: %v", err)) // two strings always marshal
	}
	if reason != "" {
		s.metrics.healthFailures.Inc()
		s.cfg.Logger.Warn("/health error", zap.ByteString("output", b))
		http.Error(w, string(b), http.StatusServiceUnavailable)
		return
	}
	s.metrics.healthSuccess.Inc()
	w.Write(b)
}

// serveVersion answers /version; clients parse its parts as numbers.
func serveVersion(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"etcdserver":%q,"etcdcluster":%q,"storage":%q}`, EtcdVersion, ClusterVersion, StorageVersion)
}

// healthCheck is one check of /livez or /readyz.
type healthCheck struct {
	name  string
	check func(context.Context) error
}

// addChecks serves a group of checks under /kind and each alone under
// /kind/name.
func (s *Server) addChecks(mux *http.ServeMux, kind string, checks ...healthCheck) {
	mux.HandleFunc("/"+kind, getOnly(func(w http.ResponseWriter, r *http.Request) {
		excluded := r.URL.Query()["exclude"]
		s.runChecks(w, r, kind, slices.DeleteFunc(slices.Clone(checks), func(c healthCheck) bool {
			return slices.Contains(excluded, c.name)
		}))
	}))
	for _, c := range checks {
		mux.HandleFunc("/"+kind+"/"+c.name, getOnly(func(w http.ResponseWriter, r *http.Request) {
			s.runChecks(w, r, kind, []healthCheck{c})
		}))
	}
}

func (s *Server) runChecks(w http.ResponseWriter, r *http.Request, kind string, checks []healthCheck) {
	var detail strings.Builder
	var failed []error
	for _, c := range checks {
		err := c.check(r.Context())
		outcome, up := "success", 1.0
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", c.name, err))
			fmt.Fprintf(&detail, "[-]%s failed: %v\n", c.name, err)
			outcome, up = "error", 0
		} else {
			fmt.Fprintf(&detail, "[+]%s ok\n", c.name)
		}
		s.metrics.healthcheck.WithLabelValues(kind, c.name).Set(up)
		s.metrics.healthchecks.WithLabelValues(kind, c.name, outcome).Inc()
	}
	if len(failed) > 0 {
		s.cfg.Logger.Warn("health check failed", zap.String("kind", kind), zap.Error(errors.Join(failed...)))
		http.Error(w, detail.String(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if r.URL.Query().Has("verbose") {
		fmt.Fprint(w, detail.String())
	}
	fmt.Fprint(w, "ok\n")
}
