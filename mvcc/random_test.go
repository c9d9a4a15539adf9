package mvcc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/mvcc/counts"
	"github.com/hawser-kv/hawser/mvcc/keys"
)

type quietLogger struct{ t testing.TB }

func (quietLogger) Infof(string, ...any)                {}
func (quietLogger) Errorf(string, ...any)               {}
func (l quietLogger) Fatalf(format string, args ...any) { l.t.Fatalf(format, args...) }

func testEngineOptions(t testing.TB, fs vfs.FS) *pebble.Options {
	opts := EngineOptions(fs)
	opts.Logger = quietLogger{t}
	opts.MemTableSize = 256 << 10
	return opts
}

// openStore opens an engine on fs and the store in it; both are closed with the test.
func openStore(t testing.TB, fs vfs.FS, opts Options) (*pebble.DB, *Store) {
	t.Helper()
	db, err := pebble.Open("db", testEngineOptions(t, fs))
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(db, opts)
	if err != nil {
		t.Fatal(err)
	}
	return db, s
}

func newStore(t testing.TB) *Store {
	t.Helper()
	db, s := openStore(t, vfs.NewMem(), Options{})
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// requestMaker makes random valid requests over few keys, so that they meet.
type requestMaker struct {
	rng *rand.Rand
	m   *model
}

func (g *requestMaker) one(of int) bool { return g.rng.IntN(of) == 0 }

func (g *requestMaker) key() []byte {
	if g.one(10) {
		return bytes.Clone(awkwardKeys[g.rng.IntN(len(awkwardKeys))])
	}
	return fmt.Appendf(nil, "k%02d", g.rng.IntN(40))
}

func (g *requestMaker) rangeEnd() []byte {
	switch g.rng.IntN(6) {
	case 0:
		return nil
	case 1:
		return []byte{0}
	default:
		return g.key()
	}
}

// revision is around the ones that can be asked for.
func (g *requestMaker) revision() int64 {
	switch g.rng.IntN(8) {
	case 0:
		return g.m.current
	case 1:
		return g.m.current + 1
	case 2:
		return g.m.compacted
	case 3:
		return -1
	case 4:
		return max(g.m.compacted-1, 0)
	}
	return max(g.m.compacted, 1) + g.rng.Int64N(g.m.current-max(g.m.compacted, 1)+1)
}

func (g *requestMaker) someRev() int64 { return g.rng.Int64N(g.m.current + 3) }

func (g *requestMaker) put() *pb.PutRequest {
	p := &pb.PutRequest{Key: g.key(), PrevKv: g.one(3), IgnoreValue: g.one(6), IgnoreLease: g.one(6)}
	if !p.IgnoreValue && !g.one(8) {
		p.Value = fmt.Appendf(nil, "v%d", g.rng.IntN(9))
	}
	if !p.IgnoreLease && g.one(3) {
		p.Lease = g.rng.Int64N(6) - 2
	}
	return p
}

func (g *requestMaker) deleteRange() *pb.DeleteRangeRequest {
	d := &pb.DeleteRangeRequest{Key: g.key(), PrevKv: g.one(2)}
	if g.one(3) {
		if d.RangeEnd = g.rangeEnd(); g.one(2) {
			// Mostly small spans, that something may grow.
			d.RangeEnd = append(bytes.Clone(d.Key), 0xff)
		}
	} else if g.one(3) {
		// Ten keys.
		d.Key = fmt.Appendf(nil, "k%d", g.rng.IntN(4))
		d.RangeEnd = append(bytes.Clone(d.Key), 0xff)
	}
	return d
}

func (g *requestMaker) rangeRequest() *pb.RangeRequest {
	r := &pb.RangeRequest{Key: g.key(), RangeEnd: g.rangeEnd(), KeysOnly: g.one(4), CountOnly: g.one(8)}
	if g.one(2) {
		r.Key, r.RangeEnd = []byte("k"), []byte("l")
	}
	if g.one(2) {
		r.Limit = g.rng.Int64N(14) - 2
	}
	if g.one(3) {
		r.SortTarget = pb.RangeRequest_SortTarget(g.rng.IntN(5))
		r.SortOrder = pb.RangeRequest_SortOrder(g.rng.IntN(3))
	}
	if g.one(4) {
		r.MinModRevision, r.MaxCreateRevision = g.someRev()*g.rng.Int64N(2), g.someRev()*g.rng.Int64N(2)
		r.MaxModRevision, r.MinCreateRevision = g.someRev()*g.rng.Int64N(2), g.someRev()*g.rng.Int64N(2)
	}
	if g.one(3) {
		r.Revision = g.revision()
	}
	return r
}

func (g *requestMaker) compare() *pb.Compare {
	c := &pb.Compare{
		Key:    g.key(),
		Target: pb.Compare_CompareTarget(g.rng.IntN(5)),
		Result: pb.Compare_CompareResult(g.rng.IntN(4)),
	}
	if g.one(4) {
		c.RangeEnd = g.rangeEnd()
	}
	switch g.rng.IntN(7) {
	case 0: // no union at all
	case 1:
		c.TargetUnion = &pb.Compare_Version{Version: g.rng.Int64N(4)}
	default:
		switch c.Target {
		case pb.Compare_VERSION:
			c.TargetUnion = &pb.Compare_Version{Version: g.rng.Int64N(4)}
		case pb.Compare_CREATE:
			c.TargetUnion = &pb.Compare_CreateRevision{CreateRevision: g.someRev() * g.rng.Int64N(2)}
		case pb.Compare_MOD:
			c.TargetUnion = &pb.Compare_ModRevision{ModRevision: g.someRev() * g.rng.Int64N(2)}
		case pb.Compare_VALUE:
			c.TargetUnion = &pb.Compare_Value{Value: fmt.Appendf(nil, "v%d", g.rng.IntN(9))}
		case pb.Compare_LEASE:
			c.TargetUnion = &pb.Compare_Lease{Lease: g.rng.Int64N(6) - 2}
		}
	}
	return c
}

func (g *requestMaker) txn(depth int) *pb.TxnRequest {
	t := &pb.TxnRequest{}
	for range g.rng.IntN(3) {
		t.Compare = append(t.Compare, g.compare())
	}
	ops := func() (ops []*pb.RequestOp) {
		for range g.rng.IntN(5) {
			op := &pb.RequestOp{}
			switch n := g.rng.IntN(8); {
			case n < 3:
				op.Request = &pb.RequestOp_RequestPut{RequestPut: g.put()}
			case n < 5:
				op.Request = &pb.RequestOp_RequestRange{RequestRange: g.rangeRequest()}
			case n < 6 || depth == 0:
				op.Request = &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: g.deleteRange()}
			default:
				op.Request = &pb.RequestOp_RequestTxn{RequestTxn: g.txn(depth - 1)}
			}
			ops = append(ops, op)
		}
		return ops
	}
	t.Success, t.Failure = ops(), ops()
	return t
}

