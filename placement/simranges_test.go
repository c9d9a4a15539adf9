package placement_test

import (
	"math"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// simRange is the Raft group of a range: its committed log and who leads it.
// Deposed leaders are in leaders, too, until they learn of it.
type simRange struct {
	id       uint64
	first    *rangepb.RangeDescriptor // as it began
	begin    int64                    // resolved as it began
	log      []rangeEntry
	term     uint64
	true     *rangeLeader
	leaders  []*rangeLeader
	replicas map[uint64]*rangeReplica
	opened   openRegistration
}

// rangeEntry is an entry of a range's log.
type rangeEntry struct {
	term  uint64
	rev   int64
	key   byte // of a write or a transaction
	kind  entryKind
	index uint64 // of a decided entry
	split *placementpb.DecidedSplit
	done  func() // when it is committed
}

type entryKind int

const (
	entryEmpty entryKind = iota // the first of a term
	entryWrite
	entryResolve
	entryTxn
	entrySplit
)

// rangeReplica is what one node has applied of a range.
type rangeReplica struct {
	applied  int
	resolved int64
	desc     *rangepb.RangeDescriptor
}

// rangeLeader is a node that believes to lead a range.
type rangeLeader struct {
	x    *simRange
	n    *simNode
	term uint64
	// base is how much of the committed log it began on; tail is what follows
	// in its own log. base+len(tail) of the true leader is the end of the log.
	base int
	tail []rangeEntry

	epoch, session uint64 // asked for
	registered     bool
	outstanding    int // registrations without an answer
	barrier        int // log position of Resolve(r0): latches only after it
	queue          []simWrite
	nextSeq        uint64
	asked          int // of the queue
	// firstSeq of the queue since the last registration was asked for, r0 of the
	// last answer; dropped is the highest revision granted while there was none.
	firstSeq     uint64
	r0, dropped  int64
	latch        *placementpb.TxnID
	deactivating bool
}

type simWrite struct {
	seq  uint64
	key  byte
	sent int64
}

// simTxn is a coordinator's transaction.
type simTxn struct {
	owner *placementpb.TxnID
	parts []*placementpb.Participant
	held  []*rangeLeader
	// read is, per range, the highest revision that the values under the latch
	// may have.
	read map[uint64]int64
	over bool // refused: it must never appear
}

// simRead waits until a replica of each range can serve.
type simRead struct {
	rev   int64
	parts []readPart
}

type readPart struct {
	want  *rangepb.RangeDescriptor
	m     int64
	found bool
}

// servedRead is what a read saw.
type servedRead struct {
	rev  int64
	desc *rangepb.RangeDescriptor
	saw  []version
}

func (s *sim) addRange(d *rangepb.RangeDescriptor, begin int64) *simRange {
	x := &simRange{id: d.RangeId, first: d, begin: begin, replicas: map[uint64]*rangeReplica{}}
	s.ranges[d.RangeId] = x
	s.order = append(s.order, d.RangeId)
	return x
}

func within(d *rangepb.RangeDescriptor, key byte) bool {
	return string(d.Start) <= string(key) && (len(d.End) == 0 || string(key) < string(d.End))
}

// key returns a letter of the span.
func (s *sim) key(d *rangepb.RangeDescriptor) (byte, bool) {
	first, last := byte('a'), byte('z')
	if len(d.Start) > 0 {
		first = d.Start[0]
	}
	if len(d.End) > 0 {
		last = d.End[0] - 1
	}
	if first > last {
		return 0, false
	}
	return first + byte(s.rng.IntN(int(last-first)+1)), true
}

// end is the length of the leader's log.
func (l *rangeLeader) end() int { return l.base + len(l.tail) }

// highest is the highest revision in the leader's log.
func (l *rangeLeader) highest() int64 {
	h := l.x.begin
	for _, e := range l.x.log[:l.base] {
		h = max(h, e.rev)
	}
	for _, e := range l.tail {
		h = max(h, e.rev)
	}
	return h
}

// desc is the range as of the end of the leader's log.
func (l *rangeLeader) desc() *rangepb.RangeDescriptor {
	d := l.x.first
	for _, e := range l.x.log[:l.base] {
		if e.kind == entrySplit {
			d = e.split.Left
		}
	}
	for _, e := range l.tail {
		if e.kind == entrySplit {
			d = e.split.Left
		}
	}
	return d
}

// append appends to the leader's log; revisions rise (I1).
func (s *sim) rangeAppend(l *rangeLeader, e rangeEntry) {
	h := l.highest()
	switch e.kind {
	case entryWrite, entryTxn:
		if e.rev <= h {
			s.failf("I1: r%d: revision %d after %d in the log of term %d", l.x.id, e.rev, h, l.term)
		}
	case entryResolve, entrySplit:
		if e.rev < h {
			s.failf("I1: r%d: resolve %d after %d in the log of term %d", l.x.id, e.rev, h, l.term)
		}
	}
	e.term = l.term
	l.tail = append(l.tail, e)
}

// rangeStep lets one thing happen at ranges and clients.
func (s *sim) rangeStep() {
	x := s.ranges[pick(s, s.order)]
	switch p := s.rng.IntN(320); {
	case p < 4:
		s.forget(x)
	case p < 100:
		s.write(x)
	case p < 155:
		s.commitRange(x)
	case p < 225:
		if n := pick(s, s.nodes); n != s.slow || s.one(20) {
			s.applyRange(x, n)
		}
	case p < 240:
		s.query(pick(s, s.nodes))
	case p < 255:
		s.serve()
	case p < 265:
		s.beginTxn(pick(s, s.nodes))
	case p < 268:
		s.abortLatch(x)
	case p < 281:
		if len(s.order) < 9 {
			n := pick(s, s.nodes)
			n.c.Split([]byte{byte('a' + s.rng.IntN(26))}, func(*placementpb.SplitResult, error) {})
		}
	case p < 285:
		s.deactivate(x)
	case p < 288:
		n := pick(s, s.nodes)
		n.c.Compact(s.rng.Int64N(s.acked+3), func(*placementpb.CompactResult, error) {})
	case p < 292: // something waits too long, or was dropped: a leader registers again
		if l := x.true; l != nil && (!l.registered || len(l.queue) == 0 || s.one(2)) {
			s.register(l)
		}
	}
}

// electRange makes the node the leader of the range in a new term. survivors
// entries of the old leader's tail are in its log.
func (s *sim) electRange(x *simRange, n *simNode, survivors int) {
	if s.replica(x, n) == nil {
		return
	}
	l := &rangeLeader{x: x, n: n, base: len(x.log), nextSeq: 1}
	if old := x.true; old != nil {
		l.tail = slices.Clone(old.tail[:min(survivors, len(old.tail))])
		for i := range l.tail {
			l.tail[i].done = nil // its fate is unknown to whoever waits
		}
	}
	// A node does not lead twice.
	x.leaders = slices.DeleteFunc(x.leaders, func(o *rangeLeader) bool { return o.n == n })
	x.term++
	l.term = x.term
	x.true = l
	x.leaders = append(x.leaders, l)
	s.rangeAppend(l, rangeEntry{rev: 0, kind: entryEmpty})
	s.register(l)
}

// forget makes a deposed leader of the range learn of it.
func (s *sim) forget(x *simRange) {
	for i, l := range x.leaders {
		if l != x.true {
			x.leaders = slices.Delete(x.leaders, i, i+1)
			return
		}
	}
}

// register asks S to open the range (R3).
func (s *sim) register(l *rangeLeader) {
	epoch, session, ok := l.n.c.Session()
	if !ok {
		return
	}
	if epoch != l.epoch {
		l.latch = nil // a registration in a later epoch releases latches
	}
	if session != l.session {
		l.outstanding = 0
	}
	l.outstanding++
	l.epoch, l.session, l.registered, l.deactivating = epoch, session, false, false
	l.queue, l.asked, l.firstSeq = nil, 0, l.nextSeq
	l.n.c.Send(&placementpb.ToSequencer{Session: session, Body: &placementpb.ToSequencer_Register{
		Register: &placementpb.Register{RangeId: l.x.id, Epoch: l.desc().Epoch, Term: l.term}}})
}

func (n *simNode) newSession(epoch, session uint64) {
	n.epoch, n.session = epoch, session
	for _, id := range n.s.order {
		for _, l := range n.s.ranges[id].leaders {
			if l.n == n {
				n.s.register(l)
			}
		}
	}
}

// fromSequencer is a range's ear.
func (n *simNode) fromSequencer(id uint64, m *placementpb.FromSequencer) {
	s := n.s
	x := s.ranges[id]
	if x == nil {
		return
	}
	if m.GetWake() != nil {
		switch l := x.true; {
		case l == nil || s.one(8):
			s.electRange(x, n, 4)
		case l.n == n && !l.registered:
			s.register(l)
		}
		return
	}
	var l *rangeLeader
	for _, o := range x.leaders {
		if o.n == n {
			l = o
		}
	}
	if l == nil || l.epoch != m.Epoch || l.session != m.Session {
		return
	}
	switch b := m.Body.(type) {
	case *placementpb.FromSequencer_Registered:
		g := b.Registered
		if g.Term != l.term {
			return
		}
		l.outstanding--
		if g.Refused {
			if l == x.true {
				s.electRange(x, n, len(l.tail))
			}
			return
		}
		s.registered(l, g)
	case *placementpb.FromSequencer_Grant:
		if b.Grant.Term == l.term {
			s.granted(l, b.Grant)
		}
	case *placementpb.FromSequencer_Decided:
		if !l.registered {
			return
		}
		s.takeDecided(l, b.Decided)
	case *placementpb.FromSequencer_Unlatch:
		if l.latch != nil && proto.Equal(l.latch, b.Unlatch.Owner) {
			l.latch = nil
		}
	case *placementpb.FromSequencer_Deactivated:
		if b.Deactivated.Term != l.term {
			return
		}
		l.deactivating = false
		if !b.Deactivated.Refused {
			s.counts.sleeps++
			x.leaders = slices.DeleteFunc(x.leaders, func(o *rangeLeader) bool { return o == l })
			if x.true == l {
				if len(l.tail) > 0 {
					s.failf("R10: r%d sleeps with %d entries not committed", x.id, len(l.tail))
				}
				x.true = nil
			}
		}
	}
}

// registered takes S's answer (R3 c): decided entries that the log lacks, then
// Resolve(r0).
func (s *sim) registered(l *rangeLeader, g *placementpb.Registered) {
	for _, d := range g.Decided {
		s.counts.handed++
		s.takeDecided(l, d)
	}
	if !slices.Contains(l.x.leaders, l) {
		return // it found that it was deposed
	}
	if l.highest() > g.R0 && l.epoch == s.term {
		s.failf("R3: r%d: r0=%d, the log of term %d has %d", l.x.id, g.R0, l.term, l.highest())
	}
	if l.dropped > g.R0 {
		s.failf("R3: r%d: r0=%d, but %d was granted before", l.x.id, g.R0, l.dropped)
	}
	l.registered, l.r0 = true, g.R0
	// A deposed S may know less than the log has.
	s.rangeAppend(l, rangeEntry{rev: max(g.R0, l.highest()), kind: entryResolve})
	l.barrier = l.end()
}

// takeDecided appends a decided entry unless the log has it, and sees that it
// is reported when it is committed.
func (s *sim) takeDecided(l *rangeLeader, d *placementpb.Decided) {
	report := func() {
		if s.one(5) && !s.healed {
			return // it comes with the next registration
		}
		l.n.c.Send(&placementpb.ToSequencer{Body: &placementpb.ToSequencer_Report{
			Report: &placementpb.Report{RangeId: l.x.id, MetaIndex: d.MetaIndex}}})
	}
	for _, e := range l.x.log[:l.base] {
		if e.index == d.MetaIndex {
			report()
			return
		}
	}
	for i := range l.tail {
		if l.tail[i].index == d.MetaIndex {
			l.tail[i].done = report
			return
		}
	}
	e := rangeEntry{rev: d.Revision, index: d.MetaIndex, done: report}
	if sp := d.GetSplit(); sp != nil {
		if sp.Left.Epoch != l.desc().Epoch+1 && l != l.x.true {
			// A deposed leader may lack an earlier one, which the true leader has
			// reported: it must see that it is behind, and stop.
			l.x.leaders = slices.DeleteFunc(l.x.leaders, func(o *rangeLeader) bool { return o == l })
			l.registered = false
			return
		}
		if sp.Left.Epoch != l.desc().Epoch+1 {
			s.failf("R11: r%d has epoch %d and is told to split to %d", l.x.id, l.desc().Epoch, sp.Left.Epoch)
		}
		e.kind, e.split = entrySplit, sp
		l.latch = nil
		l.queue = l.queue[:l.asked]
	} else {
		e.kind, e.key = entryTxn, d.GetTxn().Effects[0]
		if l.latch != nil && proto.Equal(l.latch, d.GetTxn().Owner) {
			l.latch = nil
		}
	}
	s.rangeAppend(l, e)
}

// granted uses the revisions of a grant in queue order (R4).
func (s *sim) granted(l *rangeLeader, g *placementpb.Grant) {
	last := g.First + int64(g.Count) - 1
	switch {
	case !l.registered:
		if !g.Refused {
			l.dropped = max(l.dropped, last)
		}
		return
	case g.Seq < l.firstSeq:
		// Asked before the leader registered again: nobody wants it any more.
		if !g.Refused && last > l.r0 {
			s.counts.late++
			s.rangeAppend(l, rangeEntry{rev: last, kind: entryResolve})
		}
		return
	}
	for i := range uint64(g.Count) {
		if len(l.queue) == 0 || l.queue[0].seq != g.Seq+i {
			s.failf("R4: r%d: grant for seq %d, the queue is %v", l.x.id, g.Seq+i, l.queue)
		}
		w := l.queue[0]
		l.queue = l.queue[1:]
		l.asked--
		if g.Refused {
			continue
		}
		rev := g.First + int64(i)
		if g.First < w.sent {
			s.failf("I3: r%d: a write sent after %d was acknowledged gets %d", l.x.id, w.sent, rev)
		}
		if !within(l.desc(), w.key) || s.one(10) {
			s.rangeAppend(l, rangeEntry{rev: rev, kind: entryResolve})
			continue
		}
		s.counts.writes++
		s.rangeAppend(l, rangeEntry{rev: rev, key: w.key, kind: entryWrite, done: func() {
			s.acked = max(s.acked, rev)
		}})
	}
}

// write puts a write into a leader's queue, or asks for grants.
func (s *sim) write(x *simRange) {
	if len(x.leaders) == 0 {
		if s.one(6) {
			s.electRange(x, pick(s, s.nodes), 4)
		}
		return
	}
	l := pick(s, x.leaders)
	if !l.registered || l.latch != nil || l.deactivating {
		return
	}
	if s.one(3) && l.asked < len(l.queue) {
		d := l.desc()
		first := l.queue[l.asked].seq
		count := len(l.queue) - l.asked
		l.asked = len(l.queue)
		l.n.c.Send(&placementpb.ToSequencer{Session: l.session, Body: &placementpb.ToSequencer_Grant{
			Grant: &placementpb.GrantRequest{RangeId: x.id, Epoch: d.Epoch, Term: l.term, Seq: first, Count: uint32(count)}}})
		return
	}
	if key, ok := s.key(l.desc()); ok {
		l.queue = append(l.queue, simWrite{l.nextSeq, key, s.acked})
		l.nextSeq++
	}
}

// commitRange commits more of the true leader's log: its old terms' entries
// only along with one of its own term.
func (s *sim) commitRange(x *simRange) {
	l := x.true
	if l == nil || len(l.tail) == 0 {
		return
	}
	n := 1 + s.rng.IntN(len(l.tail))
	for n <= len(l.tail) && l.tail[n-1].term != l.term {
		n++
	}
	committed := slices.Clone(l.tail[:n])
	x.log = append(x.log, committed...)
	l.tail = slices.Delete(l.tail, 0, n)
	l.base += n
	for _, e := range committed {
		if e.done != nil {
			e.done()
		}
		if e.kind == entrySplit {
			s.counts.splits++
			s.addRange(e.split.Right, e.rev)
		}
	}
}

// replica is what the node has of the range; nil while it has not applied the
// split that begins it.
func (s *sim) replica(x *simRange, n *simNode) *rangeReplica {
	if x.replicas[n.id] == nil && x.id <= 3 {
		x.replicas[n.id] = &rangeReplica{resolved: x.begin, desc: x.first}
	}
	return x.replicas[n.id]
}

// applyRange applies the next committed entry of the range on the node.
func (s *sim) applyRange(x *simRange, n *simNode) {
	r := s.replica(x, n)
	if r == nil || r.applied == len(x.log) {
		return
	}
	e := x.log[r.applied]
	r.applied++
	if e.rev > r.resolved {
		r.resolved = e.rev
	}
	switch e.kind {
	case entryWrite, entryTxn:
		if !within(r.desc, e.key) {
			s.failf("r%d: key %c written outside of %v", x.id, e.key, r.desc)
		}
		n.data = append(n.data, version{e.key, e.rev})
	case entrySplit:
		r.desc = e.split.Left
		y := s.ranges[e.split.Right.RangeId]
		y.replicas[n.id] = &rangeReplica{resolved: e.rev, desc: y.first}
	}
}

// query asks for R and m of a random part of the directory (R5).
func (s *sim) query(n *simNode) {
	if n.old == nil || s.one(100) {
		n.old = n.directory()
	}
	ds := n.directory()
	if s.one(3) {
		ds = n.old
	}
	if len(ds) == 0 {
		return
	}
	i := s.rng.IntN(len(ds))
	ds = ds[i : i+1+s.rng.IntN(len(ds)-i)]
	var ranges []*placementpb.RangeEpoch
	for _, d := range ds {
		ranges = append(ranges, &placementpb.RangeEpoch{RangeId: d.RangeId, Epoch: d.Epoch})
	}
	acked := s.acked
	n.c.Query(ranges, func(a *placementpb.QueryAnswer, err error) {
		if err != nil || a.Refused {
			return
		}
		if a.Revision < acked {
			s.failf("I3: a query sent after %d was acknowledged is answered R=%d", acked, a.Revision)
		}
		read := &simRead{rev: a.Revision}
		for i, d := range ds {
			read.parts = append(read.parts, readPart{want: d, m: a.Marks[i]})
		}
		s.waiting = append(s.waiting, read)
	})
}

// serve lets replicas serve what they can.
func (s *sim) serve() {
	s.waiting = slices.DeleteFunc(s.waiting, func(r *simRead) bool {
		for i := range r.parts {
			p := &r.parts[i]
			n := pick(s, s.nodes)
			var rep *rangeReplica
			if x := s.ranges[p.want.RangeId]; x != nil { // else its split is not in the log yet
				rep = x.replicas[n.id]
			}
			if p.found || rep == nil || rep.desc.Epoch < p.want.Epoch || rep.resolved < min(r.rev, p.m) {
				continue
			}
			if rep.desc.Epoch > p.want.Epoch {
				// Its span does not cover the piece: the read starts again.
				return true
			}
			got := servedRead{rev: r.rev, desc: p.want}
			for _, v := range n.data {
				if within(p.want, v.key) && v.rev <= r.rev {
					got.saw = append(got.saw, v)
				}
			}
			s.reads = append(s.reads, got)
			s.counts.reads++
			p.found = true
		}
		return !slices.ContainsFunc(r.parts, func(p readPart) bool { return !p.found })
	})
}

// beginTxn takes latches at two or three leaders and sends the transaction.
func (s *sim) beginTxn(n *simNode) {
	if _, _, ok := n.c.Session(); !ok {
		return
	}
	// A coordinator that waits for nothing: it sends what it has latched.
	for i, t := range s.latched {
		if t.owner.NodeId == n.id {
			s.latched = slices.Delete(s.latched, i, i+1)
			if s.one(8) {
				return // it died
			}
			s.commitTxn(n, t)
			return
		}
	}
	t := &simTxn{owner: n.c.NewOwner(), read: map[uint64]int64{}}
	for _, id := range s.order {
		x := s.ranges[id]
		if len(x.leaders) == 0 || s.one(3) {
			continue
		}
		l := pick(s, x.leaders)
		// Resolve(r0) applied, nothing queued or uncommitted.
		if !l.registered || l.latch != nil || l.deactivating || len(l.queue) > 0 || len(l.tail) > 0 || l.base < l.barrier {
			continue
		}
		d := l.desc()
		p := &placementpb.Participant{RangeId: id, Epoch: d.Epoch, Term: l.term, Session: l.session}
		if key, ok := s.key(d); ok && !s.one(3) {
			p.Effects = []byte{key}
		}
		t.read[id] = l.highest()
		l.latch = t.owner
		t.held = append(t.held, l)
		t.parts = append(t.parts, p)
		if len(t.parts) == 3 {
			break
		}
	}
	if len(t.parts) > 0 {
		s.latched = append(s.latched, t)
	}
}

func (s *sim) commitTxn(n *simNode, t *simTxn) {
	n.c.Commit(&placementpb.TxnCommit{Owner: t.owner, Participants: t.parts}, func(r *placementpb.TxnResult, err error) {
		if err != nil {
			return
		}
		if r.Refused {
			t.over = true
			return
		}
		s.acked = max(s.acked, r.Revision)
	})
	s.txns[-int64(len(s.txns))-1] = t
}

// accepted is called when the true S proposes: every leader that gave a latch
// and still is one holds it (I8).
func (s *sim) accepted(cmd *placementpb.MetaCommand) {
	txn := cmd.GetTransaction()
	if txn == nil {
		return
	}
	for _, t := range s.txns {
		if !proto.Equal(t.owner, txn.Owner) {
			continue
		}
		if t.over {
			s.failf("R7: transaction %v was refused and is proposed", txn)
		}
		for i, l := range t.held {
			still := l.x.true == l && l.term == t.parts[i].Term
			if still && !proto.Equal(l.latch, t.owner) {
				s.failf("I8: S accepts %v, but r%d of term %d does not hold its latch", txn, l.x.id, l.term)
			}
			if l.x.true != l {
				s.counts.racing++
			}
		}
	}
}

// decided notes that a coordinator is told so.
func (s *sim) decided(r *placementpb.TxnResult) {
	for _, e := range s.log {
		if txn := e.cmd.GetTransaction(); txn != nil && e.cmd.Epoch == e.term && proto.Equal(txn.Owner, r.Owner) {
			if txn.Revision != r.Revision {
				s.failf("R7: coordinator is told %d, decided was %d", r.Revision, txn.Revision)
			}
			return
		}
	}
	s.failf("I6: coordinator of %v is told so before the meta log is", r)
}

// abortLatch lets a leader ask S to abort the owner of its latch.
func (s *sim) abortLatch(x *simRange) {
	for _, l := range x.leaders {
		if l.latch != nil {
			s.counts.aborts++
			l.n.c.Send(&placementpb.ToSequencer{Session: l.session, Body: &placementpb.ToSequencer_TxnAbort{
				TxnAbort: &placementpb.TxnAbort{Owner: l.latch, RangeId: x.id}}})
		}
	}
}

// deactivate asks S to put the range to sleep when its leader has nothing to do
// and all replicas have applied everything (R10).
func (s *sim) deactivate(x *simRange) {
	l := x.true
	if l == nil || !l.registered || l.outstanding > 0 || l.deactivating || l.latch != nil || len(l.tail) > 0 {
		return
	}
	if len(l.queue) > 0 && s.rng.IntN(3) > 0 {
		return // it should not ask; S must see it (last(X) is another)
	}
	for _, n := range s.nodes {
		for s.replica(x, n) != nil && s.replica(x, n).applied < len(x.log) {
			s.applyRange(x, n)
		}
		if s.replica(x, n) == nil {
			return
		}
	}
	l.deactivating = true
	l.n.c.Send(&placementpb.ToSequencer{Session: l.session, Body: &placementpb.ToSequencer_Deactivate{
		Deactivate: &placementpb.Deactivate{RangeId: x.id, Term: l.term, Resolved: x.replicas[l.n.id].resolved}}})
}

// heal stops all faults and checks that everything moves on, and that the whole
// history has one explanation.
func (s *sim) heal() {
	// A session that no coordinator uses any more ends the owners it had.
	s.latched, s.slow, s.healed = nil, nil, true
	for _, v := range s.voters {
		if v != s.leader {
			v.seq.StepDown()
			v.rounds = nil
		}
	}
	for _, n := range s.nodes {
		s.connect(n, s.leader)
	}
	for round := range 60 {
		for _, id := range s.order {
			x := s.ranges[id]
			for len(x.leaders) > 1 || len(x.leaders) == 1 && x.leaders[0] != x.true {
				s.forget(x)
			}
		}
		for range 400 {
			for len(s.leader.pending) > 0 {
				s.commit()
			}
			s.applyAll()
			for i := range s.leader.rounds {
				s.leader.rounds[i].acked = true
			}
			s.confirm()
			s.deliver()
		}
		s.leader.seq.Tick()
		s.ready(s.leader)
		s.leader.seq.Cut()
		s.ready(s.leader)
		for _, id := range slices.Clone(s.order) {
			x := s.ranges[id]
			if round > 2 {
				s.abortLatch(x)
			}
			s.commitRange(x)
			for _, n := range s.nodes {
				s.applyRange(x, n)
			}
			// A reader that waits too long nudges the range: a leader registers
			// again, a group without one elects.
			if round == 5 && x.true != nil && len(x.true.queue) == 0 {
				s.register(x.true) // reports that were lost
			}
			if round%15 == 10 && slices.ContainsFunc(s.waiting, func(r *simRead) bool {
				return slices.ContainsFunc(r.parts, func(p readPart) bool { return p.want.RangeId == id && !p.found })
			}) {
				if l := x.true; l == nil {
					s.electRange(x, pick(s, s.nodes), 4)
				} else if len(l.queue) == 0 {
					s.register(l)
				}
			}
		}
		for range 20 {
			for _, id := range slices.Clone(s.order) {
				s.commitRange(s.ranges[id])
				for _, n := range s.nodes {
					s.applyRange(s.ranges[id], n)
				}
			}
		}
		s.serve()
	}
	s.settled()
}

// settled checks the end.
func (s *sim) settled() {
	st := s.leader.seq.Stats()
	if st.Unreported > 0 || st.Held > 0 || st.Proposed > 0 {
		s.failf("liveness: S did not come to rest: %+v", st)
	}
	if len(s.waiting) > 0 {
		s.failf("liveness: %d reads wait for ever, the first: R=%d %v", len(s.waiting), s.waiting[0].rev, s.waiting[0].parts)
	}
	for _, id := range s.order {
		if l := s.ranges[id].true; l != nil && (l.latch != nil || len(l.tail) > 0) {
			s.failf("liveness: r%d keeps latch %v and %d entries", id, l.latch, len(l.tail))
		}
	}
	for _, v := range s.voters[1:] {
		if a, b := s.voters[0].state, v.state; a.Bound != b.Bound || a.Compacted != b.Compacted || a.Len() != b.Len() {
			s.failf("voters 1 and %d differ", v.id)
		}
	}

	// What was decided in the meta log is in its participants' logs, once, and
	// nothing else is.
	var history []version
	found := map[[2]uint64]int{}
	byRev := map[int64]uint64{}
	for _, id := range s.order {
		highest := int64(math.MinInt64)
		for _, e := range s.ranges[id].log {
			if e.kind == entryEmpty {
				continue
			}
			if e.rev < highest || e.rev == highest && (e.kind == entryWrite || e.kind == entryTxn) {
				s.failf("I1: r%d: %d after %d", id, e.rev, highest)
			}
			highest = e.rev
			if e.index != 0 {
				found[[2]uint64{id, e.index}]++
			}
			switch e.kind {
			case entryWrite:
				history = append(history, version{e.key, e.rev})
				if other, ok := byRev[e.rev]; ok {
					s.failf("I4: revision %d is in r%d and in r%d", e.rev, other, id)
				}
				byRev[e.rev] = id
			case entryTxn:
				history = append(history, version{e.key, e.rev})
			}
		}
	}
	for i, e := range s.log {
		if e.cmd.Epoch != e.term {
			continue
		}
		index := uint64(i + 1)
		if txn := e.cmd.GetTransaction(); txn != nil {
			s.counts.txns++
			if id, ok := byRev[txn.Revision]; ok {
				s.failf("I4: revision %d is a transaction's and in r%d", txn.Revision, id)
			}
			for _, p := range txn.Participants {
				if found[[2]uint64{p.RangeId, index}] != 1 {
					s.failf("R7: transaction at %d is %d times in r%d", txn.Revision, found[[2]uint64{p.RangeId, index}], p.RangeId)
				}
				delete(found, [2]uint64{p.RangeId, index})
			}
			for _, t := range s.txns {
				if !proto.Equal(t.owner, txn.Owner) {
					continue
				}
				for i, p := range t.parts {
					for _, e := range s.ranges[p.RangeId].log {
						if (e.kind == entryWrite || e.kind == entryTxn) && e.rev > t.read[p.RangeId] && e.rev < txn.Revision {
							s.failf("I5: the transaction at %d read r%d at %d, which was written at %d (%v)", txn.Revision, p.RangeId, t.read[p.RangeId], e.rev, t.parts[i])
						}
					}
				}
				if t.over && proto.Equal(t.owner, txn.Owner) {
					s.failf("R7: transaction %v was refused and decided", txn)
				}
			}
		}
		if sp := e.cmd.GetSplit(); sp != nil {
			delete(found, [2]uint64{sp.Left.RangeId, index})
		}
	}
	if len(found) > 0 {
		s.failf("R7: in logs and not decided: %v", found)
	}
	// Every read saw exactly the history up to its revision (I2, I5).
	for _, r := range s.reads {
		var want []version
		for _, v := range history {
			if within(r.desc, v.key) && v.rev <= r.rev {
				want = append(want, v)
			}
		}
		byOrder := func(a, b version) int { return int(a.rev-b.rev)*256 + int(a.key) - int(b.key) }
		slices.SortFunc(want, byOrder)
		slices.SortFunc(r.saw, byOrder)
		if !slices.Equal(want, r.saw) {
			s.failf("I2: a read of %v at %d saw %v, the history has %v", r.desc, r.rev, r.saw, want)
		}
	}
	for rev, by := range s.grantedBy {
		_, used := byRev[rev]
		if !used {
			s.counts.lostGrants++
		}
		_ = by
	}
}
