package shortage

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
)

func TestShortages(t *testing.T) {
	open := &os.PathError{Op: "open", Path: "000004.sst", Err: syscall.EMFILE}
	for _, err := range []error{
		open,
		fmt.Errorf("read: %w", open),
		errors.Join(pebble.ErrCorruption, open),
		fmt.Errorf("%w: %w", pebble.ErrCorruption, &os.SyscallError{Syscall: "mmap", Err: syscall.ENOMEM}),
		&os.PathError{Op: "write", Err: syscall.ENOSPC},
		syscall.EDQUOT,
	} {
		if !Is(err) {
			t.Errorf("%v is none", err)
		}
	}
	for _, err := range []error{nil, io.EOF, os.ErrNotExist, syscall.EIO, pebble.ErrCorruption} {
		if Is(err) {
			t.Errorf("%v is one", err)
		}
	}
	damage := errors.New("damaged")
	if err := OrDamage(damage, fmt.Errorf("read: %w", open)); errors.Is(err, damage) || !errors.Is(err, open) {
		t.Errorf("a shortage is marked as damage: %v", err)
	}
	if err := OrDamage(damage, io.EOF); !errors.Is(err, damage) || !errors.Is(err, io.EOF) {
		t.Errorf("damage is not marked: %v", err)
	}
	if !OfDescriptors(open) || OfSpace(open) || !OfSpace(syscall.ENOSPC) || OfDescriptors(syscall.ENOSPC) {
		t.Error("of what")
	}
}
