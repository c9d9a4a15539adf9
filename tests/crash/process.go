package crash

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hawser-kv/hawser/tests/compat"
)

// tooLong bounds every wait: a machine that is busy with other things does not
// reach it, a server that hangs does.
const tooLong = 2 * time.Minute

// process is one run of the hawser binary.
type process struct {
	cmd     *exec.Cmd
	begun   time.Time
	started chan struct{} // closed at the line "starting hawser"
	ready   chan struct{} // closed when it serves; address is set then
	exited  chan struct{} // closed when it has ended
	address string
	readyIn time.Duration

	log struct {
		sync.Mutex
		bytes.Buffer
	}
}

// logLine is what the tests read of a line of the server's log.
type logLine struct {
	Msg     string `json:"msg"`
	Address string `json:"address"`
}

// launch starts the binary on a data directory, on a port that the system
// chooses, and returns at once.
func launch(tb testing.TB, dir string, flags ...string) *process {
	tb.Helper()
	args := append([]string{
		"--data-dir", dir, "--listen-client-urls", "http://127.0.0.1:0", "--advertise-client-urls", "http://127.0.0.1:0",
	}, flags...)
	return launchCommand(tb, exec.Command(compat.HawserBinary(tb), args...))
}

// launchCommand launches what becomes the binary.
func launchCommand(tb testing.TB, cmd *exec.Cmd) *process {
	tb.Helper()
	p := &process{
		cmd:     cmd,
		started: make(chan struct{}), ready: make(chan struct{}), exited: make(chan struct{}),
	}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "ETCD_") {
			p.cmd.Env = append(p.cmd.Env, v)
		}
	}
	// A server must not outlive a test binary that is killed.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := p.cmd.StderrPipe()
	if err != nil {
		tb.Fatal(err)
	}
	begin := make(chan error)
	go p.run(out, begin)
	if err := <-begin; err != nil {
		tb.Fatalf("start %s: %v", p.cmd.Path, err)
	}
	tb.Cleanup(func() {
		p.kill()
		if tb.Failed() {
			tb.Logf("end of the log of process %d:\n%s", p.cmd.Process.Pid, p.tail(8<<10))
		}
	})
	return p
}

// run starts the process and reads its log to the end. Pdeathsig follows the
// thread that forked, so this goroutine keeps its thread.
func (p *process) run(out io.Reader, begin chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p.begun = time.Now()
	err := p.cmd.Start()
	begin <- err
	if err != nil {
		return
	}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		p.log.Lock()
		p.log.Write(lines.Bytes())
		p.log.WriteByte('\n')
		p.log.Unlock()
		var l logLine
		if json.Unmarshal(lines.Bytes(), &l) != nil {
			continue // a panic's trace
		}
		switch l.Msg {
		case "starting hawser":
			close(p.started)
		case "ready to serve client requests":
			p.address, p.readyIn = l.Address, time.Since(p.begun)
			close(p.ready)
		}
	}
	_ = p.cmd.Wait() // exitCode tells
	close(p.exited)
}

// start launches the binary and waits until it serves.
func start(tb testing.TB, dir string, flags ...string) *process {
	tb.Helper()
	p := launch(tb, dir, flags...)
	p.awaitReady(tb)
	return p
}

func (p *process) awaitReady(tb testing.TB) {
	tb.Helper()
	select {
	case <-p.ready:
	case <-p.exited:
		tb.Fatalf("the server ended before it served, exit code %d:\n%s", p.exitCode(), p.tail(8<<10))
	case <-time.After(tooLong):
		tb.Fatalf("the server does not come to serve:\n%s", p.tail(8<<10))
	}
}

// kill ends the process as kill -9 does, and waits for its end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.exited
}

// signal sends a signal to the process.
func (p *process) signal(tb testing.TB, sig os.Signal) {
	tb.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		tb.Fatalf("signal %s: %v", sig, err)
	}
}