// request returns a random request that CheckRequest lets pass.
func (g *requestMaker) request() *Request {
	for {
		r := &Request{}
		switch g.rng.IntN(10) {
		case 0, 1, 2:
			r.Put = g.put()
		case 3:
			r.DeleteRange = g.deleteRange()
		case 4, 5:
			r.Range = g.rangeRequest()
		default:
			r.Txn = g.txn(2)
		}
		if CheckRequest(r, Limits{}) == nil {
			return r
		}
	}
}

func (r *Request) message() proto.Message {
	switch {
	case r.Put != nil:
		return r.Put
	case r.DeleteRange != nil:
		return r.DeleteRange
	case r.Txn != nil:
		return r.Txn
	}
	return r.Range
}

func (r *Result) response() proto.Message {
	switch {
	case r.Put != nil:
		return r.Put
	case r.DeleteRange != nil:
		return r.DeleteRange
	case r.Txn != nil:
		return r.Txn
	}
	return r.Range
}

// storeUnderTest is a store whose writes go through an overlay and are applied
// some time later, as on a leader.
type storeUnderTest struct {
	t       testing.TB
	rng     *rand.Rand
	m       *model
	fs      *vfs.MemFS
	db      *pebble.DB
	s       *Store
	overlay *Overlay
	pending []overlayWrite // granted, not applied
	log     []overlayWrite // all, as Raft has them
	applied int64
	lag     int
	tooWide int // budgets that were not enough
	priors  int // effects that name one
	spans   int // effects that end spans
	waits   int // compactions that had to wait for the end of one
}

func (u *storeUnderTest) open() {
	u.db, u.s = openStore(u.t, u.fs, Options{Counts: counts.Options{RunKeys: 8}, RecentBytes: 32 * 2 * 200, CompactionWindow: 30})
}

