package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/range/engine"
	"github.com/hawser-kv/hawser/range/keys"
	"github.com/hawser-kv/hawser/range/raftgroup"
	"github.com/hawser-kv/hawser/range/raftlog"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func openDB(t testing.TB, fs vfs.FS) *pebble.DB {
	t.Helper()
	db, err := pebble.Open("db", &pebble.Options{
		FS: fs, Logger: engine.Logger(zap.NewNop()), FormatMajorVersion: pebble.FormatNewest})
	must(t, err)
	return db
}

// begin makes a group with one voter for each id.
func begin(t testing.TB, db *pebble.DB, ids ...uint64) {
	t.Helper()
	b := db.NewBatch()
	for _, id := range ids {
		must(t, raftlog.Bootstrap(db, b, id, []uint64{1}, nil))
	}
	must(t, db.Apply(b, pebble.Sync))
	must(t, b.Close())
}

// put asks a ledger to write its text. done is called exactly once.
type put struct {
	text  string
	calls int
	err   error
	done  func(*put)
}

func (p *put) answer(err error) {
	p.calls++
	p.err = err
	if p.done != nil {
		p.done(p)
	}
}

func (p *put) Refuse(err error) { p.answer(err) }

var errUnknownFate = errors.New("fate unknown")

// ledger is a member whose state machine writes each put of an entry as a row,
// and keeps count and hash of all in its applied state.
type ledger struct {
	id    uint64
	group *raftgroup.Group

	waiting  []*put // not proposed
	inLog    []*put // proposed
	applied  []*put // applied by the batch that is being staged
	count    uint64
	hash     uint64
	proposed int // entries
	raft     *raftgroup.Driver

	sleep   bool // unload when there is nothing to do
	onFlush func(r *Round)
	closed  error
}

var errAsleep = errors.New("asleep")

func newLedger(db *pebble.DB, id, replica uint64) (*ledger, error) {
	log, err := raftlog.Load(db, id)
	if err != nil {
		return nil, err
	}
	l := &ledger{id: id}
	a, err := raftlog.ReadApplied(db, id)
	if err != nil {
		return nil, err
	}
	l.count, l.hash = decodeLedger(a.Machine)
	l.group, err = raftgroup.New(raftgroup.Config{ID: id, ReplicaID: replica, Log: log, Machine: l})
	l.raft = raftgroup.NewDriver(l.group)
	return l, err
}

func decodeLedger(b []byte) (count, hash uint64) {
	count, n := binary.Uvarint(b)
	if n > 0 {
		hash, _ = binary.Uvarint(b[n:])
	}
	return count, hash
}

func (l *ledger) AppliedState(dst []byte) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(dst, l.count), l.hash)
}

const separator = "\x00"

func (l *ledger) Apply(b *pebble.Batch, index, term uint64, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	for _, text := range strings.Split(string(data), separator) {
		l.count++
		l.hash = hashNext(l.hash, text)
		if err := b.Set(ledgerRow(l.id, l.count), []byte(text), nil); err != nil {
			return err
		}
		// What is applied and was proposed here is the next that was proposed:
		// a ledger is alone and loses nothing without being closed.
		if len(l.inLog) > 0 {
			if l.inLog[0].text != text {
				return fmt.Errorf("applied %q, expected %q", text, l.inLog[0].text)
			}
			l.applied = append(l.applied, l.inLog[0])
			l.inLog = l.inLog[1:]
		}
	}
	return nil
}

func ledgerRow(id, n uint64) []byte {
	return binary.BigEndian.AppendUint64(keys.Group(id, keys.KindState), n)
}

