package integration

import (
	"testing"

	"github.com/hawser-kv/hawser/tests/testcluster"
)

func TestMain(m *testing.M) { testcluster.Main(m) }

const (
	kib = 1 << 10
	mib = 1 << 20
)

// atMost fails the test if a process has got more than it may. Under the race
// detector it only logs: there memory has shadows, and the collector is late.
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
