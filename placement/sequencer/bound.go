package sequencer

// bound is the revisions that the sequencer (S) may hand out without asking the
// meta log again (R2).
//
// Always next-1 <= committed <= proposed, but for a hand-over, which proposes a
// lower one. Committed is what the meta state has: the next S begins above it,
// so no revision is handed out twice. A crash leaves a gap of what is between
// next-1 and the bound, at most one and a half steps.
type bound struct {
	// next revision to assign; next-1 is R.
	next      int64
	committed int64
	proposed  int64
	// step by which the bound is raised; granted counts since the last tick.
	step    int64
	granted int64

	minStep, maxStep int64
}

func newBound(cfg *Config) bound {
	return bound{step: cfg.MinBoundStep, minStep: cfg.MinBoundStep, maxStep: cfg.MaxBoundStep}
}

// load begins above a bound of which all may have been handed out.
func (b *bound) load(committed int64) {
	b.committed, b.proposed, b.next = committed, committed, committed+1
}

// revision is R: the newest one handed out.
func (b *bound) revision() int64 { return b.next - 1 }

// covers says whether the next count revisions may be handed out now.
func (b *bound) covers(count int64) bool { return b.next-1+count <= b.committed }

// assign takes the next count revisions, which the bound must cover, and
// returns the first of them. When half a step is left it also returns a bound to
// propose, else 0: ahead of need.
func (b *bound) assign(count int64) (first, raise int64) {
	first = b.next
	b.next += count
	b.granted += count
	if b.next-1 > b.committed {
		panic("sequencer: assigned beyond the bound")
	}
	if b.proposed == b.committed && b.committed-(b.next-1) < (b.step+1)/2 {
		if b.granted > 4*b.step {
			// A burst within one tick: a few raises, not one every half step.
			b.step = min(2*b.step, b.maxStep)
		}
		raise = b.raise(1)
	}
	return first, raise
}

// exhausted returns the bound to propose for count revisions that it did not
// cover, 0 if one that is proposed will do.
func (b *bound) exhausted(count int64) (raise int64) {
	if b.proposed == b.committed {
		b.step = min(b.step*4, b.maxStep)
	}
	if b.proposed < b.next-1+count {
		return b.raise(count)
	}
	return 0
}

// raise returns the bound to propose: a step, and at least count, above what is
// assigned.
func (b *bound) raise(count int64) int64 {
	b.proposed = max(b.next-1+max(b.step, count), b.proposed+1)
	return b.proposed
}

// handOver returns the bound that leaves no gap.
func (b *bound) handOver() int64 {
	b.proposed = b.next - 1
	return b.proposed
}

// commit says that the meta state has a bound that was proposed.
func (b *bound) commit(bound int64) { b.committed = bound }

// tick lets the step follow the rate: half a tick's worth of revisions, falling
// slowly.
func (b *bound) tick() {
	b.step = min(max(b.granted/2, b.step*7/8, b.minStep), b.maxStep)
	b.granted = 0
}