func hashNext(h uint64, text string) uint64 {
	for _, c := range []byte(text) {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h*31 + 7
}

func (l *ledger) Handle(ev any) {
	switch ev := ev.(type) {
	case *put:
		l.waiting = append(l.waiting, ev)
		l.sleep = false
	case error:
		l.sleep = errors.Is(ev, errAsleep)
	case func(r *Round):
		l.onFlush = ev
	case *raftpb.Message:
		_ = l.group.Step(ev) // what does not fit is dropped
	default:
		panic(fmt.Sprintf("ledger: %T", ev))
	}
}

func (l *ledger) Flush(r *Round) {
	if err := l.raft.Begin(r); err != nil {
		r.FailStore(err)
		return
	}
	if fn := l.onFlush; fn != nil {
		l.onFlush = nil
		fn(r)
	}
	if len(l.waiting) > 0 && l.group.IsLeader() && r.CanPropose() {
		texts := make([]string, len(l.waiting))
		for i, p := range l.waiting {
			texts[i] = p.text
		}
		switch err := l.group.Propose([]byte(strings.Join(texts, separator))); {
		case err == nil:
			l.inLog = append(l.inLog, l.waiting...)
			l.waiting = nil
			l.proposed++
		case !errors.Is(err, raftgroup.ErrNotLeader):
			r.FailStore(err)
			return
		}
	}
	if _, err := l.raft.Advance(r.Batch, r); err != nil {
		r.FailStore(err)
		return
	}
	if applied := l.applied; len(applied) > 0 {
		l.applied = nil
		r.OnCommitted(func() {
			for _, p := range applied {
				p.answer(nil)
			}
		})
	}
	if l.sleep && l.group.Quiet() && len(l.waiting) == 0 {
		r.Unload()
	}
}

func (l *ledger) Tick()            { _ = l.group.Tick() }
func (l *ledger) WantsTicks() bool { return true }

func (l *ledger) Close(err error) {
	l.closed = err
	for _, p := range l.waiting {
		p.answer(cause(err))
	}
	for _, p := range append(l.inLog, l.applied...) {
		p.answer(errUnknownFate)
	}
}

func cause(err error) error {
	if err == nil {
		return errors.New("closed with work")
	}
	return err
}

// readLedger returns what a ledger has written and checks that the applied
// state is that of exactly these rows.
func readLedger(t testing.TB, db *pebble.DB, id uint64) []string {
	t.Helper()
	it, err := db.NewIter(&pebble.IterOptions{
		LowerBound: keys.Group(id, keys.KindState), UpperBound: keys.Group(id, keys.KindState+1)})
	must(t, err)
	var out []string
	var hash uint64
	for it.First(); it.Valid(); it.Next() {
		if n := binary.BigEndian.Uint64(it.Key()[10:]); n != uint64(len(out)+1) {
			t.Fatalf("group %d: row %d follows row %d", id, n, len(out))
		}
		out = append(out, string(it.Value()))
		hash = hashNext(hash, string(it.Value()))
	}
	must(t, it.Close())
	a, err := raftlog.ReadApplied(db, id)
	must(t, err)
	if c, h := decodeLedger(a.Machine); c != uint64(len(out)) || (c > 0 && h != hash) {
		t.Fatalf("group %d: applied state counts %d (%x), the rows are %d (%x)", id, c, h, len(out), hash)
	}
	return out
}

// rig is a store that a test drives by hand, with a ledger per group.
type rig struct {
	t       testing.TB
	db      *pebble.DB
	store   *Store
	ledgers map[uint64]*ledger // newest of each group
	visits  []uint64           // groups loaded, in order
	replica uint64
}

func newRig(t testing.TB, db *pebble.DB, change func(*Config)) *rig {
	t.Helper()
	r := &rig{t: t, db: db, ledgers: make(map[uint64]*ledger), replica: 1}
	cfg := Config{DB: db, ManualSync: true, Loader: r.load}
	if change != nil {
		change(&cfg)
	}
	var err error
	r.store, err = Open(cfg)
	must(t, err)
	return r
}

func (r *rig) load(id uint64) (Member, error) {
	l, err := newLedger(r.db, id, r.replica)
	if err != nil {
		return nil, err
	}
	r.ledgers[id] = l
	r.visits = append(r.visits, id)
	return l, nil
}

// run goes on until nothing is left to do, syncs included.
func (r *rig) run() {
	r.t.Helper()
	for {
		worked, err := r.store.RunRound(0)
		must(r.t, err)
		if worked {
			continue
		}
		if synced, err := r.store.SyncNext(0); err != nil || !synced {
			must(r.t, err)
			return
		}
	}
}

func (r *rig) put(id uint64, text string) *put {
	p := &put{text: text}
	r.store.Post(id, p)
	return p
}
