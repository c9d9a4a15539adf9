package replica

import (
	"errors"
	"fmt"
	"reflect"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
)

// stagedWrite is a granted write of a key.
func stagedWrite(t *testing.T, view mvcc.View, key string) *request {
	t.Helper()
	req := &mvcc.Request{Put: &pb.PutRequest{Key: []byte(key), Value: []byte("v")}}
	res, err := mvcc.Evaluate(view, req, mvcc.Env{})
	if err != nil {
		t.Fatal(err)
	}
	q := newWriteRequest(&Write{Epoch: 1, Req: req})
	q.result, q.stage = res, stageGranted
	return q
}

// proposeAll hands over what is staged, as entries of the log.
func proposeAll(t *testing.T, p *proposals) (log []logEntry) {
	t.Helper()
	all, err := p.propose(func(data []byte) error {
		log = append(log, logEntry{p.term, append([]byte(nil), data...)})
		return nil
	}, 1<<30)
	if !all || err != nil {
		t.Fatalf("propose: %v, %v", all, err)
	}
	return log
}

// TestALeaderFindsItsProposalsInAnOutcome: what an outcome says of entries is matched with
// the proposals of the leader and with nobody else's; each write is answered with its
// revision or with the refusal, and what the meta log decided is reported if it is applied.
// A replica that never led has the same outcome.
func TestALeaderFindsItsProposalsInAnOutcome(t *testing.T) {
	a := newAppliedRange(t, rangeOverAll())
	p := newProposals(3, 1<<20)
	p.begin(appliedState{desc: rangeOverAll(), resolved: 1})
	view := p.overlay.Over(a.mvcc.Latest())

	// Three proposals: two writes and a Resolve; a transaction; a write. The second write is
	// outside the span, which a leader never grants.
	one, outside, last := stagedWrite(t, view, "a"), stagedWrite(t, view, "zz"), stagedWrite(t, view, "b")
	p.stage(command{kind: commandWrite, revision: 5}, proposed{request: one})
	p.stage(command{kind: commandWrite, revision: 6}, proposed{request: outside})
	p.stage(command{kind: commandResolve, revision: 7}, proposed{})
	p.close()
	effects := []mvcc.Effect{{Key: []byte("c"), Value: []byte("v"), Version: 1}}
	p.stage(command{kind: commandTxn, revision: 8, metaIndex: 77, effects: mvcc.AppendEffects(nil, effects)}, proposed{decided: &decided{metaIndex: 77, effects: effects}})
	p.close()
	p.stage(command{kind: commandWrite, revision: 9}, proposed{request: last})
	mine := proposeAll(t, &p)
	if len(mine) != 3 || one.stage != stageProposed {
		t.Fatalf("%d entries, the first write is at stage %d", len(mine), one.stage)
	}
	old := logEntry{2, appendWrite(appendEntryHeader(nil, entryHeader{term: 2, epoch: 1, seq: 1}), 4, []mvcc.Effect{{Key: []byte("d"), Value: []byte("v"), Version: 1}})}
	log := append([]logEntry{old, {3, nil}}, mine...)

	// The first of them is applied in one batch with what an earlier leader proposed.
	_, first := a.apply(log, 0, 3, true)
	said, err := p.match(first.entries)
	if err != nil || said.term != 3 || said.finished != 1 || !said.refused || len(said.reports) != 0 || len(said.writes) != 2 {
		t.Fatalf("%+v, %v", said, err)
	}
	if w := said.writes[0]; w.request != one || w.revision != 5 || w.err != nil {
		t.Errorf("the first write: %+v", w)
	}
	if w := said.writes[1]; w.request != outside || !errors.Is(w.err, ErrDropped) || !NotApplied(w.err) {
		t.Errorf("the write outside the span: %+v", w)
	}
	if got := p.unapplied(); !reflect.DeepEqual(got, []*request{last}) {
		t.Errorf("%d writes are proposed and not applied, want the last", len(got))
	}
	before := p.bytes
	p.finish(said.finished, first.state.resolved)
	if p.visibleSeq != 1 || p.bytes >= before || p.inflight.len() != 2 {
		t.Errorf("after the first: visible %d, %d of %d bytes, %d in flight", p.visibleSeq, p.bytes, before, p.inflight.len())
	}

	_, rest := a.apply(log, 3, 2, true)
	said, err = p.match(rest.entries)
	if err != nil || said.finished != 2 || said.refused || !reflect.DeepEqual(said.reports, []uint64{77}) || len(said.writes) != 1 || said.writes[0].revision != 9 {
		t.Errorf("%+v, %v", said, err)
	}
	p.finish(said.finished, rest.state.resolved)
	if !p.none() || p.bytes != 0 {
		t.Errorf("something is left: %d bytes", p.bytes)
	}

	follower := newAppliedRange(t, rangeOverAll())
	var led, followed history
	led.add(&first)
	led.add(&rest)
	_, all := follower.apply(log, 0, len(log), true)
	followed.add(&all)
	if !reflect.DeepEqual(led, followed) {
		t.Errorf("the outcome on a replica that never led:\n%+v\n%+v", followed, led)
	}
}

