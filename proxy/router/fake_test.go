package router

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand"
	"slices"
	"sort"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// world is ranges, sequencer and clock of a router under test: everything that
// happens is an event, and the test's seed decides which one is next. The data
// is in one real mvcc.Store.
type world struct {
	t      testing.TB
	rnd    *rand.Rand
	store  *mvcc.Store
	db     *pebble.DB
	router *Router
	now    time.Duration
	events []event
	timers []*timer
	seq    int

	// The sequencer.
	next      int64
	compacted int64
	dir       []*rangepb.RangeDescriptor
	cuts      [][]*rangepb.RangeDescriptor // not sent yet
	last      map[uint64]int64             // m
	closed    map[uint64]bool              // a split or transaction is on its way
	nextID    uint64
	owners    uint64
	aborted   map[uint64]bool
	// log has every revision that was given out.
	log map[int64][]mvcc.Effect

	ranges map[uint64]*fakeRange

	budget  int64 // rows that a leader evaluates; 0: all
	tooWide int   // writes that it did not
	whole   bool  // nobody splits

	// Faults, each in percent.
	dropWrite, refuseLatch, refuseTxn, loseTxn, loseQuery int
	silent                                                bool // S answers nothing
	nudged, woken                                         map[uint64]int
	// interrupt, if set, is called inside most calls of the router: what another
	// goroutine may do meanwhile.
	interrupt func()
}

func (w *world) interrupted() {
	if w.interrupt != nil {
		w.interrupt()
	}
}

type event struct {
	name string
	f    func()
}

type timer struct {
	at   time.Duration
	seq  int
	f    func()
	dead bool
}

// fakeRange is one range with its only replica.
type fakeRange struct {
	id       uint64
	desc     *rangepb.RangeDescriptor // as the replica has applied it
	resolved int64
	// queue is what the log still has to apply, in order.
	queue   []func()
	waiting []waiting
	latches map[uint64][]mvcc.Access
	blocked []func() // writes and latches that wait for a latch or for the log
}

type waiting struct {
	epoch uint64
	rev   int64
	done  func(error)
}

