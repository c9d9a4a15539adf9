package simulation

import (
	"container/heap"
	"time"
)

// clock is virtual time: it moves only when the world lets the next timer fire.
type clock struct {
	now    time.Duration
	timers timers
	seq    int
}

type timer struct {
	at      time.Duration
	seq     int
	f       func()
	stopped bool
}

// after calls f when d has passed, unless stopped.
func (c *clock) after(d time.Duration, f func()) (stop func()) {
	c.seq++
	t := &timer{at: c.now + d, seq: c.seq, f: f}
	heap.Push(&c.timers, t)
	return func() { t.stopped = true }
}

// fire lets the next timer fire and reports whether there was one.
func (c *clock) fire() bool {
	for len(c.timers) > 0 {
		t := heap.Pop(&c.timers).(*timer)
		if t.stopped {
			continue
		}
		c.now = max(c.now, t.at)
		t.f()
		return true
	}
	return false
}

type timers []*timer

func (h timers) Len() int { return len(h) }
func (h timers) Less(i, j int) bool {
	if h[i].at != h[j].at {
		return h[i].at < h[j].at
	}
	return h[i].seq < h[j].seq
}
func (h timers) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *timers) Push(x any)   { *h = append(*h, x.(*timer)) }
func (h *timers) Pop() any {
	old := *h
	t := old[len(old)-1]
	*h = old[:len(old)-1]
	return t
}
