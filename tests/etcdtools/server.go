package etcdtools

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Running is a server process that a test started.
type Running struct {
	// Endpoint is the client address as host:port.
	Endpoint string

	cmd  *exec.Cmd
	log  lockedBuffer
	done chan struct{}
	stop sync.Once
	// logBeforeStop is the tail of the log when Stop was called.
	logBeforeStop string
}

// startAttempts bounds the tries to start a server on ports that the system had just offered: between the offer and the
// server's own listen another process can take them.
const startAttempts = 5

// readyWithin bounds the time a server may take until it is ready.
const readyWithin = 60 * time.Second

// StartEtcd starts a real one-member etcd on loopback ports chosen by the system, with its data in a temporary directory, and
// waits until it serves. extraFlags are appended to the command line. The server is stopped at the end of the test.
//
// It runs without fsync: what these tests ask etcd is what it answers, never what survives.
func StartEtcd(t testing.TB, extraFlags ...string) *Running {
	t.Helper()
	binary := Server.Path(t)
	return StartServer(t, func(client string) *exec.Cmd {
		peer := freeAddress(t)
		args := append([]string{
			"--data-dir", t.TempDir(),
			"--listen-client-urls", "http://" + client, "--advertise-client-urls", "http://" + client,
			"--listen-peer-urls", "http://" + peer, "--initial-advertise-peer-urls", "http://" + peer,
			"--initial-cluster", "default=http://" + peer,
			"--unsafe-no-fsync", "--log-level", "error",
		}, extraFlags...)
		return exec.Command(binary, args...)
	})
}

// StartServer starts the server that command makes for a client address (host:port), waits until GET /readyz on that address
// answers 200, and stops the server with SIGTERM at the end of the test. command is called again with a new address if the
// server ends before it is ready. If the test fails, the tail of the server's log is printed.
func StartServer(t testing.TB, command func(clientAddress string) *exec.Cmd) *Running {
	t.Helper()
	var last error
	for range startAttempts {
		address := freeAddress(t)
		server := &Running{Endpoint: address, cmd: command(address), done: make(chan struct{})}
		server.cmd.Stdout = &server.log
		server.cmd.Stderr = &server.log
		server.cmd.Env = withoutEtcdVariables(os.Environ())
		// A server must not outlive a test binary that is killed.
		server.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := server.start(); err != nil {
			t.Fatalf("start %s: %v", server.cmd.Path, err)
		}
		if last = server.waitReady(t.Context()); last == nil {
			t.Cleanup(func() {
				server.Stop()
				if log := server.logBeforeStop; t.Failed() && log != "" {
					t.Logf("log of %s on %s before it was stopped:\n%s", server.cmd.Path, address, log)
				}
			})
			return server
		}
		server.Stop()
		last = fmt.Errorf("%w\n%s", last, server.log.tail(4<<10))
	}
	t.Fatalf("the server did not start: %v", last)
	return nil
}

// start starts the process from a goroutine that lives as long as the process, because Pdeathsig follows the thread that forked.
func (r *Running) start() error {
	started := make(chan error)
	go func() {
		defer close(r.done)
		runtime.LockOSThread()
		err := r.cmd.Start()
		started <- err
		if err == nil {
			_ = r.cmd.Wait() // How it ended shows in the log.
		}
	}()
	return <-started
}

// Stop ends the server with SIGTERM, and with SIGKILL if it takes longer than 20 seconds, and waits for its end. It may be called again.
func (r *Running) Stop() {
	r.stop.Do(func() {
		r.logBeforeStop = r.log.tail(4 << 10)
		if panicked := r.log.from("panic", 4<<10); panicked != "" {
			r.logBeforeStop = panicked
		}
		_ = r.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-r.done:
		case <-time.After(20 * time.Second):
			_ = r.cmd.Process.Kill()
			<-r.done
		}
	})
}

// Exited is closed when the process has ended.
func (r *Running) Exited() <-chan struct{} { return r.done }

// Log returns what the server has written so far; long lines are cut.
func (r *Running) Log() string { return r.log.tail(1 << 30) }

// Pid returns the process id.
func (r *Running) Pid() int { return r.cmd.Process.Pid }

func (r *Running) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.Endpoint+"/readyz", nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-r.done:
			return fmt.Errorf("it ended before it was ready")
		case <-ctx.Done():
			return fmt.Errorf("not ready within %s", readyWithin)
		}
	}
}

// freeAddress returns a loopback address with a port that the system has just offered.
func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// withoutEtcdVariables drops what would configure a server behind the test's back.
func withoutEtcdVariables(env []string) []string {
	var kept []string
	for _, v := range env {
		if !strings.HasPrefix(v, "ETCD_") && !strings.HasPrefix(v, "ETCDCTL_") {
			kept = append(kept, v)
		}
	}
	return kept
}

// lockedBuffer collects a process's output.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) tail(n int) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := b.buf.Bytes()
	return cutLines(string(out[max(0, len(out)-n):]))
}

// from returns up to n bytes from the first occurrence of a text on.
func (b *lockedBuffer) from(text string, n int) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, after, found := bytes.Cut(b.buf.Bytes(), []byte(text))
	if !found {
		return ""
	}
	return cutLines(text + string(after[:min(len(after), n)]))
}

// maxLogLine bounds a line of a log in a test's report.
const maxLogLine = 1000

func cutLines(log string) string {
	var cut strings.Builder
	for line := range strings.Lines(log) {
		if len(line) > maxLogLine {
			line = fmt.Sprintf("%s...(%d bytes)\n", line[:maxLogLine], len(line))
		}
		cut.WriteString(line)
	}
	return cut.String()
}
