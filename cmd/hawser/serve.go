package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/cmd/config"
	"github.com/hawser-kv/hawser/cmd/version"
)

// drainTimeout bounds how long a stop waits for requests under way; below the
// 90 s after which systemd kills.
const drainTimeout = 30 * time.Second

// server is a running node, as the command needs it.
type server interface {
	// ClientAddr is the address that clients connect to, port included.
	ClientAddr() string
	// Err delivers the fault that ended the node, if one does.
	Err() <-chan error
	// Close drains and stops. It is called once.
	Close(ctx context.Context) error
}

// startFunc starts a node and returns when it serves.
type startFunc func(ctx context.Context, c config.Config, lg *zap.Logger) (server, error)

// serve runs a server until a signal or a fault ends it. A signal during the
// start ends the start. A second signal ends the drain.
func (a *app) serve(ctx context.Context, source *config.Source) error {
	c, warnings, err := source.Load(a.environ)
	if err != nil {
		return failf(exitUsage, "the configuration is not valid:\n%w", err)
	}
	lg, syncLog, err := c.NewLogger()
	if err != nil {
		return failf(exitFailed, "%w", err)
	}
	defer syncLog()
	for _, w := range warnings {
		lg.Warn("configuration: " + w)
	}
	build := version.Get()
	lg.Info("starting hawser",
		zap.String("version", build.Version), zap.String("commit", build.Commit), zap.String("go", build.Go),
		zap.String("name", c.Name), zap.String("data-dir", c.DataDir))

	tending, stopTending := context.WithCancel(ctx)
	var tended sync.WaitGroup
	tended.Go(func() { tendMemory(tending, a.environ) })
	defer tended.Wait()
	defer stopTending()

	starting, cancelStart := context.WithCancel(ctx)
	defer cancelStart()
	type started struct {
		srv server
		err error
	}
	result := make(chan started, 1)
	go func() {
		srv, err := a.start(starting, c, lg)
		result <- started{srv, err}
	}()
	var s started
	select {
	case s = <-result:
	case sig := <-a.signals:
		lg.Info("received signal during start; stopping", zap.Stringer("signal", sig))
		cancelStart()
		s = <-result
		if s.err != nil {
			return nil // it was asked to end, and has
		}
		return a.stop(ctx, s.srv, lg)
	}
	if s.err != nil {
		lg.Error("failed to start", zap.Error(s.err))
		return failf(exitFailed, "cannot start: %w", s.err)
	}

	lg.Info("ready to serve client requests", zap.String("address", s.srv.ClientAddr()))
	if err := a.notify("READY=1"); err != nil {
		lg.Warn("failed to tell systemd that the server is ready", zap.Error(err))
	}
	select {
	case sig := <-a.signals:
		lg.Info("received signal; shutting down", zap.Stringer("signal", sig))
		return a.stop(ctx, s.srv, lg)
	case fault := <-s.srv.Err():
		if fault == nil {
			fault = errors.New("the node ended by itself")
		}
		lg.Error("the node failed", zap.Error(fault))
		err := a.stop(ctx, s.srv, lg)
		if !errors.Is(err, fault) { // else it tells of the fault already
			err = errors.Join(fault, err)
		}
		return failf(exitFailed, "%w", err)
	}
}

// stop drains and ends the node. A signal or drainTimeout ends the draining.
func (a *app) stop(ctx context.Context, srv server, lg *zap.Logger) error {
	if err := a.notify("STOPPING=1"); err != nil {
		lg.Warn("failed to tell systemd that the server stops", zap.Error(err))
	}
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- srv.Close(ctx) }()
	select {
	case err := <-done:
		if err != nil {
			lg.Error("failed to stop cleanly", zap.Error(err))
			return failf(exitFailed, "stop: %w", err)
		}
		lg.Info("stopped")
		return nil
	case sig := <-a.signals:
		return failf(exitFailed, "received signal %s while stopping: not waited for requests under way", sig)
	}
}

// notify tells the service manager a change of state.
func (a *app) notify(state string) error {
	socket := lookupEnv(a.environ, "NOTIFY_SOCKET")
	if socket == "" {
		return nil
	}
	if err := sdNotify(socket, state); err != nil {
		return fmt.Errorf("NOTIFY_SOCKET: %w", err)
	}
	return nil
}
