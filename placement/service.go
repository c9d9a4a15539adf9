// Package placement hosts the placement service on a node: the meta group's
// state (placement/meta) and the sequencer S (placement/sequencer) behind one
// lock, the queues of what S says to nodes, and the part of the meta group's
// member that does not depend on how groups are driven.
package placement

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/placement/meta"
	"github.com/hawser-kv/hawser/placement/sequencer"
	"github.com/hawser-kv/hawser/proto/placementpb"
)

// Config says what a Service is made of.
type Config struct {
	Sequencer sequencer.Config
	// Wake asks for a call of Member.Drive soon. It is called from any
	// goroutine, without the service's lock, at most once until Drive ran, and
	// must not block. Required.
	Wake func()
	// Logger gets transitions. Default: none.
	Logger *zap.Logger
}

// Service is the placement service of one node. Its methods are safe for
// concurrent use and never block; what S answers is delivered on the goroutine
// of one of the callers.
//
// With a sole voter in the meta group S needs no round and no worker to grant
// or answer a query: it is done before Receive returns (unless another
// goroutine is delivering to the same node just then).
type Service struct {
	cfg Config
	log *zap.Logger

	mu struct {
		sync.Mutex
		state *meta.State
		seq   *sequencer.Sequencer
		links map[uint64]*link
		// nodes are the keys of links in order: what goes to all goes in order.
		nodes []uint64
		// dirty links have a queue and nobody who delivers it.
		dirty []*link
		// proposals and round wait for the worker.
		proposals []*placementpb.MetaCommand
		round     uint64
		// awake: Wake was called and Drive has not run since.
		awake bool
		// wanted: something waits for the worker.
		wanted     bool
		handedOver []func()
		// leaving: from HandOver until Resume this node does not begin to lead,
		// for that raises the bound.
		leaving bool
	}
}

// link is the way to one node.
type link struct {
	deliver func(*placementpb.FromSequencer)
	queue   []*placementpb.FromSequencer
	spare   []*placementpb.FromSequencer
	// delivering: a goroutine delivers the queue; others only add to it.
	delivering bool
}

// Open loads the meta state from the engine. Errors are those of meta.Load.
func Open(r pebble.Reader, cfg Config) (*Service, error) {
	if cfg.Wake == nil {
		return nil, fmt.Errorf("placement: Wake is nil")
	}
	st, err := meta.Load(r)
	if err != nil {
		return nil, fmt.Errorf("placement: %w", err)
	}
	s := &Service{cfg: cfg, log: cfg.Logger}
	if s.log == nil {
		s.log = zap.NewNop()
	}
	s.mu.state = st
	s.mu.seq = sequencer.New(cfg.Sequencer)
	s.mu.links = map[uint64]*link{}
	return s, nil
}

// Attach makes deliver the way to a node: it gets what S says to the node, in
// order, one call at a time. deliver must not block; it may call the service.
// It replaces the node's way before; detach removes it. If S leads, the node is
// told to subscribe.
func (s *Service) Attach(nodeID uint64, deliver func(*placementpb.FromSequencer)) (detach func()) {
	l := &link{deliver: deliver}
	s.mu.Lock()
	s.mu.links[nodeID] = l
	s.nodesLocked()
	if hello := s.mu.seq.Hello(); hello != nil {
		s.enqueueLocked(l, hello)
	}
	s.unlockAndDeliver()
	return func() {
		s.mu.Lock()
		if s.mu.links[nodeID] == l {
			delete(s.mu.links, nodeID)
			s.nodesLocked()
		}
		s.mu.Unlock()
	}
}

func (s *Service) nodesLocked() {
	s.mu.nodes = slices.Sorted(maps.Keys(s.mu.links))
}

// Receive gives S a message of a node; the service owns it then. While this
// node does not lead the meta group the message is dropped: the node hears from
// the new S when it leads.
func (s *Service) Receive(m *placementpb.ToSequencer) {
	s.mu.Lock()
	s.mu.seq.Receive(m)
	s.readyLocked()
	s.unlockAndDeliver()
}

// Query answers a query at once, or says that it cannot; then the caller sends
// it with Receive. marks must have the length of ranges; marks[i] becomes m of
// ranges[i] (R5).
func (s *Service) Query(nodeID, session uint64, ranges []*placementpb.RangeEpoch, marks []int64) (revision, compacted int64, ok bool) {
	s.mu.Lock()
	revision, compacted, ok = s.mu.seq.QueryNow(nodeID, session, ranges, marks)
	s.mu.Unlock()
	return revision, compacted, ok
}

