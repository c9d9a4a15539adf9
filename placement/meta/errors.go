package meta

import (
	"errors"
	"fmt"
)

// ErrInvalidCommand is wrapped by the error of Apply for a command that does
// not fit the state. The meta group stops: state and log disagree.
var ErrInvalidCommand = errors.New("command does not fit the meta state")

// CorruptError is returned by Load and DecodeCommand for bytes that are
// damaged, or rows that contradict each other.
type CorruptError struct {
	// What names the row or entry.
	What string
	// Reason is for people.
	Reason string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("%s is damaged: %s", e.What, e.Reason)
}

// NewerFormatError is returned by Load and DecodeCommand for bytes written by
// a newer version of hawser.
type NewerFormatError struct {
	What   string
	Format uint32
}

func (e *NewerFormatError) Error() string {
	return fmt.Sprintf("%s has format %d; this version knows formats up to %d: use a newer hawser", e.What, e.Format, formatVersion)
}
