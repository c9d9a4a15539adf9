package node

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/range/engine"
	"github.com/hawser-kv/hawser/range/store"
)

// giveUpTimeout bounds the hand-over of a start that is given up.
const giveUpTimeout = 10 * time.Second

// Close drains and stops: no new requests, streams end, requests under way
// finish, revisions are handed over without a gap (R2), the engine is closed.
// The fault that ended the node, or ends it meanwhile, is in the chain of the
// error.
func (n *Node) Close(ctx context.Context) error {
	var err error
	n.closeOnce.Do(func() {
		close(n.draining)
		err = n.end(nil, func() error {
			err := errors.Join(n.server.Drain(ctx), n.stopCore(ctx, true))
			n.server.Stop()
			return err
		})
	})
	return err
}

// end returns, with the errors of stop, why the node ends: what is known already
// and the node's fault. Once the engine has given up with locks held, stop may wait
// for ever for who writes to it, and nothing is left to be done in order: end does
// not wait for it then.
func (n *Node) end(why error, stop func() error) error {
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	var err error
	select {
	case err = <-stopped:
	case <-n.core.engine.Fault.Locked():
		err = engine.ErrNotClosed
		defer n.closeListeners()
	}
	if fault := n.core.Err(); fault != nil {
		n.fail(fault) // watchStore may have ended before it saw it
	}
	err = errors.Join(why, err)
	if p := n.fault.Load(); p != nil && !errors.Is(err, *p) {
		err = errors.Join(*p, err)
	}
	return err
}

// Kill stops as a crash would, for tests: nothing is drained or handed over.
func (n *Node) Kill() error {
	var err error
	n.closeOnce.Do(func() {
		close(n.draining)
		err = n.end(nil, func() error {
			n.server.Stop()
			return n.stopCore(context.Background(), false)
		})
	})
	return err
}

func (n *Node) stopCore(ctx context.Context, handOver bool) error {
	c := n.core
	if handOver && c.Err() == nil {
		done := make(chan struct{})
		c.Placement.HandOver(func() { close(done) })
		select {
		case <-done:
		case <-ctx.Done():
			n.log.Warn("stopping without a hand-over: revisions will have a gap")
		case <-c.Store.Failed():
		}
	}
	close(n.stopping)
	c.Router.Stop()
	c.Compactor.Stop()
	c.Materialiser.Stop()
	c.Store.Stop()
	c.Client.Stop()
	c.Watch.Stop()
	n.running.Wait()
	if handOver && c.Err() == nil {
		n.flush(ctx)
	}
	return c.Close()
}

// flush spares the next start to read all of it from the engine's log again.
// Nothing rests on it: without room the engine would try again and again, and a
// slow disk must not keep the node from its end.
func (n *Node) flush(ctx context.Context) {
	free, err := n.core.freeBytes()
	if err == nil && free < reserveBytes {
		err = store.ErrNoSpace
	}
	if err == nil {
		err = n.core.engine.Flush(ctx)
	}
	if err == nil {
		return
	}
	n.log.Warn("stopping without a flush of the engine: the next start takes longer", zap.Error(err))
}
