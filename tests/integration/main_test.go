package integration

import (
	"fmt"
	"testing"

	"github.com/hawser-kv/hawser/tests/testcluster"
)

func TestMain(m *testing.M) { testcluster.Main(m) }

const (
	kib = 1 << 10
	mib = 1 << 20
)

// atMost fails the test if a process has got more than it may: bytes that the node
// counts, or peaks of what was live. Under the race detector it only logs: there memory
// has shadows, and the collector is late.
func atMost(t *testing.T, what string, got, limit int64) {
	t.Helper()
	if testcluster.RaceDetector {
		t.Logf("%s: %.1f MiB, at most %.1f MiB without the race detector", what, float64(got)/mib, float64(limit)/mib)
		return
	}
	if got > limit {
		t.Errorf("%s: %.1f MiB, want at most %.1f MiB", what, float64(got)/mib, float64(limit)/mib)
	}
}

// comesDownTo waits until a process has no more than limit bytes of live heap and
// stacks beyond what it had before, and returns what it says of itself then. What is
// kept is bounded, not what is live at some moment: the engine's flushes and compactions
// hold for a while what they write.
func comesDownTo(t *testing.T, p *testcluster.Process, what string, before testcluster.Report, limit int64) testcluster.Report {
	t.Helper()
	var r testcluster.Report
	grown := func() int64 { return r.Heap + r.Stacks - before.Heap - before.Stacks }
	testcluster.Wait(t, func() string {
		return fmt.Sprintf("%s to come down from %.1f MiB to %.1f MiB: %v", what, float64(grown())/mib, float64(limit)/mib, r)
	}, func() bool {
		r = p.Report()
		return testcluster.RaceDetector || grown() <= limit // see atMost
	})
	return r
}
