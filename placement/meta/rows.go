package meta

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/range/keys"
)

// Rows of the meta state in the engine, below keys.Group(MetaGroupID, KindState):
//
//	'h'                                  MetaHeader
//	'r' | range id (8)                   MetaRange
//	'd' | range id (8) | meta index (8)  Decided
//
// Numbers are big endian. A value is
//
//	format (1) | message | CRC-32C (4, little endian)
//
// with the checksum over the key, the format and the message, so that a row
// under another's key is found too.
const (
	headerRow  byte = 'h'
	rangeRow   byte = 'r'
	decidedRow byte = 'd'
)

// rowKind is a kind of rows of one part.
type rowKind struct {
	// kind is the byte after the prefix, one for all parts; ids, at most two,
	// follow it.
	kind byte
	ids  int
	// load takes one row. Errors are those of row.decode and row.corrupt.
	load func(*row) error
}

// row is one that is being loaded.
type row struct {
	key, value []byte
	ids        [2]uint64
}

// decode reads the value, whose key and checksum must fit.
func (r *row) decode(m proto.Message) error { return decodeRow(r.key, r.value, m) }

func (r *row) corrupt(format string, args ...any) error {
	return &CorruptError{What: fmt.Sprintf("meta row %x", r.key), Reason: fmt.Sprintf(format, args...)}
}

// corruptState is the error for rows that contradict each other.
func corruptState(format string, args ...any) error {
	return &CorruptError{What: "meta state", Reason: fmt.Sprintf(format, args...)}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func rowKey(kind byte, ids ...uint64) []byte {
	k := keys.AppendGroup(make([]byte, 0, 27), keys.MetaGroupID, keys.KindState)
	k = append(k, kind)
	for _, id := range ids {
		k = binary.BigEndian.AppendUint64(k, id)
	}
	return k
}

func encodeRow(key []byte, m proto.Message) ([]byte, error) {
	v, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend([]byte{formatVersion}, m)
	if err != nil {
		return nil, fmt.Errorf("meta row %x: %w", key, err)
	}
	return binary.LittleEndian.AppendUint32(v, rowSum(key, v)), nil
}

func rowSum(key, formatAndMessage []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, formatAndMessage)
}

func decodeRow(key, value []byte, m proto.Message) error {
	what := fmt.Sprintf("meta row %x", key)
	if len(value) < 5 {
		return &CorruptError{What: what, Reason: fmt.Sprintf("%d bytes long", len(value))}
	}
	body, sum := value[:len(value)-4], binary.LittleEndian.Uint32(value[len(value)-4:])
	if got := rowSum(key, body); got != sum {
		return &CorruptError{What: what, Reason: fmt.Sprintf("checksum %08x, should be %08x", got, sum)}
	}
	if body[0] > formatVersion {
		return &NewerFormatError{What: what, Format: uint32(body[0])}
	}
	if body[0] == 0 {
		return &CorruptError{What: what, Reason: "format 0"}
	}
	if err := proto.Unmarshal(body[1:], m); err != nil {
		return &CorruptError{What: what, Reason: err.Error()}
	}
	return nil
}

// Stage writes the rows that changed into the batch. Call it once after each
// Apply, before the next.
func (s *State) Stage(b *pebble.Batch, c Changes) error {
	for _, r := range c.rows {
		if r.message == nil {
			if err := b.Delete(r.key, nil); err != nil {
				return err
			}
			continue
		}
		v, err := encodeRow(r.key, r.message)
		if err != nil {
			return err
		}
		if err := b.Set(r.key, v, nil); err != nil {
			return err
		}
	}
	return nil
}

// Load reads the state from the engine; a new engine gives the state before
// Bootstrap. Damaged rows, and rows that contradict each other, are a
// *CorruptError; rows of a newer version a *NewerFormatError.
func Load(r pebble.Reader) (*State, error) {
	s := New()
	if err := s.load(r); err != nil {
		return nil, err
	}
	return s, nil
}

// load reads the rows of all parts into a new state.
func (s *State) load(r pebble.Reader) error {
	prefix := keys.Group(keys.MetaGroupID, keys.KindState)
	upper := slices.Clone(prefix)
	upper[len(upper)-1]++
	it, err := r.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: upper})
	if err != nil {
		return fmt.Errorf("meta state: %w", err)
	}
	rows := 0
	for ok := it.First(); ok && err == nil; ok = it.Next() {
		var v []byte
		if v, err = it.ValueAndErr(); err == nil {
			err = s.loadRow(len(prefix), it.Key(), v)
		}
		rows++
	}
	if err == nil {
		err = it.Error()
	}
	if cerr := it.Close(); err == nil {
		err = cerr
	}
	if err != nil || rows == 0 {
		return err
	}
	return s.check()
}

// loadRow gives a row to its part. The key begins with the prefix of the state.
func (s *State) loadRow(prefixLen int, key, value []byte) error {
	r := &row{key: key, value: value}
	if len(key) == prefixLen {
		return r.corrupt("no kind")
	}
	k, ok := s.kinds[key[prefixLen]]
	ids := key[prefixLen+1:]
	if !ok || len(ids) != 8*k.ids {
		return r.corrupt("unknown kind of row")
	}
	for i := range k.ids {
		r.ids[i] = binary.BigEndian.Uint64(ids[8*i:])
	}
	return k.load(r)
}