func (u *storeUnderTest) view() View { return u.overlay.Over(u.s.Latest()) }

func (u *storeUnderTest) env() Env {
	return Env{
		LeaseExists: func(id int64) bool { return u.m.leases[id] },
		Current:     u.m.current, Compacted: u.m.compacted,
	}
}

// do evaluates a request on store and model and compares.
func (u *storeUnderTest) do(r *Request) {
	u.t.Helper()
	env := u.env()
	var result *Result
	var err error
	if r.Range != nil {
		// A read of a leader at the newest revision: the bounds are checked by
		// who knows the current one.
		switch rev := r.Range.Revision; {
		case rev > u.m.current:
			err = ErrFutureRev
		case rev > 0 && rev < u.m.compacted:
			err = ErrCompacted
		default:
			result, err = Evaluate(u.view(), r, env)
		}
	} else {
		if u.rng.IntN(2) == 0 {
			env.SpanKeys = 1 + u.rng.Int64N(3)
		}
		result, err = Evaluate(u.view(), r, env)
		u.evaluateWithBudget(r, env, result, err)
	}
	before := len(u.m.events)
	want, wantErr := u.m.do(r)
	if !errors.Is(wantErr, err) || (err == nil) != (wantErr == nil) {
		u.t.Fatalf("at %d: %v\nerror %v, want %v", u.m.current, r.message(), err, wantErr)
	}
	if err != nil {
		return
	}
	u.checkEffects(result.Effects, before)
	result.Finish(u.m.current)
	if got := result.response(); !proto.Equal(got, want) {
		u.t.Fatalf("at %d: %v\ngot  %v\nwant %v", u.m.current, r.message(), got, want)
	}
	if len(result.Effects) > 0 {
		// What is applied is what Raft carried.
		cut, err := CutSpans(u.view(), result.Effects, [][]byte{[]byte("k1"), []byte("k17"), []byte("k3")})
		if err != nil {
			u.t.Fatal(err)
		}
		u.checkEffects(cut, before)
		effs, err := DecodeEffects(AppendEffects(nil, cut))
		if err != nil {
			u.t.Fatal(err)
		}
		w := overlayWrite{u.m.current, effs}
		u.overlay.Add(w.rev, w.effs)
		u.pending = append(u.pending, w)
		u.log = append(u.log, w)
	}
	for len(u.pending) > u.lag {
		u.applySome()
	}
}

// checkEffects compares effects with the events of the model from a place on.
func (u *storeUnderTest) checkEffects(effs []Effect, from int) {
	u.t.Helper()
	at := from
	for _, e := range effs {
		if at+int(e.subs()) > len(u.m.events) {
			u.t.Fatalf("at %d: effects %+v for events %+v", u.m.current, effs, u.m.events[from:])
		}
		if !e.IsSpan() {
			u.sameEvent("effect", EventOf(e, u.m.current), u.m.events[at], false)
			u.checkPrior(e, u.m.events[:at])
		} else {
			u.spans++
		}
		for n := range e.Count {
			ev := u.m.events[at+int(n)]
			if !ev.delete || ev.sub != e.Sub+uint32(n) || bytes.Compare(ev.kv.Key, e.Key) < 0 || e.End != nil && bytes.Compare(ev.kv.Key, e.End) >= 0 {
				u.t.Fatalf("at %d: event %+v for the %dth key of %+v", u.m.current, ev, n, e)
			}
		}
		at += int(e.subs())
	}
	if at != len(u.m.events) {
		u.t.Fatalf("at %d: effects %+v for events %+v", u.m.current, effs, u.m.events[from:])
	}
}

// materialise writes out some of what is pending.
func (u *storeUnderTest) materialise(steps int) {
	u.t.Helper()
	for range steps {
		if _, err := u.s.MaterialiseStep(1 + u.rng.IntN(4)); err != nil {
			u.t.Fatal(err)
		}
	}
}

// applyAll applies writes to one batch, or to several: what is before the deletion
// of a span is committed when that is applied.
func (u *storeUnderTest) applyAll(writes []overlayWrite) {
	u.t.Helper()
	b := u.db.NewBatch()
	commit := func() {
		if err := b.Commit(pebble.NoSync); err != nil {
			u.t.Fatal(err)
		}
	}
	for _, w := range writes {
		if HasSpan(w.effs) && !b.Empty() {
			commit()
			b = u.db.NewBatch()
		}
		u.stage(b, w)
		u.materialise(u.rng.IntN(2)) // beside who applies
	}
	commit()
}