// TestAnOutcomeOfOthersAnswersNobody: entries of another term, or of a leadership that
// has nothing in flight, concern no proposal.
func TestAnOutcomeOfOthersAnswersNobody(t *testing.T) {
	p := newProposals(3, 1<<20)
	p.begin(appliedState{desc: rangeOverAll(), resolved: 1})
	p.stage(command{kind: commandResolve, revision: 2}, proposed{})
	for _, e := range []appliedEntry{{term: 2, seq: 1, commands: 1}, {term: 3, seq: 1, commands: 1}} {
		if said, err := p.match([]appliedEntry{e}); err != nil || said.finished != 0 || said.term != 0 {
			t.Errorf("%+v: %+v, %v", e, said, err)
		}
	}
	proposeAll(t, &p)
	if _, err := p.match([]appliedEntry{{term: 3, seq: 1, commands: 2}}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("an entry with another number of commands: %v, want %v", err, ErrCorrupt)
	}
}

// TestARefusedEntryRefusesAllItsWrites: also those are answered whose commands nobody
// looked at.
func TestARefusedEntryRefusesAllItsWrites(t *testing.T) {
	a := newAppliedRange(t, rangeOverAll())
	p := newProposals(3, 1<<20)
	p.begin(appliedState{desc: rangeOverAll(), resolved: 1})
	for i := range 3 {
		p.stage(command{kind: commandWrite, revision: int64(2 + i)}, proposed{request: stagedWrite(t, a.mvcc.Latest(), fmt.Sprint("k", i))})
	}
	proposeAll(t, &p)
	said, err := p.match([]appliedEntry{{term: 3, seq: 1, refusedWhole: "another epoch"}})
	if err != nil || !said.refused || len(said.writes) != 3 {
		t.Fatalf("%+v, %v", said, err)
	}
	for _, w := range said.writes {
		if !errors.Is(w.err, ErrDropped) {
			t.Errorf("%v, want %v", w.err, ErrDropped)
		}
	}
}

// TestWhatIsDroppedNoLongerCounts: the log is then as the visible state and what is in
// flight leave it, the descriptor too.
func TestWhatIsDroppedNoLongerCounts(t *testing.T) {
	a := newAppliedRange(t, rangeOverAll())
	p := newProposals(3, 1<<20)
	visible := appliedState{desc: rangeOverAll(), resolved: 1}
	p.begin(visible)
	if got := p.drop(visible); len(got) != 0 {
		t.Errorf("%d writes of none are dropped", len(got))
	}
	view := func() mvcc.View { return p.overlay.Over(a.mvcc.Latest()) }
	p.stage(command{kind: commandWrite, revision: 2}, proposed{request: stagedWrite(t, view(), "a")})
	proposeAll(t, &p)
	inFlight := p.bytes
	staged := stagedWrite(t, view(), "b")
	p.stage(command{kind: commandWrite, revision: 3}, proposed{request: staged})
	left, right := rangeOverAll(), rangeOverAll()
	left.Epoch, left.End, right.RangeId, right.Start = 2, []byte("c"), 2, []byte("c")
	p.stage(command{kind: commandSplit, revision: 3, split: &placementpb.DecidedSplit{Key: left.End, Left: left, Right: right}}, proposed{decided: &decided{left: left}})
	if p.desc.Epoch != 2 || p.revision != 3 {
		t.Fatalf("staged: epoch %d, revision %d", p.desc.Epoch, p.revision)
	}
	if got := p.drop(visible); len(got) != 1 || got[0] != staged {
		t.Errorf("dropped: %v", got)
	}
	if p.desc.Epoch != 1 || p.revision != 2 || p.bytes != inFlight || p.staged() {
		t.Errorf("left: epoch %d, revision %d, %d bytes, want %d", p.desc.Epoch, p.revision, p.bytes, inFlight)
	}
	for key, want := range map[string]bool{"a": true, "b": false} {
		if kv, err := view().Get([]byte(key)); err != nil || (kv != nil) != want {
			t.Errorf("%s: %v, %v, want %v", key, kv, err, want)
		}
	}
}
