package history

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// r is a transaction at a time, with what it read and appended.
func listTxn(call, ret int64, reads map[string][]int, appends map[string]int) *ListTxn {
	return &ListTxn{Call: call, Return: ret, Reads: reads, Appends: appends}
}

func TestCyclesAreFound(t *testing.T) {
	type lists = map[string][]int
	type values = map[string]int
	for _, c := range []struct {
		name string
		txns []*ListTxn
		want string // "" if there is nothing wrong
	}{
		{"one after the other", []*ListTxn{
			listTxn(1, 2, lists{"x": nil}, values{"x": 1}),
			listTxn(3, 4, lists{"x": {1}}, values{"x": 2}),
			listTxn(5, 6, lists{"x": {1, 2}, "y": nil}, nil),
		}, ""},
		{"at the same time", []*ListTxn{
			listTxn(1, 9, lists{"x": nil, "y": nil}, values{"x": 1, "y": 1}),
			listTxn(2, 8, lists{"x": nil}, nil),
			listTxn(3, 7, lists{"x": {1}, "y": {1}}, nil),
		}, ""},
		{"write skew", []*ListTxn{
			listTxn(1, 9, lists{"x": nil, "y": nil}, values{"x": 1}),
			listTxn(2, 8, lists{"x": nil, "y": nil}, values{"y": 1}),
			listTxn(10, 11, lists{"x": {1}, "y": {1}}, nil),
		}, "-rw->"},
		{"fractured read", []*ListTxn{
			listTxn(1, 9, lists{"x": nil, "y": nil}, values{"x": 1, "y": 1}),
			listTxn(2, 8, lists{"x": {1}, "y": nil}, nil),
		}, "-wr->"},
		{"long fork", []*ListTxn{
			listTxn(1, 19, lists{"x": nil}, values{"x": 1}),
			listTxn(2, 18, lists{"y": nil}, values{"y": 1}),
			listTxn(3, 17, lists{"x": {1}, "y": nil}, nil),
			listTxn(4, 16, lists{"x": nil, "y": {1}}, nil),
		}, "-rw->"},
		{"stale read", []*ListTxn{
			listTxn(1, 2, lists{"x": nil}, values{"x": 1}),
			listTxn(3, 4, lists{"x": nil}, nil),
		}, "-rt->"},
		{"lost update", []*ListTxn{
			listTxn(1, 9, lists{"x": nil}, values{"x": 1}),
			listTxn(2, 8, lists{"x": nil}, values{"x": 2}),
			listTxn(10, 11, lists{"x": {1, 2}}, nil),
		}, "no beginning"},
		{"writes in two orders", []*ListTxn{
			listTxn(1, 9, lists{"x": nil, "y": {2}}, values{"x": 1, "y": 1}),
			listTxn(2, 8, lists{"x": {1}, "y": nil}, values{"x": 2, "y": 2}),
		}, "-ww->"},
		{"refused and seen", []*ListTxn{
			{Call: 1, Return: 2, Outcome: Refused, Appends: values{"x": 1}},
			listTxn(3, 4, lists{"x": {1}}, nil),
		}, "refused"},
		{"unknown and seen", []*ListTxn{
			{Call: 1, Return: 2, Outcome: Unknown, Appends: values{"x": 1}},
			listTxn(3, 4, lists{"x": {1}}, nil),
		}, ""},
		{"from nowhere", []*ListTxn{listTxn(3, 4, lists{"x": {1}}, nil)}, "nobody"},
		{"twice", []*ListTxn{
			listTxn(1, 2, lists{"x": nil}, values{"x": 1}),
			listTxn(3, 4, lists{"x": {1, 1}}, nil),
		}, "twice"},
	} {
		t.Run(c.name, func(t *testing.T) {
			errs := CheckAppends(c.txns)
			switch {
			case c.want == "" && len(errs) > 0:
				t.Errorf("got %v, want nothing", errs)
			case c.want != "" && (len(errs) == 0 || !strings.Contains(errs[0].Error(), c.want)):
				t.Errorf("got %v, want something with %q", errs, c.want)
			}
		})
	}
}

// serialAppends makes a history of transactions that take effect one after the
// other, at a moment between call and return.
func serialAppends(rng *rand.Rand, n int) []*ListTxn {
	state := map[string][]int{}
	busy := map[int]int64{} // until when a client is
	var txns []*ListTxn
	for i := range n {
		at := int64(i+1) * 100
		client := rng.IntN(8)
		call := max(at-1-rng.Int64N(500), busy[client]+1)
		if call >= at {
			continue
		}
		x := &ListTxn{Client: client, Call: call, Return: at + rng.Int64N(500), Reads: map[string][]int{}, Appends: map[string]int{}}
		busy[client] = x.Return
		for range 1 + rng.IntN(3) {
			k := string(rune('a' + rng.IntN(16)))
			x.Reads[k] = append([]int(nil), state[k]...)
			if rng.IntN(2) == 0 {
				x.Appends[k] = i
			}
		}
		for k, v := range x.Appends {
			state[k] = append(state[k], v)
		}
		txns = append(txns, x)
	}
	return txns
}

// TestPlantedCycleIsFoundInALongHistory: a history of many transactions has
// nothing wrong, until one read is made to miss what was there.
func TestPlantedCycleIsFoundInALongHistory(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		txns := serialAppends(rng, 2000)
		if errs := CheckAppends(txns); len(errs) > 0 {
			t.Fatalf("seed %d: %v", seed, errs[0])
		}
		if PlantStaleRead(txns, rng) == nil {
			t.Fatalf("seed %d: nothing to plant", seed)
		}
		if errs := CheckAppends(txns); len(errs) == 0 {
			t.Fatalf("seed %d: the planted stale read was not found", seed)
		}
	}
}
