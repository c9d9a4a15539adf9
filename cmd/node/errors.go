package node

import (
	"errors"
	"fmt"

	"github.com/hawser-kv/hawser/placement/meta"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/range/engine"
	"github.com/hawser-kv/hawser/range/host"
	"github.com/hawser-kv/hawser/range/shortage"
)

// isDamage reports whether err says that what is on the disk is not what was
// written. Every package has its own error for that, with which it marks no shortage.
func isDamage(err error) bool {
	var corrupt *meta.CorruptError
	return host.IsDamage(err) || errors.As(err, &corrupt)
}

// isNewer reports whether err says that a newer release wrote what was read.
func isNewer(err error) bool {
	var newer *meta.NewerFormatError
	return engine.IsNewer(err) || errors.As(err, &newer)
}

// explain adds to an error of reading a part of the data directory which
// directory and part it is, and what to do where the user can do something.
func (c *Core) explain(part string, err error) error {
	switch {
	case err == nil:
		return nil
	case isNewer(err):
		return fmt.Errorf("%s: %w: %s: %w", c.engine.Dir(), engine.ErrNewerFormat, part, err)
	case isDamage(err):
		return fmt.Errorf("%s: %w: %s: %w", c.engine.Dir(), engine.ErrDamaged, part, err)
	}
	return fmt.Errorf("%s: %s: %w", c.engine.Dir(), part, err)
}

// asCorrupt makes damage, and a shortage, what clients know as such.
func asCorrupt(err error) error {
	if shortage.Is(err) {
		return host.ErrorOf(0, err)
	}
	if err == nil || !engine.IsDamage(err) {
		return err
	}
	return &rangepb.Error{Kind: rangepb.Corrupt, Err: err}
}
