package replica

import "github.com/hawser-kv/hawser/mvcc"

// EncodeWriteForTesting is a Raft entry with one write.
func EncodeWriteForTesting(term, epoch uint64, revision int64, effects []mvcc.Effect) []byte {
	return appendWrite(appendEntryHeader(nil, entryHeader{term: term, epoch: epoch, seq: 1}), revision, effects)
}

// EarlyForTesting is the number of requests held for a newer epoch.
func (r *Replica) EarlyForTesting() int { return len(r.early) }

// StatesForTesting is the number of ranges of which Readers holds something.
func (r *Readers) StatesForTesting() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.mu.ranges)
}