// awaitExit returns the exit code of a process that is about to end; -1 if a
// signal ended it.
func (p *process) awaitExit(tb testing.TB) int {
	tb.Helper()
	select {
	case <-p.exited:
		return p.exitCode()
	case <-time.After(tooLong):
		tb.Fatalf("the server does not end:\n%s", p.tail(8<<10))
		return 0
	}
}

// awaitFailure wants a process to end by itself with an error that says why: not
// with a panic, whose exit code is another, nor in order.
func (p *process) awaitFailure(tb testing.TB, why string) {
	tb.Helper()
	code, out := p.awaitExit(tb), p.output()
	switch _, message, _ := strings.Cut(out, "\nError: "); {
	case strings.Contains(out, "\npanic: "), strings.Contains(out, "\nfatal error: "), strings.Contains(out, "\ngoroutine "):
		tb.Errorf("it panicked, exit code %d:\n%s", code, p.tail(8<<10))
	case code != 1 || !strings.Contains(message, why):
		tb.Errorf("exit code %d, want 1 and an error that says %q:\n%s", code, why, p.tail(8<<10))
	}
}

func (p *process) exitCode() int { return p.cmd.ProcessState.ExitCode() }

// stop stops the process as an operator does and wants it to succeed.
func (p *process) stop(tb testing.TB) {
	tb.Helper()
	p.signal(tb, syscall.SIGTERM)
	if code := p.awaitExit(tb); code != 0 {
		tb.Fatalf("SIGTERM: exit code %d\n%s", code, p.tail(8<<10))
	}
}

// output is what the process has written so far.
func (p *process) output() string {
	p.log.Lock()
	defer p.log.Unlock()
	return p.log.String()
}

func (p *process) tail(n int) string {
	out := p.output()
	return out[max(0, len(out)-n):]
}

// endpoint is where clients find the server, over all its processes.
type endpoint struct{ address atomic.Pointer[string] }

// set makes a process the one that clients connect to; nil: there is none.
func (e *endpoint) set(p *process) {
	if p == nil {
		e.address.Store(nil)
		return
	}
	e.address.Store(&p.address)
}

// dial connects to the server of this moment.
func (e *endpoint) dial(ctx context.Context, _ string) (net.Conn, error) {
	address := e.address.Load()
	if address == nil {
		return nil, errors.New("the server is down")
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", *address)
}

// dialOptions make a client that finds the server again soon.
func (e *endpoint) dialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithContextDialer(e.dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 2 * time.Millisecond, Multiplier: 1.5, MaxDelay: 20 * time.Millisecond},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64 << 20)),
	}
}

// conn is a connection of its own, closed with the test.
func (e *endpoint) conn(tb testing.TB) *grpc.ClientConn {
	tb.Helper()
	c, err := grpc.NewClient("passthrough:///hawser", e.dialOptions()...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Close() }) // nothing is under way
	return c
}

// client is etcd's client, as users have it.
func (e *endpoint) client(tb testing.TB) *clientv3.Client {
	tb.Helper()
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"http://hawser"}, DialOptions: e.dialOptions(), Logger: zap.NewNop(),
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Close() }) // it may be closed already
	return c
}

// at is the endpoint of one address.
func at(address string) *endpoint {
	e := new(endpoint)
	e.address.Store(&address)
	return e
}

// await waits until cond holds; what says what for.
func await(tb testing.TB, what string, cond func() bool) {
	tb.Helper()
	deadline := time.NewTimer(tooLong)
	defer deadline.Stop()
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for !cond() {
		select {
		case <-again.C:
		case <-deadline.C:
			tb.Fatalf("waited too long: %s", what)
		}
	}
}

// within bounds a call.
func within(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), tooLong)
	tb.Cleanup(cancel)
	return ctx
}

func (p *process) String() string { return fmt.Sprintf("process %d", p.cmd.Process.Pid) }
