package compat

import (
	"fmt"
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	code := m.Run()
	RemoveHawserBinary()
	os.Exit(code)
}

// TestEtcdEqualsEtcd validates the harness: two real etcds must never differ, or it compares what is a matter of time.
func TestEtcdEqualsEtcd(t *testing.T) {
	t.Parallel()
	settings := ReadSettings(t)
	Campaign{Target: Etcd{}, Seed: settings.Seed, Steps: settings.Steps, Ranges: 1, Thorough: settings.Steps >= defaultSteps && settings.Seed == 1}.Run(t, settings)
}

// TestHawserEqualsEtcd is the promise: no answer tells Hawser from one etcd, whatever the number of ranges and while they are split.
func TestHawserEqualsEtcd(t *testing.T) {
	settings := ReadSettings(t)
	for _, ranges := range settings.Layouts {
		t.Run(fmt.Sprintf("ranges=%d", ranges), func(t *testing.T) {
			t.Parallel()
			Campaign{Target: settings.Target, Seed: settings.Seed + uint64(ranges), Steps: settings.Steps, Ranges: ranges}.Run(t, settings)
		})
	}
}

// TestReplay runs the steps of a file that a failed run has written.
func TestReplay(t *testing.T) {
	settings := ReadSettings(t)
	if settings.Replay == "" {
		t.Skip("no HAWSER_COMPAT_REPLAY")
	}
	ops, err := ReadOps(settings.Replay)
	if err != nil {
		t.Fatal(err)
	}
	Campaign{Target: settings.Target}.Replay(t, settings, ops)
}