// testAppliedKey is the row of the newest revision applied, as a replica has one.
var testAppliedKey = keys.MVCCMeta("test.applied")

func (u *storeUnderTest) stage(b *pebble.Batch, w overlayWrite) {
	u.t.Helper()
	if err := u.s.Apply(b, w.rev, w.effs); err != nil {
		u.t.Fatal(err)
	}
	if err := b.Set(testAppliedKey, binary.BigEndian.AppendUint64(nil, uint64(w.rev)), nil); err != nil {
		u.t.Fatal(err)
	}
}

// checkPrior: an effect that names a prior names the last change of its key.
func (u *storeUnderTest) checkPrior(e Effect, before []modelEvent) {
	u.t.Helper()
	if e.Prior == (Place{}) {
		return
	}
	u.priors++
	for _, ev := range slices.Backward(before) {
		if bytes.Equal(ev.kv.Key, e.Key) {
			if want := (Place{ev.rev, ev.sub}); e.Prior != want || ev.delete {
				u.t.Fatalf("at %d: effect on %q names prior %v, want %v (deleted: %t)", u.m.current, e.Key, e.Prior, want, ev.delete)
			}
			return
		}
	}
	u.t.Fatalf("at %d: effect on %q names prior %v, there is none", u.m.current, e.Key, e.Prior)
}

// evaluateWithBudget evaluates again with budgets from nothing on, until one is
// enough: until then the answer is ErrTooWide, and then the same as without.
func (u *storeUnderTest) evaluateWithBudget(r *Request, env Env, want *Result, wantErr error) {
	u.t.Helper()
	for rows := int64(0); ; rows += 1 + rows/2 {
		env.Budget = &Budget{Rows: rows, Bytes: 1 << 20}
		got, err := Evaluate(u.view(), r, env)
		if errors.Is(err, ErrTooWide) && rows < 10_000 {
			if rows > 0 {
				u.tooWide++
			}
			continue
		}
		if !errors.Is(err, wantErr) || (err == nil) != (wantErr == nil) {
			u.t.Fatalf("%v with a budget of %d rows: %v, want %v", r.message(), rows, err, wantErr)
		}
		if err == nil && (!proto.Equal(got.response(), want.response()) || !reflect.DeepEqual(got.Effects, want.Effects)) {
			u.t.Fatalf("%v with a budget of %d rows\ngot  %v, %v\nwant %v, %v", r.message(), rows, got.response(), got.Effects, want.response(), want.Effects)
		}
		return
	}
}

func (u *storeUnderTest) applySome() {
	n := min(len(u.pending), 1+u.rng.IntN(3))
	if n == 0 {
		return
	}
	u.applyAll(u.pending[:n])
	u.applied = u.pending[n-1].rev
	u.pending = u.pending[n:]
	u.materialise(u.rng.IntN(2))
	u.overlay.Applied(u.applied)
	if u.rng.IntN(100) == 0 {
		u.s.known.restart()
	}
	if _, err := u.s.TendKnown(1 + u.rng.IntN(5)); err != nil {
		u.t.Fatal(err)
	}
	if u.s.counts.NeedsMaintenance() {
		if err := u.s.counts.Maintain(keyScanner{u.s}, 1); err != nil {
			u.t.Fatal(err)
		}
	}
}

func (u *storeUnderTest) sameEvent(what string, got Event, want modelEvent, prevKV bool) {
	u.t.Helper()
	ok := got.Delete == want.delete && got.Revision == want.rev && got.Sub == want.sub && proto.Equal(got.Kv, want.kv)
	if prevKV {
		prev := want.prev
		if !want.delete && want.kv.CreateRevision == want.rev || want.rev-1 < u.m.compacted {
			prev = nil
		}
		ok = ok && proto.Equal(got.PrevKv, prev)
	}
	if !ok {
		u.t.Fatalf("%s: got %+v, want %+v", what, got, want)
	}
}

