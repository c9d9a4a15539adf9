package engine

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
)

// Fault is the end of an engine: nothing is written to it any more. All who write
// to one engine share one Fault, so that whoever finds that it failed tells the
// others. Safe for concurrent use.
type Fault struct {
	first          atomic.Pointer[error]
	failed, locked chan struct{}
	lockedOnce     sync.Once
}

// NewFault returns a Fault that has not happened.
func NewFault() *Fault {
	return &Fault{failed: make(chan struct{}), locked: make(chan struct{})}
}

// ErrNoSpace is in the chain of a fault when the engine ran into the end of the
// disk.
var ErrNoSpace = errors.New("engine: no space left")

// errNoSpaceOnDevice is what the disk answers when it is full.
var errNoSpaceOnDevice error = syscall.ENOSPC

// Set says that the engine failed, and reports whether that is news. The first
// error is the fault, with ErrNoSpace in its chain if the disk is full; of later
// ones only counts whether they left locks held.
func (f *Fault) Set(err error) (first bool) {
	var fatal *FatalError
	locked := errors.As(err, &fatal) && fatal.Locked
	if errors.Is(err, errNoSpaceOnDevice) {
		err = fmt.Errorf("%w: %w", ErrNoSpace, err)
	} else if fatal == nil {
		err = fmt.Errorf("engine: %w", err)
	}
	if first = f.first.CompareAndSwap(nil, &err); first {
		close(f.failed)
	}
	if locked {
		f.lockedOnce.Do(func() { close(f.locked) })
	}
	return first
}

// Err returns the fault, nil while there is none.
func (f *Fault) Err() error {
	if p := f.first.Load(); p != nil {
		return *p
	}
	return nil
}

// Failed is closed when there is a fault.
func (f *Fault) Failed() <-chan struct{} { return f.failed }

// Locked is closed when the engine gave up with locks held, see FatalError. Who
// writes to it then, or closes it, may never return, and is not to be waited for:
// all that is left to do is to end the process.
func (f *Fault) Locked() <-chan struct{} { return f.locked }

// Write calls fn, which writes to the engine, unless there was a fault, and makes
// what the engine makes of a failed write the fault.
func (f *Fault) Write(fn func() error) error {
	if err := f.Err(); err != nil {
		return err
	}
	err := Guard(fn)
	if errors.As(err, new(*FatalError)) && f.Set(err) {
		return f.Err()
	}
	return err
}
