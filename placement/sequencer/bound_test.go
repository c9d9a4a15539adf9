package sequencer

import (
	"math/rand/v2"
	"strings"
	"testing"
)

func testBound(minStep, maxStep int64) *bound {
	b := newBound(&Config{MinBoundStep: minStep, MaxBoundStep: maxStep})
	return &b
}

func TestBoundIsRaisedWhenHalfAStepIsLeft(t *testing.T) {
	b := testBound(8, 64)
	b.load(100)
	if b.revision() != 100 || b.covers(1) {
		t.Fatalf("a loaded bound covers revisions of another S: %+v", b)
	}
	if raise := b.raise(1); raise != 108 {
		t.Fatalf("first raise to %d", raise)
	}
	if b.covers(1) {
		t.Fatal("a bound that is only proposed covers revisions")
	}
	b.commit(108)
	for want := int64(101); want <= 104; want++ {
		if first, raise := b.assign(1); first != want || raise != 0 {
			t.Fatalf("assigned %d, raise %d, want %d and none", first, raise, want)
		}
	}
	if first, raise := b.assign(1); first != 105 || raise != 113 {
		t.Fatalf("assigned %d, raise %d: three of eight are left", first, raise)
	}
	if _, raise := b.assign(2); raise != 0 {
		t.Fatalf("raised to %d while a raise is proposed", raise)
	}
	if !b.covers(1) || b.covers(2) {
		t.Fatalf("one is left: %+v", b)
	}
}

func TestExhaustedBoundGrowsItsStep(t *testing.T) {
	b := testBound(8, 64)
	b.load(1)
	if raise := b.exhausted(3); raise != 33 {
		t.Errorf("raise to %d, want four steps above 1", raise)
	}
	if raise := b.exhausted(3); raise != 0 || b.step != 32 {
		t.Errorf("raise to %d, step %d: one that will do is proposed", raise, b.step)
	}
	if raise := b.exhausted(50); raise != 51 {
		t.Errorf("raise to %d: at least what was asked for", raise)
	}
	b.commit(51)
	if raise := b.exhausted(1000); raise != 1001 || b.step != 64 {
		t.Errorf("raise to %d, step %d, want at most MaxBoundStep", raise, b.step)
	}
}

func TestStepFollowsTheRate(t *testing.T) {
	b := testBound(8, 1000)
	b.load(0)
	b.commit(10000)
	b.proposed = 10000
	b.assign(600)
	for _, want := range []int64{300, 262, 229} {
		if b.tick(); b.step != want {
			t.Fatalf("step %d, want %d", b.step, want)
		}
	}
	for range 100 {
		b.tick()
	}
	if b.step != 8 {
		t.Fatalf("step %d after rest", b.step)
	}
}

func TestHandOverLeavesNoGap(t *testing.T) {
	b := testBound(8, 64)
	b.load(10)
	b.commit(b.raise(1))
	b.assign(2)
	last := b.handOver()
	b.commit(last)
	next := testBound(8, 64)
	next.load(last)
	next.commit(next.raise(1))
	if first, _ := next.assign(1); first != 13 {
		t.Fatalf("the next S begins at %d after 12", first)
	}
}

// Random use over many S: no revision is handed out twice, none above the
// committed bound, and a crash leaves a gap of one and a half steps at most.
func TestBoundHandsOutNothingTwice(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		durable, last := int64(1), int64(1)
		for range 30 {
			b := testBound(8, 64)
			b.load(durable)
			var proposed []int64
			propose := func(raise int64) {
				if raise != 0 {
					proposed = append(proposed, raise)
				}
			}
			propose(b.raise(1))
			for range 60 {
				count := 1 + rng.Int64N(12)
				switch {
				case rng.IntN(3) == 0 && len(proposed) > 0:
					if proposed[0] <= durable {
						t.Fatalf("seed %d: raise from %d to %d", seed, durable, proposed[0])
					}
					durable, proposed = proposed[0], proposed[1:]
					b.commit(durable)
				case !b.covers(count):
					propose(b.exhausted(count))
				default:
					first, raise := b.assign(count)
					if first <= last || first+count-1 > durable {
						t.Fatalf("seed %d: %d revisions from %d after %d, bound %d", seed, count, first, last, durable)
					}
					last = first + count - 1
					propose(raise)
				}
			}
			if gap := durable - last; gap > 64+32+12 {
				t.Fatalf("seed %d: a crash leaves a gap of %d", seed, gap)
			}
		}
	}
}

func TestAssignBeyondTheBoundPanics(t *testing.T) {
	defer func() {
		if r, _ := recover().(string); !strings.Contains(r, "beyond the bound") {
			t.Fatalf("recovered %q", r)
		}
	}()
	b := testBound(8, 64)
	b.load(5)
	b.assign(1)
}
