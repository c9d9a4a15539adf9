package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"time"
)

// ServeGRPC serves gRPC alone on l, for when HTTP has listeners of its own
// (--listen-client-http-urls). Otherwise as Serve.
func (s *Server) ServeGRPC(l net.Listener) error {
	return s.serveOn(l, s.grpc.Serve)
}

// ServeHTTP1 serves the HTTP endpoints alone on l, without gRPC. Otherwise as
// Serve.
func (s *Server) ServeHTTP1(l net.Listener) error {
	return s.serveOn(l, s.http.Serve)
}

// ServeMetrics serves /metrics, /health, /livez and /readyz on l, and nothing
// else: such an address is often open to more than the clients' is
// (--listen-metrics-urls). Otherwise as Serve.
func (s *Server) ServeMetrics(l net.Listener) error {
	return s.serveOn(l, s.metricsHTTP.Serve)
}

func (s *Server) serveOn(l net.Listener, serve func(net.Listener) error) error {
	if !s.track(l, 0) {
		return ErrServerStopped
	}
	err := serve(l)
	if s.isStopped() {
		return ErrServerStopped
	}
	return fmt.Errorf("proxy: listener %s: %w", l.Addr(), err)
}

// newHTTPServer returns a server of h that gives slow clients little.
func (s *Server) newHTTPServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           dropSlow(h, s.cfg.HeaderTimeout),
		ReadHeaderTimeout: s.cfg.HeaderTimeout,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          log.New(io.Discard, "", 0), // what clients do wrong is not ours to log
	}
}

// answerTimeouts is how many header timeouts a client may take to read an
// answer.
const answerTimeouts = 6

// dropSlow gives the body of a request the time that its header had, and the
// client some more to read the answer; net/http would wait for both for ever,
// and reads what the handler has left of a body. Profiles take the time that was
// asked for.
func dropSlow(h http.Handler, headerTimeout time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		var answer time.Time // never
		if !strings.HasPrefix(r.URL.Path, "/debug/") {
			answer = time.Now().Add(answerTimeouts * headerTimeout)
		}
		err := c.SetWriteDeadline(answer)
		if r.ContentLength != 0 {
			err = errors.Join(err, c.SetReadDeadline(time.Now().Add(headerTimeout)))
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// shutdownHTTP ends the HTTP servers when the requests under way have ended, or
// with ctx.
func (s *Server) shutdownHTTP(ctx context.Context) error {
	var errs []error
	for _, h := range []*http.Server{s.http, s.metricsHTTP} {
		// The listeners are closed already, by Drain and by gRPC.
		if err := h.Shutdown(ctx); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
