package raftgroup

import (
	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/range/raftlog"
)

// Machine is the state machine of a group: a range, or the placement service.
// It is deterministic. Its errors are faults: the group stops.
type Machine interface {
	// Apply stages the effects of one committed entry into b. It is called in
	// log order, once an index. data is empty for the entry with which a leader
	// begins its term, and is the context of a configuration change. It belongs
	// to the log: the machine may keep it and may not change it.
	Apply(b *pebble.Batch, index, term uint64, data []byte) error
	// AppliedState appends the machine's part of the applied state, as of the
	// last Apply. It is written with index and term of the entries of each Apply
	// run, usually once a Ready.
	AppliedState(dst []byte) []byte
}

// Settler is a Machine with entries that are applied only when everything before
// them is committed to the engine, because Apply reads there what they left. Who
// drives its group calls BatchCommitted.
type Settler interface {
	Machine
	// NeedsCommitted says whether an entry is one of these.
	NeedsCommitted(data []byte) bool
}

// Config says what a group is made of. ID, ReplicaID, Log and Machine have no
// defaults.
type Config struct {
	// ID of the group: a range id, or 0 for the placement service.
	ID uint64
	// ReplicaID is this replica's Raft id, from 1.
	ReplicaID uint64
	// Log as loaded; the group owns it from now on.
	Log     *raftlog.Log
	Machine Machine
	// Logger gets what raft says, at debug level, and problems. Default: none.
	Logger *zap.Logger
	// ElectionTicks without a word from its leader make a replica forget it; up
	// to as many again and it campaigns. Default 10.
	ElectionTicks int
	// Seed of the election timeouts. They follow from it, ID and ReplicaID, so
	// replicas of a group may share it.
	Seed uint64
	// HeartbeatTicks between two heartbeats of a leader. Default 1.
	HeartbeatTicks int
	// KeepEntries and KeepBytes bound what a leader keeps of its applied log
	// for followers, beyond what the slowest of them still needs. A group with
	// one voter keeps nothing. Defaults 256 entries, 256 KiB.
	KeepEntries, KeepBytes uint64
}

func (c *Config) ensureDefaults() {
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	if c.ElectionTicks == 0 {
		c.ElectionTicks = defaultElection
	}
	if c.HeartbeatTicks == 0 {
		c.HeartbeatTicks = defaultHeartbeat
	}
	if c.KeepEntries == 0 {
		c.KeepEntries = defaultKeep
	}
	if c.KeepBytes == 0 {
		c.KeepBytes = defaultKeepBytes
	}
}
