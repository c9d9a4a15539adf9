package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/cmd/config"
)

// fakeNode is a server that records how it is stopped.
type fakeNode struct {
	fault chan error
	// close is what Close does; nil: nothing.
	close  func(context.Context) error
	closed bool
}

func (n *fakeNode) ClientAddr() string { return "127.0.0.1:1" }
func (n *fakeNode) Err() <-chan error  { return n.fault }
func (n *fakeNode) Close(ctx context.Context) error {
	n.closed = true
	if n.close != nil {
		return n.close(ctx)
	}
	return nil
}

// serverRun is one run of `hawser` with a fake node behind it.
type serverRun struct {
	signals chan os.Signal
	// states are what the service manager was told, in order.
	states chan string
	log    string
	code   chan int
	stderr *bytes.Buffer
}

func startServer(t *testing.T, start startFunc, args ...string) *serverRun {
	t.Helper()
	dir := t.TempDir()
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	r := &serverRun{
		signals: make(chan os.Signal, 2),
		states:  make(chan string, 8),
		log:     filepath.Join(dir, "log"),
		code:    make(chan int, 1),
		stderr:  new(bytes.Buffer),
	}
	go func() {
		buf := make([]byte, 256)
		for {
			n, err := socket.Read(buf)
			if err != nil {
				return // closed at the end of the test
			}
			r.states <- string(buf[:n])
		}
	}()
	a := &app{
		stdin: strings.NewReader(""), stdout: new(bytes.Buffer), stderr: r.stderr,
		environ: []string{"NOTIFY_SOCKET=" + filepath.Join(dir, "notify")},
		signals: r.signals, start: start,
	}
	go func() { r.code <- a.run(append([]string{"--log-outputs=" + r.log}, args...)) }()
	return r
}

func startOf(n *fakeNode) startFunc {
	return func(context.Context, config.Config, *zap.Logger) (server, error) { return n, nil }
}

func receive[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(10 * time.Second):
		t.Fatal("nothing came in 10 s")
		panic("unreachable")
	}
}

func TestSignalDrainsAndExitsZero(t *testing.T) {
	for _, sig := range []os.Signal{syscall.SIGTERM, syscall.SIGINT} {
		n := &fakeNode{}
		r := startServer(t, startOf(n))
		if state := receive(t, r.states); state != "READY=1" {
			t.Fatalf("state %q", state)
		}
		r.signals <- sig
		if state := receive(t, r.states); state != "STOPPING=1" {
			t.Fatalf("state %q", state)
		}
		if code := receive(t, r.code); code != 0 || !n.closed {
			t.Fatalf("%s: code %d, closed %v, %s", sig, code, n.closed, r.stderr)
		}
		log, err := os.ReadFile(r.log)
		if err != nil || !strings.Contains(string(log), "ready to serve client requests") {
			t.Fatalf("log %q, error %v", log, err)
		}
	}
}

func TestStopThatFailsExitsOne(t *testing.T) {
	r := startServer(t, startOf(&fakeNode{close: func(context.Context) error { return errors.New("disk gone") }}))
	receive(t, r.states)
	r.signals <- syscall.SIGTERM
	if code := receive(t, r.code); code != exitFailed || !strings.Contains(r.stderr.String(), "disk gone") {
		t.Fatalf("code %d, %s", code, r.stderr)
	}
}

func TestDrainHasADeadline(t *testing.T) {
	left := make(chan time.Duration, 1)
	r := startServer(t, startOf(&fakeNode{close: func(ctx context.Context) error {
		deadline, ok := ctx.Deadline()
		if !ok {
			return errors.New("no deadline")
		}
		left <- time.Until(deadline)
		return nil
	}}))
	receive(t, r.states)
	r.signals <- syscall.SIGTERM
	if code := receive(t, r.code); code != 0 {
		t.Fatalf("code %d, %s", code, r.stderr)
	}
	if d := receive(t, left); d <= 0 || d > drainTimeout {
		t.Fatalf("deadline in %s", d)
	}
}

func TestSecondSignalEndsTheDrain(t *testing.T) {
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	r := startServer(t, startOf(&fakeNode{close: func(context.Context) error { <-hang; return nil }}))
	receive(t, r.states)
	r.signals <- syscall.SIGTERM
	receive(t, r.states) // STOPPING=1
	r.signals <- syscall.SIGTERM
	if code := receive(t, r.code); code != exitFailed {
		t.Fatalf("code %d", code)
	}
}

func TestFaultOfTheNodeExitsOne(t *testing.T) {
	n := &fakeNode{fault: make(chan error, 1)}
	r := startServer(t, startOf(n))
	receive(t, r.states)
	n.fault <- errors.New("checksum mismatch")
	if code := receive(t, r.code); code != exitFailed || !n.closed || !strings.Contains(r.stderr.String(), "checksum mismatch") {
		t.Fatalf("code %d, closed %v, %s", code, n.closed, r.stderr)
	}
}