// checkReads compares reads at some readable applied revision.
func (u *storeUnderTest) checkReads() {
	u.t.Helper()
	g := requestMaker{u.rng, u.m}
	oldest := max(u.m.compacted, 1)
	if u.applied < oldest {
		return
	}
	rev := oldest + u.rng.Int64N(u.applied-oldest+1)
	snap, err := u.s.Snapshot(rev)
	if err != nil {
		u.t.Fatal(err)
	}
	defer func() {
		if err := snap.Close(); err != nil {
			u.t.Error(err)
		}
	}()
	for range 5 {
		r := g.rangeRequest()
		r.Revision = 0
		want := modelRange(u.m.states[rev], r, rev)
		got, err := EvaluateRange(snap, r, nil)
		if err != nil || !proto.Equal(got, want) {
			u.t.Fatalf("at %d: %v (%v)\ngot  %v\nwant %v", rev, r, err, got, want)
		}
		// The same in pieces, as over several ranges.
		if got := u.inPieces(snap, r); !proto.Equal(got, &pb.RangeResponse{Header: &pb.ResponseHeader{}, Kvs: want.Kvs, Count: want.Count, More: want.More}) {
			u.t.Fatalf("in pieces at %d: %v\ngot  %v\nwant %v", rev, r, got, want)
		}
	}
	// And what a leader sees of the past, through the overlay.
	at, err := u.view().At(rev)
	if err != nil {
		u.t.Fatal(err)
	}
	r := g.rangeRequest()
	r.Revision = 0
	if got, err := EvaluateRange(at, r, nil); err != nil || !proto.Equal(got, modelRange(u.m.states[rev], r, rev)) {
		u.t.Fatalf("through the overlay at %d: %v (%v)\ngot  %v\nwant %v", rev, r, err, got, modelRange(u.m.states[rev], r, rev))
	}
}

func (u *storeUnderTest) inPieces(v View, r *pb.RangeRequest) *pb.RangeResponse {
	p := PlanRange(r)
	cuts := [][]byte{p.Start}
	for _, c := range [][]byte{[]byte("a"), []byte("k1"), []byte("k17"), []byte("k3")} {
		if bytes.Compare(c, p.Start) > 0 && (p.End == nil || bytes.Compare(c, p.End) < 0) {
			cuts = append(cuts, c)
		}
	}
	var pieces []RangePiece
	rows, together := 0, u.rng.IntN(2) == 0
	for i, start := range cuts {
		end := p.End
		if i+1 < len(cuts) {
			end = cuts[i+1]
		}
		limit := p.Remaining(rows)
		if together {
			limit = p.Remaining(0)
		}
		piece, err := p.Read(v, start, end, limit)
		if err != nil {
			u.t.Fatal(err)
		}
		pieces = append(pieces, piece)
		rows += len(piece.Kvs)
	}
	return p.Assemble(pieces...)
}

func (u *storeUnderTest) checkEvents() {
	u.t.Helper()
	oldest := max(u.m.compacted, 1)
	after := oldest - 1 + u.rng.Int64N(u.applied-oldest+2)
	upTo := after + u.rng.Int64N(u.applied-after+1)
	g := requestMaker{u.rng, u.m}
	start, end := interval(g.key(), g.rangeEnd())
	if u.rng.IntN(2) == 0 {
		start, end = []byte("k"), []byte("l")
	}
	upTo = min(upTo, u.s.EventsComplete(start, end, after))
	var want []modelEvent
	for _, ev := range u.m.events {
		if ev.rev > after && ev.rev <= upTo && bytes.Compare(ev.kv.Key, start) >= 0 && (end == nil || bytes.Compare(ev.kv.Key, end) < 0) {
			want = append(want, ev)
		}
	}
	prevKV := u.rng.IntN(2) == 0
	n := 0
	err := u.s.Events(start, end, after, upTo, prevKV, func(ev Event) (bool, error) {
		if n == len(want) {
			u.t.Fatalf("events of [%q, %q) in (%d, %d]: one too many: %+v", start, end, after, upTo, ev)
		}
		u.sameEvent("event", ev, want[n], prevKV)
		if prevKV {
			live, err := u.s.PrevKV(ev.Kv.Key, ev.Revision)
			if create := !ev.Delete && ev.Kv.CreateRevision == ev.Revision; err != nil || !create && !proto.Equal(live, ev.PrevKv) {
				u.t.Fatalf("PrevKV(%q, %d) = %v, %v, want %v", ev.Kv.Key, ev.Revision, live, err, ev.PrevKv)
			}
		}
		n++
		return true, nil
	})
	if err != nil || n != len(want) {
		u.t.Fatalf("events of [%q, %q) in (%d, %d]: %d of %d, %v", start, end, after, upTo, n, len(want), err)
	}
}