// HandOver stops S without leaving a gap in the revisions (R2) and calls done
// when that is committed, or at once when this node does not lead. done runs on
// the worker or the caller and must not block. If leadership is lost meanwhile
// done is called too.
func (s *Service) HandOver(done func()) {
	s.mu.Lock()
	s.mu.leaving = true
	s.mu.seq.HandOver()
	s.readyLocked()
	if s.mu.seq.HandedOver() {
		s.unlockAndDeliver()
		done()
		return
	}
	s.mu.handedOver = append(s.mu.handedOver, done)
	s.unlockAndDeliver()
}

// Resume makes S serve again after HandOver.
func (s *Service) Resume() {
	s.mu.Lock()
	s.mu.leaving = false
	s.mu.seq.Resume()
	s.readyLocked()
	s.mu.wanted = true // an election may have been won meanwhile
	s.unlockAndDeliver()
}

// Stats says how S stands.
func (s *Service) Stats() sequencer.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.seq.Stats()
}

// ClusterID is the cluster's id, 0 before it is bootstrapped.
func (s *Service) ClusterID() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.state.ClusterID
}

// readyLocked takes what S wants done: messages into the queues of their links,
// the rest for the worker.
func (s *Service) readyLocked() {
	for {
		out := s.mu.seq.Ready()
		if out.CutsDue {
			s.mu.wanted = true
		}
		if out.Empty() {
			return
		}
		if len(out.Proposals) > 0 {
			s.mu.proposals = append(s.mu.proposals, out.Proposals...)
			s.mu.wanted = true
		}
		if out.Round != 0 {
			// A later round confirms an earlier one that has not begun.
			s.mu.round = out.Round
			s.mu.wanted = true
		}
		for _, e := range out.Messages {
			if l := s.mu.links[e.NodeID]; l != nil {
				s.enqueueLocked(l, e.Message)
			}
		}
	}
}

// helloLocked tells all nodes to subscribe, if S leads a cluster.
func (s *Service) helloLocked() {
	for _, id := range s.mu.nodes {
		if hello := s.mu.seq.Hello(); hello != nil {
			s.enqueueLocked(s.mu.links[id], hello)
		}
	}
}

func (s *Service) enqueueLocked(l *link, m *placementpb.FromSequencer) {
	if len(l.queue) == 0 && !l.delivering {
		s.mu.dirty = append(s.mu.dirty, l)
	}
	l.queue = append(l.queue, m)
}

// unlockAndDeliver releases the lock and then delivers what is queued for nodes
// that nobody delivers to, and wakes the worker if there is work for it.
func (s *Service) unlockAndDeliver() {
	for len(s.mu.dirty) > 0 {
		l := s.mu.dirty[len(s.mu.dirty)-1]
		s.mu.dirty = s.mu.dirty[:len(s.mu.dirty)-1]
		l.delivering = true
		for len(l.queue) > 0 {
			batch := l.queue
			l.queue = l.spare[:0]
			s.mu.Unlock()
			for _, m := range batch {
				l.deliver(m)
			}
			clear(batch)
			s.mu.Lock()
			l.spare = batch
		}
		l.delivering = false
	}
	wake := s.mu.wanted && !s.mu.awake
	s.mu.awake = s.mu.awake || wake
	s.mu.Unlock()
	if wake {
		s.cfg.Wake()
	}
}

// Apply implements the state machine of the meta group: it applies a committed
// entry and stages the rows that changed. An error is a fault; see meta.
func (s *Service) Apply(b *pebble.Batch, index, term uint64, data []byte) error {
	if len(data) == 0 {
		return nil // raft's own first entry of a term
	}
	cmd, err := meta.DecodeCommand(data)
	if err != nil {
		return fmt.Errorf("placement: entry %d: %w", index, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	changes, err := s.mu.state.Apply(index, term, cmd)
	if err != nil {
		return fmt.Errorf("placement: %w", err)
	}
	if err := s.mu.state.Stage(b, changes); err != nil {
		return fmt.Errorf("placement: %w", err)
	}
	if !changes.Ignored {
		s.mu.seq.Applied(index, cmd)
		if cmd.GetBootstrap() != nil {
			// Before this there was no cluster for nodes to belong to.
			s.helloLocked()
		}
		s.mu.wanted = true // what waited for it leaves with the next Drive
	}
	return nil
}

// AppliedState implements the state machine of the meta group: it has nothing
// beside its rows.
func (s *Service) AppliedState(dst []byte) []byte { return dst }

// takeHandedOverLocked returns the callbacks of HandOver that are due.
func (s *Service) takeHandedOverLocked() []func() {
	if len(s.mu.handedOver) == 0 || !s.mu.seq.HandedOver() {
		return nil
	}
	done := slices.Clone(s.mu.handedOver)
	s.mu.handedOver = nil
	return done
}
