// Package shortage tells a shortage of the machine from everything else that a read
// or write may meet. A shortage says nothing about the data: what meets it refuses,
// with nothing applied, and is as before when the shortage ends. It is never taken
// for damage, and never logged for each request.
package shortage

import (
	"errors"
	"fmt"
	"syscall"
)

// all are the system's errors for what it has not enough of: file descriptors of the
// process and of the machine, memory, disk, disk of this user, locks, and threads
// (which are refused with EAGAIN, as is a read that would wait: of a file there is
// none).
var all = []error{
	syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOSPC, syscall.EDQUOT, syscall.ENOLCK, syscall.EAGAIN,
}

// Is reports whether err has a shortage in its chain.
func Is(err error) bool {
	if err == nil {
		return false
	}
	for _, kind := range all {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// OrDamage returns err with damage in its chain, an error that says what cannot be
// read; a shortage, which damages nothing, stays as it is. So whoever marks errors
// as damage with it need not ask again what they are.
func OrDamage(damage, err error) error {
	if Is(err) {
		return err
	}
	return fmt.Errorf("%w: %w", damage, err)
}

// OfDescriptors reports whether err is a want of file descriptors.
func OfDescriptors(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// OfSpace reports whether err is a want of room on the disk.
func OfSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