func (u *storeUnderTest) checkLeases() {
	u.t.Helper()
	for lease := int64(-2); lease < 4; lease++ {
		if lease == 0 {
			continue
		}
		var want [][]byte
		for _, k := range sortedKeys(u.m.states[u.m.current], []byte{0}, []byte{0}) {
			if u.m.states[u.m.current][k].Lease == lease {
				want = append(want, []byte(k))
			}
		}
		got, err := LeaseKeys(u.view(), lease, nil, nil)
		if err != nil || fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
			u.t.Fatalf("keys of lease %d at %d: %q (%v), want %q", lease, u.m.current, got, err, want)
		}
	}
}

// compact forgets revisions and removes some of what is garbage.
func (u *storeUnderTest) compact() {
	u.t.Helper()
	oldest := max(u.m.compacted, 1)
	if u.applied <= oldest {
		return
	}
	rev := oldest + 1 + u.rng.Int64N(u.applied-oldest)
	err := u.s.SetForgotten(rev)
	if errors.Is(err, ErrPending) {
		u.waits++
		u.materialise(1000)
		err = u.s.SetForgotten(rev)
	}
	if err != nil {
		u.t.Fatal(err)
	}
	u.m.compacted = rev
	for range u.rng.IntN(20) {
		if _, err := u.s.CompactStep(1 + u.rng.IntN(10)); err != nil {
			u.t.Fatal(err)
		}
	}
}

// crash loses some of what was not synced, nothing of it or all, opens again and
// applies the log from there.
func (u *storeUnderTest) crash() {
	u.t.Helper()
	staged := u.db.NewBatch() // lost
	if len(u.pending) > 0 && u.rng.IntN(2) == 0 {
		u.stage(staged, u.pending[0])
		u.materialise(u.rng.IntN(3))
	}
	clean := u.rng.IntN(2) == 0
	fs := u.fs
	if !clean {
		percent := 50 * u.rng.IntN(3)
		if percent == 100 {
			if err := u.db.LogData(nil, pebble.Sync); err != nil {
				u.t.Fatal(err)
			}
		}
		fs = u.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: u.rng})
	}
	if err := errors.Join(staged.Close(), u.db.Close()); err != nil {
		u.t.Fatal(err)
	}
	u.fs = fs
	u.open()
	// Raft applies again what came after that which survived.
	var from int64
	row, err := u.s.metaRow(testAppliedKey)
	if err != nil {
		u.t.Fatal(err)
	}
	if row != nil {
		from = int64(binary.BigEndian.Uint64(row))
	}
	var again []overlayWrite
	for _, w := range u.log {
		if w.rev > from && w.rev <= u.applied {
			again = append(again, w)
		}
	}
	u.applyAll(again)
}

func TestRandomHistoriesEqualTheModel(t *testing.T) {
	for seed := range uint64(4) {
		for _, lag := range []int{0, 20} {
			t.Run(fmt.Sprintf("seed=%d/lag=%d", seed, lag), func(t *testing.T) {
				t.Parallel()
				rng := rand.New(rand.NewPCG(seed, uint64(lag)))
				u := &storeUnderTest{t: t, rng: rng, m: newModel(), fs: vfs.NewCrashableMem(), overlay: NewOverlay(), lag: lag, applied: 1}
				u.open()
				u.m.leases = map[int64]bool{-2: true, 1: true, 2: true}
				g := requestMaker{rng, u.m}
				for i := range 900 {
					u.do(g.request())
					switch {
					case i%7 == 0:
						u.checkReads()
					case i%11 == 0:
						u.checkEvents()
					case i%50 == 3:
						u.checkLeases()
					case i%150 == 4:
						u.crash()
					case i%80 == 5:
						u.compact()
					}
				}
				if err := u.db.Close(); err != nil {
					t.Fatal(err)
				}
				if u.spans < 10 {
					t.Errorf("only %d spans were deleted", u.spans)
				}
				if u.priors < 50 {
					t.Errorf("only %d effects named their prior", u.priors)
				}
				if u.tooWide < 200 {
					t.Errorf("only %d budgets were used up", u.tooWide)
				}
				if u.m.current < 200 {
					t.Fatalf("only %d revisions were made", u.m.current)
				}
			})
		}
	}
}
