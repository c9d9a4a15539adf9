package simulation

import (
	"os"
	"strconv"
	"testing"

	"github.com/hawser-kv/hawser/tests/testcluster"
)

// seeds is how many runs the short form makes; `make sim` sets
// HAWSER_SIM_SEEDS, and HAWSER_SIM_SEED replays one.
const (
	seeds = 300
	steps = 3000
	// Under the race detector the engine checks its own invariants, which takes
	// twenty times as long, and one goroutine does nearly everything here.
	seedsUnderRace = 40
)

// shards are the numbers of workers by turns of four seeds.
var shards = [2]int{1, 4}

func number(t *testing.T, name string, def uint64) uint64 {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return def
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("%s=%s: %v", name, s, err)
	}
	return n
}

func options(seed uint64) Options {
	return Options{Seed: seed, Steps: steps, Clients: 5, Shards: shards[seed/4%2], Faults: seed%4 != 0}
}

// TestSimulatedNode runs many seeds: every fourth without faults.
func TestSimulatedNode(t *testing.T) {
	from, n := uint64(1), uint64(seeds)
	if testcluster.RaceDetector {
		n = seedsUnderRace
	}
	n = number(t, "HAWSER_SIM_SEEDS", n)
	if one := number(t, "HAWSER_SIM_SEED", 0); one != 0 {
		from, n = one, 1
	}
	var total Stats
	for seed := from; seed < from+n; seed++ {
		stats, err := Simulate(options(seed))
		if n == 1 {
			t.Logf("seed %d: %v", seed, stats)
		}
		if err != nil {
			t.Errorf("seed %d after %v:\n%v\nto see it again: HAWSER_SIM_SEED=%d go test -run TestSimulatedNode ./tests/simulation", seed, stats, err, seed)
			if t.Failed() && n > 1 && seed > from+20 {
				break
			}
		}
		total.add(stats)
	}
	t.Logf("seeds %d to %d: %v", from, from+n-1, total)
}

func (s *Stats) add(o Stats) {
	s.Steps += o.Steps
	s.Crashes += o.Crashes
	s.CommitCrashes += o.CommitCrashes
	s.DiskFaults += o.DiskFaults
	s.FullDisks += o.FullDisks
	s.Splits += o.Splits
	s.Compactions += o.Compactions
	s.Interleaved += o.Interleaved
	s.Answered += o.Answered
	s.Refused += o.Refused
	s.Unknown += o.Unknown
	s.Events += o.Events
	s.Watches += o.Watches
	s.Written += o.Written
	s.Revision += o.Revision
	s.Trace ^= o.Trace
}

// TestSeedReplaysExactly: the whole run is a function of the seed.
func TestSeedReplaysExactly(t *testing.T) {
	for _, seed := range []uint64{3, 5, 8} {
		a, errA := Simulate(options(seed))
		b, errB := Simulate(options(seed))
		if a != b || (errA == nil) != (errB == nil) {
			t.Fatalf("seed %d:\n%v, %v\n%v, %v", seed, a, errA, b, errB)
		}
	}
}

// plantSeeds is within how many seeds a planted bug must be found.
const plantSeeds = 12

// TestCheckersFindPlantedBugs: a checker that has never caught anything proves
// nothing. Each class of bug in etcd's record that one node can have is put
// into runs and must be flagged.
func TestCheckersFindPlantedBugs(t *testing.T) {
	for p := NoPlant + 1; p < plants; p++ {
		t.Run(p.String(), func(t *testing.T) {
			for seed := uint64(1); seed <= plantSeeds; seed++ {
				opt := options(seed)
				opt.Plant = p
				if _, err := Simulate(opt); err != nil {
					t.Logf("seed %d: %v", seed, err)
					return
				}
			}
			t.Fatalf("not found in %d seeds", plantSeeds)
		})
	}
}
