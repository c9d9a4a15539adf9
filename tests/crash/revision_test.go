package crash

import (
	"bufio"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/hawser-kv/hawser/tests/testcluster"
)

// TestRevisionNeverFallsOverKills asks a server that is killed again and again for
// what carries its revision without asking the sequencer: from its first answer on
// none is below one that was given before, by this process or by an earlier one.
func TestRevisionNeverFallsOverKills(t *testing.T) {
	const kills = 8
	dir := filepath.Join(testcluster.Dir(t), "data")
	high := int64(0)
	saw := func(what string, life int, rev int64) {
		t.Helper()
		if rev < high {
			t.Errorf("life %d: %s says revision %d after %d", life, what, rev, high)
		}
		high = max(high, rev)
	}
	for life := range kills {
		p := start(t, dir)
		conn, err := grpc.NewClient("passthrough:///hawser", at(p.address).dialOptions()...)
		if err != nil {
			t.Fatal(err)
		}
		// Status first: it is what clients ask a server that they connect to.
		ctx, m, kv := within(t), pb.NewMaintenanceClient(conn), pb.NewKVClient(conn)
		for range 20 {
			status, err := m.Status(ctx, &pb.StatusRequest{})
			if err != nil {
				t.Fatal(err)
			}
			saw("Status", life, status.Header.Revision)
			alarm, err := m.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_GET})
			if err != nil {
				t.Fatal(err)
			}
			saw("Alarm", life, alarm.Header.Revision)
			auth, err := pb.NewAuthClient(conn).AuthStatus(ctx, &pb.AuthStatusRequest{})
			if err != nil {
				t.Fatal(err)
			}
			saw("AuthStatus", life, auth.Header.Revision)
		}
		saw("the metric of the revision", life, metric(t, p, "etcd_debugging_mvcc_current_revision"))
		if life == 0 {
			splitAt(t, conn, "k020", "k040", "k060")
		}
		for i := range 100 {
			put, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("k0" + strconv.Itoa(i)), Value: []byte("v")})
			if err != nil {
				t.Fatal(err)
			}
			saw("Put", life, put.Header.Revision)
		}
		compacted := high - 10
		if _, err := kv.Compact(ctx, &pb.CompactionRequest{Revision: compacted, Physical: life%2 == 1}); err != nil {
			t.Fatal(err)
		}
		if rev := metric(t, p, "etcd_debugging_mvcc_compact_revision"); life%2 == 1 && rev < compacted {
			t.Errorf("life %d: compacted at %d, the metric says %d", life, compacted, rev)
		}
		_ = conn.Close() // nothing is under way
		p.kill()
	}
}

// metric returns the value of a metric without labels.
func metric(t *testing.T, p *process, name string) int64 {
	t.Helper()
	resp, err := http.Get("http://" + p.address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }() // read to the end
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			v, err := strconv.ParseFloat(text, 64)
			if err != nil {
				t.Fatal(err)
			}
			return int64(v)
		}
	}
	t.Fatalf("there is no metric %s: %v", name, lines.Err())
	return 0
}
