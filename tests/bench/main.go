// Command bench puts the same load on a real etcd and on Hawser, in turn, and prints how they compare. docs/benchmarks.md
// has its figures. It listens on and talks to loopback only, and every part of it has a bound in time.
//
//	go run ./tests/bench            everything, about half an hour
//	go run ./tests/bench -short     the works on a small store, about a minute
//	go run ./tests/bench -h         all options
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/hawser-kv/hawser/tests/etcdtools"
)

// options are the sizes of a run; they are kept with its figures.
type options struct {
	Targets, Works          []string
	Rounds                  int
	Clients, Conns          int
	Keys, Ops, OneOps       int
	ValueBytes              int
	Watchers, WatchPuts     int
	LargeKeys               int
	CompactRevisions        int
	CompactRate             int
	Splits                  int
	WorkLimit, TotalLimit   time.Duration
	Dir, Hawser, Etcd, Tool string `json:"-"`
	Profiles                string `json:"-"`
	JSON                    string `json:"-"`
	Keep                    bool   `json:"-"`
}

// bench is one run.
type bench struct {
	options
	values  values
	targets []target
	results []*result
	current progress
}

// progress names what is being measured.
type progress struct {
	work, target string
	round        int
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	b, err := parse(args)
	if err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	// Not a deadline: every request would carry it, and servers keep a timer for each that does.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limit := time.AfterFunc(b.TotalLimit, func() { cancel(fmt.Errorf("not done within %s", b.TotalLimit)) })
	defer limit.Stop()
	// The generator shares the machine with the server: it collects garbage seldom.
	debug.SetGCPercent(400)
	if err := os.MkdirAll(b.Dir, 0o700); err != nil {
		return err
	}
	m, err := describeMachine(b.Dir, runtime.Version(), runtime.NumCPU())
	if err != nil {
		return err
	}
	if err := b.findBinaries(); err != nil {
		return err
	}
	fmt.Printf("%d cores, %s, %.0f GiB, %s on Linux %s, a synced write takes %.2f ms, load %s, %s\n", m.Cores, m.CPU, m.MemoryGiB,
		m.FileSystem, m.Kernel, m.SyncMillis, m.Load, m.Go)
	runErr := b.measureAll(ctx)
	// What was measured before a failure is still worth reading.
	b.report(os.Stdout)
	if b.JSON != "" {
		runErr = errors.Join(runErr, b.writeJSON(m))
	}
	return runErr
}

// parse reads the options and checks them.
func parse(args []string) (*bench, error) {
	b := &bench{}
	o := &b.options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	var names, works string
	flags.StringVar(&names, "targets", "etcd,hawser-1,hawser-64", "servers, in turn: etcd, hawser-N with N ranges")
	flags.StringVar(&works, "works", "put,put1,get,sget,cas,watch,large,compact,split", "what to measure, of: "+strings.Join(workNames(), ", "))
	flags.IntVar(&o.Rounds, "rounds", 3, "rounds over all targets; large, compact and split run in the first alone")
	flags.IntVar(&o.Clients, "clients", 256, "clients at a time")
	flags.IntVar(&o.Conns, "conns", 8, "connections they share")
	flags.IntVar(&o.Keys, "keys", 100_000, "keys that put stores and the others use")
	flags.IntVar(&o.Ops, "ops", 100_000, "gets; twice the compare-and-swaps")
	flags.IntVar(&o.OneOps, "one-ops", 3000, "puts of the single client")
	flags.IntVar(&o.ValueBytes, "value-bytes", 256, "size of a value")
	flags.IntVar(&o.Watchers, "watchers", 100, "watchers of the whole prefix")
	flags.IntVar(&o.WatchPuts, "watch-puts", 5000, "puts that they see")
	flags.IntVar(&o.LargeKeys, "large-keys", 2_000_000, "keys of the work large")
	flags.IntVar(&o.CompactRevisions, "compact-revisions", 1_000_000, "revisions of the work compact")
	flags.IntVar(&o.CompactRate, "compact-rate", 2000, "puts a second while compacting")
	flags.IntVar(&o.Splits, "splits", 10_000, "splits of the work split")
	flags.DurationVar(&o.WorkLimit, "work-limit", 2*time.Minute, "ends a work early; what was done counts")
	flags.DurationVar(&o.TotalLimit, "limit", time.Hour, "ends the run")
	flags.StringVar(&o.Dir, "dir", filepath.Join("bin", "bench"), "directory for the data, on a disk; what is made there is removed")
	flags.StringVar(&o.Hawser, "hawser", filepath.Join("bin", "hawser"), "binary of hawser")
	flags.StringVar(&o.Etcd, "etcd", "", "binary of etcd; built at the version of tests/etcd/go.mod if empty")
	flags.StringVar(&o.Profiles, "profiles", "", "directory for CPU profiles of every work")
	flags.StringVar(&o.JSON, "json", filepath.Join("bin", "bench.json"), "file for all figures; none if empty")
	flags.BoolVar(&o.Keep, "keep", false, "leave the data and logs of the servers in -dir")
	short := flags.Bool("short", false, "small sizes, one round, without large, compact and split; what is set explicitly stays")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if *short {
		set := make(map[string]bool)
		flags.Visit(func(f *flag.Flag) { set[f.Name] = true })
		for name, value := range map[string]string{
			"rounds": "1", "keys": "20000", "ops": "20000", "one-ops": "500", "watch-puts": "500", "large-keys": "100000",
			"compact-revisions": "20000", "works": "put,put1,get,sget,cas,watch", "work-limit": "10s", "limit": "5m",
		} {
			if set[name] {
				continue
			}
			if err := flags.Set(name, value); err != nil {
				return nil, err
			}
		}
	}
	o.Targets, o.Works = strings.Split(names, ","), strings.Split(works, ",")
	for _, name := range o.Targets {
		t, err := parseTarget(name)
		if err != nil {
			return nil, err
		}
		t.pprof = o.Profiles != ""
		b.targets = append(b.targets, t)
	}
	for _, name := range o.Works {
		if !slices.Contains(workNames(), name) {
			return nil, fmt.Errorf("work %q: not one of %s", name, strings.Join(workNames(), ", "))
		}
	}
	for name, n := range map[string]int{
		"rounds": o.Rounds, "clients": o.Clients, "conns": o.Conns, "keys": o.Keys, "ops": o.Ops, "one-ops": o.OneOps,
		"watchers": o.Watchers, "watch-puts": o.WatchPuts, "large-keys": o.LargeKeys, "compact-revisions": o.CompactRevisions,
		"compact-rate": o.CompactRate, "splits": o.Splits,
	} {
		if n < 1 {
			return nil, fmt.Errorf("-%s %d: at least 1", name, n)
		}
	}
	b.values = newValues(o.ValueBytes)
	return b, nil
}

