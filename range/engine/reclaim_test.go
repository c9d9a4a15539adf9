package engine

import "testing"

func TestReclaimerMergesInProportionAndDoesNotRepeat(t *testing.T) {
	r := NewReclaimer()
	const mib = 1 << 20
	if r.WantsFlush(0, true) {
		t.Error("nothing was removed: a flush is wanted")
	}
	if !r.WantsFlush(7, false) {
		t.Error("the first removal wants no flush")
	}
	r.Flushed(7)
	if r.WantsFlush(7, true) {
		t.Error("what was flushed wants another flush")
	}
	if !r.WantsFlush(8, true) {
		t.Error("room is short: no flush is wanted")
	}
	for i := range flushLooks - 2 {
		if r.WantsFlush(8, false) {
			t.Fatalf("a flush is wanted after %d looks", i+1)
		}
	}
	if !r.WantsFlush(8, false) {
		t.Error("no flush is wanted after all looks")
	}

	for _, c := range []struct {
		garbage, inUse int64
		want           bool
	}{
		{0, 0, false}, {63 * mib, 0, false}, {64 * mib, 0, true}, {64 * mib, 257 * mib, false}, {2000 * mib, 8000 * mib, true}, {1999 * mib, 8000 * mib, false},
	} {
		if got := r.WantsMerge(Size{Garbage: c.garbage, InUse: c.inUse}); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	r.Merged(Size{Garbage: 100 * mib}) // it stayed
	if r.WantsMerge(Size{Garbage: 150 * mib}) {
		t.Error("what the last merge could not free wants another")
	}
	if !r.WantsMerge(Size{Garbage: 164 * mib}) {
		t.Error("new garbage wants no merge")
	}
	if r.WantsMerge(Size{}) || !r.WantsMerge(Size{Garbage: 64 * mib}) {
		t.Error("what stayed is remembered after it went")
	}
}
