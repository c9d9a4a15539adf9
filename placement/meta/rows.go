package meta

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/proto/placementpb"
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
	set := func(key []byte, m proto.Message) error {
		v, err := encodeRow(key, m)
		if err != nil {
			return err
		}
		return b.Set(key, v, nil)
	}
	if c.header {
		h := &placementpb.MetaHeader{
			Format: formatVersion, ClusterId: s.ClusterID, Bound: s.Bound,
			Compacted: s.Compacted, NextRangeId: s.NextRangeID,
		}
		if err := set(rowKey(headerRow), h); err != nil {
			return err
		}
	}
	for _, id := range c.ranges {
		r := s.ranges[id]
		row := &placementpb.MetaRange{Desc: r.Desc, Active: r.Active, Mark: r.Mark}
		if err := set(rowKey(rangeRow, id), row); err != nil {
			return err
		}
	}
	for _, d := range c.decided {
		if err := set(rowKey(decidedRow, d.RangeId, d.MetaIndex), d); err != nil {
			return err
		}
	}
	for _, d := range c.dropped {
		if err := b.Delete(rowKey(decidedRow, d.RangeId, d.MetaIndex), nil); err != nil {
			return err
		}
	}
	return nil
}

// Load reads the state from the engine; a new engine gives the state before
// Bootstrap. Damaged rows, and rows that contradict each other, are a
// *CorruptError; rows of a newer version a *NewerFormatError.
func Load(r pebble.Reader) (*State, error) {
	prefix := keys.Group(keys.MetaGroupID, keys.KindState)
	upper := slices.Clone(prefix)
	upper[len(upper)-1]++
	it, err := r.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: upper})
	if err != nil {
		return nil, fmt.Errorf("meta state: %w", err)
	}
	s := New()
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
	if err != nil {
		return nil, err
	}
	if rows > 0 {
		if err := s.check(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *State) loadRow(prefixLen int, key, value []byte) error {
	corrupt := func(format string, args ...any) error {
		return &CorruptError{What: fmt.Sprintf("meta row %x", key), Reason: fmt.Sprintf(format, args...)}
	}
	kind, ids := key[prefixLen:], []byte(nil)
	if len(kind) == 0 {
		return corrupt("no kind")
	}
	kind, ids = kind[:1], kind[1:]
	switch {
	case kind[0] == headerRow && len(ids) == 0:
		h := &placementpb.MetaHeader{}
		if err := decodeRow(key, value, h); err != nil {
			return err
		}
		if h.Format > formatVersion {
			return &NewerFormatError{What: "meta header", Format: h.Format}
		}
		s.ClusterID, s.Bound, s.Compacted, s.NextRangeID = h.ClusterId, h.Bound, h.Compacted, h.NextRangeId
	case kind[0] == rangeRow && len(ids) == 8:
		row := &placementpb.MetaRange{}
		if err := decodeRow(key, value, row); err != nil {
			return err
		}
		id := binary.BigEndian.Uint64(ids)
		if row.Desc == nil || row.Desc.RangeId != id {
			return corrupt("descriptor of r%d", row.Desc.GetRangeId())
		}
		// Decided rows sort before range rows.
		if r := s.ranges[id]; r != nil {
			r.Desc, r.Active, r.Mark = row.Desc, row.Active, row.Mark
		} else {
			s.ranges[id] = &Range{Desc: row.Desc, Active: row.Active, Mark: row.Mark}
		}
	case kind[0] == decidedRow && len(ids) == 16:
		d := &placementpb.Decided{}
		if err := decodeRow(key, value, d); err != nil {
			return err
		}
		id, index := binary.BigEndian.Uint64(ids), binary.BigEndian.Uint64(ids[8:])
		if d.RangeId != id || d.MetaIndex != index {
			return corrupt("decided entry %d of r%d", d.MetaIndex, d.RangeId)
		}
		r := s.ranges[id]
		if r == nil {
			r = &Range{}
			s.ranges[id] = r
		}
		r.Decided = append(r.Decided, d)
	default:
		return &CorruptError{What: fmt.Sprintf("meta row %x", key), Reason: "unknown kind of row"}
	}
	return nil
}

// check verifies what every applied state keeps.
func (s *State) check() error {
	corrupt := func(format string, args ...any) error {
		return &CorruptError{What: "meta state", Reason: fmt.Sprintf(format, args...)}
	}
	if s.ClusterID == 0 {
		return corrupt("rows without a header")
	}
	if s.Bound < FirstRevision || s.Compacted > s.Bound {
		return corrupt("bound %d, compacted %d", s.Bound, s.Compacted)
	}
	// In any order: only which of several damages is named depends on it.
	for id, r := range s.ranges {
		switch {
		case r.Desc == nil:
			return corrupt("decided entry of r%d, which has no row", id)
		case id >= s.NextRangeID:
			return corrupt("r%d, but ids end at %d", id, s.NextRangeID)
		case !r.Active && len(r.Decided) > 0:
			return corrupt("r%d is inactive and has %d decided entries", id, len(r.Decided))
		case !r.Active && r.Mark > s.Bound:
			return corrupt("r%d: mark %d over the bound %d", id, r.Mark, s.Bound)
		}
	}
	ranges := s.Ranges()
	ds := descriptors(ranges)
	if err := checkTiling(ds); err != nil {
		return corrupt("directory: %v", err)
	}
	return nil
}
