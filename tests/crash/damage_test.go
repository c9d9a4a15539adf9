package crash

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hawser-kv/hawser/cmd/node"
	"github.com/hawser-kv/hawser/proto/adminpb"
	"github.com/hawser-kv/hawser/tests/testcluster"
)

// flipValue inverts a byte of a value wherever tables have it: among the data,
// and in a Raft log. It returns their names.
func flipValue(t *testing.T, dir string, value []byte) (tables []string) {
	t.Helper()
	for _, name := range files(t, dir, "*.sst") {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for at := 0; ; at++ {
			i := bytes.Index(b[at:], value)
			if i < 0 {
				break
			}
			at += i
			flipAt(t, name, int64(at))
			tables = append(tables, name)
		}
	}
	if len(tables) == 0 {
		t.Fatal("no table has the value")
	}
	return tables
}

// startUncached starts a node in this process whose engine caches nothing, and
// returns the errors that it logs.
func startUncached(t *testing.T, dir string) (*node.Node, *observer.ObservedLogs) {
	t.Helper()
	core, log := observer.New(zap.ErrorLevel)
	cfg := node.Config{Logger: zap.New(core)}
	cfg.DataDir = dir
	cfg.ListenClientURLs = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.Tune = func(c *node.CoreConfig) {
		c.Engine.CacheBytes = 1 << 10
	}
	n, err := node.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return n, log
}

// isCorrupt is the answer of a range whose data is damaged.
func isCorrupt(err error) bool {
	return status.Code(err) == codes.DataLoss && strings.Contains(err.Error(), "etcdserver: corrupt cluster")
}

// TestDamageFoundWhileRunning flips a byte of a table that a running server has
// not read yet. The range whose data is there stops and answers that it is
// corrupt, to reads, writes, transactions and watches; nothing is ever answered
// wrong, the other ranges go on, and the log says what is damaged.
func TestDamageFoundWhileRunning(t *testing.T) {
	const keys, ranges = 4000, 4
	dir := filepath.Join(testcluster.Dir(t), "data")
	p := start(t, dir)
	splitAt(t, at(p.address).conn(t), keyName(keys/4), keyName(keys/2), keyName(3*keys/4))
	fill(t, p.address, keys)
	if _, err := pb.NewMaintenanceClient(at(p.address).conn(t)).Defragment(within(t), &pb.DefragmentRequest{}); err != nil {
		t.Fatal(err)
	}
	p.stop(t)

	// In this process, with a cache that holds next to nothing: what is read comes
	// from the disk.
	n, log := startUncached(t, dir)
	address := n.ClientAddr()
	tables := flipValue(t, dir, valueOf(5*keys/8))
	damaged := readable(t, address, keys)
	t.Logf("%d of %d keys are not served", damaged, keys)
	if damaged == 0 || damaged > keys/ranges {
		t.Fatalf("want the keys of one of %d ranges at most, and some", ranges)
	}
	named := slices.ContainsFunc(log.FilterMessage("damaged file").All(), func(e observer.LoggedEntry) bool {
		path, _ := e.ContextMap()["path"].(string)
		return slices.Contains(tables, path)
	})
	if !named || log.FilterMessage("replica stops").Len() != 1 {
		t.Errorf("the log does not say what is damaged: %v", log.All())
	}

	kv := pb.NewKVClient(at(address).conn(t))
	refused, served := 0, 0
	count := func(what string, err error) {
		t.Helper()
		switch {
		case err == nil:
			served++
		case isCorrupt(err):
			refused++
		default:
			t.Errorf("%s: %v", what, err)
		}
	}
	for i := range ranges {
		_, err := kv.Put(within(t), &pb.PutRequest{Key: []byte(keyName(i*keys/ranges + 1)), Value: valueOf(i*keys/ranges + 1)})
		count("put", err)
	}
	if refused != 1 || served != ranges-1 {
		t.Errorf("puts: %d refused, %d served", refused, served)
	}
	refused, served = 0, 0
	_, err := kv.Range(within(t), &pb.RangeRequest{Key: []byte("key"), RangeEnd: []byte("kez")})
	count("get of everything", err)
	_, err = kv.DeleteRange(within(t), &pb.DeleteRangeRequest{Key: []byte("key"), RangeEnd: []byte("kez")})
	count("delete of everything", err)
	if refused != 2 {
		t.Errorf("%d of two requests over all ranges were refused", refused)
	}
	watchDamaged(t, address, keys)
	showsDamage(t, address, n.Core().NodeID)
	othersGoOn(t, address, keys, ranges)
	if err := n.Kill(); err != nil {
		t.Errorf("kill: %v", err)
	}

	// The next process finds the same, at the latest when it is read.
	p = launch(t, dir)
	select {
	case <-p.ready:
		if readable(t, p.address, keys) == 0 {
			t.Error("the damage is forgotten")
		}
	case <-p.exited:
		if code := p.exitCode(); code != 1 || !strings.Contains(p.output(), "the data directory is damaged") {
			t.Errorf("exit code %d", code)
		}
	}
	p.kill()
}

// watchDamaged watches from the first revision: the watch ends as etcd's client
// understands it when it comes to what cannot be read, and sends nothing wrong before.
func watchDamaged(t *testing.T, address string, keys int) {
	t.Helper()
	c := at(address).client(t)
	next := 0
	for resp := range c.Watch(within(t), "key", clientv3.WithRange("kez"), clientv3.WithRev(2)) {
		if resp.Canceled {
			if !errors.Is(resp.Err(), rpctypes.ErrCorrupt) {
				t.Errorf("after %d events the watch ends: %v", next, resp.Err())
			}
			return
		}
		for _, e := range resp.Events {
			if next < keys && (string(e.Kv.Key) != keyName(next) || string(e.Kv.Value) != string(valueOf(next))) {
				t.Fatalf("event %d is of %s at %d", next, e.Kv.Key, e.Kv.ModRevision)
			}
			if next++; next == keys {
				t.Fatal("the watch has sent what cannot be read")
			}
		}
	}
	t.Error("the watch ends without a reason")
}

