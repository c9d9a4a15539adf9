package engine

import "github.com/cockroachdb/pebble/v2"

// Size is what an engine takes on its disk, in bytes.
type Size struct {
	// Total is what its files take: tables, logs with the open one and those kept
	// for the next, and what a merge is writing.
	Total int64
	// InUse is what of it is needed: tables without Garbage, and of the logs what is
	// not in tables yet.
	InUse int64
	// Garbage is what merging the tables would free, as the engine estimates it.
	Garbage int64
}

// Size returns what the engine takes. Garbage follows a flush by some moments, and
// a start by seconds; until then it is too low.
func (e *Engine) Size() Size { return sizeOf(e.DB.Metrics(), e.logs.bytes()) }

func sizeOf(m *pebble.Metrics, logs int64) Size {
	live := m.Table.Local.LiveSize + m.BlobFiles.Local.LiveSize
	garbage := min(m.Table.Garbage.PointDeletionsBytesEstimate+m.Table.Garbage.RangeDeletionsBytesEstimate, live)
	dead := m.Table.Local.ObsoleteSize + m.Table.Local.ZombieSize + m.BlobFiles.Local.ObsoleteSize + m.BlobFiles.Local.ZombieSize +
		uint64(m.Compact.InProgressBytes)
	// Pebble leaves out the open log.
	files := m.DiskSpaceUsage() - m.WAL.PhysicalSize - m.WAL.ObsoletePhysicalSize
	s := Size{
		InUse:   int64(files-dead-garbage) + int64(m.WAL.Size),
		Garbage: int64(garbage),
	}
	s.Total = max(int64(files)+logs, s.InUse)
	return s
}
