package host

import (
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/proto/adminpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/range/keys"
	"github.com/hawser-kv/hawser/range/replica"
	"github.com/hawser-kv/hawser/range/store"
)

// load is the store's loader.
func (h *Host) load(id uint64) (store.Member, error) {
	if id == keys.MetaGroupID {
		return h.cfg.Meta, nil
	}
	r, err := replica.New(h.replicaConfig(id))
	if errors.Is(err, replica.ErrNoReplica) {
		h.mu.Lock()
		h.mu.awaited.add(id)
		h.mu.Unlock()
		// If its replica began meanwhile, began may have come too early for that.
		if h.Readers.Descriptor(id) != nil && h.takeAwaited(id) {
			return h.load(id)
		}
	}
	if IsDamage(err) || isNewer(err) {
		// Another attempt would find the same; clients are told at once.
		return nil, fmt.Errorf("%w: %w", store.ErrNotServed, err)
	}
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	h.mu.loaded[id] = struct{}{}
	h.mu.Unlock()
	return &member{Replica: r, host: h, id: id}, nil
}

func (h *Host) replicaConfig(id uint64) replica.Config {
	return replica.Config{
		RangeID: id, NodeID: h.cfg.NodeID, DB: h.cfg.DB, MVCC: h.cfg.MVCC, Readers: h.Readers,
		Link: h.cfg.Link, Events: h.cfg.Events, Logger: h.log, Limits: h.cfg.Limits,
		ElectionTicks: h.cfg.ElectionTicks, Began: h.began,
	}
}

// began tells the sink of events of a replica that a split has begun, and loads it
// if somebody waits for it: the sequencer's Wake comes once.
func (h *Host) began(d *rangepb.RangeDescriptor) {
	resolved, ok := h.Readers.Resolved(d.RangeId)
	if ok {
		h.cfg.Events.Applied(d.RangeId, resolved, nil)
	}
	h.log.Info("split: a range begins", zap.Uint64("range", d.RangeId), zap.String("at", adminpb.KeyText(d.Start)),
		zap.Uint64("epoch", d.Epoch), zap.Int64("revision", resolved))
	if h.takeAwaited(d.RangeId) {
		h.Store.Load(d.RangeId)
	}
}

func (h *Host) takeAwaited(id uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.awaited.take(id)
}

// SessionBegan tells the loaded replicas to register with the sequencer (R3).
func (h *Host) SessionBegan() {
	for _, id := range h.Loaded() {
		h.Store.Post(id, replica.SessionChanged{})
	}
}

// Loaded returns the ids of the replicas in memory, ascending.
func (h *Host) Loaded() []uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	ids := make([]uint64, 0, len(h.mu.loaded))
	for id := range h.mu.loaded {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (h *Host) isLoaded(id uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := h.mu.loaded[id]
	return ok
}

// member is a replica as the store drives it.
type member struct {
	*replica.Replica
	host *Host
	id   uint64
}

// Flush stages into the round's batch.
func (m *member) Flush(r *store.Round) { m.Replica.Flush(r.Batch, r) }

// Close closes the replica and forgets it.
func (m *member) Close(err error) {
	m.host.mu.Lock()
	delete(m.host.mu.loaded, m.id)
	m.host.mu.Unlock()
	m.Replica.Close(err)
}
