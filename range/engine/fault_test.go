package engine

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// A fault says once whose it is.
func TestFaultIsSaidOnce(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("sync: %w", errorfs.ErrInjected), "engine: sync: " + errorfs.ErrInjected.Error()},
		{fmt.Errorf("sync: %w", syscall.ENOSPC), "engine: no space left: sync: no space left on device"},
	} {
		f := NewFault()
		f.Set(tc.err)
		if got := f.Err().Error(); got != tc.want {
			t.Errorf("%q, want %q", got, tc.want)
		}
	}
}

// A bug in what writes is not taken for a fault of the engine.
func TestGuardLetsBugsThrough(t *testing.T) {
	for _, bug := range []func() error{
		func() error { panic("broken invariant") },
		func() error { var none []int; none[len(none)]++; return nil },
		func() error { panic(errors.New("broken invariant")) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			_ = Guard(bug) // panics
		}()
	}
	if err := Guard(func() error { return pebble.ErrClosed }); err != pebble.ErrClosed {
		t.Errorf("an error becomes %v", err)
	}
}
