package node

import (
	"errors"
	"net"
	"net/url"
	"os"
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
