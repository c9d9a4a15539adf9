package node

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/placement/meta"
	"github.com/hawser-kv/hawser/range/raftlog"
	"github.com/hawser-kv/hawser/range/replica"
)

// isDamage reports whether err says that what is on the disk is not what was
// written. Every package has its own error for that.
func isDamage(err error) bool {
	var corrupt *meta.CorruptError
	return pebble.IsCorruptionError(err) || errors.Is(err, raftlog.ErrCorrupt) ||
		errors.Is(err, replica.ErrCorrupt) || errors.As(err, &corrupt)
}

// lacksFile reports whether the engine cannot be opened because a file that it
// should have is not there, or is shorter or longer than it was. The engine does
// not say of such an error that it is damage.
func lacksFile(err error) bool {
	return errors.Is(err, os.ErrNotExist) || err != nil && strings.Contains(err.Error(), "object size mismatch")
}

// isNewer reports whether err says that a newer release wrote what was read.
func isNewer(err error) bool {
	var newer *meta.NewerFormatError
	return errors.Is(err, mvcc.ErrStoreFormat) || errors.Is(err, raftlog.ErrFormat) || errors.As(err, &newer)
}

// explain adds to an error of reading a part of a data directory which
// directory and part it is, and what to do where the user can do something.
func explain(dir, part string, err error) error {
	switch {
	case err == nil:
		return nil
	case isNewer(err):
		return fmt.Errorf("%s: %w: %s: %w", dir, ErrNewerFormat, part, err)
	case isDamage(err):
		return fmt.Errorf("%s: %w: %s: %w", dir, ErrDamaged, part, err)
	}
	return fmt.Errorf("%s: %s: %w", dir, part, err)
}
