package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
)

func TestFilesOfProc(t *testing.T) {
	// A command may hold anything, also what looks like the rest.
	stat := "42 (a) b 7 (c) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 9 0 100"
	if cpu, err := parseStat([]byte(stat)); err != nil || cpu != 3*time.Second {
		t.Errorf("stat: %v, %v", cpu, err)
	}
	for _, bad := range []string{"", "42 (a)", "42 (a) S 1 2 3", "42 (a) S 1 2 3 4 5 6 7 8 9 10 x y"} {
		if _, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("stat %q is taken", bad)
		}
	}
	status := "Name:\ta\nVmHWM:\t  2048 kB\nVmRSS:\t  1024 kB\n"
	if n, err := parseField([]byte(status), "VmHWM"); err != nil || n != 2048 {
		t.Errorf("VmHWM: %d, %v", n, err)
	}
	if _, err := parseField([]byte(status), "Vm"); err == nil {
		t.Error("a field that is not there has a value")
	}
}

func TestUsageOfThisProcess(t *testing.T) {
	if _, err := os.Stat("/proc/self/io"); err != nil {
		t.Skipf("the system has no such /proc: %v", err)
	}
	u, err := readUsage(os.Getpid())
	if err != nil || u.rssBytes <= 0 || u.peakBytes < u.rssBytes/2 {
		t.Errorf("%+v, %v", u, err)
	}
}

// Neighbours of the load are in different namespaces, and ranges end where a
// namespace begins.
func TestKeysOfTheLoad(t *testing.T) {
	if got := string(keyOf(2042)); got != "/registry/pods/ns-0042/pod-000002042" {
		t.Errorf("key %s", got)
	}
	for i := range 3 * namespaces {
		key := keyOf(i)
		if !bytes.HasPrefix(key, namespacePrefix(i%namespaces)) {
			t.Fatalf("key %s is not in namespace %d", key, i%namespaces)
		}
		if bytes.Compare(key, []byte(keyPrefix)) < 0 || bytes.Compare(key, prefixEnd()) >= 0 {
			t.Fatalf("key %s is outside of the prefix", key)
		}
	}
}

func TestEventsOfAWatchResponseAreCounted(t *testing.T) {
	response := &pb.WatchResponse{Header: &pb.ResponseHeader{Revision: 9}, WatchId: 3, Created: true}
	for range 5 {
		response.Events = append(response.Events, &mvccpb.Event{Kv: &mvccpb.KeyValue{Key: []byte("k"), Value: []byte("v")}})
	}
	b, err := proto.Marshal(response)
	if err != nil {
		t.Fatal(err)
	}
	var f frame
	if err := f.parse(b); err != nil || f.events != 5 || !f.created || f.canceled {
		t.Errorf("%+v, %v", f, err)
	}
	if err := f.parse(b[:len(b)-1]); err == nil {
		t.Error("a response that is cut off is taken")
	}
}

func TestMediansAndRatiosOfRounds(t *testing.T) {
	b := &bench{options: options{Works: []string{"put"}}, targets: []target{{name: "etcd"}, {name: "hawser-1", ranges: 1}}}
	for round, ops := range [][2]float64{{100, 150}, {10, 20}, {1000, 1100}} {
		for i, target := range b.targets {
			b.results = append(b.results, &result{Work: "put", Target: target.name, Round: round + 1, Operations: ops[i], Seconds: 1})
		}
	}
	var out strings.Builder
	b.report(&out)
	// The median of 150, 20, 1100, and that of the ratios 1.5, 2, 1.1.
	if !strings.Contains(out.String(), "150 (1.50x)") {
		t.Errorf("got\n%s", out.String())
	}
	if got := medianOf([]float64{4, 1, 3, 2}); got != 2.5 {
		t.Errorf("median %v", got)
	}
	m := measured{latencies: []time.Duration{1, 2, 3, 4}}
	if m.percentile(0.5) != 3 || m.percentile(1) != 4 || (&measured{}).percentile(0.5) != 0 {
		t.Error("percentiles")
	}
}

func TestOptionsAreChecked(t *testing.T) {
	b, err := parse([]string{"-short", "-keys", "7", "-targets", "hawser-3,etcd"})
	if err != nil {
		t.Fatal(err)
	}
	if b.Keys != 7 || b.Rounds != 1 || len(b.targets) != 2 || b.targets[0].ranges != 3 || b.targets[1].ranges != 0 {
		t.Errorf("%+v", b)
	}
	for _, bad := range [][]string{
		{"-targets", "hawser"}, {"-targets", "hawser-0"}, {"-targets", "hawser-x"}, {"-targets", "zookeeper"},
		{"-works", "put,nothing"}, {"-rounds", "0"}, {"-clients", "-1"},
	} {
		if _, err := parse(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// A load ends with its first error, after its last operation, or with its limit.
func TestLoadsEnd(t *testing.T) {
	p, err := dial("127.0.0.1:1", 1) // it is never used
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	nothing := func(context.Context, pb.KVClient, int) error { return nil }
	if m, err := closedLoop(t.Context(), p, 4, 100, time.Minute, nothing); err != nil || len(m.latencies) != 100 {
		t.Errorf("%v, %v", m, err)
	}
	broken := errors.New("broken")
	_, err = closedLoop(t.Context(), p, 4, 1<<30, time.Minute, func(_ context.Context, _ pb.KVClient, i int) error {
		if i == 50 {
			return broken
		}
		return nil
	})
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	if m, err := closedLoop(t.Context(), p, 4, 1<<30, 10*time.Millisecond, nothing); err != nil || len(m.latencies) == 0 {
		t.Errorf("%v, %v", m, err)
	}
	stop := make(chan struct{})
	_, err = openLoop(t.Context(), p, 2, 100_000, stop, func(_ context.Context, _ pb.KVClient, i int) error {
		if i == 20 {
			close(stop)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
