package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// ErrCorrupt says that a group's rows in the engine are damaged or contradict
// each other. Whoever gets it must not serve the group; other groups of the
// node are not concerned.
var ErrCorrupt = errors.New("raftlog: corrupt")

// ErrFormat says that a row was written by a newer version of the program.
var ErrFormat = errors.New("raftlog: unknown row format")

// ErrNotFound says that the engine holds no group of that id.
var ErrNotFound = errors.New("raftlog: no such group")

// ErrExists says that a group cannot begin because it has Raft state already.
var ErrExists = errors.New("raftlog: group exists")

// rowFormat is the version of every row of this package. A row is
//
//	format (1) | payload | CRC-32C (4, little endian)
//
// and the checksum covers the row's key too, so a row that is found under
// another group or index is as corrupt as one with a flipped bit.
const rowFormat = 1

// rowOverhead is what sealing adds to a payload.
const rowOverhead = 1 + 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(key, body []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, body)
}

// sealRow ends a row that began at dst[start:] with rowFormat and a payload.
func sealRow(dst []byte, start int, key []byte) []byte {
	return binary.LittleEndian.AppendUint32(dst, checksum(key, dst[start:]))
}

// openRow checks a row and returns its payload, which aliases row.
func openRow(key, row []byte) ([]byte, error) {
	if len(row) < rowOverhead {
		return nil, fmt.Errorf("row %x has %d bytes: %w", key, len(row), ErrCorrupt)
	}
	body, sum := row[:len(row)-4], binary.LittleEndian.Uint32(row[len(row)-4:])
	if got := checksum(key, body); got != sum {
		return nil, fmt.Errorf("row %x: checksum %08x, want %08x: %w", key, got, sum, ErrCorrupt)
	}
	// The format is judged after the checksum: a damaged first byte is damage,
	// not a newer version.
	if body[0] != rowFormat {
		return nil, fmt.Errorf("row %x: format %d, this version knows %d: %w", key, body[0], rowFormat, ErrFormat)
	}
	return body[1:], nil
}

// uvarints decodes n varints that begin p and returns the rest.
func uvarints(key, p []byte, dst ...*uint64) ([]byte, error) {
	for _, d := range dst {
		v, n := binary.Uvarint(p)
		if n <= 0 {
			return nil, fmt.Errorf("row %x: bad number: %w", key, ErrCorrupt)
		}
		*d, p = v, p[n:]
	}
	return p, nil
}

func noRest(key, p []byte) error {
	if len(p) != 0 {
		return fmt.Errorf("row %x: %d bytes too many: %w", key, len(p), ErrCorrupt)
	}
	return nil
}

// HardState is raft's term and vote. Commit is a lower bound of the commit
// index: see Log.SetHardState.
type HardState struct {
	Term, Vote, Commit uint64
}

func appendHardState(dst, key []byte, hs HardState) []byte {
	start := len(dst)
	dst = append(dst, rowFormat)
	dst = binary.AppendUvarint(dst, hs.Term)
	dst = binary.AppendUvarint(dst, hs.Vote)
	dst = binary.AppendUvarint(dst, hs.Commit)
	return sealRow(dst, start, key)
}

func decodeHardState(key, row []byte) (hs HardState, err error) {
	p, err := openRow(key, row)
	if err != nil {
		return HardState{}, err
	}
	if p, err = uvarints(key, p, &hs.Term, &hs.Vote, &hs.Commit); err != nil {
		return HardState{}, err
	}
	return hs, noRest(key, p)
}

// position is a place in the log.
type position struct {
	index, term uint64
}

func appendPosition(dst, key []byte, at position) []byte {
	start := len(dst)
	dst = append(dst, rowFormat)
	dst = binary.AppendUvarint(dst, at.index)
	dst = binary.AppendUvarint(dst, at.term)
	return sealRow(dst, start, key)
}

func decodePosition(key, row []byte) (at position, err error) {
	p, err := openRow(key, row)
	if err != nil {
		return position{}, err
	}
	if p, err = uvarints(key, p, &at.index, &at.term); err != nil {
		return position{}, err
	}
	return at, noRest(key, p)
}

// Applied is the applied state of a group: the last applied entry and what the
// state machine keeps beside its data. It commits in the batch of the effects
// that it covers.
type Applied struct {
	Index, Term uint64
	// Machine is the state machine's own part, opaque here.
	Machine []byte
}

// beginApplied and sealRow are two halves so that the machine can append its
// part in place.
func beginApplied(dst []byte, index, term uint64) []byte {
	dst = append(dst, rowFormat)
	dst = binary.AppendUvarint(dst, index)
	return binary.AppendUvarint(dst, term)
}

// DecodeApplied decodes the applied state in a group's row. What it returns
// aliases row. Errors: ErrCorrupt, ErrFormat.
func DecodeApplied(key, row []byte) (a Applied, err error) {
	p, err := openRow(key, row)
	if err != nil {
		return Applied{}, err
	}
	if a.Machine, err = uvarints(key, p, &a.Index, &a.Term); err != nil {
		return Applied{}, err
	}
	return a, nil
}

func appendConfState(dst, key []byte, cs *raftpb.ConfState) ([]byte, error) {
	start := len(dst)
	dst = append(dst, rowFormat)
	dst, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(dst, cs)
	if err != nil {
		return nil, fmt.Errorf("encode conf state %v: %w", cs, err)
	}
	return sealRow(dst, start, key), nil
}

func decodeConfState(key, row []byte) (*raftpb.ConfState, error) {
	p, err := openRow(key, row)
	if err != nil {
		return nil, err
	}
	cs := new(raftpb.ConfState)
	if err := proto.Unmarshal(p, cs); err != nil {
		return nil, fmt.Errorf("row %x: conf state: %v: %w", key, err, ErrCorrupt)
	}
	return cs, nil
}

// An entry's payload is: type (1) | term (varint) | data. The index is in the
// key. Protobuf would cost a reflective walk per entry and carries no checksum.

func entryRowSize(e *raftpb.Entry) int {
	return rowOverhead + 1 + uvarintLen(e.GetTerm()) + len(e.GetData())
}

// putEntry fills row, whose length is entryRowSize(e).
func putEntry(row, key []byte, e *raftpb.Entry) {
	row[0], row[1] = rowFormat, byte(e.GetType())
	n := 2 + binary.PutUvarint(row[2:], e.GetTerm())
	n += copy(row[n:], e.GetData())
	binary.LittleEndian.PutUint32(row[n:], checksum(key, row[:n]))
}

// decodeEntry's result does not alias row.
func decodeEntry(key, row []byte, index uint64) (*raftpb.Entry, error) {
	p, err := openRow(key, row)
	if err != nil {
		return nil, err
	}
	if len(p) < 2 || p[0] > byte(raftpb.EntryConfChangeV2) {
		return nil, fmt.Errorf("row %x: bad entry type: %w", key, ErrCorrupt)
	}
	typ := raftpb.EntryType(p[0])
	var term uint64
	data, err := uvarints(key, p[1:], &term)
	if err != nil {
		return nil, err
	}
	e := &raftpb.Entry{Term: &term, Index: &index, Type: &typ}
	if len(data) > 0 {
		e.Data = append([]byte(nil), data...)
	}
	return e, nil
}

func uvarintLen(v uint64) int {
	n := 1
	for v >= 0x80 {
		v >>= 7
		n++
	}
	return n
}