// A stop that reports the fault, too, does not have it printed twice.
func TestFaultThatTheStopReportsIsSaidOnce(t *testing.T) {
	fault := errors.New("no space left on device")
	n := &fakeNode{fault: make(chan error, 1), close: func(context.Context) error {
		return errors.Join(fault, errors.New("requests were cut off"))
	}}
	r := startServer(t, startOf(n))
	receive(t, r.states)
	n.fault <- fault
	code := receive(t, r.code)
	_, message, _ := strings.Cut(r.stderr.String(), "Error: ")
	if code != exitFailed || strings.Count(message, fault.Error()) != 1 || !strings.Contains(message, "cut off") {
		t.Fatalf("code %d, %s", code, r.stderr)
	}
}

func TestFailedStartIsNotReady(t *testing.T) {
	r := startServer(t, func(context.Context, config.Config, *zap.Logger) (server, error) {
		return nil, errors.New("data directory is in use")
	})
	if code := receive(t, r.code); code != exitFailed || !strings.Contains(r.stderr.String(), "cannot start: data directory is in use") {
		t.Fatalf("code %d, %s", code, r.stderr)
	}
	if len(r.states) != 0 {
		t.Fatalf("told %q", receive(t, r.states))
	}
}

func TestSignalDuringStartEndsTheStart(t *testing.T) {
	starting := make(chan struct{})
	r := startServer(t, func(ctx context.Context, _ config.Config, _ *zap.Logger) (server, error) {
		close(starting)
		<-ctx.Done()
		return nil, ctx.Err()
	})
	receive(t, starting)
	r.signals <- syscall.SIGTERM
	if code := receive(t, r.code); code != 0 {
		t.Fatalf("code %d, %s", code, r.stderr)
	}
}

func TestConfigurationReachesTheNode(t *testing.T) {
	got := make(chan config.Config, 1)
	r := startServer(t, func(_ context.Context, c config.Config, _ *zap.Logger) (server, error) {
		got <- c
		return &fakeNode{}, nil
		// The last one counts, as in etcd.
	}, "-name", "n0", "-name", "n1", "-max-txn-ops=5", "--enable-pprof")
	c := receive(t, got)
	if c.Name != "n1" || c.MaxTxnOps != 5 || !c.EnablePprof {
		t.Errorf("%+v", c)
	}
	receive(t, r.states)
	r.signals <- syscall.SIGTERM
	receive(t, r.code)
}

func TestInvalidConfigurationListsProblemsAndStartsNothing(t *testing.T) {
	code, _, stderr := execute(t, "", "--max-txn-ops=0", "--cert-file=x", "--metrics=none")
	if code != exitUsage || strings.Count(stderr, "\n") != 4 {
		t.Fatalf("code %d, stderr:\n%s", code, stderr)
	}
}

func TestNotifyInTheAbstractNamespace(t *testing.T) {
	name := "@hawser-test-" + filepath.Base(t.TempDir()) + "-" + t.Name()
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	if err := sdNotify(name, "READY=1"); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 64)
	n, err := socket.Read(buf)
	if err != nil || string(buf[:n]) != "READY=1" {
		t.Fatalf("%q, %v", buf[:n], err)
	}
}

// TestWrongConfigurationExitsTwo: one code for a wrong flag and a wrong value,
// wherever it stands.
func TestWrongConfigurationExitsTwo(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hawser.yaml")
	if err := os.WriteFile(file, []byte("max-txn-ops: many"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args    []string
		environ []string
	}{
		{args: []string{"--no-such-flag"}},
		{args: []string{"--max-txn-ops=many"}},
		{args: []string{"--election-timeout=60000"}},
		{args: []string{"--cert-file=c.pem"}},
		{args: []string{"extra"}},
		{args: []string{"rnge"}},
		{args: []string{"--config-file=" + file}},
		{args: []string{"--config-file=" + file + ".missing"}},
		{environ: []string{"ETCD_MAX_TXN_OPS=many"}},
		{args: []string{"--name=a"}, environ: []string{"ETCD_NAME=b"}},
	} {
		var stderr bytes.Buffer
		a := &app{stdout: new(bytes.Buffer), stderr: &stderr, environ: tc.environ, start: startOf(&fakeNode{})}
		if code := a.run(tc.args); code != exitUsage {
			t.Errorf("%q %q: code %d, want %d", tc.args, tc.environ, code, exitUsage)
		}
		text := stderr.String()
		if !strings.HasPrefix(text, "Error: ") || strings.Contains(text, "\n\n") || strings.Count(text, "\n") == 0 {
			t.Errorf("%q %q: %q", tc.args, tc.environ, text)
		}
	}
}

func TestErrorOfADamagedEngineIsPlain(t *testing.T) {
	var stderr bytes.Buffer
	a := &app{stdout: new(bytes.Buffer), stderr: &stderr, start: func(context.Context, config.Config, *zap.Logger) (server, error) {
		return nil, errors.Join(errors.New("invalid table"), errors.New("<corruption detail carrier>"))
	}}
	if code := a.run([]string{"--log-outputs=" + filepath.Join(t.TempDir(), "log")}); code != exitFailed {
		t.Errorf("code %d", code)
	}
	if got, want := stderr.String(), "Error: cannot start: invalid table\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
