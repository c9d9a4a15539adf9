package materialiser

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/hawser-kv/hawser/mvcc"
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

func (s *store) MaterialiseStep(maxKeys int) (did mvcc.Materialised, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.steps++; s.err != nil {
		return did, s.err
	}
	if len(s.left) > 0 {
		if s.left[0] -= maxKeys; s.left[0] <= 0 {
			did.Revision = s.revs[0]
			s.revs, s.left = s.revs[1:], s.left[1:]
		}
	}
	did.Done = len(s.left) == 0
	return did, nil
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

// Damage of one deletion, which is left out then, is no fault: the others are written
// out.
func TestDamageOfOneDeletionEndsNothing(t *testing.T) {
	damage := errors.New("damaged")
	s := &store{revs: []int64{5, 9}, left: []int{25, 3}, err: damage}
	finished := make(chan struct{}, 1)
	m := New(Config{
		Store: s, StepKeys: 10,
		Finished: func() { finished <- struct{}{} },
		Damaged: func(err error) bool {
			if !errors.Is(err, damage) {
				t.Errorf("damaged: %v", err)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.revs, s.left, s.err = s.revs[1:], s.left[1:], nil
			return true
		},
	})
	m.Start(func(err error) { t.Error(err) })
	<-finished
	m.Stop()
	if n := s.Pending(); n != 0 || s.steps != 2 {
		t.Errorf("%d keys are left after %d steps", n, s.steps)
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
