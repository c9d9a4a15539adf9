package replica

// EarlyForTesting is the number of requests held for a newer epoch.
func (r *Replica) EarlyForTesting() int { return len(r.leader.requests.early) }

// StatesForTesting is the number of ranges of which Readers holds something.
func (r *Readers) StatesForTesting() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.mu.ranges)
}
