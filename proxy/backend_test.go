package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sort"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/adminpb"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/proxy/router"
)

// backend is what a server stands on in these tests: ranges and sequencer in
// one, answering at once, over a real mvcc.Store. It implements all that Config
// asks for.
type backend struct {
	t      testing.TB
	db     *pebble.DB
	store  *mvcc.Store
	router *router.Router

	silent   atomic.Bool   // S answers nothing
	asked    chan struct{} // told of queries while silent
	lowSpace atomic.Bool
	damaged  atomic.Bool
	noLeader atomic.Bool
	waited   atomic.Int64 // revision of the last physical compaction

	mu struct {
		sync.Mutex
		next, compacted int64
		dir             []*rangepb.RangeDescriptor
		owners          uint64
	}
}

func newBackend(t testing.TB, cfg router.Config, boundaries ...string) *backend {
	opts := mvcc.EngineOptions(vfs.NewMem())
	opts.Logger = quiet{}
	db, err := pebble.Open("", opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	b := &backend{t: t, db: db, asked: make(chan struct{}, 1)}
	if b.store, err = mvcc.Open(db, mvcc.Options{}); err != nil {
		t.Fatal(err)
	}
	b.mu.next, b.mu.compacted = 2, -1
	start := ""
	for i, end := range append(boundaries, "") {
		b.mu.dir = append(b.mu.dir, &rangepb.RangeDescriptor{RangeId: uint64(i + 1), Epoch: 1, Start: []byte(start), End: []byte(end)})
		start = end
	}
	b.router = b.newRouter(cfg)
	return b
}

func (b *backend) newRouter(cfg router.Config) *router.Router {
	cfg.Ranges, cfg.Sequencer, cfg.Frontier = b, b, b
	r, err := router.New(cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(r.Stop)
	b.cut(r)
	return r
}

// impatient has a server's requests time out as soon as they wait for anything.
// What the backend answers at once needs no waiting, however slow the machine is.
func (b *backend) impatient(c *Config) {
	c.Router = b.newRouter(router.Config{RequestTimeout: time.Nanosecond})
}

type quiet struct{}

func (quiet) Infof(string, ...any)              {}
func (quiet) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (quiet) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func (b *backend) cut(r *router.Router) {
	if err := r.Cut(&placementpb.Cut{First: true, Revision: b.mu.next - 1, Descriptors: b.mu.dir}); err != nil {
		b.t.Fatal(err)
	}
}

func (b *backend) apply(effs []mvcc.Effect) int64 {
	rev := b.mu.next
	b.mu.next++
	batch := b.db.NewBatch()
	if err := b.store.Apply(batch, rev, effs); err != nil {
		b.t.Error(err)
	}
	if err := batch.Commit(pebble.NoSync); err != nil {
		b.t.Error(err)
	}
	return rev
}

func (b *backend) Write(_, _ uint64, req *mvcc.Request, done func(*mvcc.Result, rangepb.WriteAnswer)) {
	b.mu.Lock()
	res, err := mvcc.Evaluate(b.store.Latest(), req, mvcc.Env{LeaseExists: func(int64) bool { return false }})
	var a rangepb.WriteAnswer
	if err != nil || len(res.Effects) == 0 {
		res, a = nil, rangepb.WriteAnswer{NoEffect: true, Err: err}
	} else {
		a.Revision = b.apply(res.Effects)
	}
	b.mu.Unlock()
	done(res, a)
}

func (b *backend) Latch(_, _ uint64, _ *placementpb.TxnID, _ []mvcc.Access, done func(rangepb.LatchAnswer)) {
	done(rangepb.LatchAnswer{Term: 1, Session: 1})
}

func (b *backend) Unlatch(uint64, *placementpb.TxnID) {}

func (b *backend) Await(_, _ uint64, _ int64, done func(error)) { done(nil) }

func (b *backend) View(rev int64, _ []rangepb.Piece) (mvcc.OpenView, error) {
	return b.store.Snapshot(rev)
}

func (b *backend) HashVersions(rev, compacted int64, pieces []rangepb.Piece, h *mvcc.Hasher) error {
	for _, p := range pieces {
		if err := b.store.HashVersions(p.Start, p.End, rev, compacted, h); err != nil {
			return err
		}
	}
	return nil
}

func (b *backend) HalfKey(p rangepb.Piece) ([]byte, error) { return b.store.HalfKey(p.Start, p.End) }

func (b *backend) PrepareSplit([]byte) {}

func (b *backend) Nudge(uint64) {}

func (b *backend) Wake(uint64) {}

func (b *backend) Query(ranges []*placementpb.RangeEpoch, done func(*placementpb.QueryAnswer, error)) {
	if b.silent.Load() {
		select {
		case b.asked <- struct{}{}:
		default:
		}
		return
	}
	b.mu.Lock()
	a := &placementpb.QueryAnswer{Revision: b.mu.next - 1, Compacted: b.mu.compacted, Marks: make([]int64, len(ranges))}
	b.mu.Unlock()
	done(a, nil)
}

func (b *backend) NewOwner() *placementpb.TxnID {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.owners++
	return &placementpb.TxnID{NodeId: 1, Session: 1, Number: b.mu.owners}
}

// Commit has one transaction at a time in these tests: there are no latches.
func (b *backend) Commit(txn *placementpb.TxnCommit, done func(*placementpb.TxnResult, error)) {
	b.mu.Lock()
	var all []mvcc.Effect
	for _, p := range txn.Participants {
		if len(p.Effects) > 0 {
			effs, err := mvcc.DecodeEffects(p.Effects)
			if err != nil {
				b.t.Error(err)
			}
			all = append(all, effs...)
		}
	}
	rev := b.apply(all)
	b.mu.Unlock()
	done(&placementpb.TxnResult{Owner: txn.Owner, Revision: rev}, nil)
}

func (b *backend) Abort(*placementpb.TxnID) {}

func (b *backend) Split(key []byte, done func(*placementpb.SplitResult, error)) {
	b.mu.Lock()
	at := sort.Search(len(b.mu.dir), func(i int) bool { return bytes.Compare(b.mu.dir[i].Start, key) > 0 }) - 1
	old := b.mu.dir[at]
	res := &placementpb.SplitResult{}
	if bytes.Equal(old.Start, key) {
		res.Refused, res.Reason = true, placementpb.RefusalReason_REFUSAL_REASON_BOUNDARY_EXISTS
	} else {
		res.Left = &rangepb.RangeDescriptor{RangeId: old.RangeId, Epoch: old.Epoch + 1, Start: old.Start, End: key}
		res.Right = &rangepb.RangeDescriptor{RangeId: uint64(len(b.mu.dir) + 1), Epoch: old.Epoch + 1, Start: key, End: old.End}
		b.mu.dir = append(b.mu.dir[:at:at], append([]*rangepb.RangeDescriptor{res.Left, res.Right}, b.mu.dir[at+1:]...)...)
	}
	b.mu.Unlock()
	done(res, nil)
}

func (b *backend) Compact(rev int64, done func(*placementpb.CompactResult, error)) {
	b.mu.Lock()
	res := &placementpb.CompactResult{Revision: b.mu.next - 1}
	switch {
	case rev <= b.mu.compacted:
		res.Refused, res.Reason = true, placementpb.RefusalReason_REFUSAL_REASON_COMPACTED
	case rev >= b.mu.next:
		res.Refused, res.Reason = true, placementpb.RefusalReason_REFUSAL_REASON_FUTURE_REVISION
	default:
		b.mu.compacted = rev
	}
	b.mu.Unlock()
	done(res, nil)
}

func (b *backend) Complete(_, _ []byte) (int64, int64, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.next - 1, b.mu.compacted, true
}

func (b *backend) Revision() (int64, int64) {
	rev, compacted, _ := b.Complete(nil, nil)
	return rev, compacted
}

func (b *backend) Leader() uint64 {
	if b.noLeader.Load() {
		return 0
	}
	return memberID
}
func (b *backend) Term() uint64              { return 7 }
func (b *backend) Indexes() (uint64, uint64) { return 21, 20 }
func (b *backend) Size() (int64, int64)      { return 4096, 2048 }
func (b *backend) LiveKeys() int64           { return 0 }
func (b *backend) LowSpace() bool            { return b.lowSpace.Load() }
func (b *backend) Loaded() []uint64          { return []uint64{1} }
func (b *backend) Raft(id uint64) *adminpb.RaftInfo {
	if id != 1 {
		return nil
	}
	return &adminpb.RaftInfo{Term: 3, AppliedIndex: 9}
}
func (b *backend) Info(id uint64, info *adminpb.RangeInfo) { info.Active = id == 1 }

func (b *backend) Damaged() ([]uint64, bool) { return nil, b.damaged.Load() }

func (b *backend) Defragment(context.Context) error { return nil }

func (b *backend) WaitCompacted(_ context.Context, rev int64) error {
	b.waited.Store(rev)
	return nil
}

const (
	clusterID = 0xc1
	memberID  = 0x8e9e05c52164694d
)

// startServer serves a backend on a loopback port that the system chooses.
func startServer(t testing.TB, b *backend, change ...func(*Config)) (*Server, string) {
	cfg := Config{
		ClusterID: clusterID, MemberID: memberID, Version: "v0-test",
		Members: []Member{{ID: memberID, Name: "default", PeerURLs: []string{"http://localhost:2380"}, ClientURLs: []string{"http://localhost:2379"}}},
		Router:  b.router, Watch: pb.UnimplementedWatchServer{}, Meta: b, Storage: b, Replicas: b,
	}
	for _, f := range change {
		f(&cfg)
	}
	s, err := NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-ended; !errors.Is(err, ErrServerStopped) {
			t.Errorf("Serve: %v", err)
		}
	})
	return s, l.Addr().String()
}

func dial(t testing.TB, addr string, opts ...grpc.DialOption) *grpc.ClientConn {
	conn, err := grpc.NewClient(addr, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func newClient(t testing.TB, addr string) *clientv3.Client {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
