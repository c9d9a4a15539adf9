package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/proto/adminpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// fakeAdmin is a directory of ranges that splits as the real one promises to
// (proto/adminpb/admin.proto).
type fakeAdmin struct {
	adminpb.UnimplementedAdminServer
	// mu is held by splits, which may come side by side.
	mu     sync.Mutex
	ranges []*rangepb.RangeDescriptor
	// stuck holds every split until its request ends.
	stuck bool
}

func newFakeAdmin() *fakeAdmin {
	return &fakeAdmin{ranges: []*rangepb.RangeDescriptor{{
		RangeId: 1, Epoch: 1, ReplicaSetVersion: 1,
		Replicas: []*rangepb.Replica{{NodeId: 0xabc, ReplicaId: 1}},
	}}}
}

func (f *fakeAdmin) ServerInfo(context.Context, *adminpb.ServerInfoRequest) (*adminpb.ServerInfoResponse, error) {
	return &adminpb.ServerInfoResponse{Version: "fake"}, nil
}

func (f *fakeAdmin) ListRanges(context.Context, *adminpb.ListRangesRequest) (*adminpb.ListRangesResponse, error) {
	resp := &adminpb.ListRangesResponse{Revision: 42}
	for _, d := range f.ranges {
		resp.Ranges = append(resp.Ranges, &adminpb.RangeInfo{Desc: d, LiveKeys: 10, ApproximateBytes: 2048, Resolved: 41, Active: d.RangeId == 1})
	}
	return resp, nil
}