func (b *bench) findBinaries() error {
	for i := range b.targets {
		t := &b.targets[i]
		if t.ranges > 0 {
			path, err := exec.LookPath(b.Hawser)
			if err != nil {
				return fmt.Errorf("hawser is not built (make build): %w", err)
			}
			if t.binary, err = filepath.Abs(path); err != nil {
				return err
			}
			continue
		}
		if b.Etcd == "" {
			path, err := etcdtools.Server.Build()
			if err != nil {
				return err
			}
			b.Etcd = path
		}
		t.binary = b.Etcd
	}
	return nil
}

// measureAll runs the rounds. In every other round the targets come in the opposite order, so that what changes on the
// machine with time meets all of them.
func (b *bench) measureAll(ctx context.Context) error {
	for round := range b.Rounds {
		for i := range b.targets {
			t := b.targets[i]
			if round%2 == 1 {
				t = b.targets[len(b.targets)-1-i]
			}
			b.current = progress{target: t.name, round: round + 1}
			if err := b.measureTarget(ctx, t); err != nil {
				return fmt.Errorf("round %d, %s: %w", round+1, t.name, err)
			}
		}
	}
	return nil
}

func (b *bench) wants(name string) bool { return slices.Contains(b.Works, name) }

func (b *bench) measureTarget(ctx context.Context, t target) error {
	if slices.ContainsFunc(works, func(w work) bool { return b.wants(w.name) }) {
		if err := b.onFresh(ctx, t, b.runWorks); err != nil {
			return err
		}
	}
	if b.current.round > 1 {
		return nil
	}
	if b.wants(largeName) {
		if err := b.onFresh(ctx, t, b.runLarge); err != nil {
			return fmt.Errorf("%s: %w", largeName, err)
		}
	}
	if b.wants(compactName) {
		if err := b.onFresh(ctx, t, b.runCompact); err != nil {
			return fmt.Errorf("%s: %w", compactName, err)
		}
	}
	if b.wants(splitName) && t.ranges > 0 {
		if err := b.runSplits(ctx, t); err != nil {
			return fmt.Errorf("%s: %w", splitName, err)
		}
	}
	return nil
}

// onFresh runs fn on a server of t that starts with an empty directory, which is removed at the end.
func (b *bench) onFresh(ctx context.Context, t target, fn func(context.Context, *server) (*server, error)) (err error) {
	dir, err := os.MkdirTemp(b.Dir, t.name+"-")
	if err != nil {
		return err
	}
	if !b.Keep {
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	s, err := t.start(ctx, dir)
	if err != nil {
		return err
	}
	if err := s.split(ctx); err != nil {
		s.stop()
		return err
	}
	last, err := fn(ctx, s)
	if last != nil {
		last.stop()
	}
	return err
}

// runWorks runs the wanted works of the table works. All of them need what put stores.
func (b *bench) runWorks(ctx context.Context, s *server) (*server, error) {
	p, err := dial(s.address, b.Conns)
	if err != nil {
		return s, err
	}
	defer p.close()
	for _, w := range works {
		if !b.wants(w.name) && w.name != works[0].name {
			continue
		}
		b.current.work = w.name
		r, err := w.run(ctx, b, s, p)
		if err != nil {
			return s, fmt.Errorf("%s: %w", w.name, err)
		}
		if b.wants(w.name) {
			b.add(r)
		}
	}
	return s, nil
}

func (b *bench) writeJSON(m machine) error {
	out, err := json.MarshalIndent(struct {
		When    time.Time
		Machine machine
		Options options
		Results []*result
	}{time.Now().UTC(), m, b.options, b.results}, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(b.JSON, append(out, '\n'), 0o644)
}
