// Package autocompact decides when to compact the keyspace without being
// asked, by etcd's two rules (etcd/C5). It reads no clock: its driver
// observes the revision at each Interval.
package autocompact

import "time"

// revisionInterval is how often a policy that keeps a number of revisions
// looks.
const revisionInterval = 5 * time.Minute

// maxPeriod bounds the time between two periodic compactions.
const maxPeriod = time.Hour

// samplesPerPeriod is how often a periodic policy looks in one period.
const samplesPerPeriod = 10

// Policy says up to where to compact.
type Policy struct {
	interval time.Duration
	// keep is the number of revisions kept; 0 for a periodic policy.
	keep int64
	// period is the time between compactions, samples the number of
	// observations that a window is long.
	period  time.Duration
	samples int
	// seen are the revisions observed in the window, the oldest first.
	seen []int64
	// due is when the next periodic compaction may be.
	due  time.Time
	last int64
}

// Periodic returns the policy that keeps what was written in the window.
func Periodic(window time.Duration) *Policy {
	period := min(window, maxPeriod)
	interval := period / samplesPerPeriod
	return &Policy{interval: interval, period: period, samples: int(window / interval)}
}

// Revisions returns the policy that keeps the newest n revisions.
func Revisions(n int64) *Policy {
	return &Policy{interval: revisionInterval, keep: n}
}

// Interval is the time between two observations.
func (p *Policy) Interval() time.Duration { return p.interval }

// Observe takes the current revision at a time. It returns the revision to
// compact at, 0 for none. A compaction that fails is simply due again.
func (p *Policy) Observe(now time.Time, current int64) int64 {
	if p.keep > 0 {
		return p.propose(current - p.keep)
	}
	p.seen = append(p.seen, current)
	if p.due.IsZero() {
		p.due = now.Add(p.period)
	}
	if len(p.seen) <= p.samples {
		return 0
	}
	p.seen = p.seen[len(p.seen)-p.samples-1:]
	if now.Before(p.due) {
		return 0
	}
	return p.propose(p.seen[0])
}

func (p *Policy) propose(revision int64) int64 {
	if revision <= p.last || revision <= 0 {
		return 0
	}
	return revision
}

// Compacted tells that the keyspace was compacted at a revision at a time.
func (p *Policy) Compacted(now time.Time, revision int64) {
	p.last = max(p.last, revision)
	p.due = now.Add(p.period)
}
