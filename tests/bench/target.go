package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// target is a server under test: etcd, or Hawser with a number of ranges.
type target struct {
	name   string
	binary string
	// ranges is the number of ranges, 0 for etcd.
	ranges int
	// pprof makes the server serve profiles.
	pprof bool
}

// parseTarget reads "etcd" or "hawser-N".
func parseTarget(name string) (target, error) {
	if name == "etcd" {
		return target{name: name}, nil
	}
	n, err := strconv.Atoi(strings.TrimPrefix(name, "hawser-"))
	if err != nil || !strings.HasPrefix(name, "hawser-") || n < 1 || n > namespaces {
		return target{}, fmt.Errorf("target %q: etcd, or hawser-N with N ranges, 1 to %d", name, namespaces)
	}
	return target{name: name, ranges: n}, nil
}

// quotaBytes is far above what is stored: a quota is not what is measured.
const quotaBytes = 32 << 30

// server is a running process of a target.
type server struct {
	target  target
	address string
	dir     string
	cmd     *exec.Cmd
	log     *os.File
	done    chan struct{}
	// startToAnswer is the time from exec to the first linearizable answer.
	startToAnswer time.Duration
}

// start starts the target on the data in dir, empty or not, and waits for the first linearizable answer. Both
// servers sync every write.
func (t target) start(ctx context.Context, dir string) (*server, error) {
	const attempts = 3 // a port can be taken between its choice and its use
	var err error
	for range attempts {
		var s *server
		if s, err = t.startOnce(ctx, dir); err == nil {
			return s, nil
		}
	}
	return nil, err
}

func (t target) startOnce(ctx context.Context, dir string) (*server, error) {
	client, err := freeAddress()
	if err != nil {
		return nil, err
	}
	args := []string{
		"--data-dir", filepath.Join(dir, "data"),
		"--listen-client-urls", "http://" + client, "--advertise-client-urls", "http://" + client,
		"--quota-backend-bytes", strconv.Itoa(quotaBytes), "--log-level", "info",
		"--warning-unary-request-duration", "1h", // slow requests are counted here, not logged there
	}
	if t.ranges == 0 {
		peer, err := freeAddress()
		if err != nil {
			return nil, err
		}
		args = append(args, "--listen-peer-urls", "http://"+peer, "--initial-advertise-peer-urls", "http://"+peer,
			"--initial-cluster", "default=http://"+peer)
	}
	if t.pprof {
		args = append(args, "--enable-pprof")
	}
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	s := &server{target: t, address: client, dir: dir, log: log, done: make(chan struct{})}
	s.cmd = exec.Command(t.binary, args...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	begin := time.Now()
	if err := s.run(); err != nil {
		log.Close()
		return nil, fmt.Errorf("start %s: %w", t.name, err)
	}
	if err := s.firstAnswer(ctx); err != nil {
		s.stop()
		tail, _ := os.ReadFile(filepath.Join(dir, "log")) // best effort: it explains the error
		return nil, fmt.Errorf("%s does not answer: %w\n%s", t.name, err, tail[max(0, len(tail)-4096):])
	}
	s.startToAnswer = time.Since(begin)
	return s, nil
}

// awaitLog waits until the server has logged text.
func (s *server) awaitLog(ctx context.Context, text string) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		log, err := os.ReadFile(filepath.Join(s.dir, "log"))
		if err != nil {
			return err
		}
		if bytes.Contains(log, []byte(text)) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %q in the log: %w", text, ctx.Err())
		case <-s.done:
			return fmt.Errorf("waiting for %q in the log: the server has ended", text)
		case <-tick.C:
		}
	}
}

// run starts the process from a thread that lives as long as it does: Pdeathsig follows the thread.
func (s *server) run() error {
	started := make(chan error)
	go func() {
		defer close(s.done)
		runtime.LockOSThread()
		err := s.cmd.Start()
		started <- err
		if err == nil {
			_ = s.cmd.Wait() // its log tells how it ended
		}
	}()
	return <-started
}

// firstAnswer polls the port and then reads a key.
func (s *server) firstAnswer(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := net.Dial("tcp", s.address)
		if err == nil {
			conn.Close()
			break
		}
		select {
		case <-tick.C:
		case <-s.done:
			return errors.New("the process ended")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	pool, err := dial(s.address, 1)
	if err != nil {
		return err
	}
	defer pool.close()
	for {
		if _, err = pool.kv(0).Range(ctx, &pb.RangeRequest{Key: keyOf(0)}); err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-s.done:
			return errors.New("the process ended")
		case <-ctx.Done():
			return err
		}
	}
}

// split cuts the keyspace of podKeys evenly, in the middle of nothing: at namespaces.
func (s *server) split(ctx context.Context) error {
	if s.target.ranges <= 1 {
		return nil
	}
	var keys bytes.Buffer
	for i := 1; i < s.target.ranges; i++ {
		keys.Write(namespacePrefix(i * namespaces / s.target.ranges))
		keys.WriteByte('\n')
	}
	cmd := exec.CommandContext(ctx, s.target.binary, "range", "split", "--endpoints", s.address, "--keys-file", "-", "-o", "json",
		"--command-timeout", "60s")
	cmd.Stdin = &keys
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("split into %d ranges: %w\n%s", s.target.ranges, err, out[max(0, len(out)-2048):])
	}
	return nil
}

func (s *server) pid() int { return s.cmd.Process.Pid }

// stop ends the server in order and waits for it.
func (s *server) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-s.done:
	case <-time.After(60 * time.Second):
		_ = s.cmd.Process.Kill()
		<-s.done
	}
	s.log.Close()
}

// kill ends the server as a crash of the process would, and waits for it.
func (s *server) kill() {
	_ = s.cmd.Process.Kill() // it may have ended
	<-s.done
	s.log.Close()
}

// freeAddress returns a loopback address with a port that the system has just offered.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
