package engine

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/range/raftlog"
	"github.com/hawser-kv/hawser/range/shortage"
)

// Errors of a data directory that cannot be used. Nothing in it is changed.
var (
	// ErrInUse: another process has the directory.
	ErrInUse = errors.New("the data directory is in use by another process: stop that one, or choose another --data-dir")
	// ErrNewerFormat: a newer release wrote it.
	ErrNewerFormat = errors.New("the data directory was written by a newer release of hawser: run that release, or one that is newer still")
	// ErrEtcdData: it belongs to an etcd.
	ErrEtcdData = errors.New("the data directory belongs to an etcd server: choose an empty --data-dir")
	// ErrOtherCluster: its parts come from different clusters.
	ErrOtherCluster = errors.New("the data directory holds parts of different clusters or nodes: restore all of it from one copy")
	// ErrDamaged: it cannot be read.
	ErrDamaged = errors.New("the data directory is damaged: restore it from a copy, or start with an empty --data-dir")
	// ErrNoData: it is empty, and was said to have data.
	ErrNoData = errors.New("the data directory is empty, and --initial-cluster-state=existing asks for one with data: " +
		"joining a cluster is not supported yet; give the right --data-dir, or --initial-cluster-state=new for a new one")
)

// IsDamage reports whether err says that what is on the disk is not what was
// written, as far as the engine and the packages below this one say so. Pebble marks
// with its own error also what it could not read for a shortage.
func IsDamage(err error) bool {
	return pebble.IsCorruptionError(err) && !shortage.Is(err) || errors.Is(err, raftlog.ErrCorrupt)
}

// IsNewer reports whether err says that a newer release wrote what was read, as
// far as the packages below this one say so.
func IsNewer(err error) bool {
	return errors.Is(err, mvcc.ErrStoreFormat) || errors.Is(err, raftlog.ErrFormat)
}

// lacksFile reports whether the engine cannot be opened because a file that it
// should have is not there, or is shorter or longer than it was. The engine does
// not say of such an error that it is damage.
func lacksFile(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, pebble.ErrDBNotPristine) || err != nil && strings.Contains(err.Error(), "object size mismatch")
}

// explain adds to an error of reading a part of a data directory which
// directory and part it is, and what to do where the user can do something.
func explain(dir, part string, err error) error {
	switch {
	case err == nil:
		return nil
	case IsNewer(err):
		return fmt.Errorf("%s: %w: %s: %w", dir, ErrNewerFormat, part, err)
	case IsDamage(err):
		return fmt.Errorf("%s: %w: %s: %w", dir, ErrDamaged, part, err)
	}
	return fmt.Errorf("%s: %s: %w", dir, part, err)
}
