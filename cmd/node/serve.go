package node

import (
	"errors"
	"net"
	"net/http"
	"net/http/pprof"
	"net/url"
	"time"

	"github.com/hawser-kv/hawser/cmd/version"
	"github.com/hawser-kv/hawser/proxy"
)

func (n *Node) serve() error {
	c := n.core
	member := proxy.Member{ID: c.NodeID, Name: n.cfg.Name, PeerURLs: urlStrings(n.cfg.InitialAdvertisePeerURLs),
		ClientURLs: urlStrings(n.cfg.AdvertiseClientURLs)}
	keepaliveInterval, keepaliveTimeout := n.cfg.ServerKeepalive()
	var debug http.Handler
	if n.cfg.EnablePprof {
		debug = profiles()
	}
	sc := proxy.Config{
		ClusterID: c.ClusterID, MemberID: c.NodeID, Members: []proxy.Member{member},
		Version: version.Get().Version,
		Router:  c.Router,
		Watch: proxy.NewWatchServer(proxy.WatchConfig{
			Service: c.Watch, Current: c.current,
			Previous:      history{c.MVCC}.previous,
			FillHeader:    proxy.FillHeader(c.ClusterID, c.NodeID, c),
			FragmentBytes: n.cfg.MaxRequestBytes + 512<<10,
			Responses:     c.Router.Responses(),
			Sent:          n.metrics.SentEvents,
			Stopping:      n.draining,
		}),
		Meta: c, Storage: c, Replicas: c.Ranges, Metrics: n.metrics, Stats: c.Stats, BusiestRanges: c.busiestRanges,
		MaxRequestBytes: n.cfg.MaxRequestBytes, MaxTxnOps: n.cfg.MaxTxnOps,
		MaxConcurrentStreams: n.cfg.MaxConcurrentStreams,
		KeepaliveMinTime:     n.cfg.GRPCKeepAliveMinTime,
		KeepaliveInterval:    keepaliveInterval, KeepaliveTimeout: keepaliveTimeout,
		RequestTimeout: 5*time.Second + 2*n.cfg.ElectionTimeout, ElectionTimeout: n.cfg.ElectionTimeout,
		QuotaBytes: max(n.cfg.QuotaBackendBytes, 0), ExtensiveMetrics: n.cfg.Metrics == "extensive", SlowRequest: n.cfg.WarningUnaryRequestDuration,
		Debug:  debug,
		Logger: n.log,
	}
	if n.cfg.TuneServer != nil {
		n.cfg.TuneServer(&sc)
	}
	server, err := proxy.NewServer(sc)
	if err != nil {
		return err
	}
	n.server = server
	clients := server.Serve
	if len(n.webListeners) > 0 {
		clients = server.ServeGRPC
	}
	n.serveOn(n.listeners, clients)
	n.serveOn(n.webListeners, server.ServeHTTP1)
	n.serveOn(n.metricsListeners, server.ServeMetrics)
	return nil
}

// serveOn serves each of ls; one that fails ends the node.
func (n *Node) serveOn(ls []net.Listener, serve func(net.Listener) error) {
	for _, l := range ls {
		n.background(func() {
			if err := serve(l); err != nil && !errors.Is(err, proxy.ErrServerStopped) {
				n.fail(err)
			}
		})
	}
}

func urlStrings(us []url.URL) []string {
	out := make([]string, len(us))
	for i, u := range us {
		out[i] = u.String()
	}
	return out
}

// profiles serves /debug/pprof.
func profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}
