package testcluster

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hawser-kv/hawser/cmd/config"
	"github.com/hawser-kv/hawser/cmd/node"
	"github.com/hawser-kv/hawser/proxy"
)

// processEnv makes a test binary a node; its value is processOptions as JSON.
const processEnv = "HAWSER_TESTCLUSTER_NODE"

// ProcessOptions say how a node in a process of its own is started.
type ProcessOptions struct {
	// Splits are keys at which the keyspace is cut before StartProcess returns.
	Splits []string
	// HeaderTimeout as in proxy.Config; 0: its default.
	HeaderTimeout time.Duration
	// MaxRequestBytes as in config.Config; 0: its default.
	MaxRequestBytes int
}

type processOptions struct {
	ProcessOptions
	Dir string
}

// Main runs a package's tests. TestMain of a package that starts processes calls
// it and nothing else: the processes are the same binary.
func Main(m *testing.M) {
	text := os.Getenv(processEnv)
	if text == "" {
		os.Exit(m.Run())
	}
	var opt processOptions
	err := json.Unmarshal([]byte(text), &opt)
	if err == nil {
		err = serve(opt, os.Stdin, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "node:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Report is what a process says of itself.
type Report struct {
	// Heap is what is live, in bytes, Stacks what goroutines' stacks take. What the
	// engine holds for a moment, while it flushes or compacts, is in it.
	Heap, Stacks int64
	// PeakLive is the most that a collection has found live since the report before.
	// Garbage is not in it, except what became garbage during that collection:
	// when the collector runs is its own affair, and no test may depend on it.
	PeakLive int64
	// PeakRSS is the most memory that the process had since the report before,
	// all in all; 0 where the system does not tell.
	PeakRSS    int64
	Goroutines int
	// Of the node: requests under way, Watch streams and their watchers, ranges
	// in memory.
	Pending           int64
	Streams, Watchers int
	LoadedRanges      int
	// Queued is what waits to be sent on Watch streams, and what is being sent,
	// Buffered the events that wait for the frontier, in bytes, as the node counts.
	Queued, Buffered int64
	// HistoryRows of the revision index were walked for watchers that were
	// behind.
	HistoryRows int64
}

func (r Report) String() string {
	const mib = 1 << 20
	return fmt.Sprintf("heap %.1f MiB (%.1f at its peak), queued %.1f MiB, stacks %.1f MiB, peak RSS %.1f MiB, %d goroutines, %d pending, %d streams, %d watchers, %d ranges loaded",
		float64(r.Heap)/mib, float64(r.PeakLive)/mib, float64(r.Queued)/mib, float64(r.Stacks)/mib, float64(r.PeakRSS)/mib, r.Goroutines, r.Pending, r.Streams, r.Watchers, r.LoadedRanges)
}

// serve runs a node until in ends: it writes its address to out, then answers
// each line of in with a report.
func serve(opt processOptions, in io.Reader, out io.Writer) error {
	o := Options{
		Configure:  func(c *config.Config) { c.MaxRequestBytes, c.EnablePprof = opt.MaxRequestBytes, true },
		TuneServer: func(c *proxy.Config) { c.HeaderTimeout = opt.HeaderTimeout },
	}
	ctx := context.Background()
	n, err := node.Start(ctx, o.config(opt.Dir))
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, n.ClientAddr()); err != nil {
		return err
	}
	// The collector runs often, so that peaks do not pass between two collections
	// and little else than what is live is in PeakRSS.
	debug.SetGCPercent(gcPercent)
	var peak atomic.Int64
	go samplePeak(&peak)
	enc := json.NewEncoder(out)
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		if err := enc.Encode(report(n, &peak)); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // its clients are gone
	defer cancel()
	return errors.Join(lines.Err(), n.Close(ctx))
}

// gcPercent is by how much the heap grows between two collections.
const gcPercent = 25

func samplePeak(peak *atomic.Int64) {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	for range time.Tick(2 * time.Millisecond) {
		metrics.Read(sample)
		peak.Store(max(peak.Load(), int64(sample[0].Value.Uint64())))
	}
}

func report(n *node.Node, peak *atomic.Int64) Report {
	r := Report{PeakRSS: peakRSS()}
	for range 2 { // what finalizers and pools let go needs a second
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	r.PeakLive = peak.Load()
	r.Heap, r.Stacks, r.Goroutines = int64(m.HeapAlloc), int64(m.StackInuse), runtime.NumGoroutine()
	c := n.Core()
	w := c.Watch.Stats()
	r.Pending, r.Streams, r.Watchers = c.Router.Pending(), w.Streams, w.Watchers
	r.LoadedRanges, r.HistoryRows = len(c.Ranges.Loaded()), w.ReadRows
	r.Queued, r.Buffered = int64(w.QueuedBytes), int64(w.BufferedBytes)
	peak.Store(r.Heap)
	resetPeakRSS()
	return r
}

// peakRSS reads VmHWM of Linux's proc(5).
func peakRSS() int64 {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	_, after, found := strings.Cut(string(text), "VmHWM:")
	fields := strings.Fields(after)
	if !found || len(fields) == 0 {
		return 0
	}
	kib, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil {
		return 0
	}
	return kib << 10
}

func resetPeakRSS() {
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) // where there is none, PeakRSS is 0
}

// Process is a node in a process of its own.
type Process struct {
	tb   testing.TB
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	addr string
}

// StartProcess starts a node on a directory of the test. It ends with the test.
func StartProcess(tb testing.TB, opt ProcessOptions) *Process {
	tb.Helper()
	text, err := json.Marshal(processOptions{opt, filepath.Join(Dir(tb), "node")})
	if err != nil {
		tb.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	p := &Process{tb: tb, cmd: exec.Command(self)}
	p.cmd.Env = append(os.Environ(), processEnv+"="+string(text))
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		tb.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	p.out = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(p.stop)
	p.addr = strings.TrimSpace(p.line())
	tb.Logf("profiles at http://%s/debug/pprof/", p.addr)
	if len(opt.Splits) > 0 {
		c := p.Client()
		split(tb, c, opt.Splits)
		_ = c.Close() // it has answered
	}
	return p
}

func (p *Process) line() string {
	p.tb.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		p.tb.Fatalf("the node's process ended: %v", err)
	}
	return line
}

func (p *Process) stop() {
	_ = p.in.Close() // it may have died
	end := time.AfterFunc(farOff, func() { _ = p.cmd.Process.Kill() })
	defer end.Stop()
	if err := p.cmd.Wait(); err != nil {
		p.tb.Errorf("the node's process: %v", err)
	}
}

// Report asks the process about itself. It collects garbage first.
func (p *Process) Report() Report {
	p.tb.Helper()
	if _, err := fmt.Fprintln(p.in); err != nil {
		p.tb.Fatalf("ask the node's process: %v", err)
	}
	var r Report
	if err := json.Unmarshal([]byte(p.line()), &r); err != nil {
		p.tb.Fatal(err)
	}
	return r
}

// Addr is where the node listens.
func (p *Process) Addr() string { return p.addr }

// Dial connects to the node.
func (p *Process) Dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", p.addr)
}

// Client returns a client of its own connection.
func (p *Process) Client() *clientv3.Client {
	p.tb.Helper()
	return client(p.tb, p.Dial)
}
