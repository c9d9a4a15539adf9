package node

import (
	"fmt"
	"net"
	"sync"
)

// Of the file descriptors that the process may have, the node keeps some for
// itself, as etcd does, so that clients cannot take what the engine needs: its
// tables, logs and manifest. Connections get the rest; more of them wait to be
// accepted.
const (
	// reservedDescriptors is what the node keeps, its tables included, where the
	// limit is small.
	reservedDescriptors = 150
	// otherDescriptors is the part of it that is not for the engine's tables: logs,
	// the manifest, directories, listeners, files being written, and the connections
	// of --listen-metrics-urls.
	otherDescriptors = 76
	// metricsConnections are for --listen-metrics-urls alone, so that clients that
	// hold all others do not starve health checks.
	metricsConnections = 16
	// maxOpenFiles is what the engine is given where the limit is large: what Pebble
	// takes by itself.
	maxOpenFiles = 1000
)

// shareDescriptors divides a limit of file descriptors, 0 if there is none, between
// the engine and connections (0: any number).
func shareDescriptors(limit uint64) (openFiles, connections int, err error) {
	if limit == 0 {
		return maxOpenFiles, 0, nil
	}
	if limit <= reservedDescriptors {
		return 0, 0, fmt.Errorf("the limit of file descriptors is %d, and the server keeps %d for itself: raise it (ulimit -n, LimitNOFILE)",
			limit, reservedDescriptors)
	}
	openFiles = int(min(max(limit/4, reservedDescriptors-otherDescriptors), maxOpenFiles))
	return openFiles, int(min(limit-uint64(openFiles+otherDescriptors), 1<<30)), nil
}

// limitedListener accepts a connection when one of the places is free, which several
// listeners share.
type limitedListener struct {
	net.Listener
	places chan struct{}
	closed chan struct{}
	once   sync.Once
}

func newLimitedListener(l net.Listener, places chan struct{}) *limitedListener {
	return &limitedListener{Listener: l, places: places, closed: make(chan struct{})}
}

func (l *limitedListener) Accept() (net.Conn, error) {
	select {
	case l.places <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.places
		return nil, err
	}
	return &limitedConn{Conn: c, places: l.places}, nil
}

func (l *limitedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// limitedConn leaves its place once, when it is closed.
type limitedConn struct {
	net.Conn
	places chan struct{}
	once   sync.Once
}

func (c *limitedConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { <-c.places })
	return err
}