// showsDamage wants everything that operators look at to show the damage.
func showsDamage(t *testing.T, address string, member uint64) {
	t.Helper()
	conn := at(address).conn(t)
	m := pb.NewMaintenanceClient(conn)
	alarms, err := m.Alarm(within(t), &pb.AlarmRequest{Action: pb.AlarmRequest_GET})
	if err != nil || len(alarms.Alarms) != 1 || alarms.Alarms[0].Alarm != pb.AlarmType_CORRUPT || alarms.Alarms[0].MemberID != member {
		t.Errorf("alarms %v, %v", alarms, err)
	}
	st, err := m.Status(within(t), &pb.StatusRequest{})
	if want := fmt.Sprintf("memberID:%d alarm:CORRUPT", member); err != nil || len(st.Errors) != 1 || strings.Join(strings.Fields(st.Errors[0]), " ") != want {
		t.Errorf("status errors %q, %v", st.GetErrors(), err)
	}
	for path, want := range map[string]string{
		"/health":                 `{"health":"false","reason":"ALARM CORRUPT"}`,
		"/readyz":                 "[-]data_corruption failed: alarm activated: CORRUPT",
		"/metrics":                "hawser_ranges_damaged 1",
		"/metrics?":               `alarm_type="CORRUPT"`,
		"/health?exclude=CORRUPT": `{"health":"true","reason":""}`,
	} {
		resp, err := http.Get("http://" + address + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close() // read to the end
		if err != nil || !strings.Contains(string(body), want) {
			t.Errorf("%s has no %q: %.300s, %v", path, want, body, err)
		}
	}
	list, err := adminpb.NewAdminClient(conn).ListRanges(within(t), &adminpb.ListRangesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	damaged := 0
	for _, r := range list.Ranges {
		if r.Damaged {
			damaged++
		}
	}
	if damaged != 1 {
		t.Errorf("%d ranges are listed as damaged: %v", damaged, list.Ranges)
	}
}

// othersGoOn wants what does not touch the damaged range to go on, and what does to
// fail clearly and at once: a hash, a split of it, transactions and new watches of
// it, a physical compaction that it holds up.
func othersGoOn(t *testing.T, address string, keys, ranges int) {
	t.Helper()
	c := at(address).client(t)
	conn := at(address).conn(t)
	if _, err := pb.NewMaintenanceClient(conn).HashKV(within(t), &pb.HashKVRequest{}); !isCorrupt(err) {
		t.Errorf("hash: %v", err)
	}
	bad := keyName(5*keys/8 + 1)
	if _, err := adminpb.NewAdminClient(conn).SplitRange(within(t), &adminpb.SplitRangeRequest{At: &adminpb.SplitRangeRequest_Key{Key: []byte(bad)}}); !isCorrupt(err) {
		t.Errorf("split: %v", err)
	}
	if _, err := c.Txn(within(t)).Then(clientv3.OpPut(bad, "x"), clientv3.OpPut(keyName(1), "x")).Commit(); !errors.Is(err, rpctypes.ErrCorrupt) {
		t.Errorf("transaction: %v", err)
	}
	// On one stream: the watch of everything is refused, the other goes on.
	ctx := within(t)
	healthy := c.Watch(ctx, keyName(1), clientv3.WithCreatedNotify())
	if resp := <-healthy; !resp.Created {
		t.Fatalf("created: %v", resp)
	}
	var last clientv3.WatchResponse
	for resp := range c.Watch(ctx, "", clientv3.WithPrefix()) {
		last = resp
	}
	if !last.Canceled || !errors.Is(last.Err(), rpctypes.ErrCorrupt) {
		t.Errorf("a watch of everything ends with %v, %v", last, last.Err())
	}
	put, err := c.Put(ctx, keyName(1), "new")
	if err != nil {
		t.Fatal(err)
	}
	if resp := <-healthy; len(resp.Events) != 1 || resp.Events[0].Kv.ModRevision != put.Header.Revision {
		t.Errorf("a watch of another range: %v, %v", resp, resp.Err())
	}
	if resp, err := c.Txn(ctx).Then(clientv3.OpPut(keyName(2), "x"), clientv3.OpPut(keyName(keys-1), "x")).Commit(); err != nil || !resp.Succeeded {
		t.Errorf("a transaction over other ranges: %v", err)
	}
	if resp, err := c.Get(ctx, keyName(0), clientv3.WithRange(keyName(keys/ranges))); err != nil || resp.Count != int64(keys/ranges) {
		t.Errorf("a read of another range: %v", err)
	}
	splitAt(t, conn, keyName(keys/ranges/2))
	if _, err := c.Compact(ctx, put.Header.Revision); err != nil {
		t.Errorf("compaction: %v", err)
	}
	// It may go through, if the range has nothing to apply and no row that is read is
	// damaged, or be refused: it does not hang.
	if _, err := c.Compact(ctx, put.Header.Revision+1, clientv3.WithCompactPhysical()); err != nil && !errors.Is(err, rpctypes.ErrCorrupt) {
		t.Errorf("physical compaction: %v", err)
	}
	if resp, err := c.Put(ctx, keyName(1), "newer"); err != nil || resp.Header.Revision <= put.Header.Revision {
		t.Errorf("a put after the compaction: %v", err)
	}
}
