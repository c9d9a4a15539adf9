package replica_test

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/mvcc/counts"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/range/replica"
	"github.com/hawser-kv/hawser/range/store"
)

const plenty = 1 << 30

// errDied stands for a process that dies.
var errDied = errors.New("the process dies here")

// node is one node of a test: a real engine on a disk that can lose what was
// not synced, a real store driven by hand, real replicas, and a link to a
// sequencer that the test plays.
type node struct {
	tb      testing.TB
	id      uint64
	fs      *vfs.MemFS
	db      *pebble.DB
	mvcc    *mvcc.Store
	readers *replica.Readers
	store   *store.Store
	loaded  map[uint64]*replica.Replica

	link        replica.SequencerLink
	limits      replica.Limits
	events      replica.EventSink
	began       func(*rangepb.RangeDescriptor)
	transport   store.Transport
	logger      *zap.Logger
	bigMemTable bool
	free        uint64 // room on the disk
	counts      counts.Options
	// The process dies in place of the dieAt-th commit of the store, from 1.
	dieAt, commits int
	dead           bool
	silent         bool // nothing that it sends leaves
}

// open opens everything on n.fs, as a process does when it starts.
func (n *node) open() {
	n.tb.Helper()
	if n.fs == nil {
		n.fs = vfs.NewCrashableMem()
	}
	n.free = plenty
	if n.logger == nil {
		n.logger = zap.NewNop()
	}
	opts := mvcc.EngineOptions(n.fs)
	opts.Logger = quietLogger{n.tb}
	if !n.bigMemTable {
		opts.MemTableSize = 1 << 20 // tests open many engines
	}
	db, err := pebble.Open("data", opts)
	if err != nil {
		n.tb.Fatal(err)
	}
	n.db = db
	if n.mvcc, err = mvcc.Open(db, mvcc.Options{Counts: n.counts}); err != nil {
		n.tb.Fatal(err)
	}
	n.readers = replica.NewReaders(db, n.mvcc)
	n.loaded = make(map[uint64]*replica.Replica)
	n.store, err = store.Open(store.Config{
		DB: db, Loader: n.load, ManualSync: true, Transport: n.transport,
		FreeBytes: func() (uint64, error) { return n.free, nil }, ReserveBytes: plenty / 2,
		BeforeCommit: func(int, *pebble.Batch, bool) error {
			if n.commits++; n.commits == n.dieAt {
				n.dead = true
				return errDied
			}
			return nil
		},
	})
	if err != nil {
		n.tb.Fatal(err)
	}
}

func (n *node) load(id uint64) (store.Member, error) {
	r, err := replica.New(replica.Config{
		RangeID: id, NodeID: n.id, DB: n.db, MVCC: n.mvcc, Readers: n.readers, Link: n.link,
		Events: n.events, Began: n.began, Logger: n.logger, Limits: n.limits,
	})
	if err != nil {
		return nil, err
	}
	n.loaded[id] = r
	return &member{r, n, id}, nil
}

// member is the adapter between the store and a replica.
type member struct {
	*replica.Replica
	node *node
	id   uint64
}

func (m *member) Flush(r *store.Round) { m.Replica.Flush(r.Batch, r) }

func (m *member) Close(err error) {
	if m.node.loaded[m.id] == m.Replica {
		delete(m.node.loaded, m.id)
	}
	m.Replica.Close(err)
}

// bootstrap begins a range on the node.
func (n *node) bootstrap(desc *rangepb.RangeDescriptor, resolved int64) {
	n.tb.Helper()
	b := n.db.NewBatch()
	if ok, err := replica.Stage(n.db, b, n.id, desc, resolved); !ok || err != nil {
		n.tb.Fatalf("stage: %v, %v", ok, err)
	}
	if err := b.Commit(pebble.Sync); err != nil {
		n.tb.Fatal(err)
	}
}

// run lets the store work until there is nothing to do but to wait for a sync.
func (n *node) run() (worked bool) {
	n.tb.Helper()
	for range 10_000 {
		again, err := n.store.RunRound(0)
		if n.dead {
			return false
		}
		if err != nil {
			n.tb.Fatal(err)
		}
		if !again {
			return worked
		}
		worked = true
	}
	n.tb.Fatal("the store never rests")
	return false
}

// sync ends the oldest sync in flight.
func (n *node) sync() bool {
	n.tb.Helper()
	ok, err := n.store.SyncNext(0)
	if n.dead {
		return false
	}
	if err != nil {
		n.tb.Fatal(err)
	}
	return ok
}

// syncLog makes durable what is committed; sync reports it.
func (n *node) syncLog() {
	n.tb.Helper()
	if err := n.store.SyncLog(); err != nil && !n.dead {
		n.tb.Fatal(err)
	}
}

// settle runs and syncs until nothing is left to do.
func (n *node) settle() (worked bool) {
	n.tb.Helper()
	for n.run() || n.sync() {
		worked = true
	}
	return worked
}

// crash stops the process; what was not synced is lost, or, at random, not.
func (n *node) crash(cfg vfs.CrashCloneCfg) {
	n.tb.Helper()
	survived := n.fs.CrashClone(cfg)
	n.silent = true
	n.store.Stop()
	n.silent = false
	if err := n.db.Close(); err != nil {
		n.tb.Fatal(err)
	}
	n.fs, n.dead = survived, false
	n.open()
}

func (n *node) close() {
	n.store.Stop()
	if err := n.db.Close(); err != nil {
		n.tb.Fatal(err)
	}
}

