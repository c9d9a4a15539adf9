package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/hawser-kv/hawser/mvcc"
	mvcckeys "github.com/hawser-kv/hawser/mvcc/keys"
	"github.com/hawser-kv/hawser/proto/adminpb"
	"github.com/hawser-kv/hawser/range/engine"
	"github.com/hawser-kv/hawser/range/keys"
)

// testDir is the data directory of these tests, on a disk in memory.
const testDir = "data"

func testConfig(disk vfs.FS) Config {
	cfg := Config{Logger: zap.NewNop(), FS: disk}
	cfg.DataDir = testDir
	cfg.ListenClientURLs = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	return cfg
}

// withEngine opens the engine of a data directory that no node has.
func withEngine(t *testing.T, disk vfs.FS, fn func(db *pebble.DB) error) {
	t.Helper()
	opts := mvcc.EngineOptions(disk)
	opts.Logger = nopLogger{}
	db, err := pebble.Open(disk.PathJoin(testDir, "engine"), opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(fn(db), db.Close()); err != nil {
		t.Fatal(err)
	}
}

type nopLogger struct{}

func (nopLogger) Infof(string, ...any)           {}
func (nopLogger) Errorf(string, ...any)          {}
func (nopLogger) Fatalf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }

// rows returns every row of the engine of a data directory that no node has.
func rows(t *testing.T, disk vfs.FS) (all string) {
	t.Helper()
	withEngine(t, disk, func(db *pebble.DB) error {
		all = allRows(t, db)
		return nil
	})
	return all
}

