package materialiser

import (
	"errors"
	"math"
	"sync"
	"testing"
	"time"
)

// store has the numbers of keys that deletions at revisions have left.
type store struct {
	mu    sync.Mutex
	revs  []int64
	left  []int
	err   error
	steps int
}

func (s *store) Pending() (n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.left {
		n += int64(l)
	}
	return n
}

func (s *store) PendingFrom() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.revs) == 0 {
		return math.MaxInt64
	}
	return s.revs[0]
}

func (s *store) MaterialiseStep(maxKeys int) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.steps++; s.err != nil {
		return false, s.err
	}
	if len(s.left) > 0 {
		if s.left[0] -= maxKeys; s.left[0] <= 0 {
			s.revs, s.left = s.revs[1:], s.left[1:]
		}
	}
	return len(s.left) == 0, nil
}

// Everything that is pending is written out, and who waits hears of each deletion.
func TestAllIsWrittenOut(t *testing.T) {
	s := &store{revs: []int64{5, 9}, left: []int{25, 3}}
	finished := make(chan struct{}, 10)
	m := New(Config{Store: s, StepKeys: 10, Finished: func() { finished <- struct{}{} }})
	m.Start(func(err error) { t.Error(err) })
	<-finished
	<-finished
	if n := s.Pending(); n != 0 {
		t.Errorf("%d keys are left", n)
	}
	s.mu.Lock()
	s.revs, s.left = []int64{12}, []int{1}
	s.mu.Unlock()
	m.Kick()
	<-finished
	m.Stop()
	if s.steps != 5 {
		t.Errorf("%d steps", s.steps)
	}
}

// A fault of the engine ends the work: nothing is tried again.
func TestAFaultEndsIt(t *testing.T) {
	fault := errors.New("the disk is gone")
	s := &store{revs: []int64{5}, left: []int{25}, err: fault}
	m := New(Config{Store: s})
	failed := make(chan error, 1)
	m.Start(func(err error) { failed <- err })
	if err := <-failed; !errors.Is(err, fault) {
		t.Errorf("failed with %v", err)
	}
	m.Stop()
	if more, err := m.Step(); more || err != nil || s.steps != 1 {
		t.Errorf("a step after the fault: %v, %v, %d steps", more, err, s.steps)
	}
}

// While somebody waits the pauses are short; else the others have half of a core at
// least.
func TestPauses(t *testing.T) {
	awaited := false
	m := New(Config{Store: &store{}, Pause: 4 * time.Millisecond, Awaited: func() bool { return awaited }})
	for _, c := range []struct {
		awaited    bool
		took, want time.Duration
	}{
		{false, time.Millisecond, 4 * time.Millisecond},
		{false, 8 * time.Millisecond, 8 * time.Millisecond},
		{true, 8 * time.Millisecond, 2 * time.Millisecond},
	} {
		awaited = c.awaited
		if got := m.pause(c.took); got != c.want {
			t.Errorf("awaited %t: a pause of %s after %s, want %s", c.awaited, got, c.took, c.want)
		}
	}
	if got := New(Config{Store: &store{}, Pause: -1}).pause(time.Second); got != 0 {
		t.Errorf("a pause of %s where none is wanted", got)
	}
}
