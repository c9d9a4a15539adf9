package replica

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/range/keys"
	"github.com/hawser-kv/hawser/range/raftlog"
	"github.com/hawser-kv/hawser/range/shortage"
)

var (
	// ErrNoReplica: this node has no replica of the range.
	ErrNoReplica = errors.New("replica: no replica of the range here")
	// ErrCorrupt: a row of a replica is damaged, or its rows contradict each
	// other. The replica is not served. It never marks a shortage.
	ErrCorrupt = errors.New("replica: corrupt")
)

// Saved is the state of a replica as its rows say.
type Saved struct {
	Descriptor *rangepb.RangeDescriptor
	Resolved   int64
}

// Stage stages the rows with which a replica begins, as the first of a cluster
// or by a split: its descriptor, its applied state with the resolved revision,
// and its Raft state, over which it never writes if it is there
// (revisions.md R11). The batch must be committed with a sync. It stages
// nothing and returns false if the node is not in the descriptor.
func Stage(r pebble.Reader, b *pebble.Batch, nodeID uint64, desc *rangepb.RangeDescriptor, resolved int64) (bool, error) {
	if _, ok := replicaOn(desc, nodeID); !ok {
		return false, nil
	}
	voters := make([]uint64, len(desc.Replicas))
	for i, rep := range desc.Replicas {
		voters[i] = rep.ReplicaId
	}
	if err := raftlog.Bootstrap(r, b, desc.RangeId, voters, appendRangeState(nil, resolved)); err != nil {
		return false, fmt.Errorf("replica: begin range %d: %w", desc.RangeId, err)
	}
	return true, stageDescriptor(b, desc)
}

// List returns the ids of the ranges that have a replica on the engine, in
// ascending order.
func List(r pebble.Reader) (ids []uint64, err error) {
	it, err := r.NewIter(&pebble.IterOptions{LowerBound: keys.Group(keys.MetaGroupID+1, 0), UpperBound: []byte{keys.GroupPrefix + 1}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	const groupKeyLen = 1 + 8
	for ok := it.First(); ok; {
		if len(it.Key()) < groupKeyLen {
			return nil, fmt.Errorf("%w: group row %x", ErrCorrupt, it.Key())
		}
		id := binary.BigEndian.Uint64(it.Key()[1:])
		if ok = it.SeekGE(keys.Group(id, keys.KindDescriptor)); ok && string(it.Key()) == string(keys.Group(id, keys.KindDescriptor)) {
			ids = append(ids, id)
		}
		ok = it.SeekGE(keys.Group(id+1, 0))
	}
	return ids, it.Error()
}

// Load returns the state of a replica without starting it, or ErrNoReplica.
func Load(r pebble.Reader, rangeID uint64) (Saved, error) { return load(r, rangeID) }

func load(r pebble.Reader, rangeID uint64) (Saved, error) {
	key := keys.Group(rangeID, keys.KindDescriptor)
	row, closer, err := r.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return Saved{}, fmt.Errorf("%w: range %d", ErrNoReplica, rangeID)
	}
	if err != nil {
		return Saved{}, fmt.Errorf("replica: range %d: read descriptor: %w", rangeID, err)
	}
	desc, err := decodeDescriptor(key, row)
	if err = errors.Join(err, closer.Close()); err != nil {
		return Saved{}, err
	}
	if desc.RangeId != rangeID {
		return Saved{}, fmt.Errorf("%w: range %d has the descriptor of range %d", ErrCorrupt, rangeID, desc.RangeId)
	}
	applied, err := raftlog.ReadApplied(r, rangeID)
	if err != nil {
		return Saved{}, shortage.OrDamage(ErrCorrupt, fmt.Errorf("range %d: %w", rangeID, err))
	}
	resolved, err := decodeRangeState(applied.Machine)
	if err != nil {
		return Saved{}, fmt.Errorf("range %d: %w", rangeID, err)
	}
	return Saved{Descriptor: desc, Resolved: resolved}, nil
}

// The row of a descriptor: format (1) | RangeDescriptor | CRC-32C (4, big
// endian) of the row's key and what precedes.
const descriptorFormat = 1

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func stageDescriptor(b *pebble.Batch, desc *rangepb.RangeDescriptor) error {
	key := keys.Group(desc.RangeId, keys.KindDescriptor)
	row, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend([]byte{descriptorFormat}, desc)
	if err != nil {
		return fmt.Errorf("replica: encode descriptor of range %d: %w", desc.RangeId, err)
	}
	return b.Set(key, binary.BigEndian.AppendUint32(row, descriptorChecksum(key, row)), nil)
}

func decodeDescriptor(key, row []byte) (*rangepb.RangeDescriptor, error) {
	if len(row) < 5 {
		return nil, fmt.Errorf("%w: descriptor row %x has %d bytes", ErrCorrupt, key, len(row))
	}
	body, sum := row[:len(row)-4], binary.BigEndian.Uint32(row[len(row)-4:])
	if got := descriptorChecksum(key, body); got != sum {
		return nil, fmt.Errorf("%w: descriptor row %x: checksum %08x, want %08x", ErrCorrupt, key, got, sum)
	}
	if body[0] != descriptorFormat {
		return nil, fmt.Errorf("replica: descriptor row %x: format %d, this version reads %d", key, body[0], descriptorFormat)
	}
	desc := new(rangepb.RangeDescriptor)
	if err := proto.Unmarshal(body[1:], desc); err != nil {
		return nil, fmt.Errorf("%w: descriptor row %x: %v", ErrCorrupt, key, err)
	}
	return desc, nil
}

func descriptorChecksum(key, body []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, body)
}

// rangeStateFormat is the version of RangeState, the range's part of the
// applied state.
const rangeStateFormat = 1

func appendRangeState(dst []byte, resolved int64) []byte {
	out, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(dst, &rangepb.RangeState{Format: rangeStateFormat, Resolved: resolved})
	if err != nil {
		panic(fmt.Sprintf("replica: encode range state: %v", err))
	}
	return out
}

func decodeRangeState(b []byte) (resolved int64, err error) {
	var st rangepb.RangeState
	if err := proto.Unmarshal(b, &st); err != nil {
		return 0, fmt.Errorf("%w: range state: %v", ErrCorrupt, err)
	}
	if st.Format != rangeStateFormat {
		return 0, fmt.Errorf("%w: range state of format %d, this version reads %d", ErrCorrupt, st.Format, rangeStateFormat)
	}
	if st.Resolved < 0 {
		return 0, fmt.Errorf("%w: resolved revision %d", ErrCorrupt, st.Resolved)
	}
	return st.Resolved, nil
}

// replicaOn returns the replica id of a range on a node.
func replicaOn(desc *rangepb.RangeDescriptor, nodeID uint64) (replicaID uint64, ok bool) {
	for _, rep := range desc.Replicas {
		if rep.NodeId == nodeID {
			return rep.ReplicaId, true
		}
	}
	return 0, false
}
