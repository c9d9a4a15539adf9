package sequencer

import (
	"slices"
	"strings"
	"testing"

	"github.com/hawser-kv/hawser/proto/placementpb"
)

func raiseCommand(bound int64) *placementpb.MetaCommand {
	return &placementpb.MetaCommand{Command: &placementpb.MetaCommand_RaiseBound{RaiseBound: &placementpb.RaiseBound{Bound: bound}}}
}

func TestProposalsAreSentOnceAndAppliedInOrder(t *testing.T) {
	q := proposals{epoch: 4}
	if q.open() != nil {
		t.Fatal("an entry is open before any is proposed")
	}
	decided := &placementpb.Decided{}
	if n := q.propose(raiseCommand(5), proposal{decided: []*placementpb.Decided{decided}}); n != 1 {
		t.Fatalf("number %d", n)
	}
	if n := q.propose(raiseCommand(6), proposal{}); n != 2 || q.open().command.GetRaiseBound().Bound != 6 {
		t.Fatalf("number %d, open %v", n, q.open())
	}
	sent := q.send(nil)
	if len(sent) != 2 || sent[0].Epoch != 4 || sent[0].GetRaiseBound().Bound != 5 {
		t.Fatalf("sent %v", sent)
	}
	if again := q.send(nil); len(again) != 0 || q.open() != nil {
		t.Fatalf("sent again: %v", again)
	}
	q.propose(raiseCommand(7), proposal{})
	if p := q.applied(33, sent[0]); p.command != sent[0] || decided.MetaIndex != 33 {
		t.Fatalf("applied %v, decided at %d", p.command, decided.MetaIndex)
	}
	wantPanic(t, "proposed was", func() { q.applied(34, &placementpb.MetaCommand{Command: &placementpb.MetaCommand_Compact{}}) })
	q = proposals{epoch: 4}
	q.propose(raiseCommand(7), proposal{})
	wantPanic(t, "never proposed", func() { q.applied(35, raiseCommand(7)) })
}

func wantPanic(t *testing.T, want string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if r, _ := recover().(string); !strings.Contains(r, want) {
			t.Errorf("recovered %q, want %q", r, want)
		}
	}()
	f()
}

func TestWakesAreRepeatedUntilTheRangeOpens(t *testing.T) {
	xs := testLedgers(4)
	w := newWakes(3)
	w.add(xs[2])
	w.tick()
	w.add(xs[1])
	w.add(xs[3])
	var due [][]uint64
	for range 6 {
		due = append(due, w.tick())
		w.remove(xs[3])
	}
	want := [][]uint64{nil, {2}, {1}, nil, {2}, {1}}
	if !slices.EqualFunc(due, want, slices.Equal[[]uint64]) {
		t.Fatalf("due %v, want %v", due, want)
	}
}

func TestSplitsWaitInOrderAndNotForEver(t *testing.T) {
	xs := testLedgers(3)
	q := splitting{after: 2}
	r := make([]*splitRequest, 5)
	for i := range r {
		r[i] = &splitRequest{id: uint64(i)}
	}
	q.add(xs[1], r[0])
	q.add(xs[2], r[1])
	if late := q.tick(); len(late) != 0 {
		t.Fatalf("late at once: %v", late)
	}
	q.add(xs[1], r[2])
	if got := q.take(xs[2]); !slices.Equal(got, r[1:2]) || len(q.take(xs[2])) != 0 {
		t.Fatalf("taken %v", got)
	}
	if late := q.tick(); !slices.Equal(late, r[0:1]) || !slices.Equal(xs[1].splits, r[2:3]) {
		t.Fatalf("late %v, left %v", late, xs[1].splits)
	}
	// What was taken is not late, and its range is listed again with the next.
	q.add(xs[2], r[3])
	if late := q.tick(); !slices.Equal(late, r[2:3]) {
		t.Fatalf("late %v", late)
	}
	if late := q.tick(); !slices.Equal(late, r[3:4]) || len(q.ledgers) != 0 || xs[2].listedSplits {
		t.Fatalf("late %v, listed %v", late, q.ledgers)
	}
}

func TestCompactionsAreJudgedByWhatIsProposed(t *testing.T) {
	const compacted, future = placementpb.RefusalReason_REFUSAL_REASON_COMPACTED, placementpb.RefusalReason_REFUSAL_REASON_FUTURE_REVISION
	c := compaction{committed: 5, proposed: 9, barrier: 12}
	for _, s := range []struct {
		revision int64
		reason   placementpb.RefusalReason
		barrier  uint64
	}{{5, compacted, 0}, {6, compacted, 12}, {9, compacted, 12}, {10, 0, 0}, {20, 0, 0}, {21, future, 0}} {
		if reason, barrier := c.judge(s.revision, 20); reason != s.reason || barrier != s.barrier {
			t.Errorf("compaction at %d: %v with barrier %d", s.revision, reason, barrier)
		}
	}
}
