package engine

import (
	"fmt"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func TestEpisodesAreLoggedOnceAMinute(t *testing.T) {
	now := time.Unix(0, 0)
	seen, logs := observer.New(zap.DebugLevel)
	l := newLogger(zap.New(seen))
	l.episodes.now = func() time.Time { return now }
	say := func(times int) {
		for i := range times {
			l.Errorf("background error: %06d.sst: %v", i, "too many open files")
		}
	}
	say(1000)
	l.Errorf("something else")
	now = now.Add(episodeInterval)
	say(1000)
	var got []string
	for _, e := range logs.All() {
		got = append(got, fmt.Sprint(e.Message, e.ContextMap()["repeated"]))
	}
	want := "[background error: 000000.sst: too many open files<nil> something else<nil> background error: 000000.sst: too many open files999]"
	if fmt.Sprint(got) != want {
		t.Errorf("%v, want %s", got, want)
	}
}

// TestEpisodesAreBounded: kinds without end do not take memory without end.
func TestEpisodesAreBounded(t *testing.T) {
	e := newEpisodes(func() time.Time { return time.Unix(0, 0) })
	for i := range 10 * maxEpisodes {
		if _, log := e.next(fmt.Sprint(i)); !log {
			t.Fatalf("the first of kind %d is not logged", i)
		}
	}
	if n := len(e.mu.of); n > maxEpisodes {
		t.Errorf("%d episodes", n)
	}
}
