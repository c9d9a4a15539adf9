package engine

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// startRoom is what a start takes besides the tables that it makes of the logs: a
// new log, a manifest, the marks of both.
const startRoom = 2 << 20

// checkRoom refuses to open an engine on a disk that has no room for it. Opening
// writes what the logs hold, from the first that is needed on, to tables. If there is
// no room for these, the engine tries again and again, and opening never ends. The
// error wraps syscall.ENOSPC.
func (d *dataDir) checkRoom(firstLog uint64) error {
	logs, err := d.logs()
	if err != nil {
		return err
	}
	needed := uint64(startRoom)
	for _, l := range logs {
		if l.number < firstLog {
			continue
		}
		info, err := d.fs.Stat(d.fs.PathJoin(d.enginePath(), l.name))
		if err != nil {
			return fmt.Errorf("%s: %w", d.path, err)
		}
		needed += uint64(info.Size())
	}
	usage, err := d.fs.GetDiskUsage(d.enginePath())
	switch {
	case errors.Is(err, vfs.ErrUnsupported):
		return nil // a file system that cannot tell
	case err != nil:
		return fmt.Errorf("%s: free bytes: %w", d.path, err)
	case usage.AvailBytes < needed:
		return fmt.Errorf("%s: %w: a start takes up to %d bytes and %d are free: make room, nothing was changed",
			d.path, syscall.ENOSPC, needed, usage.AvailBytes)
	}
	return nil
}
