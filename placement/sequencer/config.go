package sequencer

import (
	"cmp"

	"github.com/hawser-kv/hawser/proto/placementpb"
)

// Config are the limits of a Sequencer; zero fields get their defaults.
type Config struct {
	// Bootstrap is proposed when S leads a meta group that has no cluster yet;
	// nil: S then waits for another to do it.
	Bootstrap *placementpb.Bootstrap
	// MinBoundStep and MaxBoundStep limit how many revisions the bound is
	// raised ahead (R2). A crash of S leaves a gap of at most one and a half
	// steps; a step too small makes bursts wait for the meta log. Defaults 32
	// and 1<<20.
	MinBoundStep, MaxBoundStep int64
	// MaxHeld bounds the messages that wait until S serves or until the bound
	// is raised; beyond it questions are refused as NOT_SERVING, and a node that
	// speaks for its ranges must subscribe anew. Default 65536.
	MaxHeld int
	// MaxAborted bounds the aborted owners remembered for one session of a
	// node; beyond it the session is ended, which ends its owners too. Default
	// 65536.
	MaxAborted int
	// WakeTicks is after how many ticks S wakes the replicas of an active
	// range again that nobody leads. Default 10.
	WakeTicks int
	// SplitTicks is for how many ticks a split waits for the range's leader to
	// register before it is refused as BUSY. Default 50.
	SplitTicks int
}

// EnsureDefaults fills zero fields.
func (c *Config) EnsureDefaults() {
	c.MinBoundStep = cmp.Or(c.MinBoundStep, 32)
	c.MaxBoundStep = max(cmp.Or(c.MaxBoundStep, 1<<20), c.MinBoundStep)
	c.MaxHeld = cmp.Or(c.MaxHeld, 1<<16)
	c.MaxAborted = cmp.Or(c.MaxAborted, 1<<16)
	c.WakeTicks = cmp.Or(c.WakeTicks, 10)
	c.SplitTicks = cmp.Or(c.SplitTicks, 50)
}
