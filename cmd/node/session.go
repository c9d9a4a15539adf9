package node

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/hawser-kv/hawser/range/keys"
)

// nextSession takes the node's next block of session numbers: a session is
// never used twice, over restarts too (R3).
func (c *Core) nextSession() (uint64, error) {
	const block = 1 << 20
	key := keys.Node("session")
	var last uint64
	v, closer, err := c.DB.Get(key)
	switch {
	case err == nil:
		if len(v) == 8 {
			last = binary.BigEndian.Uint64(v)
		}
		size := len(v)
		if err := closer.Close(); err != nil {
			return 0, err
		}
		if size != 8 {
			return 0, fmt.Errorf("%w: %d bytes", pebble.ErrCorruption, size)
		}
	case !errors.Is(err, pebble.ErrNotFound):
		return 0, err
	}
	next := last + block
	if err := c.DB.Set(key, binary.BigEndian.AppendUint64(nil, next), pebble.Sync); err != nil {
		return 0, err
	}
	return last + 1, nil
}
