package compat

import (
	"slices"
	"testing"
	"time"
)

// shrinkPatience bounds each wait while shrinking: most candidates of a missing event end in a wait.
const shrinkPatience = 3 * time.Second

// shrink looks for a shorter sequence of steps that still shows a difference, by leaving out parts, first large and then small ones,
// until the time is over. Each try needs two fresh servers. It returns no difference if the steps do not show one again.
func (c Campaign) shrink(t *testing.T, ops []Op, within time.Duration) ([]Op, *Difference) {
	deadline := time.Now().Add(within)
	c.Runner.Patience = shrinkPatience
	tries := 0
	try := func(candidate []Op) (done []Op, d *Difference) {
		tries++
		// A subtest ends the servers of each try.
		done, d, _ = c.run(t, sequence(candidate))
		return done, d
	}
	best, difference := try(ops)
	if difference == nil {
		t.Logf("shrink: the steps do not show the difference again")
		return nil, nil
	}
	for size := len(best) / 2; size >= 1 && time.Now().Before(deadline); size /= 2 {
		for end := len(best) - 1; end > 0 && time.Now().Before(deadline); end -= size {
			// The last step shows the difference: it stays.
			start := max(0, end-size)
			if end > len(best)-1 {
				continue
			}
			candidate := slices.Concat(best[:start], best[end:])
			if done, d := try(candidate); d != nil {
				best, difference = done, d
			}
		}
	}
	t.Logf("shrink: %d steps after %d tries", len(best), tries)
	return best, difference
}
