package crash

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/hawser-kv/hawser/placement/sequencer"
	"github.com/hawser-kv/hawser/tests/history"
	"github.com/hawser-kv/hawser/tests/testcluster"
)

// fromEnv is a number set from outside.
func fromEnv(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// life is one process between start and kill.
type life struct {
	// first is the current revision when it began to serve, before any write.
	first int64
	// starts counts the processes since the life before, with those that were
	// killed before they served.
	starts int
}

// TestKilledServerLosesNothing kills one server again and again, under load and
// while it starts, always on the same data directory. Nothing acknowledged is
// lost, watchers miss nothing and get nothing twice, revisions leave small gaps
// at most and never repeat (revisions.md section 1, R2).
func TestKilledServerLosesNothing(t *testing.T) {
	kills := int(fromEnv(t, "HAWSER_CRASH_KILLS", 10))
	seed := fromEnv(t, "HAWSER_CRASH_SEED", rand.Uint64())
	t.Logf("HAWSER_CRASH_SEED=%d HAWSER_CRASH_KILLS=%d", seed, kills)
	const clients = 6
	rng := rand.New(rand.NewPCG(seed, 1<<32))
	dir := filepath.Join(testcluster.Dir(t), "data")
	to := new(endpoint)
	l := newLoad(t, to, 64)
	l.run(clients, seed)
	watch := func() {
		if ws := l.watchers(); len(ws) < 24 {
			l.watchSomething(rng, "watch "+strconv.Itoa(len(ws)))
		}
	}
	l.watch(watchOptions{name: "etcd's client", start: "k", end: "l", from: 2, prevKV: true, etcdClient: true})

	var lives []life
	var startUp []time.Duration
	starts := 0
	// serve starts the server and lets the clients find it.
	serve := func() *process {
		p := start(t, dir)
		starts++
		startUp = append(startUp, p.readyIn)
		lives = append(lives, life{first: revisionOf(t, p), starts: starts})
		starts = 0
		to.set(p)
		return p
	}
	duringStart := 0
	for killed := 0; killed < kills; killed++ {
		if killed > 0 && rng.IntN(5) == 0 {
			// In the middle of the start, wherever that is.
			p := launch(t, dir)
			select {
			case <-p.ready:
			case <-p.exited:
				t.Fatalf("ended during the start, exit code %d:\n%s", p.exitCode(), p.tail(8<<10))
			case <-time.After(time.Duration(rng.Int64N(2 * int64(startUp[len(startUp)-1])))):
			}
			p.kill()
			starts++
			duringStart++
			continue
		}
		p := serve()
		watch()
		goal := l.answered.Load() + 1 + rng.Int64N(400)
		if rng.IntN(8) == 0 {
			goal = 0 // at once
		}
		await(t, "answers", func() bool { return t.Failed() || l.answered.Load() >= goal })
		to.set(nil)
		p.kill()
		if t.Failed() {
			return
		}
	}
	p := serve()
	goal := l.answered.Load() + 100
	await(t, "answers", func() bool { return t.Failed() || l.answered.Load() >= goal })
	run := l.finish(false)
	p.stop(t)

	ok, refused, unknown := l.outcomes()
	largest := checkGaps(t, run, lives, clients)
	t.Logf("%d kills, %d of them during the start; revision %d; %d requests answered, %d refused, %d of unknown fate; %d watches; "+
		"largest gap %d; start-up %v at first, %v at last", kills, duringStart, run.Revision, ok, refused, unknown, len(run.Watches),
		largest, startUp[0].Round(time.Millisecond), startUp[len(startUp)-1].Round(time.Millisecond))
}

// revisionOf is the current revision of a server that no client uses yet.
func revisionOf(t *testing.T, p *process) int64 {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///hawser", at(p.address).dialOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }() // nothing is under way
	rev, err := current(within(t), conn)
	if err != nil {
		t.Fatalf("current revision of %v: %v", p, err)
	}
	return rev
}

// checkGaps checks that revisions are dense within a life, but for those that
// were granted and not yet durable when it ended, one for each client; and that
// each gap between two lives is as small as the sequencer promises: one and a
// half steps of the bound for each process (sequencer.Config). It returns the
// largest.
func checkGaps(t *testing.T, run *history.Run, lives []life, clients int) (largest int64) {
	t.Helper()
	has := make([]bool, run.Revision+1)
	for _, e := range run.Truth {
		has[e.Kv.ModRevision] = true
	}
	var config sequencer.Config
	config.EnsureDefaults()
	for i := 1; i < len(lives); i++ {
		begin, end := lives[i-1].first, lives[i].first
		last := end
		for last > begin && !has[last] {
			last--
		}
		var missing []int64
		for r := begin + 1; r < last; r++ {
			if !has[r] {
				missing = append(missing, r)
			}
		}
		if len(missing) > clients {
			t.Errorf("revisions %d are missing in a life from %d to %d (history/K2)", missing, begin, last)
		}
		// The step follows the rate: it is at most three times what the life
		// granted, and four least steps when nothing much was.
		step := max(4*config.MinBoundStep, 3*(last-begin))
		limit := (step+config.MinBoundStep*int64(lives[i].starts))*3/2 + int64(clients)
		gap := end - last
		largest = max(largest, gap)
		if gap > limit {
			t.Errorf("a gap of %d revisions behind %d, after a life of %d revisions and %d starts; at most %d are promised (R2)",
				gap, last, last-begin, lives[i].starts, limit)
		}
	}
	for r := lives[len(lives)-1].first + 1; r <= run.Revision; r++ {
		if !has[r] {
			t.Errorf("revision %d is missing in the last life (history/K2)", r)
		}
	}
	return largest
}
