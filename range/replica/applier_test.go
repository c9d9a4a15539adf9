package replica

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/range/shortage"
)

// appliedRange is a range of which only entries are applied: no group, no leader,
// no readers.
type appliedRange struct {
	t  *testing.T
	fs vfs.FS
	// cacheBytes is 0 for Pebble's default.
	cacheBytes int64
	db         *pebble.DB
	mvcc       *mvcc.Store
	*applier
}

func newAppliedRange(t *testing.T, desc *rangepb.RangeDescriptor) *appliedRange {
	t.Helper()
	a := &appliedRange{t: t, fs: vfs.NewMem()}
	a.open(appliedState{desc: desc, resolved: 1, term: 1})
	t.Cleanup(a.close)
	return a
}

// open begins at a state that the engine has.
func (a *appliedRange) open(state appliedState) {
	a.t.Helper()
	opts := mvcc.EngineOptions(a.fs)
	opts.Logger = quiet{}
	opts.CacheSize = a.cacheBytes
	var err error
	if a.db, err = pebble.Open("data", opts); err != nil {
		a.t.Fatal(err)
	}
	if a.mvcc, err = mvcc.Open(a.db, mvcc.Options{}); err != nil {
		a.t.Fatal(err)
	}
	cfg := &Config{NodeID: 1, DB: a.db, MVCC: a.mvcc, Events: deafSink{}}
	a.applier = newApplier(cfg, zap.NewNop(), Saved{Descriptor: state.desc, Resolved: state.resolved}, state.term)
	if err := a.ensureBoundaries(state.desc); err != nil {
		a.t.Fatal(err)
	}
}

func (a *appliedRange) close() {
	if err := a.db.Close(); err != nil {
		a.t.Fatal(err)
	}
}

type deafSink struct{}

func (deafSink) Applied(uint64, int64, []mvcc.Event) {}

type quiet struct{}

func (quiet) Infof(string, ...any)              {}
func (quiet) Errorf(string, ...any)             {}
func (quiet) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// logEntry is one entry of a Raft log.
type logEntry struct {
	term uint64
	data []byte
}

// apply applies entries of the log from index i in one batch, as the group would: an
// entry that needs what is before it committed goes no further with others. It
// returns the index after the last. Without commit the batch is lost.
func (a *appliedRange) apply(log []logEntry, i, atMost int, commit bool) (next int, o outcome) {
	a.t.Helper()
	b := a.db.NewBatch()
	for next = i; next < min(i+atMost, len(log)); next++ {
		if next > i && a.NeedsCommitted(log[next].data) {
			break
		}
		if err := a.Apply(b, uint64(next+2), log[next].term, log[next].data); err != nil {
			a.t.Fatalf("entry %d: %v", next, err)
		}
	}
	o = a.takeOutcome()
	if commit {
		if err := b.Commit(pebble.NoSync); err != nil {
			a.t.Fatal(err)
		}
		if err := a.committed(&o); err != nil {
			a.t.Fatal(err)
		}
	}
	if err := b.Close(); err != nil {
		a.t.Fatal(err)
	}
	return next, o
}

// history is what the outcomes of a whole log say, however they were cut.
type history struct {
	entries []appliedEntry
	events  []mvcc.Event
	began   []string
	synced  bool
	state   string
}

func (h *history) add(o *outcome) {
	h.entries = append(h.entries, o.entries...)
	h.events = append(h.events, o.events...)
	for _, y := range o.began {
		h.began = append(h.began, fmt.Sprintf("%v %d", y.Descriptor, y.Resolved))
	}
	h.synced = h.synced || o.needSync
	h.state = fmt.Sprintf("%v %d %d", o.state.desc, o.state.resolved, o.state.term)
}

// rows are those of the engine.
func (a *appliedRange) rows() string {
	a.t.Helper()
	var b bytes.Buffer
	it, err := a.db.NewIter(nil)
	if err != nil {
		a.t.Fatal(err)
	}
	for ok := it.First(); ok; ok = it.Next() {
		fmt.Fprintf(&b, "%x=%x\n", it.Key(), it.Value())
	}
	if err := errors.Join(it.Error(), it.Close()); err != nil {
		a.t.Fatal(err)
	}
	return b.String()
}

// logMaker makes the log of a range: what leaders may write, and what none may.
type logMaker struct {
	*appliedRange
	rng       *rand.Rand
	term, seq uint64
	history   history
	log       []logEntry
	kinds     map[string]int
}

func (m *logMaker) header() []byte {
	m.seq++
	return appendEntryHeader(nil, entryHeader{term: m.term, epoch: m.staged.desc.Epoch, seq: m.seq})
}

