package compat

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/tests/etcdtools"
)

// ctl runs the real etcdctl against one server.
type ctl struct {
	binary   string
	endpoint string
}

// ctlCommand is a command line of etcdctl with its input.
type ctlCommand struct {
	// args are all arguments but --endpoints.
	args []string
	// stdin is the input; a command that reads none has the empty one.
	stdin string
}

func (c ctlCommand) String() string {
	s := "etcdctl " + strings.Join(c.args, " ")
	if c.stdin != "" {
		s += fmt.Sprintf(" <<< %q", c.stdin)
	}
	return s
}

// ctlOutput is what a command has done.
type ctlOutput struct {
	stdout, stderr string
	exitCode       int
}

func newCtl(t testing.TB, server Server) *ctl {
	return &ctl{binary: etcdtools.Etcdctl.Path(t), endpoint: server.Endpoint()}
}

func (c *ctl) command(ctx context.Context, command ctlCommand) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.binary, append([]string{"--endpoints", c.endpoint}, command.args...)...)
	cmd.Stdin = strings.NewReader(command.stdin)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	return cmd
}

func (c *ctl) run(ctx context.Context, command ctlCommand) ctlOutput {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := c.command(ctx, command)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if cmd.ProcessState == nil {
		return ctlOutput{stderr: fmt.Sprint(err), exitCode: -1}
	}
	return ctlOutput{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// watch is a running `etcdctl watch`.
type ctlWatch struct {
	cmd    *exec.Cmd
	cancel context.CancelFunc
	mu     sync.Mutex
	out    bytes.Buffer
	wrote  chan struct{}
}

func (c *ctl) watch(ctx context.Context, command ctlCommand) (*ctlWatch, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &ctlWatch{cmd: c.command(ctx, command), cancel: cancel, wrote: make(chan struct{}, 1)}
	w.cmd.Stdout = w
	if strings.HasSuffix(command.stdin, "\n") {
		// An interactive watch ends with its input.
		w.cmd.Stdin = &endlessReader{rest: []byte(command.stdin), done: ctx.Done()}
		w.cmd.WaitDelay = time.Second
	}
	return w, w.cmd.Start()
}

// endlessReader gives out a text and then nothing more until done.
type endlessReader struct {
	rest []byte
	done <-chan struct{}
}

func (r *endlessReader) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		<-r.done
		return 0, context.Canceled
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// Write collects the output.
func (w *ctlWatch) Write(p []byte) (int, error) {
	w.mu.Lock()
	w.out.Write(p)
	w.mu.Unlock()
	select {
	case w.wrote <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (w *ctlWatch) output() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.out.String()
}

// await waits until a text has been written; it is also found as JSON and in other forms that etcdctl has for bytes.
func (w *ctlWatch) await(ctx context.Context, forms []string) error {
	timeout := time.NewTimer(answerWithin)
	defer timeout.Stop()
	for {
		out := w.output()
		if slices.ContainsFunc(forms, func(form string) bool { return strings.Contains(out, form) }) {
			return nil
		}
		select {
		case <-w.wrote:
		case <-timeout.C:
			return fmt.Errorf("%q does not come; the output is %q", forms[0], out)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// stop ends the watch and returns its output.
func (w *ctlWatch) stop() string {
	w.cancel()
	_ = w.cmd.Wait() // It was killed.
	return w.output()
}

// Local values in etcdctl's output. What they are replaced by says that there was one.
var (
	durations = regexp.MustCompile(`\b[0-9]+(\.[0-9]+)?(ns|µs|ms|s)\b`)
	hexIDs    = regexp.MustCompile(`\b[0-9a-f]{12,16}\b`)
	urls      = regexp.MustCompile(`http://[a-z0-9.]+:[0-9]+`)
	sizes     = regexp.MustCompile(`\b[0-9]+(\.[0-9]+)? ?[kMG]?B\b`)
	versions  = regexp.MustCompile(`\b3\.7\.[0-9]+\b`)
	percents  = regexp.MustCompile(`\b[0-9]+%`)
)

// localNames are the fields of JSON and of --write-out=fields, and the columns of tables, whose values are a server's own.
var localNames = map[string]bool{
	"cluster_id": true, "member_id": true, "raft_term": true, "ClusterID": true, "MemberID": true, "RaftTerm": true, "raftTerm": true,
	"ID": true, "leader": true, "Leader": true, "raftIndex": true, "RaftIndex": true, "raftAppliedIndex": true, "RaftAppliedIndex": true,
	"dbSize": true, "DBSize": true, "dbSizeInUse": true, "DBSizeInUse": true, "dbSizeQuota": true, "DBSizeQuota": true,
	"version": true, "storageVersion": true, "StorageVersion": true,
	"endpoint": true, "Endpoint": true, "took": true, "Took": true,
	"peerURLs": true, "clientURLs": true, "PeerURL": true, "ClientURL": true,
	"RAFT TERM": true, "RAFT INDEX": true, "RAFT APPLIED INDEX": true, "STORAGE VERSION": true,
}

// localColumns are the columns of `endpoint status` in the simple format that a pattern cannot tell: storage version, Raft term,
// index, applied index.
var localColumns = []int{3, 10, 11, 12}

// maskOutput masks what is local to a server in a command's standard output.
func (c *ctl) maskOutput(command ctlCommand, out string) string {
	switch format := command.format(); {
	case format == "json" && strings.HasPrefix(strings.TrimSpace(out), "{"), format == "json" && strings.HasPrefix(out, "["):
		return maskJSON(out)
	case format == "fields":
		out = maskFields(command, out)
	case format == "protobuf":
		if message := command.response(); message != nil && out != "" && proto.Unmarshal([]byte(strings.TrimSuffix(out, "\n")), message) == nil {
			return prototext.Format(mask(message))
		}
	case format == "table":
		out = maskTable(out)
	case slices.Contains(command.args, "status"):
		columns := strings.Split(out, ", ")
		for _, n := range localColumns {
			if n < len(columns) {
				columns[n] = "LOCAL"
			}
		}
		out = strings.Join(columns, ", ")
	}
	out = strings.ReplaceAll(out, c.endpoint, "ENDPOINT")
	for _, local := range []struct {
		pattern *regexp.Regexp
		name    string
	}{{urls, "URL"}, {durations, "DURATION"}, {sizes, "SIZE"}, {percents, "PERCENT"}, {versions, "VERSION"}, {hexIDs, "ID"}} {
		out = local.pattern.ReplaceAllString(out, local.name)
	}
	return out
}

// maskErrors keeps of standard error what does not depend on time and addresses: error lines, and the errors in log lines.
func (c *ctl) maskErrors(out string) string {
	var kept []string
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		var log struct{ Msg, Method, Error string }
		if json.Unmarshal([]byte(line), &log) == nil {
			line = fmt.Sprintf("log: %s %s: %s", log.Msg, log.Method, log.Error)
		}
		line = strings.ReplaceAll(line, c.endpoint, "ENDPOINT")
		kept = append(kept, durations.ReplaceAllString(line, "DURATION"))
	}
	return strings.Join(kept, "\n")
}

// format returns the value of --write-out.
func (c ctlCommand) format() string {
	for i, arg := range c.args {
		if value, ok := strings.CutPrefix(arg, "--write-out="); ok {
			return value
		}
		if arg == "-w" && i+1 < len(c.args) {
			return c.args[i+1]
		}
	}
	return "simple"
}

// response returns an empty message of the type that the command prints with --write-out=protobuf.
func (c ctlCommand) response() proto.Message {
	for name, message := range map[string]proto.Message{
		"get": &pb.RangeResponse{}, "put": &pb.PutResponse{}, "del": &pb.DeleteRangeResponse{}, "txn": &pb.TxnResponse{},
		"member": &pb.MemberListResponse{}, "watch": &pb.WatchResponse{}, "alarm": &pb.AlarmResponse{},
	} {
		if slices.Contains(c.args, name) {
			return message
		}
	}
	return nil
}

func maskJSON(out string) string {
	var masked strings.Builder
	decoder := json.NewDecoder(strings.NewReader(out))
	decoder.UseNumber()
	for decoder.More() {
		var value any
		if err := decoder.Decode(&value); err != nil {
			return out
		}
		maskValue(value)
		line, err := json.Marshal(value)
		if err != nil {
			return out
		}
		masked.Write(line)
		masked.WriteByte('\n')
	}
	return masked.String()
}

func maskValue(value any) {
	switch value := value.(type) {
	case map[string]any:
		for name, field := range value {
			// "version" is a key's version where it is a number.
			if _, isNumber := field.(json.Number); localNames[name] && !(name == "version" && isNumber) {
				value[name] = "LOCAL"
			} else {
				maskValue(field)
			}
		}
	case []any:
		for _, element := range value {
			maskValue(element)
		}
	}
}

func maskFields(command ctlCommand, out string) string {
	var masked strings.Builder
	for line := range strings.Lines(out) {
		name, _, found := strings.Cut(line, " : ")
		name = strings.Trim(name, `"`)
		if found && (localNames[name] || name == "Version" && slices.Contains(command.args, "status")) {
			line = fmt.Sprintf("%q : LOCAL\n", name)
		}
		masked.WriteString(line)
	}
	return masked.String()
}

// maskTable returns the cells of a table without its lines.
func maskTable(out string) string {
	var header []string
	var masked strings.Builder
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "│") {
			if strings.ContainsAny(line, "┌├└") {
				continue
			}
			masked.WriteString(line + "\n")
			continue
		}
		cells := strings.Split(strings.Trim(line, "│"), "│")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
			if header != nil && localNames[header[i]] {
				cells[i] = "LOCAL"
			}
		}
		if header == nil {
			header = cells
		}
		masked.WriteString(strings.Join(cells, " | ") + "\n")
	}
	return masked.String()
}
