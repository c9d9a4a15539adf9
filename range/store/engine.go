package store

import (
	"fmt"
	"runtime"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"
)

// EngineLogger returns the logger to open the node's engine with. The engine
// calls Fatalf when it cannot go on, above all when a commit fails, and counts
// on not returning: this one panics with a FatalError, which the store turns
// into its fault when its own commit was the cause. Anywhere else, as in a
// flush, the panic ends the process, as it should: what the engine holds in
// memory is no longer what the disk has.
func EngineLogger(l *zap.Logger) pebble.Logger { return engineLogger{l.Named("engine").Sugar()} }

type engineLogger struct{ zap *zap.SugaredLogger }

func (l engineLogger) Infof(format string, args ...any)  { l.zap.Debugf(format, args...) }
func (l engineLogger) Errorf(format string, args ...any) { l.zap.Errorf(format, args...) }
func (l engineLogger) Fatalf(format string, args ...any) {
	l.zap.Errorf(format, args...)
	fatal := &FatalError{Message: fmt.Sprintf(format, args...)}
	for _, a := range args {
		if err, ok := a.(error); ok {
			fatal.Cause = err
		}
	}
	panic(fatal)
}

// EngineEvents returns the listener to open the node's engine with. Damage that
// the engine finds in a file is logged; who was reading gets it as an error and
// stops what it concerns. Left to itself the engine would end the process, and
// with it every range whose data is good.
func EngineEvents(l *zap.Logger) *pebble.EventListener {
	l = l.Named("engine")
	return &pebble.EventListener{
		DataCorruption: func(info pebble.DataCorruptionInfo) {
			l.Error("damaged file", zap.String("path", info.Path), zap.Stringer("bounds", info.Bounds),
				zap.String("error", info.Details.Error()))
		},
	}
}

// FatalError is what EngineLogger panics with.
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

// Guard calls fn, which writes to an engine opened with EngineLogger or closes
// it. What the engine makes of a failed write becomes an error.
func Guard(fn func() error) (err error) {
	defer catchFatal(&err)
	return fn()
}

// catchFatal turns the end that the engine makes of a failed commit into an
// error: the call of EngineLogger's Fatalf, or, when an earlier write to its log
// has failed meanwhile, a panic with that write's error within the commit
// pipeline's lock. Any other panic goes on.
func catchFatal(err *error) {
	switch r := recover().(type) {
	case nil:
	case *FatalError:
		*err = r
	case runtime.Error:
		panic(r)
	case error:
		*err = &FatalError{Message: fmt.Sprintf("commit: %v", r), Cause: r, Locked: true}
	default:
		panic(r)
	}
}
