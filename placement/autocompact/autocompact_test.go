package autocompact

import (
	"testing"
	"time"
)

// TestPeriodicKeepsTheWindow writes one revision a minute: etcd/C5's periodic mode
// compacts every min(window, 1 h) at what was current a window ago.
func TestPeriodicKeepsTheWindow(t *testing.T) {
	for _, c := range []struct {
		window       time.Duration
		interval     time.Duration
		first, every time.Duration
	}{
		{10 * time.Minute, time.Minute, 10 * time.Minute, 10 * time.Minute},
		{5 * time.Hour, 6 * time.Minute, 5 * time.Hour, time.Hour},
	} {
		p := Periodic(c.window)
		if p.Interval() != c.interval {
			t.Fatalf("window %s: interval %s, want %s", c.window, p.Interval(), c.interval)
		}
		start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		var at []time.Duration
		for d := time.Duration(0); d <= 2*c.window; d += c.interval {
			current := int64(d/time.Minute) + 1
			rev := p.Observe(start.Add(d), current)
			if rev == 0 {
				continue
			}
			if want := current - int64(c.window/time.Minute); rev != want {
				t.Fatalf("window %s: at %s compact %d, want %d", c.window, d, rev, want)
			}
			at = append(at, d)
			p.Compacted(start.Add(d), rev)
		}
		if len(at) < 2 || at[0] != c.first || at[1]-at[0] != c.every {
			t.Fatalf("window %s: compacted at %v", c.window, at)
		}
	}
}

func TestPeriodicTriesAgainAfterAFailure(t *testing.T) {
	p := Periodic(10 * time.Minute)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range 10 {
		p.Observe(now.Add(time.Duration(i)*time.Minute), int64(i+1))
	}
	for i := 10; i < 13; i++ {
		if rev := p.Observe(now.Add(time.Duration(i)*time.Minute), int64(i+1)); rev != int64(i-9) {
			t.Fatalf("minute %d: compact %d, want %d", i, rev, i-9)
		}
	}
}

func TestRevisionsKeepsTheNewest(t *testing.T) {
	p := Revisions(100)
	var now time.Time
	for _, c := range []struct{ current, want int64 }{{50, 0}, {100, 0}, {150, 50}, {150, 0}, {300, 200}} {
		got := p.Observe(now, c.current)
		if got != c.want {
			t.Fatalf("at %d: compact %d, want %d", c.current, got, c.want)
		}
		if got > 0 {
			p.Compacted(now, got)
		}
	}
}

func TestNothingNewIsNotCompactedAgain(t *testing.T) {
	p := Periodic(10 * time.Minute)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	n := 0
	for i := range 100 {
		at := now.Add(time.Duration(i) * time.Minute)
		if rev := p.Observe(at, 7); rev != 0 {
			n++
			p.Compacted(at, rev)
		}
	}
	if n != 1 {
		t.Fatalf("compacted %d times at the same revision", n)
	}
}
