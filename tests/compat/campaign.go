package compat

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Campaign is one run of generated or recorded steps against the real etcd and a target.
type Campaign struct {
	Target Target
	Seed   uint64
	// Steps is the number of generated steps; splits come on top.
	Steps int
	// Ranges is the number of ranges that the target's keyspace is cut into by the end.
	Ranges int
	// Runner are the options of the runner.
	Runner RunnerOptions
	// Thorough makes a run fail that has not met all that a run is for; whether a short one does depends on the seed.
	Thorough bool
	// beforeRun, if set, is called before the servers of a run start.
	beforeRun func()
}

// Settings are what the environment says of campaigns; see the package comment.
type Settings struct {
	Target  Target
	Steps   int
	Layouts []int
	Seed    uint64
	Replay  string
	Shrink  time.Duration
	Out     string
	// All is the number of differences to report before a run ends; see RunnerOptions.Tolerate.
	All int
}

// defaultSteps is the length of a run in `make test`.
const defaultSteps = 3000

// ReadSettings reads the environment. A run that is not longer than the default has a fixed seed unless one is given, so that it
// tests the same every time.
func ReadSettings(t testing.TB) Settings {
	t.Helper()
	s := Settings{Target: Hawser{}, Steps: defaultSteps, Layouts: []int{1, 7, 100}, Seed: 1, Replay: os.Getenv("HAWSER_COMPAT_REPLAY"), Out: os.Getenv("HAWSER_COMPAT_OUT")}
	var err error
	read := func(name string, parse func(text string) error) {
		if text := os.Getenv(name); text != "" {
			if err = parse(text); err != nil {
				t.Fatalf("%s=%s: %v", name, text, err)
			}
		}
	}
	read("HAWSER_COMPAT_OPS", func(text string) error {
		s.Steps, err = strconv.Atoi(text)
		s.Seed = uint64(time.Now().UnixNano())
		return err
	})
	read("HAWSER_COMPAT_TARGET", func(text string) error {
		switch text {
		case "etcd":
			s.Target = Etcd{}
		case "hawser":
		default:
			return fmt.Errorf("hawser or etcd")
		}
		return nil
	})
	read("HAWSER_COMPAT_SEED", func(text string) error { s.Seed, err = strconv.ParseUint(text, 10, 64); return err })
	read("HAWSER_COMPAT_ALL", func(text string) error { s.All, err = strconv.Atoi(text); return err })
	read("HAWSER_COMPAT_SHRINK", func(text string) error { s.Shrink, err = time.ParseDuration(text); return err })
	read("HAWSER_COMPAT_LAYOUTS", func(text string) error {
		s.Layouts = nil
		for _, part := range strings.Split(text, ",") {
			ranges, err := strconv.Atoi(part)
			if err != nil {
				return err
			}
			s.Layouts = append(s.Layouts, ranges)
		}
		return nil
	})
	return s
}

// Run runs generated steps until the first difference, which fails the test.
func (c Campaign) Run(t *testing.T, settings Settings) {
	t.Helper()
	t.Logf("seed %d, %d steps, %d ranges", c.Seed, c.Steps, c.Ranges)
	c.tolerate(t, settings.All)
	generator := NewGenerator(c.Seed, c.Steps, c.Ranges)
	made := 0
	ops, difference, met := c.run(t, func(r *Runner) (Op, bool) {
		if made == c.Steps {
			return Op{}, false
		}
		op := generator.Next(&r.State, r.Watchers())
		if op.Kind != Split {
			made++
		}
		return op, true
	})
	t.Log(met)
	if difference != nil {
		c.report(t, settings, ops, difference)
	}
	if missing := met.missing(); c.Thorough && len(missing) > 0 {
		t.Errorf("the run has not met %q: the generator misses them", missing)
	}
}

// Replay runs recorded steps until the first difference, which fails the test.
func (c Campaign) Replay(t *testing.T, settings Settings, ops []Op) {
	t.Helper()
	c.tolerate(t, settings.All)
	ops, difference, met := c.run(t, sequence(ops))
	t.Log(met)
	if difference != nil {
		c.report(t, settings, ops, difference)
	}
}

// tolerate lets a run report up to a number of differences.
func (c *Campaign) tolerate(t *testing.T, all int) {
	if all == 0 {
		return
	}
	c.Runner.Tolerate = func(d *Difference) bool {
		t.Errorf("seed %d, %d ranges: %s", c.Seed, c.Ranges, d)
		all--
		return all > 0
	}
}

func sequence(ops []Op) func(*Runner) (Op, bool) {
	return func(*Runner) (Op, bool) {
		if len(ops) == 0 {
			return Op{}, false
		}
		op := ops[0]
		ops = ops[1:]
		return op, true
	}
}

// run starts both servers and does the steps that next gives out. It returns the steps done.
func (c Campaign) run(t testing.TB, next func(*Runner) (Op, bool)) (ops []Op, d *Difference, met stats) {
	t.Helper()
	if c.beforeRun != nil {
		c.beforeRun()
	}
	a, b := Etcd{}.Start(t), c.Target.Start(t)
	defer a.Stop()
	defer b.Stop()
	ctx := context.Background() // Not the test's: its end must not look like a difference.
	name := c.Target.Name()
	if name == (Etcd{}).Name() {
		name = "second etcd"
		c.Runner.BothEtcd = true
	}
	runner, err := NewRunner(ctx, a, b, [2]string{"etcd", name}, c.Runner)
	if err != nil {
		return nil, &Difference{What: err.Error()}, newStats()
	}
	defer runner.Close()
	for {
		op, ok := next(runner)
		if !ok {
			return ops, runner.Finish(ctx), runner.stats
		}
		ops = append(ops, op)
		if d := runner.Do(ctx, op); d != nil {
			return ops, d, runner.stats
		}
	}
}

// report fails the test with what is needed to see the difference again.
func (c Campaign) report(t *testing.T, settings Settings, ops []Op, d *Difference) {
	t.Helper()
	var s strings.Builder
	fmt.Fprintf(&s, "seed %d, %d ranges: %s", c.Seed, c.Ranges, d)
	write := func(what string, ops []Op) {
		name, err := WriteOps(settings.Out, "hawser-compat-*.jsonl", ops)
		if err != nil {
			fmt.Fprintf(&s, "the steps cannot be written: %v\n", err)
			return
		}
		fmt.Fprintf(&s, "%s: HAWSER_COMPAT_REPLAY=%s go test -run TestReplay -v ./tests/compat\n", what, name)
	}
	write("to see it again", ops)
	if settings.Shrink > 0 {
		shorter, difference := c.shrink(t, ops, settings.Shrink)
		if difference != nil {
			fmt.Fprintf(&s, "%d of %d steps are enough:\n", len(shorter), len(ops))
			for i, op := range shorter[:min(len(shorter), 40)] {
				fmt.Fprintf(&s, "  %d: %s\n", i, op)
			}
			fmt.Fprintf(&s, "then %s", difference)
			write("these steps", shorter)
		}
	} else {
		fmt.Fprintf(&s, "for a shorter sequence set HAWSER_COMPAT_SHRINK=5m\n")
	}
	t.Fatal(s.String())
}
