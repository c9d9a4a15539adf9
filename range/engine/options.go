package engine

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/mvcc"
)

// options are those of a node's engine: what the format of the rows asks for
// (mvcc.EngineOptions), and what a node adds.
func (e *Engine) options(c Config) (*pebble.Options, error) {
	fs := c.FS
	if c.NoSync {
		fs = noSync{fs}
	}
	e.spare = newSpareFS(fs, e.dir.path, c.Logger)
	fs = e.spare
	// A log holds less than the memtable, but a large write is not in that.
	var err error
	if e.logs, err = newLogFiles(fs, e.dir.enginePath(), 2*c.MemTableBytes); err != nil {
		return nil, fmt.Errorf("%s: %w", e.dir.path, err)
	}
	o := mvcc.EngineOptions(e.logs)
	l := newLogger(c.Logger)
	o.Logger, o.EventListener = l, events(l)
	if c.Stalled != nil {
		o.EventListener.WriteStallBegin = func(pebble.WriteStallBeginInfo) { c.Stalled(true) }
		o.EventListener.WriteStallEnd = func() { c.Stalled(false) }
	}
	o.CacheSize, o.MaxOpenFiles = c.CacheBytes, c.MaxOpenFiles
	o.MemTableSize, o.MemTableStopWritesThreshold = uint64(c.MemTableBytes), maxMemTables
	o.Cleaner = newCleaner(pebble.ArchiveCleaner.Clean, e.logs)
	o.DisableWAL = false
	if !c.NoSync {
		if err := e.noteSyncs(c); err != nil {
			return nil, err
		}
		if e.synced != nil {
			o.FS = notingFS{o.FS, e.synced}
		}
	}
	if c.Tune != nil {
		c.Tune(o)
	}
	return o, nil
}

// noteSyncs begins to note how far the logs are synced. Where that cannot be
// written, as on a full disk, the engine works all the same.
func (e *Engine) noteSyncs(c Config) error {
	err := makeDir(c.FS, e.dir.enginePath())
	if err == nil {
		e.synced, err = openSynced(c.FS, e.dir.enginePath(), e.dir.firstLog, c.Logger)
	}
	if err == nil {
		if err := e.dir.keepsNotes(); err != nil {
			c.Logger.Warn("cannot say that there are notes of how far the engine's log is synced: their loss would not be noticed", zap.Error(err))
		}
		return nil
	}
	if errors.Is(err, ErrNewerFormat) {
		return fmt.Errorf("%s: %w", e.dir.path, err)
	}
	e.synced = nil
	c.Logger.Warn("cannot note how far the engine's log is synced: damage at its end may not be noticed", zap.Error(err))
	return nil
}

// events logs damage that the engine finds in a file; who was reading gets it as
// an error and stops what it concerns. Left to itself the engine would end the
// process, and with it every range whose data is good.
func events(l logger) *pebble.EventListener {
	return &pebble.EventListener{
		DataCorruption: func(info pebble.DataCorruptionInfo) {
			if more, log := l.episodes.next("damaged file " + info.Path); log {
				l.zap.Errorw("damaged file", "path", info.Path, "bounds", info.Bounds.String(),
					"error", info.Details.Error(), "repeated", more)
			}
		},
	}
}