func newWorld(t testing.TB, seed int64, boundaries ...string) *world {
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
	store, err := mvcc.Open(db, mvcc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		t: t, rnd: rand.New(rand.NewSource(seed)), store: store, db: db,
		next: 2, compacted: -1, last: map[uint64]int64{}, closed: map[uint64]bool{}, aborted: map[uint64]bool{},
		log: map[int64][]mvcc.Effect{}, ranges: map[uint64]*fakeRange{}, nudged: map[uint64]int{}, woken: map[uint64]int{},
	}
	start := ""
	for _, b := range append(boundaries, "") {
		w.nextID++
		d := &rangepb.RangeDescriptor{RangeId: w.nextID, Epoch: 1, Start: []byte(start), End: []byte(b)}
		w.dir = append(w.dir, d)
		w.last[d.RangeId] = 1
		w.ranges[d.RangeId] = &fakeRange{id: d.RangeId, desc: d, resolved: 1, latches: map[uint64][]mvcc.Access{}}
		start = b
	}
	for _, b := range boundaries {
		w.boundary([]byte(b))
	}
	w.router, err = New(Config{Ranges: fakeRanges{w}, Sequencer: fakeSequencer{w}, After: w.after})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// boundary tells the counts of the store that a range begins at key.
func (w *world) boundary(key []byte) {
	b := w.db.NewBatch()
	if err := w.store.EnsureBoundary(b, key); err != nil {
		w.t.Fatal(err)
	}
	if err := b.Commit(pebble.NoSync); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) post(name string, f func()) { w.events = append(w.events, event{name, f}) }

func (w *world) after(d time.Duration, f func()) func() {
	w.seq++
	tm := &timer{at: w.now + d, seq: w.seq, f: f}
	w.timers = append(w.timers, tm)
	return func() { tm.dead = true }
}

func (w *world) chance(percent int) bool { return percent > 0 && w.rnd.Intn(100) < percent }

// step runs one event, any of those that are due; when none is, time passes.
func (w *world) step() bool {
	if len(w.events) > 0 {
		i := w.rnd.Intn(len(w.events))
		e := w.events[i]
		w.events = append(w.events[:i], w.events[i+1:]...)
		e.f()
		return true
	}
	return w.tick()
}

// tick lets time pass to the next timer.
func (w *world) tick() bool {
	sort.SliceStable(w.timers, func(i, j int) bool { return w.timers[i].at < w.timers[j].at })
	for len(w.timers) > 0 {
		tm := w.timers[0]
		w.timers = w.timers[1:]
		if !tm.dead {
			w.now = max(w.now, tm.at)
			tm.f()
			return true
		}
	}
	return false
}

func (w *world) exec(f func()) { w.post("exec", f) }

// sendCut sends a cut with the whole directory, or with the given changes.
func (w *world) sendCut(changed ...*rangepb.RangeDescriptor) {
	cut := &placementpb.Cut{Revision: w.next - 1, Descriptors: changed, Compacted: w.compacted}
	if changed == nil {
		cut.First, cut.Descriptors = true, w.dir
	}
	if err := w.router.Cut(cut); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) descriptor(id uint64) *rangepb.RangeDescriptor {
	for _, d := range w.dir {
		if d.RangeId == id {
			return d
		}
	}
	return nil
}

// grant gives out the next revision for a range.
func (w *world) grant(effs []mvcc.Effect, ids ...uint64) int64 {
	rev := w.next
	w.next++
	w.log[rev] = effs
	for _, id := range ids {
		w.last[id] = rev
	}
	return rev
}

// append puts an entry into the range's log: it is applied some time later, in
// the log's order.
func (w *world) append(fr *fakeRange, apply func()) {
	fr.queue = append(fr.queue, apply)
	w.post(fmt.Sprintf("apply r%d", fr.id), func() {
		head := fr.queue[0]
		fr.queue = fr.queue[1:]
		head()
		w.wake(fr)
	})
}

func (w *world) apply(fr *fakeRange, rev int64, effs []mvcc.Effect) {
	b := w.db.NewBatch()
	if err := w.store.Apply(b, rev, effs); err != nil {
		w.t.Fatal(err)
	}
	if err := b.Commit(pebble.NoSync); err != nil {
		w.t.Fatal(err)
	}
	if rev <= fr.resolved {
		w.t.Fatalf("r%d: revision %d after %d", fr.id, rev, fr.resolved)
	}
	fr.resolved = rev
}

// wake lets everything go on that waited for the range.
func (w *world) wake(fr *fakeRange) {
	still := fr.waiting[:0]
	for _, x := range fr.waiting {
		if fr.desc.Epoch >= x.epoch && fr.resolved >= x.rev {
			w.post("resolved", func() { x.done(nil) })
		} else {
			still = append(still, x)
		}
	}
	fr.waiting = still
	blocked := fr.blocked
	fr.blocked = nil
	for _, f := range blocked {
		w.post("unblocked", f)
	}
}

func overlaps(a, b mvcc.Access) bool {
	return (a.End == nil || bytes.Compare(b.Start, a.End) < 0) && (b.End == nil || bytes.Compare(a.Start, b.End) < 0)
}

func (fr *fakeRange) latched(spans []mvcc.Access) bool {
	for _, held := range fr.latches {
		for _, h := range held {
			for _, s := range spans {
				if overlaps(h, s) {
					return true
				}
			}
		}
	}
	return false
}

// fakeRanges implements Ranges.
type fakeRanges struct{ *world }

func (w fakeRanges) Write(id, epoch uint64, req *mvcc.Request, done func(*mvcc.Result, rangepb.WriteAnswer)) {
	w.interrupted()
	fr := w.ranges[id]
	var try func()
	try = func() {
		switch {
		case w.chance(w.dropWrite):
			kind := []rangepb.ErrorKind{rangepb.Dropped, rangepb.NotLeader}[w.rnd.Intn(2)]
			done(nil, rangepb.WriteAnswer{Err: &rangepb.Error{Kind: kind, RangeID: id}})
			return
		case fr.desc.Epoch != epoch || w.descriptor(id).Epoch != epoch:
			done(nil, rangepb.WriteAnswer{Err: &rangepb.Error{Kind: rangepb.Stale, RangeID: id}})
			return
		case w.closed[id] || len(fr.queue) > 0 || fr.latched(req.Spans()):
			fr.blocked = append(fr.blocked, try)
			return
		}
		v, err := w.store.Snapshot(Newest)
		if err != nil {
			w.t.Fatal(err)
		}
		defer v.Close()
		env := mvcc.Env{}
		if w.budget > 0 {
			env.Budget = &mvcc.Budget{Rows: w.budget, Bytes: 1 << 20}
		}
		res, err := mvcc.Evaluate(v, req, env)
		if errors.Is(err, mvcc.ErrTooWide) {
			w.tooWide++
			w.post("too wide", func() { done(nil, rangepb.WriteAnswer{Err: &rangepb.Error{Kind: rangepb.TooWide, RangeID: id}}) })
			return
		}
		if err != nil || len(res.Effects) == 0 {
			w.post("no effect", func() { done(nil, rangepb.WriteAnswer{NoEffect: true, Err: err}) })
			return
		}
		rev := w.grant(res.Effects, id)
		w.append(fr, func() {
			w.apply(fr, rev, res.Effects)
			w.post("written", func() { done(res, rangepb.WriteAnswer{Revision: rev}) })
		})
	}
	w.post("write", try)
}

func (w fakeRanges) Latch(id, epoch uint64, owner *placementpb.TxnID, spans []mvcc.Access, done func(rangepb.LatchAnswer)) {
	w.interrupted()
	fr := w.ranges[id]
	var try func()
	try = func() {
		switch {
		case w.chance(w.refuseLatch):
			done(rangepb.LatchAnswer{Err: &rangepb.Error{Kind: rangepb.Dropped, RangeID: id}})
			return
		case fr.desc.Epoch != epoch || w.descriptor(id).Epoch != epoch:
			done(rangepb.LatchAnswer{Err: &rangepb.Error{Kind: rangepb.Stale, RangeID: id}})
			return
		case w.closed[id] || len(fr.queue) > 0 || fr.latched(spans):
			fr.blocked = append(fr.blocked, try)
			return
		}
		fr.latches[owner.Number] = spans
		w.post("latched", func() { done(rangepb.LatchAnswer{Term: 1, Session: 1, Resolved: fr.resolved}) })
	}
	w.post("latch", try)
}

func (w fakeRanges) Unlatch(id uint64, owner *placementpb.TxnID) {
	w.interrupted()
	w.post("unlatch", func() { w.unlatch(id, owner.Number) })
}

func (w *world) unlatch(id, owner uint64) {
	fr := w.ranges[id]
	delete(fr.latches, owner)
	w.wake(fr)
}

func (w fakeRanges) Await(id, epoch uint64, rev int64, done func(error)) {
	w.interrupted()
	fr := w.ranges[id]
	if fr.desc.Epoch >= epoch && fr.resolved >= rev {
		done(nil)
		return
	}
	fr.waiting = append(fr.waiting, waiting{epoch, rev, done})
}

func (w fakeRanges) View(rev int64, pieces []rangepb.Piece) (mvcc.OpenView, error) {
	w.interrupted()
	for _, p := range pieces {
		fr := w.ranges[p.RangeID]
		end := fr.desc.End
		switch {
		case fr.desc.Epoch < p.Epoch,
			bytes.Compare(p.Start, fr.desc.Start) < 0,
			len(end) > 0 && (p.End == nil || bytes.Compare(p.End, end) > 0):
			return nil, &rangepb.Error{Kind: rangepb.Stale, RangeID: p.RangeID}
		case fr.resolved < p.Resolve:
			return nil, &rangepb.Error{Kind: rangepb.Unresolved, RangeID: p.RangeID}
		}
	}
	return w.store.Snapshot(rev)
}

func (w fakeRanges) HashVersions(int64, int64, []rangepb.Piece, *mvcc.Hasher) error {
	return errors.New("not here")
}

func (w fakeRanges) HalfKey(p rangepb.Piece) ([]byte, error) { return w.store.HalfKey(p.Start, p.End) }

func (w fakeRanges) PrepareSplit(key []byte) {
	if err := w.store.PrepareBoundary(key); err != nil {
		w.t.Error(err)
	}
}

func (w fakeRanges) Nudge(id uint64) {
	w.interrupted()
	w.nudged[id]++
}

func (w fakeRanges) Wake(id uint64) {
	w.interrupted()
	w.woken[id]++
}

// fakeSequencer implements Sequencer.
type fakeSequencer struct{ *world }

var errSession = errors.New("session ended")

func (w fakeSequencer) Query(ranges []*placementpb.RangeEpoch, done func(*placementpb.QueryAnswer, error)) {
	w.interrupted()
	if w.silent {
		return
	}
	w.post("query", func() {
		if w.chance(w.loseQuery) {
			done(nil, errSession)
			return
		}
		a := &placementpb.QueryAnswer{Revision: w.next - 1, Compacted: w.compacted}
		for _, r := range ranges {
			if d := w.descriptor(r.RangeId); d == nil || d.Epoch != r.Epoch {
				a = &placementpb.QueryAnswer{Refused: true, Reason: placementpb.RefusalReason_REFUSAL_REASON_STALE_EPOCH}
				break
			}
			a.Marks = append(a.Marks, w.last[r.RangeId])
		}
		w.post("answer", func() { done(a, nil) })
	})
}

func (w fakeSequencer) NewOwner() *placementpb.TxnID {
	w.interrupted()
	w.owners++
	return &placementpb.TxnID{NodeId: 1, Session: 1, Number: w.owners}
}

func (w fakeSequencer) Commit(txn *placementpb.TxnCommit, done func(*placementpb.TxnResult, error)) {
	w.interrupted()
	if w.silent {
		return
	}
	w.post("commit", func() {
		owner := txn.Owner.Number
		refuse := func(why placementpb.RefusalReason) {
			w.aborted[owner] = true
			for _, p := range txn.Participants {
				w.unlatch(p.RangeId, owner)
			}
			w.post("refused", func() { done(&placementpb.TxnResult{Owner: txn.Owner, Refused: true, Reason: why}, nil) })
		}
		if w.aborted[owner] || w.chance(w.refuseTxn) {
			refuse(placementpb.RefusalReason_REFUSAL_REASON_ABORTED)
			return
		}
		lost := w.chance(w.loseTxn)
		if lost && w.chance(50) { // on the way there
			w.aborted[owner] = true
			for _, p := range txn.Participants {
				w.unlatch(p.RangeId, owner)
			}
			done(nil, errSession)
			return
		}
		var all []mvcc.Effect
		var ids []uint64
		for _, p := range txn.Participants {
			if d := w.descriptor(p.RangeId); d.Epoch != p.Epoch {
				refuse(placementpb.RefusalReason_REFUSAL_REASON_STALE_EPOCH)
				return
			}
			if _, ok := w.ranges[p.RangeId].latches[owner]; !ok {
				w.t.Fatalf("commit of %v without a latch on r%d", txn.Owner, p.RangeId)
			}
			if len(p.Effects) > 0 {
				effs, err := mvcc.DecodeEffects(p.Effects)
				if err != nil {
					w.t.Fatal(err)
				}
				all = append(all, effs...)
				ids = append(ids, p.RangeId)
			}
		}
		rev := w.grant(all, ids...)
		for _, p := range txn.Participants {
			fr := w.ranges[p.RangeId]
			if len(p.Effects) == 0 {
				w.unlatch(p.RangeId, owner)
				continue
			}
			effs, _ := mvcc.DecodeEffects(p.Effects)
			w.append(fr, func() {
				w.apply(fr, rev, effs)
				delete(fr.latches, owner)
			})
		}
		if lost { // on the way back
			done(nil, errSession)
			return
		}
		w.post("decided", func() { done(&placementpb.TxnResult{Owner: txn.Owner, Revision: rev}, nil) })
	})
}

func (w fakeSequencer) Abort(owner *placementpb.TxnID) {
	w.interrupted()
	w.aborted[owner.Number] = true
}

func (w fakeSequencer) Split(key []byte, done func(*placementpb.SplitResult, error)) {
	w.post("split", func() { w.split(key, done) })
}

func (w *world) split(key []byte, done func(*placementpb.SplitResult, error)) {
	refuse := func(why placementpb.RefusalReason) {
		done(&placementpb.SplitResult{Refused: true, Reason: why}, nil)
	}
	at := sort.Search(len(w.dir), func(i int) bool { return bytes.Compare(w.dir[i].Start, key) > 0 }) - 1
	old := w.dir[at]
	if bytes.Equal(old.Start, key) {
		refuse(placementpb.RefusalReason_REFUSAL_REASON_BOUNDARY_EXISTS)
		return
	}
	if w.closed[old.RangeId] || w.ranges[old.RangeId].desc.Epoch != old.Epoch { // a split is on its way there
		refuse(placementpb.RefusalReason_REFUSAL_REASON_BUSY)
		return
	}
	w.nextID++
	left := proto.CloneOf(old)
	left.End, left.Epoch = key, old.Epoch+1
	right := &rangepb.RangeDescriptor{RangeId: w.nextID, Epoch: left.Epoch, Start: key, End: old.End}
	w.dir = append(w.dir[:at:at], append([]*rangepb.RangeDescriptor{left, right}, w.dir[at+1:]...)...)
	s := w.last[old.RangeId]
	w.last[right.RangeId] = s
	fr := w.ranges[left.RangeId]
	// The right range exists for S at once, on the node when the left one has
	// applied the split.
	rr := &fakeRange{id: right.RangeId, desc: &rangepb.RangeDescriptor{RangeId: right.RangeId}, latches: map[uint64][]mvcc.Access{}}
	w.ranges[right.RangeId] = rr
	w.append(fr, func() {
		w.boundary(key)
		// What waits is sent back before anybody can see the right range.
		blocked := fr.blocked
		fr.blocked = nil
		for _, f := range blocked {
			f()
		}
		fr.desc, rr.desc = left, right
		for owner, spans := range fr.latches {
			if slices.ContainsFunc(spans, func(s mvcc.Access) bool { return s.End == nil || bytes.Compare(s.End, key) > 0 }) {
				delete(fr.latches, owner) // the keys move, and the latch with them
			}
		}
		fr.resolved, rr.resolved = max(fr.resolved, s), s
		w.wake(rr)
	})
	w.cuts = append(w.cuts, []*rangepb.RangeDescriptor{left, right})
	w.post("cut", func() { // they come in order
		changed := w.cuts[0]
		w.cuts = w.cuts[1:]
		w.sendCut(changed...)
	})
	w.post("split result", func() { done(&placementpb.SplitResult{Left: left, Right: right}, nil) })
}

func (w fakeSequencer) Compact(rev int64, done func(*placementpb.CompactResult, error)) {
	w.post("compact", func() {
		res := &placementpb.CompactResult{Revision: w.next - 1}
		switch {
		case rev <= w.compacted:
			res.Refused, res.Reason = true, placementpb.RefusalReason_REFUSAL_REASON_COMPACTED
		case rev >= w.next:
			res.Refused, res.Reason = true, placementpb.RefusalReason_REFUSAL_REASON_FUTURE_REVISION
		default:
			w.compacted = rev
		}
		w.post("compacted", func() { done(res, nil) })
	})
}

type splitResult = *placementpb.SplitResult

func spanOf(d *rangepb.RangeDescriptor) mvcc.Access {
	s := mvcc.Access{Start: d.Start}
	if len(d.End) > 0 {
		s.End = d.End
	}
	return s
}

// quiet is pebble's logger in tests.
type quiet struct{}

func (quiet) Infof(string, ...any)              {}
func (quiet) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (quiet) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
