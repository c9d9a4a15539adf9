package engine

import (
	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/mvcc"
)

// options are those of a node's engine: what the format of the rows asks for
// (mvcc.EngineOptions), and what a node adds.
func (c *Config) options() *pebble.Options {
	o := mvcc.EngineOptions(c.FS)
	o.Logger, o.EventListener = Logger(c.Logger), events(c.Logger)
	o.CacheSize = c.CacheBytes
	o.DisableWAL = false
	if c.NoSync {
		o.FS = noSync{o.FS}
	}
	if c.Tune != nil {
		c.Tune(o)
	}
	return o
}

// events logs damage that the engine finds in a file; who was reading gets it as
// an error and stops what it concerns. Left to itself the engine would end the
// process, and with it every range whose data is good.
func events(l *zap.Logger) *pebble.EventListener {
	l = l.Named("engine")
	return &pebble.EventListener{
		DataCorruption: func(info pebble.DataCorruptionInfo) {
			l.Error("damaged file", zap.String("path", info.Path), zap.Stringer("bounds", info.Bounds),
				zap.String("error", info.Details.Error()))
		},
	}
}
