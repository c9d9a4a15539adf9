package engine

import (
	"strings"
	"sync"
	"time"
)

const (
	// episodeInterval is the least time between two lines of an episode. Without an
	// event for so long it has ended.
	episodeInterval = time.Minute
	// maxEpisodes bounds those that are under way.
	maxEpisodes = 256
)

// episodes says which events of kinds that come again and again are logged: the
// first of an episode, and one in each minute of it. Safe for concurrent use.
type episodes struct {
	now func() time.Time
	mu  struct {
		sync.Mutex
		of map[string]*episode
	}
}

type episode struct {
	logged, last time.Time
	more         int // events since the one that was logged
}

func newEpisodes(now func() time.Time) *episodes {
	e := &episodes{now: now}
	e.mu.of = make(map[string]*episode)
	return e
}

// next takes an event of a kind, and reports whether it is logged, and how many were
// not since the last one that was.
func (e *episodes) next(kind string) (more int, log bool) {
	now := e.now()
	e.mu.Lock()
	defer e.mu.Unlock()
	at := e.mu.of[kind]
	if at == nil {
		if len(e.mu.of) >= maxEpisodes {
			e.dropLocked(now)
		}
		e.mu.of[kind] = &episode{logged: now, last: now}
		return 0, true
	}
	if now.Sub(at.logged) < episodeInterval {
		at.more++
		at.last = now
		return 0, false
	}
	more = at.more
	*at = episode{logged: now, last: now}
	return more, true
}

// dropLocked forgets the episodes that have ended; all if none has.
func (e *episodes) dropLocked(now time.Time) {
	// In any order: each by itself.
	for kind, at := range e.mu.of {
		if now.Sub(at.last) >= episodeInterval {
			delete(e.mu.of, kind)
		}
	}
	if len(e.mu.of) >= maxEpisodes {
		clear(e.mu.of)
	}
}

// withoutNumbers is what a message has in common with others of its kind, which name
// other files and sizes: the message with one 0 for each number.
func withoutNumbers(message string) string {
	var b strings.Builder
	inNumber := false
	for _, r := range message {
		isDigit := r >= '0' && r <= '9'
		if !isDigit {
			b.WriteRune(r)
		} else if !inNumber {
			b.WriteByte('0')
		}
		inNumber = isDigit
	}
	return b.String()
}
