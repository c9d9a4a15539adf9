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

// atMost fails the test if a process has got more than it may.
func atMost(t *testing.T, what string, got, limit int64) {
	t.Helper()
	if got > limit {
		t.Errorf("%s: %.1f MiB, want at most %.1f MiB", what, float64(got)/mib, float64(limit)/mib)
	}
}
