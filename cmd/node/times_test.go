package node

import (
	"errors"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hawser-kv/hawser/cmd/config"
	"github.com/hawser-kv/hawser/range/engine"
)

// TestTimesKeepTheirLengthWhateverTheTick: --heartbeat-interval is the tick, and
// what counts ticks keeps its time; --election-timeout is Raft's.
func TestTimesKeepTheirLengthWhateverTheTick(t *testing.T) {
	for _, tc := range []struct{ heartbeat, election time.Duration }{
		{100 * time.Millisecond, time.Second},
		{250 * time.Millisecond, 5 * time.Second},
		{time.Millisecond, 5 * time.Millisecond},
		{10 * time.Second, 50 * time.Second},
		{300 * time.Millisecond, 1600 * time.Millisecond},
	} {
		var c config.Config
		c.HeartbeatInterval, c.ElectionTimeout = tc.heartbeat, tc.election
		c.EnsureDefaults()
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		cc := (&Node{cfg: Config{Config: c}}).coreConfig()
		if cc.Store.TickInterval != tc.heartbeat {
			t.Errorf("%v: a tick of %s", tc, cc.Store.TickInterval)
		}
		for _, x := range []struct {
			what  string
			ticks int
			want  time.Duration
		}{
			{"ElectionTicks", cc.ElectionTicks, tc.election},
			{"WakeTicks", cc.Sequencer.WakeTicks, tc.election},
			{"SplitTicks", cc.Sequencer.SplitTicks, 5 * time.Second},
			{"AbdicateTicks", cc.Limits.AbdicateTicks, tc.election},
			{"IdleTicks", cc.Limits.IdleTicks, 30 * time.Second},
			{"SilentTicks", cc.Limits.SilentTicks, 5 * time.Second},
			{"RetryTicks", cc.Limits.RetryTicks, 500 * time.Millisecond},
			{"WaitTicks", cc.Limits.WaitTicks, 10 * time.Second},
			{"awaitFor", ticksOf(awaitFor, tc.heartbeat), awaitFor},
		} {
			if got := time.Duration(x.ticks) * tc.heartbeat; got < x.want || got >= x.want+tc.heartbeat {
				t.Errorf("%v: %s is %s, want %s or less than a tick more", tc, x.what, got, x.want)
			}
		}
		if longest := 5*time.Second + 2*tc.election; longest >= awaitFor {
			t.Errorf("%v: a read is given up after %s, and a request lasts %s", tc, awaitFor, longest)
		}

		cc.Engine.FS, cc.Engine.Dir = vfs.NewMem(), "data"
		core, err := OpenCore(cc)
		if err != nil {
			t.Fatal(err)
		}
		if a, b := core.hostConfig().ElectionTicks, core.metaConfig(nil).ElectionTicks; a != cc.ElectionTicks || b != cc.ElectionTicks {
			t.Errorf("%v: raft has %d and %d ticks, want %d", tc, a, b, cc.ElectionTicks)
		}
		if err := core.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestExistingClusterNeedsData(t *testing.T) {
	dir := t.TempDir()
	start := func() (*Node, error) {
		var cfg Config
		cfg.DataDir, cfg.InitialClusterState = dir, config.ClusterExisting
		cfg.ListenClientURLs = anyPort
		return Start(t.Context(), cfg)
	}
	if n, err := start(); !errors.Is(err, engine.ErrNoData) {
		if err == nil {
			closeTest(t, n)
		}
		t.Fatalf("an empty directory: %v", err)
	}
	n := startTest(t, dir) // nothing stands in its way
	closeTest(t, n)
	n, err := start()
	if err != nil {
		t.Fatal(err)
	}
	closeTest(t, n)
}