// entry appends an entry and applies it. refused is how many of its commands must be.
func (m *logMaker) entry(kind string, data []byte, commands, refused int) {
	m.t.Helper()
	m.kinds[kind]++
	m.log = append(m.log, logEntry{m.term, data})
	_, o := m.apply(m.log, len(m.log)-1, 1, true)
	m.history.add(&o)
	if commands < 0 { // no word of it
		if len(o.entries) != 0 {
			m.t.Fatalf("%s: outcome %+v", kind, o.entries)
		}
		return
	}
	if len(o.entries) != 1 {
		m.t.Fatalf("%s: %d entries in the outcome", kind, len(o.entries))
	}
	if e := o.entries[0]; e.term != m.term || e.seq != m.seq || e.commands != commands || len(e.refused) != refused || (e.refusedWhole != "") != (commands == 0) {
		m.t.Fatalf("%s: %+v, want term %d, seq %d, %d commands, %d refused", kind, e, m.term, m.seq, commands, refused)
	}
}

func (m *logMaker) key() []byte {
	return fmt.Appendf(nil, "%c%d", 'a'+m.rng.IntN(8), m.rng.IntN(4))
}

// evaluate returns the effects of a random write in the span, none if it has none.
func (m *logMaker) evaluate(view mvcc.View) []mvcc.Effect {
	m.t.Helper()
	key := m.key()
	if !m.staged.desc.Span().Contains(key) {
		return nil
	}
	req := &mvcc.Request{Put: &pb.PutRequest{Key: key, Value: fmt.Appendf(nil, "v%d", m.rng.IntN(1000))}}
	if m.rng.IntN(3) == 0 {
		req = &mvcc.Request{DeleteRange: &pb.DeleteRangeRequest{Key: key}}
	}
	res, err := mvcc.Evaluate(view, req, mvcc.Env{})
	if err != nil {
		m.t.Fatal(err)
	}
	return res.Effects
}

// writes appends an entry with some commands, of which one may be refused.
func (m *logMaker) writes() {
	overlay := mvcc.NewOverlay()
	view := overlay.Over(m.mvcc.Latest())
	data, commands, refused, rev := m.header(), 0, 0, m.staged.resolved
	for range 1 + m.rng.IntN(4) {
		effects := m.evaluate(view)
		if len(effects) == 0 {
			continue
		}
		rev += int64(1 + m.rng.IntN(3))
		commands++
		switch m.rng.IntN(12) {
		case 0: // does not grow (I1)
			data = appendWrite(data, m.staged.resolved, effects)
			refused++
			continue
		case 1: // outside the span
			data = appendWrite(data, rev, []mvcc.Effect{{Key: []byte("zz"), Value: []byte("v"), Version: 1}})
			refused++
			continue
		case 2, 3:
			data = appendCommand(data, command{kind: commandTxn, revision: rev, metaIndex: uint64(rev), effects: mvcc.AppendEffects(nil, effects)})
		default:
			data = appendWrite(data, rev, effects)
		}
		overlay.Add(rev, effects)
	}
	if commands > 0 {
		m.entry("writes", data, commands, refused)
	}
}

func (m *logMaker) step() {
	m.t.Helper()
	rev := m.staged.resolved
	switch k := m.rng.IntN(40); {
	case k < 28:
		m.writes()
	case k < 30:
		m.term++
		m.entry("own term", nil, -1, 0)
	case k < 32:
		m.seq++
		m.entry("of another term", appendWrite(appendEntryHeader(nil, entryHeader{term: m.term - 1, epoch: m.staged.desc.Epoch, seq: m.seq}), rev+1, []mvcc.Effect{{Key: []byte("a0"), Version: 1}}), -1, 0)
	case k < 34:
		m.seq++
		m.entry("of another epoch", appendWrite(appendEntryHeader(nil, entryHeader{term: m.term, epoch: m.staged.desc.Epoch + 1, seq: m.seq}), rev+1, []mvcc.Effect{{Key: []byte("a0"), Version: 1}}), 0, 0)
	case k < 37:
		data := appendCommand(m.header(), command{kind: commandResolve, revision: rev + int64(m.rng.IntN(3))})
		m.entry("resolve", data, 1, 0)
	case k < 39:
		end := []byte{byte('b' + m.rng.IntN(3))}
		if d := m.staged.desc; len(d.End) > 0 && bytes.Compare(end, d.End) > 0 {
			end = d.End
		}
		resp, err := mvcc.EvaluateRange(m.mvcc.Latest(), &pb.RangeRequest{Key: []byte("a"), RangeEnd: end, CountOnly: true}, nil)
		if err != nil {
			m.t.Fatal(err)
		}
		if resp.Count > 0 {
			m.entry("span", appendWrite(m.header(), rev+1, []mvcc.Effect{{Key: []byte("a"), End: end, Tombstone: true, Count: resp.Count}}), 1, 0)
		}
	default:
		m.split()
	}
}

