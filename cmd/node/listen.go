package node

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"syscall"

	"github.com/hawser-kv/hawser/cmd/config"
)

// listenOn listens on a URL of the configuration. A socket file that a server
// left behind when it was killed is replaced; one that somebody listens on is not.
func listenOn(u url.URL) (net.Listener, error) {
	network, address := config.ListenAddress(u)
	l, err := net.Listen(network, address)
	if network != "unix" || !errors.Is(err, syscall.EADDRINUSE) || !isLeftBehind(address) {
		return l, err
	}
	if err := os.Remove(address); err != nil {
		return nil, err
	}
	return net.Listen(network, address)
}

// isLeftBehind reports that a path is a socket on which nobody listens.
func isLeftBehind(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != os.ModeSocket {
		return false
	}
	c, err := net.Dial("unix", path)
	if err == nil {
		_ = c.Close() // only its existence matters
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

func (n *Node) listen() error {
	openFiles, connections, err := shareDescriptors(descriptorLimit())
	if err != nil {
		return err
	}
	n.openFiles = openFiles
	places := make(chan struct{}, connections)
	for _, group := range []struct {
		what   string
		urls   []url.URL
		to     *[]net.Listener
		places chan struct{}
	}{
		{"clients", n.cfg.ListenClientURLs, &n.listeners, places},
		{"HTTP", n.cfg.ListenClientHTTPURLs, &n.webListeners, places},
		{"metrics", n.cfg.ListenMetricsURLs, &n.metricsListeners, make(chan struct{}, metricsConnections)},
	} {
		for _, u := range group.urls {
			l, err := listenOn(u)
			if err != nil {
				n.closeListeners()
				return fmt.Errorf("listen for %s on %s: %w", group.what, u.String(), err)
			}
			if connections > 0 {
				l = newLimitedListener(l, group.places)
			}
			*group.to = append(*group.to, l)
		}
	}
	for i, u := range n.cfg.ListenClientURLs {
		n.cfg.AdvertiseClientURLs = realPort(n.cfg.AdvertiseClientURLs, u, n.listeners[i])
	}
	return nil
}

// realPort replaces a port 0 in what is advertised for u by l's.
func realPort(advertised []url.URL, u url.URL, l net.Listener) []url.URL {
	if network, _ := config.ListenAddress(u); network != "tcp" || u.Port() != "0" {
		return advertised
	}
	out := make([]url.URL, len(advertised))
	for i, a := range advertised {
		if a.Host == u.Host {
			_, port, err := net.SplitHostPort(l.Addr().String())
			if err == nil {
				a.Host = net.JoinHostPort(a.Hostname(), port)
			}
		}
		out[i] = a
	}
	return out
}

func (n *Node) closeListeners() {
	for _, l := range slices.Concat(n.listeners, n.webListeners, n.metricsListeners) {
		_ = l.Close() // given up
	}
}