func (f *fakeAdmin) DescribeRange(_ context.Context, req *adminpb.DescribeRangeRequest) (*adminpb.DescribeRangeResponse, error) {
	for _, d := range f.ranges {
		if d.RangeId == req.RangeId {
			resp := &adminpb.DescribeRangeResponse{Range: &adminpb.RangeInfo{Desc: d}}
			if d.RangeId == 1 {
				resp.Raft = &adminpb.RaftInfo{Term: 3, LeaderReplicaId: 1, CommitIndex: 9, AppliedIndex: 8, FirstIndex: 2, LastIndex: 9}
			}
			return resp, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "no range %d", req.RangeId)
}

func (f *fakeAdmin) SplitRange(ctx context.Context, req *adminpb.SplitRangeRequest) (*adminpb.SplitRangeResponse, error) {
	if f.stuck {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	key := req.GetKey()
	if id := req.GetRangeId(); id != 0 {
		if !slices.ContainsFunc(f.ranges, func(d *rangepb.RangeDescriptor) bool { return d.RangeId == id }) {
			return nil, status.Errorf(codes.NotFound, "no range %d", id)
		}
		if id != 1 {
			return nil, status.Errorf(codes.FailedPrecondition, "range %d has too few keys", id)
		}
		key = []byte("m")
	}
	for i, d := range f.ranges {
		if bytes.Equal(d.Start, key) {
			return nil, status.Errorf(codes.AlreadyExists, "%s is a boundary already", adminpb.KeyText(key))
		}
		if bytes.Compare(d.Start, key) < 0 && (len(d.End) == 0 || bytes.Compare(key, d.End) < 0) {
			right := &rangepb.RangeDescriptor{RangeId: uint64(len(f.ranges) + 1), Start: key, End: d.End, Epoch: 1, Replicas: d.Replicas}
			d.End = key
			d.Epoch++
			f.ranges = slices.Insert(f.ranges, i+1, right)
			return &adminpb.SplitRangeResponse{Left: proto.CloneOf(d), Right: proto.CloneOf(right)}, nil
		}
	}
	panic("fake directory has a hole")
}

// listen serves gRPC services on a free port until the test ends.
func listen(t *testing.T, register func(*grpc.Server)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	register(s)
	go func() { _ = s.Serve(l) }() // ends by Stop
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

func listenAdmin(t *testing.T, f *fakeAdmin) string {
	return listen(t, func(s *grpc.Server) { adminpb.RegisterAdminServer(s, f) })
}

// execute runs one command line.
func execute(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	a := &app{stdin: strings.NewReader(stdin), stdout: &out, stderr: &errs}
	code = a.run(args)
	return code, out.String(), errs.String()
}

func TestRangeListShowsTheDirectoryInKeyOrder(t *testing.T) {
	f := newFakeAdmin()
	addr := listenAdmin(t, f)
	if code, _, stderr := execute(t, "", "range", "split", "--endpoints", addr, "m", "b\x00"); code != 0 {
		t.Fatalf("split: code %d, %s", code, stderr)
	}
	code, stdout, stderr := execute(t, "", "range", "list", "--endpoints", "http://"+addr+"/")
	if code != 0 || stderr != "" {
		t.Fatalf("code %d, %s", code, stderr)
	}
	want := `ID  START    END      EPOCH  ACTIVE  KEYS  BYTES  RESOLVED  REPLICAS
1   -        "b\x00"  3      true    10    2048   41        1@abc
3   "b\x00"  "m"      1      false   10    2048   41        1@abc
2   "m"      -        1      false   10    2048   41        1@abc
`
	if stdout != want {
		t.Errorf("got\n%s\nwant\n%s", stdout, want)
	}

	code, stdout, stderr = execute(t, "", "range", "list", "--endpoints", addr, "--output", "json")
	if code != 0 {
		t.Fatalf("code %d, %s", code, stderr)
	}
	var list listJSON
	if err := json.Unmarshal([]byte(stdout), &list); err != nil {
		t.Fatal(err)
	}
	if list.Revision != 42 || len(list.Ranges) != 3 || string(list.Ranges[1].Start) != "b\x00" || list.Ranges[0].Epoch != 3 {
		t.Errorf("got %+v", list)
	}
	if !strings.Contains(stdout, `"start": ""`) {
		t.Errorf("the start of the keyspace is not an empty string: %s", stdout)
	}
}

func TestRangeDescribe(t *testing.T) {
	f := newFakeAdmin()
	addr := listenAdmin(t, f)
	execute(t, "", "range", "split", "--endpoints", addr, "m")
	code, stdout, _ := execute(t, "", "range", "describe", "1", "--endpoints", addr)
	for _, want := range []string{"range                1", "raft log             2 to 9", "end                  \"m\""} {
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("code %d, no %q in\n%s", code, want, stdout)
		}
	}
	code, stdout, _ = execute(t, "", "range", "describe", "2", "--endpoints", addr)
	if code != 0 || !strings.Contains(stdout, "not loaded") {
		t.Errorf("code %d\n%s", code, stdout)
	}
	code, stdout, _ = execute(t, "", "range", "describe", "2", "--endpoints", addr, "-o", "json")
	var d describeJSON
	if err := json.Unmarshal([]byte(stdout), &d); code != 0 || err != nil || d.Raft != nil || string(d.Range.Start) != "m" {
		t.Errorf("code %d, error %v, %+v", code, err, d)
	}
}

func TestRangeSplitTakesKeysFromArgumentsFileAndHex(t *testing.T) {
	f := newFakeAdmin()
	addr := listenAdmin(t, f)
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, []byte("d\n\ne e\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		stdin string
		args  []string
	}{
		{"", []string{"c", "--keys-file", file}},
		{"x\ny", []string{"--keys-file", "-"}},
		{"", []string{"--hex", "ff00"}},
		{"", []string{"--id", "1"}},
	} {
		code, _, stderr := execute(t, tc.stdin, slices.Concat([]string{"range", "split", "--endpoints", addr}, tc.args)...)
		if code != 0 {
			t.Fatalf("%q: code %d, %s", tc.args, code, stderr)
		}
	}
	var starts []string
	for _, d := range f.ranges {
		starts = append(starts, string(d.Start))
	}
	if want := []string{"", "c", "d", "e e", "m", "x", "y", "\xff\x00"}; !slices.Equal(starts, want) {
		t.Errorf("boundaries %q, want %q", starts, want)
	}
}

func TestRangeSplitPrintsWhatWasDoneBeforeAFailure(t *testing.T) {
	f := newFakeAdmin()
	addr := listenAdmin(t, f)
	// By halves: c, b, d.
	if code, _, stderr := execute(t, "", "range", "split", "--endpoints", addr, "b"); code != 0 {
		t.Fatalf("code %d, %s", code, stderr)
	}
	code, stdout, stderr := execute(t, "", "range", "split", "--endpoints", addr, "b", "c", "d")
	if code != exitBoundary {
		t.Errorf("code %d", code)
	}
	if want := "SPLIT AT  LEFT  RIGHT\n\"c\"       2     3\n"; stdout != want {
		t.Errorf("got\n%s\nwant\n%s", stdout, want)
	}
	if !strings.Contains(stderr, `split at "b": "b" is a boundary already`) {
		t.Errorf("stderr %q", stderr)
	}
	if len(f.ranges) != 3 {
		t.Errorf("%d ranges: it went on after the failure", len(f.ranges))
	}

	code, stdout, stderr = execute(t, "", "range", "split", "--endpoints", addr, "--skip-existing", "-o", "json", "b", "d")
	var done splitsJSON
	if err := json.Unmarshal([]byte(stdout), &done); err != nil || code != 0 {
		t.Fatalf("code %d, error %v, %s", code, err, stderr)
	}
	if len(done.Splits) != 1 || string(done.Splits[0].Right.Start) != "d" || len(done.Existing) != 1 || string(done.Existing[0]) != "b" {
		t.Errorf("got %+v", done)
	}
}

// fullWriter has no room.
type fullWriter struct{}

func (fullWriter) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// TestOutputThatCannotBeWritten is no fault of the command line.
func TestOutputThatCannotBeWritten(t *testing.T) {
	addr := listenAdmin(t, newFakeAdmin())
	for _, args := range [][]string{
		{"version"}, {"range", "list"}, {"range", "list", "-o", "json"}, {"range", "split", "m"}, {"range", "describe", "1"},
	} {
		if args[0] == "range" {
			args = append(args, "--endpoints", addr)
		}
		var errs strings.Builder
		a := &app{stdin: strings.NewReader(""), stdout: fullWriter{}, stderr: &errs}
		if code := a.run(args); code != exitFailed || !strings.Contains(errs.String(), syscall.ENOSPC.Error()) {
			t.Errorf("%v: exit code %d, %q", args, code, errs.String())
		}
	}
}

func TestExitCodes(t *testing.T) {
	hawser := listenAdmin(t, newFakeAdmin())
	execute(t, "", "range", "split", "--endpoints", hawser, "m")
	etcd := listen(t, func(*grpc.Server) {}) // knows no service of ours
	stuck := newFakeAdmin()
	stuck.stuck = true
	stuckAddr := listenAdmin(t, stuck)
	// silent accepts connections and says nothing.
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	// closed refuses connections.
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()

	for _, tc := range []struct {
		what string
		args []string
		code int
		want string
	}{
		{"boundary exists", []string{"range", "split", "m", "--endpoints", hawser}, exitBoundary, "is a boundary already"},
		{"unknown range", []string{"range", "describe", "99", "--endpoints", hawser}, exitNotFound, "no range 99"},
		{"split of unknown range", []string{"range", "split", "--id", "99", "--endpoints", hawser}, exitNotFound, "no range 99"},
		{"range too small", []string{"range", "split", "--id", "2", "--endpoints", hawser}, exitPrecondition, "too few keys"},
		{"plain etcd", []string{"range", "list", "--endpoints", etcd}, exitNotHawser, "a plain etcd?"},
		{"refused connection", []string{"range", "list", "--endpoints", closed.Addr().String()}, exitNoAnswer, "no server answers"},
		{"silent server", []string{"range", "list", "--dial-timeout", "100ms", "--endpoints", silent.Addr().String()}, exitNoAnswer, "no server answers"},
		{"split without answer", []string{"range", "split", "a", "--command-timeout", "100ms", "--endpoints", stuckAddr}, exitNoAnswer, "may have been done"},
		{"second endpoint answers", []string{"range", "list", "--endpoints", closed.Addr().String() + "," + hawser}, 0, ""},
		{"TLS endpoint", []string{"range", "list", "--endpoints", "https://" + hawser}, exitUsage, "only http"},
		{"path in endpoint", []string{"range", "list", "--endpoints", hawser + "/x"}, exitUsage, "not of the form host:port"},
		{"no endpoint", []string{"range", "list", "--endpoints", ""}, exitUsage, "must not be empty"},
		{"zero timeout", []string{"range", "list", "--dial-timeout", "0"}, exitUsage, "above zero"},
		{"no key", []string{"range", "split", "--endpoints", hawser}, exitUsage, "at least one key"},
		{"empty key", []string{"range", "split", "", "--endpoints", hawser}, exitUsage, "start of the keyspace"},
		{"key and id", []string{"range", "split", "a", "--id", "1", "--endpoints", hawser}, exitUsage, "exclude each other"},
		{"bad hex", []string{"range", "split", "--hex", "xyz", "--endpoints", hawser}, exitUsage, "not hexadecimal"},
		{"bad id", []string{"range", "describe", "one"}, exitUsage, "not a range id"},
		{"id zero", []string{"range", "split", "--id", "0"}, exitUsage, "not a range id"},
		{"missing keys file", []string{"range", "split", "--keys-file", "/nonexistent"}, exitUsage, "no such file"},
		{"bad output", []string{"range", "list", "-o", "xml"}, exitUsage, "must be table or json"},
		{"unknown command", []string{"rnage"}, exitUsage, "unknown command"},
		{"unknown flag", []string{"range", "list", "--nope"}, exitUsage, "unknown flag"},
		{"unknown server flag", []string{"--nope"}, exitUsage, "unknown flag"},
		{"too many arguments", []string{"range", "list", "x"}, exitUsage, "unknown command"},
		{"help", []string{"range", "--help"}, 0, ""},
	} {
		t.Run(tc.what, func(t *testing.T) {
			begin := time.Now()
			code, stdout, stderr := execute(t, "", tc.args...)
			if code != tc.code || !strings.Contains(stderr, tc.want) {
				t.Errorf("code %d, want %d; stderr %q, want it to contain %q", code, tc.code, stderr, tc.want)
			}
			if code != 0 && stdout != "" {
				t.Errorf("a failure printed to stdout: %q", stdout)
			}
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("took %s", took)
			}
		})
	}
}

// The second of two values would silently win: half of what was asked for would be
// done, with exit code 0. What is said twice in the same way harms nobody.
func TestFlagGivenTwice(t *testing.T) {
	addr := listenAdmin(t, newFakeAdmin())
	keys := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keys, []byte("k\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		flag string // that is refused; "" for none
	}{
		{[]string{"range", "split", "--id", "1", "--id", "2"}, "--id"},
		{[]string{"range", "split", "--id", "2", "--id", ""}, "--id"},
		{[]string{"range", "split", "--keys-file", keys, "--keys-file", "-"}, "--keys-file"},
		{[]string{"range", "split", "--hex", "--hex=false", "ff"}, "--hex"},
		{[]string{"range", "split", "--skip-existing=false", "--skip-existing", "a"}, "--skip-existing"},
		{[]string{"range", "list", "-o", "json", "--output=table"}, "--output"},
		{[]string{"range", "describe", "1", "-o", "table", "-o", "json"}, "--output"},
		{[]string{"range", "--dial-timeout", "1s", "list", "--dial-timeout", "2s"}, "--dial-timeout"},
		{[]string{"range", "list", "--command-timeout", "5s", "--command-timeout", "6s"}, "--command-timeout"},
		{[]string{"version", "-o", "json", "-o", "table"}, "--output"},

		{[]string{"range", "split", "--id", "1", "--id", "1"}, ""},
		{[]string{"range", "split", "--hex", "--hex=true", "ff"}, ""},
		{[]string{"range", "list", "--dial-timeout", "1s", "--dial-timeout=1000ms"}, ""},
		{[]string{"range", "list", "-o", "json", "-o", "json"}, ""},
		// A list grows.
		{[]string{"range", "list", "--endpoints", addr, "--endpoints", addr}, ""},
	} {
		args := tc.args
		if args[0] == "range" {
			args = append(slices.Clone(args), "--endpoints", addr)
		}
		code, _, stderr := execute(t, "", args...)
		switch {
		case tc.flag == "":
			if code != 0 {
				t.Errorf("%q: code %d, %s", tc.args, code, stderr)
			}
		case code != exitUsage || !strings.Contains(stderr, tc.flag) || !strings.Contains(stderr, "given already"):
			t.Errorf("%q: code %d, want %d; %q should name %s", tc.args, code, exitUsage, stderr, tc.flag)
		}
	}
}

// A key may have 4 KiB, four times that when it is quoted: messages and tables show
// that they leave some of it out. JSON has it whole.
func TestLongKeysAreShortenedForPeopleOnly(t *testing.T) {
	f := newFakeAdmin()
	addr := listenAdmin(t, f)
	long := strings.Repeat("\xff", 4095) + "z"
	short := `"` + strings.Repeat(`\xff`, 64) + `"..."` + strings.Repeat(`\xff`, 15) + `z" (4096 bytes)`
	split := []string{"range", "split", "--endpoints", addr, long}
	for _, tc := range []struct {
		what string
		args []string
		code int
	}{
		{"split", split, 0},
		{"failed split", split, exitBoundary},
		{"repeated split", append(slices.Clone(split), "--skip-existing"), 0},
		{"list", []string{"range", "list", "--endpoints", addr}, 0},
		{"describe", []string{"range", "describe", "2", "--endpoints", addr}, 0},
	} {
		code, stdout, stderr := execute(t, "", tc.args...)
		if code != tc.code || !strings.Contains(stdout+stderr, short) {
			t.Errorf("%s: code %d, want %d; no %s in\n%.1000s%.1000s", tc.what, code, tc.code, short, stdout, stderr)
		}
		for line := range strings.Lines(stdout) {
			if len(line) > 3*len(short) {
				t.Errorf("%s: a line of %d bytes", tc.what, len(line))
			}
		}
	}
	code, _, stderr := execute(t, "", "range", "split", "--endpoints", addr, "--hex", strings.Repeat("f", 5001))
	if code != exitUsage || !strings.Contains(stderr, "not hexadecimal") || !strings.Contains(stderr, "(5001 bytes)") || len(stderr) > 500 {
		t.Errorf("bad hex: code %d, %.1000s", code, stderr)
	}

	code, stdout, _ := execute(t, "", "range", "list", "--endpoints", addr, "-o", "json")
	var list listJSON
	if err := json.Unmarshal([]byte(stdout), &list); code != 0 || err != nil || len(list.Ranges) != 2 || string(list.Ranges[1].Start) != long {
		t.Errorf("JSON: code %d, %v, %.1000s", code, err, stdout)
	}
}

// A thousand keys in one file is a normal way to prepare a keyspace.
func TestRangeSplitOfAThousandKeys(t *testing.T) {
	f := newFakeAdmin()
	addr := listenAdmin(t, f)
	var keys strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&keys, "/registry/pods/%04d\n", i)
	}
	code, _, stderr := execute(t, keys.String(), "range", "split", "--endpoints", addr, "--keys-file", "-")
	if code != 0 || len(f.ranges) != 1001 {
		t.Fatalf("code %d, %d ranges, %s", code, len(f.ranges), stderr)
	}
	if !slices.IsSortedFunc(f.ranges, func(a, b *rangepb.RangeDescriptor) int {
		return cmp.Compare(string(a.Start), string(b.Start))
	}) {
		t.Fatal("boundaries are not in order")
	}
}