func (m *logMaker) split() {
	old, key := m.staged.desc, m.key()
	if !old.Span().Contains(key) || bytes.Equal(key, old.Start) {
		return
	}
	left := proto.Clone(old).(*rangepb.RangeDescriptor)
	right := proto.Clone(old).(*rangepb.RangeDescriptor)
	left.End, left.Epoch = key, old.Epoch+1
	right.Start, right.Epoch, right.RangeId = key, old.Epoch+1, 100+uint64(m.kinds["split"])
	m.entry("split", appendCommand(m.header(), command{kind: commandSplit, revision: m.staged.resolved + int64(m.rng.IntN(2)), metaIndex: 7,
		split: &placementpb.DecidedSplit{Key: key, Left: left, Right: right}}), 1, 0)
}

func rangeOverAll() *rangepb.RangeDescriptor {
	return &rangepb.RangeDescriptor{RangeId: 1, Epoch: 1, End: []byte("m"), Replicas: []*rangepb.Replica{{NodeId: 1, ReplicaId: 1}}}
}

// TestApplyIsAFunctionOfStateAndEntries: one replica applies a random log entry by entry,
// another in batches of another size, and that one dies now and then before a batch is
// committed and applies the same entries again. The outcomes and the rows are the same.
func TestApplyIsAFunctionOfStateAndEntries(t *testing.T) {
	seen := make(map[string]int)
	for seed := range uint64(30) {
		m := &logMaker{appliedRange: newAppliedRange(t, rangeOverAll()), rng: rand.New(rand.NewPCG(seed, 1)), term: 2, kinds: map[string]int{}}
		for range 120 {
			m.step()
		}
		other := newAppliedRange(t, rangeOverAll())
		var got history
		for i := 0; i < len(m.log); {
			atMost := 1 + m.rng.IntN(20)
			if m.rng.IntN(10) == 0 {
				saved := other.visible
				other.apply(m.log, i, atMost, false)
				other.close()
				other.open(saved)
				seen["died"]++
			}
			next, o := other.apply(m.log, i, atMost, true)
			got.add(&o)
			i = next
		}
		if !reflect.DeepEqual(got, m.history) {
			t.Fatalf("seed %d: two replicas differ:\n%+v\n%+v", seed, got, m.history)
		}
		if got, want := other.AppliedState(nil), m.AppliedState(nil); !bytes.Equal(got, want) {
			t.Fatalf("seed %d: applied states %x and %x", seed, got, want)
		}
		if got, want := other.rows(), m.rows(); got != want {
			t.Fatalf("seed %d: rows differ:\n%s\n%s", seed, got, want)
		}
		for kind, n := range m.kinds {
			seen[kind] += n
		}
		for _, e := range m.history.entries {
			seen["refused"] += len(e.refused)
		}
	}
	for _, kind := range []string{"writes", "own term", "of another term", "of another epoch", "resolve", "span", "split", "refused", "died"} {
		if seen[kind] < 10 {
			t.Errorf("only %d of %q were tried", seen[kind], kind)
		}
	}
}