func allRows(t *testing.T, db *pebble.DB) string {
	t.Helper()
	it, err := db.NewIter(nil)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for ok := it.First(); ok; ok = it.Next() {
		fmt.Fprintf(&out, "%x = %x\n", it.Key(), it.Value())
	}
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// damageGroup spoils the first row of a kind of a group.
func damageGroup(t *testing.T, disk vfs.FS, group uint64, kind byte) {
	t.Helper()
	withEngine(t, disk, func(db *pebble.DB) error {
		it, err := db.NewIter(&pebble.IterOptions{LowerBound: keys.Group(group, kind), UpperBound: keys.Group(group, kind+1)})
		if err != nil {
			return err
		}
		if !it.First() {
			return errors.Join(fmt.Errorf("group %d has no row of kind %c", group, kind), it.Close())
		}
		key, row := bytes.Clone(it.Key()), bytes.Clone(it.Value())
		row[len(row)/2] ^= 0x41
		return errors.Join(it.Close(), db.Set(key, row, pebble.Sync))
	})
}

// filled is what a crash leaves of a node with keys a, b and z and ranges that
// begin at the boundaries, and the id of the range of z.
func filled(t *testing.T, boundaries ...string) (disk vfs.FS, lastRange uint64) {
	t.Helper()
	mem := vfs.NewCrashableMem()
	n, err := Start(t.Context(), testConfig(mem))
	if err != nil {
		t.Fatal(err)
	}
	defer closeTest(t, n)
	admin := adminpb.NewAdminClient(dialGRPC(t, n))
	for _, b := range boundaries {
		if _, err := admin.SplitRange(t.Context(), splitAt(b)); err != nil {
			t.Fatal(err)
		}
	}
	c := dial(t, n)
	for _, k := range []string{"a", "b", "z"} {
		if _, err := c.Put(t.Context(), k, "1"); err != nil {
			t.Fatal(err)
		}
	}
	listed, err := admin.ListRanges(t.Context(), &adminpb.ListRangesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return mem.CrashClone(vfs.CrashCloneCfg{}), listed.Ranges[len(listed.Ranges)-1].Desc.RangeId
}

func splitAt(key string) *adminpb.SplitRangeRequest {
	return &adminpb.SplitRangeRequest{At: &adminpb.SplitRangeRequest_Key{Key: []byte(key)}}
}

func dialGRPC(t *testing.T, n *Node) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(n.ClientAddr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// startIsRefused returns the error of a start on a damaged directory, which leaves
// the data as it was.
func startIsRefused(t *testing.T, disk vfs.FS) error {
	t.Helper()
	before := rows(t, disk)
	n, err := Start(t.Context(), testConfig(disk))
	if err == nil {
		closeTest(t, n)
	}
	if !errors.Is(err, engine.ErrDamaged) {
		t.Fatalf("start: %v, want %v", err, engine.ErrDamaged)
	}
	if after := rows(t, disk); after != before {
		t.Errorf("the engine has changed:\n%s\nbefore:\n%s", after, before)
	}
	return err
}

// TestStartOnDamagedMetaGroupFails: without the meta group nothing can be
// ordered. The start says what is damaged and what to do, and leaves the data as
// it was.
func TestStartOnDamagedMetaGroupFails(t *testing.T) {
	for _, kind := range []byte{
		keys.KindHardState, keys.KindLog, keys.KindApplied, keys.KindTruncated, keys.KindConfState, keys.KindState,
	} {
		t.Run(string(kind), func(t *testing.T) {
			disk, _ := filled(t)
			damageGroup(t, disk, keys.MetaGroupID, kind)
			err := startIsRefused(t, disk)
			for _, want := range []string{testDir + ": ", "meta group", "restore it from a copy"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error does not say %q: %v", want, err)
				}
			}
		})
	}
}

// TestStartWithoutAFileOfTheEngineFails: a table that is gone or cut is damage, and
// the error says what to do.
func TestStartWithoutAFileOfTheEngineFails(t *testing.T) {
	for name, harm := range map[string]func(disk vfs.FS, table string) error{
		"gone": func(disk vfs.FS, table string) error { return disk.Remove(table) },
		"cut": func(disk vfs.FS, table string) error {
			f, err := disk.Create(table, vfs.WriteCategoryUnspecified)
			if err != nil {
				return err
			}
			return f.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			disk, _ := filled(t)
			dir := disk.PathJoin(testDir, "engine")
			names, err := disk.List(dir)
			if err != nil {
				t.Fatal(err)
			}
			at := slices.IndexFunc(names, func(n string) bool { return strings.HasSuffix(n, ".sst") })
			if at < 0 {
				t.Fatalf("no table among %v", names)
			}
			if err := harm(disk, disk.PathJoin(dir, names[at])); err != nil {
				t.Fatal(err)
			}
			n, err := Start(t.Context(), testConfig(disk))
			if err == nil {
				closeTest(t, n)
			}
			if !errors.Is(err, engine.ErrDamaged) || !strings.Contains(err.Error(), "restore it from a copy") {
				t.Errorf("start: %v", err)
			}
		})
	}
}

// TestStartOnMetaGroupWithoutItsRowsFails: rows that are gone are damage as much
// as rows that cannot be read, and nothing is begun anew over what is left.
func TestStartOnMetaGroupWithoutItsRowsFails(t *testing.T) {
	for _, kind := range []byte{keys.KindHardState, keys.KindApplied, keys.KindTruncated, keys.KindConfState} {
		t.Run(string(kind), func(t *testing.T) {
			disk, _ := filled(t)
			withEngine(t, disk, func(db *pebble.DB) error {
				return db.Delete(keys.Group(keys.MetaGroupID, kind), pebble.Sync)
			})
			startIsRefused(t, disk)
		})
	}
}

// TestStartOnDamagedRowOfTheNodeFails: rows that belong to no group are read
// before anything is served, and say as much when they are damaged.
func TestStartOnDamagedRowOfTheNodeFails(t *testing.T) {
	for name, key := range map[string][]byte{
		"session": keys.Node("session"), "identity": keys.Node("identity"),
		"forgotten": mvcckeys.MVCCMeta("forgotten"), "counts": mvcckeys.MVCCMeta("counts.floor"),
	} {
		t.Run(name, func(t *testing.T) {
			disk, _ := filled(t)
			withEngine(t, disk, func(db *pebble.DB) error { return db.Set(key, []byte("nonsense!"), pebble.Sync) })
			startIsRefused(t, disk)
		})
	}
}

// TestDamagedRangeAnswersThatItIs: a range whose Raft state or descriptor is
// damaged answers so to whatever needs it, instead of being tried again until the
// time of the request is over, and other ranges go on.
func TestDamagedRangeAnswersThatItIs(t *testing.T) {
	for _, kind := range []byte{
		keys.KindHardState, keys.KindLog, keys.KindApplied, keys.KindTruncated, keys.KindConfState, keys.KindDescriptor,
	} {
		t.Run(string(kind), func(t *testing.T) {
			disk, damaged := filled(t, "m")
			damageGroup(t, disk, damaged, kind)
			core, log := observer.New(zap.ErrorLevel)
			cfg := testConfig(disk)
			cfg.Logger = zap.New(core)
			n, err := Start(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer closeTest(t, n)
			c, admin := dial(t, n), adminpb.NewAdminClient(dialGRPC(t, n))
			ctx := t.Context()
			for _, ask := range []struct {
				what string
				do   func() error
			}{
				{"put", func() error { _, err := c.Put(ctx, "z", "2"); return err }},
				{"delete", func() error { _, err := c.Delete(ctx, "z"); return err }},
				{"delete over both ranges", func() error { _, err := c.Delete(ctx, "a", clientv3.WithFromKey()); return err }},
				{"transaction over both ranges", func() error {
					_, err := c.Txn(ctx).Then(clientv3.OpPut("a", "3"), clientv3.OpPut("z", "3")).Commit()
					return err
				}},
				{"split", func() error { _, err := admin.SplitRange(ctx, splitAt("y")); return err }},
				{"get", func() error { _, err := c.Get(ctx, "z"); return err }},
				{"get over both ranges", func() error { _, err := c.Get(ctx, "a", clientv3.WithFromKey()); return err }},
				{"serializable get", func() error { _, err := c.Get(ctx, "z", clientv3.WithSerializable()); return err }},
			} {
				if err := ask.do(); !isCorrupt(err) {
					t.Errorf("%s: %v", ask.what, err)
				}
			}
			if _, err := c.Put(ctx, "a", "2"); err != nil {
				t.Errorf("put to another range: %v", err)
			}
			if _, err := admin.SplitRange(ctx, splitAt("b")); err != nil {
				t.Errorf("split of another range: %v", err)
			}
			if _, err := c.Txn(ctx).Then(clientv3.OpPut("a", "3"), clientv3.OpPut("b", "3")).Commit(); err != nil {
				t.Errorf("transaction over other ranges: %v", err)
			}
			if got, err := c.Get(ctx, "a", clientv3.WithRange("m")); err != nil || got.Count != 2 || string(got.Kvs[0].Value) != "3" {
				t.Errorf("get of other ranges: %v, %v", got, err)
			}
			if log.FilterMessage("group is not served").Len() != 1 {
				t.Errorf("the log does not say once that the range is not served: %v", log.All())
			}
		})
	}
}

// isCorrupt is the answer of a range whose data is damaged.
func isCorrupt(err error) bool {
	const text = "etcdserver: corrupt cluster"
	if s, ok := status.FromError(err); ok && s.Code() == codes.DataLoss && s.Message() == text {
		return true
	}
	return err != nil && !errors.Is(err, context.DeadlineExceeded) && err.Error() == text
}