// A file that is used again, or names a key twice, stops at the first boundary:
// the error says how to go on.
func TestRangeSplitNamesSkipExistingAtABoundary(t *testing.T) {
	f := newFakeAdmin()
	addr := listenAdmin(t, f)
	code, _, stderr := execute(t, "a\nb\na\nc\n", "range", "split", "--endpoints", addr, "--keys-file", "-")
	if code != exitBoundary || !strings.Contains(stderr, `split at "a"`) || !strings.Contains(stderr, "--skip-existing") {
		t.Errorf("code %d, want %d; %q should name the key and --skip-existing", code, exitBoundary, stderr)
	}
	code, _, stderr = execute(t, "a\nb\na\nc\n", "range", "split", "--endpoints", addr, "--skip-existing", "--keys-file", "-")
	if code != 0 || len(f.ranges) != 4 {
		t.Errorf("code %d, %d ranges, want 4: %s", code, len(f.ranges), stderr)
	}
}

func TestVersion(t *testing.T) {
	for _, args := range [][]string{{"version"}, {"--version"}, {"-version"}} {
		code, stdout, _ := execute(t, "", args...)
		if code != 0 || !strings.HasPrefix(stdout, "Hawser Version: ") {
			t.Errorf("%q: code %d, %q", args, code, stdout)
		}
	}
	code, stdout, _ := execute(t, "", "version", "-o", "json")
	var v struct{ Version, Go string }
	if err := json.Unmarshal([]byte(stdout), &v); code != 0 || err != nil || v.Version == "" || v.Go == "" {
		t.Errorf("code %d, error %v, %q", code, err, stdout)
	}
}

func FuzzEndpoint(f *testing.F) {
	for _, s := range []string{"127.0.0.1:2379", "http://h:1/", "https://h", "://", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, endpoint string) {
		address, err := addressOf(endpoint)
		if err == nil && (address == "" || strings.Contains(address, "/")) {
			t.Errorf("%s became %s", strconv.Quote(endpoint), strconv.Quote(address))
		}
	})
}
