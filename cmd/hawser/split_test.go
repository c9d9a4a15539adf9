package main

import (
	"bytes"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hawser-kv/hawser/proto/adminpb"
)

// The range that holds a key is cut about log2(n) times by n boundaries, in whatever
// order they are given, and never twice in a row but for the first few.
func TestSplitsGoByHalves(t *testing.T) {
	for _, n := range []int{1, 2, 3, 10, 1000, 10_000} {
		var requests []*adminpb.SplitRangeRequest
		for i := range n {
			requests = append(requests, &adminpb.SplitRangeRequest{At: &adminpb.SplitRangeRequest_Key{Key: fmt.Appendf(nil, "%06d", i)}})
		}
		ordered := byHalves(requests)
		if len(ordered) != n {
			t.Fatalf("%d of %d requests", len(ordered), n)
		}
		for _, key := range []string{"", "000000", fmt.Sprintf("%06d", n/3), "z"} {
			cuts := cutsOf([]byte(key), ordered)
			if most := bits.Len(uint(n)); cuts > most {
				t.Errorf("%d boundaries: the range of %q is cut %d times, more than %d", n, key, cuts, most)
			}
		}
		slices.Reverse(requests)
		if !slices.Equal(byHalves(requests), ordered) {
			t.Errorf("%d boundaries: the order given matters", n)
		}
	}
}

// cutsOf counts the splits of the range that holds key at that moment.
func cutsOf(key []byte, ordered []*adminpb.SplitRangeRequest) (cuts int) {
	var start, end []byte
	for _, r := range ordered {
		at := r.GetKey()
		if bytes.Compare(at, start) <= 0 || end != nil && bytes.Compare(at, end) >= 0 {
			continue
		}
		cuts++
		if bytes.Compare(key, at) < 0 {
			end = at
		} else {
			start = at
		}
	}
	return cuts
}

// A key that is given twice is asked for again when all others are done.
func TestAKeyGivenTwiceComesLast(t *testing.T) {
	var requests []*adminpb.SplitRangeRequest
	for _, key := range []string{"a", "c", "a", "b"} {
		requests = append(requests, &adminpb.SplitRangeRequest{At: &adminpb.SplitRangeRequest_Key{Key: []byte(key)}})
	}
	var keys []string
	for _, r := range byHalves(requests) {
		keys = append(keys, string(r.GetKey()))
	}
	if got := strings.Join(keys, " "); got != "b a c a" {
		t.Errorf("order %q", got)
	}
}

// watched says that something was written.
type watched struct {
	bytes.Buffer
	wrote chan struct{}
}

func (w *watched) Write(p []byte) (int, error) {
	defer func() { w.wrote <- struct{}{} }()
	return w.Buffer.Write(p)
}

func TestProgressOfManySplits(t *testing.T) {
	errs := &watched{wrote: make(chan struct{}, 10)}
	a := &app{stderr: errs}
	s := &splits{}
	s.put(&adminpb.SplitRangeRequest{}, &adminpb.SplitRangeResponse{}, nil)
	tick := make(chan time.Time)
	stop := a.tellProgress(s, 3, tick)
	tick <- time.Time{}
	<-errs.wrote
	stop()
	if got := errs.String(); got != "1 of 3 splits are done\n" {
		t.Errorf("progress %q", got)
	}
}
