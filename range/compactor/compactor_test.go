package compactor

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// fakeStore needs a number of steps for each compaction.
type fakeStore struct {
	forgotten int64
	steps     int
	fail      error
	forgets   []int64
}

func (s *fakeStore) Forgotten() int64 { return s.forgotten }

func (s *fakeStore) SetForgotten(r int64) error {
	s.forgotten = r
	s.forgets = append(s.forgets, r)
	s.steps = 3
	return nil
}

func (s *fakeStore) Backlog() int64 { return int64(s.steps) * 1000 }

func (s *fakeStore) CompactStep(int) (bool, error) {
	if s.fail != nil {
		return false, s.fail
	}
	s.steps--
	return s.steps <= 0, nil
}

// TestNothingIsForgottenAheadOfTheFrontier: a replica that has still to apply
// a write below the compacted revision holds the compaction up (R9).
func TestNothingIsForgottenAheadOfTheFrontier(t *testing.T) {
	s := &fakeStore{}
	complete := int64(9)
	c := New(Config{Store: s, Complete: func() int64 { return complete }})
	c.Request(10)
	if more, err := c.Step(); more || err != nil {
		t.Fatalf("step = %v, %v with the frontier below", more, err)
	}
	if s.forgotten != 0 || !c.Waiting() {
		t.Fatalf("forgotten = %d before the frontier reached 10", s.forgotten)
	}
	complete = 10
	steps := 0
	for more := true; more; steps++ {
		var err error
		if more, err = c.Step(); err != nil {
			t.Fatal(err)
		}
	}
	if s.forgotten != 10 || steps != 3 || c.Waiting() {
		t.Fatalf("forgotten %d after %d steps, waiting %v", s.forgotten, steps, c.Waiting())
	}
}

// TestWhoWaitsForRemovalIsToldWhenItIsDone covers etcd/C2's physical compaction:
// also one that a later compaction overtook, and after a restart in the middle.
func TestWhoWaitsForRemovalIsToldWhenItIsDone(t *testing.T) {
	s := &fakeStore{forgotten: 10, steps: 2} // a restart in the middle
	c := New(Config{Store: s, Complete: func() int64 { return 100 }})
	c.Request(10)
	var told []string
	c.WhenRemoved(5, func(err error) { told = append(told, "5") })
	c.WhenRemoved(10, func(err error) { told = append(told, "10") })
	c.WhenRemoved(20, func(err error) { told = append(told, "20") })
	if len(told) != 0 {
		t.Fatalf("told %v before anything was removed", told)
	}
	for more := true; more; {
		more, _ = c.Step()
	}
	if len(told) != 2 || len(s.forgets) != 0 {
		t.Fatalf("told %v, forgets %v", told, s.forgets)
	}
	c.Request(30)
	for more := true; more; {
		more, _ = c.Step()
	}
	if len(told) != 3 {
		t.Fatalf("told %v", told)
	}
	c.WhenRemoved(30, func(err error) { told = append(told, "30") })
	if len(told) != 4 {
		t.Fatal("not told at once of what is done")
	}
}

func TestFaultEndsTheWaiting(t *testing.T) {
	fault := errors.New("engine failed")
	s := &fakeStore{fail: fault}
	c := New(Config{Store: s, Complete: func() int64 { return 100 }, Pause: -1})
	got := make(chan error, 2)
	c.Request(10)
	c.WhenRemoved(10, func(err error) { got <- err })
	c.Start(func(err error) { got <- err })
	defer c.Stop()
	for range 2 {
		select {
		case err := <-got:
			if !errors.Is(err, fault) {
				t.Fatalf("got %v", err)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("nobody was told of the fault")
		}
	}
}

func TestStopEndsTheWaiting(t *testing.T) {
	c := New(Config{Store: &fakeStore{}, Complete: func() int64 { return 0 }})
	var got error
	c.Request(10)
	c.WhenRemoved(10, func(err error) { got = err })
	c.Start(func(error) {})
	c.Stop()
	if !errors.Is(got, ErrStopped) {
		t.Fatalf("got %v", got)
	}
}

// slowStore takes as long as it is told for a step.
type slowStore struct {
	fakeStore
	step  time.Duration
	began []time.Time
}

func (s *slowStore) CompactStep(n int) (bool, error) {
	s.began = append(s.began, time.Now())
	<-time.After(s.step) // of the bubble
	return s.fakeStore.CompactStep(n)
}

// TestWritersHaveTwoThirdsOfTheTime covers etcd/C4: the pause is the configured one,
// and longer when steps are slow.
func TestWritersHaveTwoThirdsOfTheTime(t *testing.T) {
	for _, c := range []struct{ step, want time.Duration }{
		{time.Millisecond, 11 * time.Millisecond},
		{100 * time.Millisecond, 300 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &slowStore{step: c.step}
			comp := New(Config{Store: s, Complete: func() int64 { return 100 }, Pause: 10 * time.Millisecond, Spread: -1})
			ended := make(chan error, 1)
			comp.Request(10)
			comp.WhenRemoved(10, func(err error) { ended <- err })
			comp.Start(func(err error) { ended <- err })
			if err := <-ended; err != nil {
				t.Error(err)
			}
			comp.Stop()
			if len(s.began) != 3 {
				t.Fatalf("%d steps, want 3", len(s.began))
			}
			for i := range s.began[1:] {
				if got := s.began[i+1].Sub(s.began[i]); got != c.want {
					t.Errorf("a step of %v came %v after the one before, want %v", c.step, got, c.want)
				}
			}
		})
	}
}

