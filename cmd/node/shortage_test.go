package node

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hawser-kv/hawser/proto/adminpb"
)

// shortDisk is a disk of a machine that has not enough to read a table, from the
// from'th time on that one is opened or read while it is short.
type shortDisk struct {
	vfs.FS
	short      atomic.Bool
	from, seen atomic.Int64
}

func newShortDisk(disk vfs.FS) *shortDisk {
	d := new(shortDisk)
	d.FS = errorfs.Wrap(disk, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if !d.short.Load() || !strings.HasSuffix(op.Path, ".sst") {
			return nil
		}
		var err error
		switch op.Kind {
		case errorfs.OpOpen:
			err = syscall.EMFILE
		case errorfs.OpFileRead, errorfs.OpFileReadAt:
			err = syscall.ENOMEM
		default:
			return nil
		}
		if d.seen.Add(1) <= d.from.Load() {
			return nil
		}
		return &os.PathError{Op: "read", Path: op.Path, Err: err}
	}))
	return d
}

func (d *shortDisk) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: 1 << 40, TotalBytes: 1 << 40}, nil
}

// TestShortageIsNoDamage: from whatever operation of the disk on there is a shortage,
// requests are refused, or answered as ever, nothing is damaged, and all is served
// when it has ended, without a restart.
func TestShortageIsNoDamage(t *testing.T) {
	for from := int64(0); ; from += 1 + from/4 {
		var met int64
		t.Run(fmt.Sprint(from), func(t *testing.T) { met = duringShortage(t, from) })
		if t.Failed() || met <= from {
			if from == 0 {
				t.Error("no table was read")
			}
			return
		}
	}
}

// duringShortage returns how many operations met the disk.
func duringShortage(t *testing.T, from int64) int64 {
	mem := vfs.NewMem()
	small := func(c *CoreConfig) {
		c.Engine.CacheBytes = 1 // all is read from the disk
		c.Engine.Tune = func(o *pebble.Options) { o.DisableAutomaticCompactions = true }
	}
	cfg := testConfig(mem)
	cfg.Tune = small
	n, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, n)
	for i := range 3 {
		for _, k := range []string{"a", "b", "m", "z"} {
			if _, err := c.Put(t.Context(), k, fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
		if err := n.core.engine.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := adminpb.NewAdminClient(dialGRPC(t, n)).SplitRange(t.Context(), splitAt("m")); err != nil {
		t.Fatal(err)
	}
	closeTest(t, n)

	disk := newShortDisk(mem)
	disk.from.Store(from)
	seen, logs := observer.New(zap.WarnLevel)
	cfg = testConfig(disk)
	cfg.Tune, cfg.Logger = small, zap.New(seen)
	if n, err = Start(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	defer closeTest(t, n)
	c = dial(t, n)
	disk.short.Store(true)
	refused := 0
	for what, err := range shortWorkload(t, n, c) {
		switch status.Code(err) {
		case codes.OK:
		case codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded:
			refused++
		default:
			t.Errorf("%s: %v", what, err)
		}
	}
	disk.short.Store(false)
	met := disk.seen.Load()
	if met > from && refused == 0 {
		t.Logf("nobody noticed the shortage")
	}
	if ranges, outside := n.core.Damaged(); len(ranges) > 0 || outside {
		t.Errorf("damaged: ranges %v, outside %v", ranges, outside)
	}
	for what, err := range shortWorkload(t, n, c) {
		if err != nil {
			t.Errorf("after the shortage: %s: %v", what, err)
		}
	}
	if n := logs.Len(); n > 20 {
		t.Errorf("%d lines are logged: %v", n, logs.All()[:20])
	}
	return met
}

// shortWorkload reads and writes in all ways, and yields how each went.
func shortWorkload(t *testing.T, n *Node, c *clientv3.Client) func(yield func(what string, err error) bool) {
	conn := dialGRPC(t, n)
	kv, maintenance, watches := pb.NewKVClient(conn), pb.NewMaintenanceClient(conn), pb.NewWatchClient(conn)
	steps := []struct {
		what string
		do   func(ctx context.Context) error
	}{
		{"get", func(ctx context.Context) error {
			_, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte("a")})
			return err
		}},
		{"serializable get", func(ctx context.Context) error {
			_, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte("z"), Serializable: true})
			return err
		}},
		{"scan", func(ctx context.Context) error {
			_, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("zz")})
			return err
		}},
		{"old scan", func(ctx context.Context) error {
			_, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("zz"), Revision: 12})
			return err
		}},
		{"count", func(ctx context.Context) error {
			_, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("zz"), CountOnly: true})
			return err
		}},
		{"put", func(ctx context.Context) error {
			_, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("b"), Value: []byte("new")})
			return err
		}},
		{"put with previous", func(ctx context.Context) error {
			_, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("z"), Value: []byte("new"), PrevKv: true})
			return err
		}},
		{"txn over ranges", func(ctx context.Context) error {
			put := func(k string) *pb.RequestOp {
				return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(k)}}}
			}
			_, err := kv.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{put("a"), put("z")}})
			return err
		}},
		{"delete", func(ctx context.Context) error {
			_, err := kv.DeleteRange(ctx, &pb.DeleteRangeRequest{Key: []byte("m"), RangeEnd: []byte("n"), PrevKv: true})
			return err
		}},
		{"hash", func(ctx context.Context) error {
			_, err := maintenance.HashKV(ctx, &pb.HashKVRequest{})
			return err
		}},
		{"watch from the past", func(ctx context.Context) error {
			stream, err := watches.Watch(ctx)
			if err != nil {
				return err
			}
			rev := n.core.MVCC.Forgotten() + 1
			err = stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
				Key: []byte("a"), RangeEnd: []byte("zz"), StartRevision: rev, PrevKv: true}}})
			for err == nil {
				var r *pb.WatchResponse
				if r, err = stream.Recv(); err == nil && len(r.Events) > 0 {
					return nil
				}
			}
			return err
		}},
		{"compaction", func(ctx context.Context) error {
			_, err := kv.Compact(ctx, &pb.CompactionRequest{Revision: n.core.MVCC.Forgotten() + 2, Physical: true})
			return err
		}},
		{"status", func(ctx context.Context) error {
			r, err := c.AlarmList(ctx)
			if err == nil && len(r.Alarms) > 0 {
				err = fmt.Errorf("alarms %v", r.Alarms)
			}
			return err
		}},
	}
	return func(yield func(string, error) bool) {
		for _, s := range steps {
			// None of them waits long on a machine that has enough.
			timeout := 10 * time.Second
			if s.what == "compaction" && n.core.Err() == nil && isShort(n) {
				timeout = 200 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			err := s.do(ctx)
			cancel()
			if !yield(s.what, err) {
				return
			}
		}
	}
}

func isShort(n *Node) bool {
	d, ok := n.cfg.FS.(*shortDisk)
	return ok && d.short.Load()
}
