package replica

import (
	"reflect"
	"testing"

	"github.com/hawser-kv/hawser/mvcc"
)

// evaluatedWrite is a write whose effects attach keys to leases; 0 for none.
func evaluatedWrite(leases ...int64) *request {
	q := newWriteRequest(&Write{Req: &mvcc.Request{}})
	q.result = &mvcc.Result{}
	for _, id := range leases {
		q.result.Effects = append(q.result.Effects, mvcc.Effect{Lease: id})
	}
	return q
}

// TestWritesWithLeasesAskAlone: neighbours without leases share a question, in the order of
// the queue, and nothing is asked twice.
func TestWritesWithLeasesAskAlone(t *testing.T) {
	type question struct {
		seq    uint64
		count  int
		leases []int64
	}
	g := grantQueue{nextSeq: 1}
	ask := func(flush uint64) (got []question) {
		g.ask(flush, func(seq uint64, count int, leases []int64) { got = append(got, question{seq, count, leases}) })
		return got
	}
	for _, q := range []*request{evaluatedWrite(0), evaluatedWrite(0), evaluatedWrite(7, 7, 8), evaluatedWrite(9), evaluatedWrite(0)} {
		g.push(q, 10)
	}
	want := []question{{1, 2, nil}, {3, 1, []int64{7, 8}}, {4, 1, []int64{9}}, {5, 1, nil}}
	if got := ask(1); !reflect.DeepEqual(got, want) {
		t.Errorf("asked %v, want %v", got, want)
	}
	if got := ask(2); got != nil || g.askedIn != 1 {
		t.Errorf("asked again: %v in flush %d", got, g.askedIn)
	}
	g.push(evaluatedWrite(0), 10)
	if got, want := ask(3), []question{{6, 1, nil}}; !reflect.DeepEqual(got, want) || g.askedIn != 3 {
		t.Errorf("asked %v in flush %d, want %v", got, g.askedIn, want)
	}
}

// TestGrantsAreTakenInOrder: a grant is for the first write, or for one that is not in the
// queue any more; what the writes weigh is counted as long as they are in it.
func TestGrantsAreTakenInOrder(t *testing.T) {
	g := grantQueue{nextSeq: 4}
	if q, ok := g.take(3); q != nil || !ok {
		t.Errorf("from an empty queue: %v, %v", q, ok)
	}
	first, second := evaluatedWrite(0), evaluatedWrite(0)
	g.push(first, 1000)
	g.push(second, 50)
	if first.seq != 4 || second.seq != 5 || first.stage != stageAsked || g.charged != first.bytes+second.bytes+1050 {
		t.Fatalf("seqs %d and %d, stage %d, %d bytes", first.seq, second.seq, first.stage, g.charged)
	}
	if q, ok := g.take(3); q != nil || !ok {
		t.Errorf("a seq before the first: %v, %v", q, ok)
	}
	if q, ok := g.take(5); q != nil || ok {
		t.Errorf("a seq behind the first: %v, %v", q, ok)
	}
	if q, ok := g.take(4); q != first || !ok {
		t.Errorf("the first: %v, %v", q, ok)
	}
	if q, ok := g.take(5); q != second || !ok || g.charged != 0 {
		t.Errorf("the second: %v, %v, %d bytes are left", q, ok, g.charged)
	}
}