// longStore has many steps to do for each compaction, and tells when it is done.
type longStore struct {
	slowStore
	each int
	done chan struct{}
}

func (s *longStore) SetForgotten(r int64) error {
	err := s.slowStore.SetForgotten(r)
	s.steps = s.each
	return err
}

func (s *longStore) CompactStep(n int) (bool, error) {
	done, err := s.slowStore.CompactStep(n)
	if done {
		s.done <- struct{}{}
	}
	return done, err
}

// TestMuchToDoIsSpread covers etcd/C4: what there is to do is spread over the time
// wanted, but neither slower than ten steps a second nor faster than the pause;
// and it is not if somebody waits for it, or room is short.
func TestMuchToDoIsSpread(t *testing.T) {
	for _, c := range []struct {
		steps          int
		awaited, short bool
		min, max       time.Duration
	}{
		{10, false, false, 800 * time.Millisecond, time.Second},
		{10, true, false, 100 * time.Millisecond, 110 * time.Millisecond},
		{10, false, true, 100 * time.Millisecond, 110 * time.Millisecond},
		{1000, false, false, 58 * time.Second, 61 * time.Second},
		{100_000, false, false, 11 * 99_999 * time.Millisecond, 11 * 100_001 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &longStore{slowStore{step: time.Millisecond}, c.steps, make(chan struct{})}
			comp := New(Config{Store: s, Complete: func() int64 { return 100 }, Hurry: func() bool { return c.short }})
			comp.Start(func(err error) { t.Error(err) })
			defer comp.Stop()
			for _, revision := range []int64{10, 20} { // the time begins anew
				began := time.Now()
				comp.Request(revision)
				if c.awaited {
					comp.WhenRemoved(revision, func(err error) {
						if err != nil {
							t.Error(err)
						}
					})
				}
				<-s.done
				if took := time.Since(began); took < c.min || took > c.max {
					t.Errorf("%d steps took %v, want %v to %v", c.steps, took, c.min, c.max)
				}
			}
		})
	}
}

// busyStore is one to which so many events come each second, compacted in numbers:
// as in mvcc's, a new target begins again at the first row of the index, which
// goes when all is done.
type busyStore struct {
	began                          time.Time
	first, next, target, forgotten int64
}

const eventsPerSecond = 15_000

func (s *busyStore) revision() int64 {
	return int64(time.Since(s.began) / (time.Second / eventsPerSecond))
}

func (s *busyStore) Forgotten() int64 { return s.forgotten }

func (s *busyStore) SetForgotten(revision int64) error {
	s.forgotten = revision
	return nil
}

func (s *busyStore) Backlog() int64 { return s.target - s.next }

func (s *busyStore) CompactStep(events int) (bool, error) {
	if s.target != s.forgotten {
		s.target, s.next = s.forgotten, s.first
	}
	<-time.After(3 * time.Millisecond)
	if s.next = min(s.next+int64(events), s.target); s.next < s.target {
		return false, nil
	}
	s.first = s.target
	return true, nil
}

// TestRemovalKeepsUp: compactions that come faster than one takes do not hold up
// the removal: at most two minutes' worth of what may go is left.
func TestRemovalKeepsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &busyStore{began: time.Now()}
		c := New(Config{Store: s, Complete: s.revision})
		c.Start(func(err error) { t.Error(err) })
		for range 30 {
			<-time.After(20 * time.Second)
			c.Request(s.revision())
		}
		c.Stop()
		if left := s.revision() - s.first; left > 2*60*eventsPerSecond {
			t.Errorf("%d events are left of %d", left, s.revision())
		}
	})
}
