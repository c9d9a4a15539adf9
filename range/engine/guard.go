package engine

import (
	"fmt"
	"runtime"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"
)

// Logger returns the logger to open the node's engine with. The engine
// calls Fatalf when it cannot go on, above all when a commit fails, and counts
// on not returning: this one panics with a FatalError, which Guard turns into an
// error where the write was ours. Anywhere else, as in a flush, the panic ends the
// process, as it should: what the engine holds in memory is no longer what the disk
// has.
//
// What the engine says again and again, as of a compaction that it tries anew all
// the time, is logged once a minute.
func Logger(l *zap.Logger) pebble.Logger { return newLogger(l) }

func newLogger(l *zap.Logger) logger { return logger{l.Named("engine").Sugar(), newEpisodes(time.Now)} }

type logger struct {
	zap      *zap.SugaredLogger
	episodes *episodes
}

func (l logger) Infof(format string, args ...any) { l.zap.Debugf(format, args...) }
func (l logger) Errorf(format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	if more, log := l.episodes.next(withoutNumbers(message)); log && more > 0 {
		l.zap.Errorw(message, "repeated", more)
	} else if log {
		l.zap.Error(message)
	}
}
func (l logger) Fatalf(format string, args ...any) {
	l.zap.Errorf(format, args...)
	fatal := &FatalError{Message: fmt.Sprintf(format, args...)}
	for _, a := range args {
		if err, ok := a.(error); ok {
			fatal.Cause = err
		}
	}
	panic(fatal)
}

// FatalError is what Logger's Fatalf panics with.
type FatalError struct {
	Message string
	// Cause is the error that the engine named, nil if it named none.
	Cause error
	// Locked: the engine gave up with locks held. No call that writes to it
	// returns, nor does closing it.
	Locked bool
}

func (e *FatalError) Error() string { return "engine: " + e.Message }
func (e *FatalError) Unwrap() error { return e.Cause }

// Guard calls fn, which writes to an engine opened with Logger or closes
// it. What the engine makes of a failed write becomes an error: its call of
// Logger's Fatalf, or, when an earlier write to its log has failed meanwhile,
// a panic with that write's error within the commit pipeline's lock. Any other
// panic goes on.
func Guard(fn func() error) (err error) {
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		if fatal, ok := r.(*FatalError); ok {
			err = fatal
		} else if cause, ok := r.(error); ok && raisedByCommit() {
			err = &FatalError{Message: fmt.Sprintf("commit: %v", cause), Cause: cause, Locked: true}
		} else {
			panic(r)
		}
	}()
	return fn()
}

// commitFunc is where the engine panics with the commit pipeline's lock held.
const commitFunc = "github.com/cockroachdb/pebble/v2.(*DB).commitWrite"

// raisedByCommit says whether the panic that is under way comes from commitFunc. It
// is called by the deferred function that recovers it.
func raisedByCommit() bool {
	var pcs [16]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(0, pcs[:])])
	for more, panicked := true, false; more; {
		var f runtime.Frame
		f, more = frames.Next()
		if panicked {
			return f.Function == commitFunc
		}
		panicked = f.Function == "runtime.gopanic"
	}
	return false
}