// TestWhatOneEntryDoes: what is applied, what is refused, what has no effect and what is
// damage. A damaged entry stages nothing and is not in an outcome.
func TestWhatOneEntryDoes(t *testing.T) {
	write := func(term, epoch uint64, revision int64, e mvcc.Effect) []byte {
		e.Version = max(e.Version, 1)
		return appendWrite(appendEntryHeader(nil, entryHeader{term: term, epoch: epoch, seq: 1}), revision, []mvcc.Effect{e})
	}
	key := func(k string) mvcc.Effect { return mvcc.Effect{Key: []byte(k), Value: []byte("v")} }
	const nothing, applied, refused, refusedWhole, damaged = "no effect", "applied", "refused", "refused whole", "damaged"
	a := newAppliedRange(t, rangeOverAll())
	for i, e := range []struct {
		name string
		term uint64
		data []byte
		want string
	}{
		{"own term", 5, nil, nothing},
		{"write", 5, write(5, 1, 10, key("a")), applied},
		{"of another term (R0)", 5, write(4, 1, 11, key("b")), nothing},
		{"of another epoch", 5, write(5, 2, 11, key("c")), refusedWhole},
		{"revision does not grow (I1)", 5, write(5, 1, 10, key("d")), refused},
		{"outside the span", 5, write(5, 1, 11, key("z")), refused},
		{"a span beyond the range", 5, write(5, 1, 11, mvcc.Effect{Key: []byte("a"), End: []byte("n"), Tombstone: true, Count: 1}), refused},
		{"write again", 6, write(6, 1, 12, key("e")), applied},
		{"created later", 6, write(6, 1, 13, mvcc.Effect{Key: []byte("g"), Version: 2, CreateRevision: 14}), damaged},
		{"changed before later", 6, write(6, 1, 13, mvcc.Effect{Key: []byte("g"), Version: 2, CreateRevision: 3, Prior: mvcc.Place{Revision: 13}}), damaged},
		{"garbage", 6, []byte{1, 2, 3}, damaged},
		{"damaged effects", 6, bytes.Replace(write(6, 1, 13, key("f")), []byte("f"), nil, 1), damaged},
		{"the second command is damaged", 6, append(write(6, 1, 13, key("f")), 99, 1), damaged},
	} {
		b := a.db.NewBatch()
		err := a.Apply(b, uint64(i+5), e.term, e.data)
		o := a.takeOutcome()
		got := nothing
		switch {
		case err != nil:
			got = damaged
			if !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s: %v, want %v", e.name, err, ErrCorrupt)
			}
		case len(o.entries) == 1 && o.entries[0].refusedWhole != "":
			got = refusedWhole
		case len(o.entries) == 1 && len(o.entries[0].refused) == 1:
			got = refused
		case len(o.entries) == 1:
			got = applied
		}
		if got != e.want || b.Empty() == (got == applied) || (len(o.events) == 1) != (got == applied) {
			t.Errorf("%s: %s, staged nothing: %v, %d events, want %s", e.name, got, b.Empty(), len(o.events), e.want)
		}
		if err := errors.Join(b.Commit(pebble.NoSync), b.Close()); err != nil {
			t.Fatal(err)
		}
		if err == nil {
			if err := a.committed(&o); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestShortageWhileAnEntryIsApplied: what cannot be read for it is no damage, and the
// entry has its effect when it is applied again. Damage in its place is damage.
func TestShortageWhileAnEntryIsApplied(t *testing.T) {
	var failure atomic.Pointer[error]
	a := &appliedRange{t: t, fs: errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if err := failure.Load(); err != nil && op.Kind == errorfs.OpFileReadAt && strings.HasSuffix(op.Path, ".sst") {
			return *err
		}
		return nil
	})), cacheBytes: 1}
	state := appliedState{desc: rangeOverAll(), resolved: 1, term: 1}
	a.open(state)
	log := []logEntry{}
	for i, k := range []string{"a", "b", "c", "d"} {
		log = append(log, logEntry{1, appendWrite(appendEntryHeader(nil, entryHeader{term: 1, epoch: 1, seq: uint64(i + 1)}),
			int64(i+2), []mvcc.Effect{{Key: []byte(k), Value: []byte("v"), Version: 1}})})
	}
	for i := range log {
		a.apply(log, i, 1, true)
	}
	if err := a.db.Flush(); err != nil {
		t.Fatal(err)
	}
	state.resolved = 5
	a.close()
	a.open(state)
	t.Cleanup(a.close)

	span := mvcc.Effect{Key: []byte("b"), End: []byte("d"), Tombstone: true, Count: 2}
	last := []logEntry{{1, appendWrite(appendEntryHeader(nil, entryHeader{term: 1, epoch: 1, seq: 5}), 6, []mvcc.Effect{span})}}
	try := func(cause error) error {
		t.Helper()
		failure.Store(&cause)
		defer failure.Store(nil)
		b := a.db.NewBatch()
		defer func() { _ = b.Close() }() // not committed
		return a.Apply(b, 6, 1, last[0].data)
	}
	err := try(&os.PathError{Op: "read", Err: syscall.ENOMEM})
	if !shortage.Is(err) || damaged(err) || errors.Is(err, ErrCorrupt) {
		t.Errorf("a shortage: %v, damage %v", err, damaged(err))
	}
	if err := try(&os.PathError{Op: "read", Err: syscall.EIO}); !damaged(err) || shortage.Is(err) {
		t.Errorf("a disk that cannot read: %v", err)
	}
	a.apply(last, 0, 1, true)
	view, err := a.mvcc.Snapshot(6)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = view.Close() }() // read only
	if n, err := view.Count([]byte("a"), []byte("z")); n != 2 || err != nil {
		t.Errorf("%d keys, %v", n, err)
	}
}