// get reads a key at a revision, math.MaxInt64 for what is applied.
func (n *node) get(key string, rev int64) string {
	n.tb.Helper()
	s, err := n.mvcc.Snapshot(rev)
	if err != nil {
		return err.Error()
	}
	defer s.Close()
	kv, err := s.Get([]byte(key))
	if err != nil {
		return err.Error()
	}
	if kv == nil {
		return "-"
	}
	return fmt.Sprintf("%s create=%d mod=%d version=%d", kv.Value, kv.CreateRevision, kv.ModRevision, kv.Version)
}

// keyValue reads what is applied of a key.
func (n *node) keyValue(key string) *mvccpb.KeyValue {
	n.tb.Helper()
	kv, err := n.mvcc.Latest().Get([]byte(key))
	if err != nil {
		n.tb.Fatal(err)
	}
	return kv
}

// dump lists all live keys.
func (n *node) dump(rev int64) string {
	n.tb.Helper()
	s, err := n.mvcc.Snapshot(rev)
	if err != nil {
		n.tb.Fatal(err)
	}
	defer s.Close()
	resp, err := mvcc.EvaluateRange(s, &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}}, nil)
	if err != nil {
		n.tb.Fatal(err)
	}
	var b strings.Builder
	for _, kv := range resp.Kvs {
		fmt.Fprintf(&b, "%s=%s create=%d mod=%d version=%d\n", kv.Key, kv.Value, kv.CreateRevision, kv.ModRevision, kv.Version)
	}
	return b.String()
}

var newest int64 = math.MaxInt64

type quietLogger struct{ tb testing.TB }

func (quietLogger) Infof(string, ...any)  {}
func (quietLogger) Errorf(string, ...any) {}
func (l quietLogger) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf(format, args...))
}

// warnings returns a logger that writes what is loud, as one line.
func warnings(w io.Writer) *zap.Logger {
	enc := zapcore.NewConsoleEncoder(zapcore.EncoderConfig{MessageKey: "m", LevelKey: "l", EncodeLevel: zapcore.LowercaseLevelEncoder, ConsoleSeparator: " "})
	return zap.New(zapcore.NewCore(enc, zapcore.AddSync(w), zapcore.WarnLevel))
}

func descriptor(id uint64, start, end string, epoch uint64, nodes ...uint64) *rangepb.RangeDescriptor {
	d := &rangepb.RangeDescriptor{RangeId: id, Start: []byte(start), End: []byte(end), Epoch: epoch}
	for _, n := range nodes {
		d.Replicas = append(d.Replicas, &rangepb.Replica{NodeId: n, ReplicaId: n})
	}
	return d
}

func put(key, value string) *mvcc.Request {
	return &mvcc.Request{Put: &pb.PutRequest{Key: []byte(key), Value: []byte(value)}}
}

func del(key, end string) *mvcc.Request {
	return &mvcc.Request{DeleteRange: &pb.DeleteRangeRequest{Key: []byte(key), RangeEnd: []byte(end)}}
}

// cas puts value if the key has the old value, "" meaning that it does not exist.
func cas(key, old, value string) *mvcc.Request {
	c := &pb.Compare{Key: []byte(key), Target: pb.Compare_VALUE, TargetUnion: &pb.Compare_Value{Value: []byte(old)}}
	if old == "" {
		c = &pb.Compare{Key: []byte(key), Target: pb.Compare_VERSION, TargetUnion: &pb.Compare_Version{}}
	}
	return &mvcc.Request{Txn: &pb.TxnRequest{
		Compare: []*pb.Compare{c},
		Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key), Value: []byte(value)}}}},
	}}
}

// scriptedLink is the end of a conversation with a sequencer that the test plays.
type scriptedLink struct {
	e, session uint64
	ok         bool
	sent       func(*placementpb.ToSequencer)
}

func (l *scriptedLink) Session() (uint64, uint64, bool) { return l.e, l.session, l.ok }

func (l *scriptedLink) Send(m *placementpb.ToSequencer) {
	if l.ok && m.Session == l.session {
		l.sent(m)
	}
}

// network carries Raft messages between nodes when the test says so.
type network struct {
	nodes  map[uint64]*node
	queues map[[2]uint64][]sentMessage
}

type sentMessage struct {
	group uint64
	m     *raftpb.Message
}

type networkEnd struct {
	net  *network
	from uint64
}

func (e networkEnd) Send(group uint64, msgs []*raftpb.Message) {
	if e.net.nodes[e.from].silent {
		return
	}
	for _, m := range msgs {
		link := [2]uint64{e.from, m.GetTo()}
		e.net.queues[link] = append(e.net.queues[link], sentMessage{group, m})
	}
}

// pass hands over what is under way from one node to another, all at once.
func (w *network) pass(from, to uint64) (worked bool) {
	link := [2]uint64{from, to}
	msgs := w.queues[link]
	delete(w.queues, link)
	for _, s := range msgs {
		w.nodes[to].store.Post(s.group, s.m)
	}
	return len(msgs) > 0
}

// deliver hands over what is under way between nodes that are connected, and
// loses the rest.
func (w *network) deliver(connected func(from, to uint64) bool) (worked bool) {
	var links [][2]uint64
	for l := range w.queues {
		links = append(links, l)
	}
	slices.SortFunc(links, func(a, b [2]uint64) int { return slices.Compare(a[:], b[:]) })
	for _, l := range links {
		msgs := w.queues[l]
		delete(w.queues, l)
		to := w.nodes[l[1]]
		if to == nil || !connected(l[0], l[1]) {
			continue
		}
		for _, s := range msgs {
			to.store.Post(s.group, s.m)
			worked = true
		}
	}
	return worked
}
