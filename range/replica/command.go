package replica

import (
	"encoding/binary"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
)

// commandKind says what a command of a Raft entry does. Values are durable.
type commandKind byte

const (
	// commandWrite writes effects at a granted revision.
	commandWrite commandKind = 1
	// commandResolve writes nothing: nothing at or below the revision is still
	// to come (R3c, R4).
	commandResolve commandKind = 2
	// commandTxn writes this range's part of a decided transaction (R7).
	commandTxn commandKind = 3
	// commandSplit cuts the range and acts as Resolve(s) (R11). It is the last
	// command of its entry, because it changes the epoch.
	commandSplit commandKind = 4
)

func (k commandKind) String() string {
	switch k {
	case commandWrite:
		return "write"
	case commandResolve:
		return "resolve"
	case commandTxn:
		return "txn"
	case commandSplit:
		return "split"
	}
	return fmt.Sprintf("command(%d)", byte(k))
}

// command is one state change of a range. Revisions never fall along the log,
// and grow with every command that writes (I1).
type command struct {
	kind     commandKind
	revision int64
	// effects is mvcc's encoding; it aliases the entry. Write and txn only.
	effects []byte
	// metaIndex is the index of the deciding entry in the meta log. Txn and
	// split only.
	metaIndex uint64
	// split only.
	split *placementpb.DecidedSplit
}

// entryHeader is what holds for all commands of one Raft entry.
type entryHeader struct {
	// term is T, the Raft term in which the commands were evaluated. Apply
	// ignores the entry if raft's term is another (R0).
	term uint64
	// epoch is the epoch of the span for which they were evaluated.
	epoch uint64
	// seq numbers the proposals of one leadership from 1; it lets the leader
	// find the requests that wait for this entry.
	seq uint64
}

// entryFormat is the version of the encoding of Raft entries:
//
//	format (1) | term | epoch | seq | commands
//	command: kind (1) | revision | body
//	  write    length (4, big endian) | effects
//	  resolve  nothing
//	  txn      meta index | length (4, big endian) | effects
//	  split    meta index | length (4, big endian) | DecidedSplit
//
// Numbers without a width are varints. The number of commands is not
// written: they go on to the end of the entry. Integrity is the Raft log's business
// (its rows are checksummed).
const entryFormat = 1

// maxEntryBytes bounds what the decoder accepts. A leader closes an entry when it
// has maxTargetEntryBytes, so the rest of it is one command, whose effects weigh at
// most mvcc.MaxEffectsBytes, or a split, whose keys the proxy bounds.
const maxEntryBytes = mvcc.MaxEffectsBytes + maxTargetEntryBytes + 1<<20

// maxTargetEntryBytes bounds Limits.TargetEntryBytes.
const maxTargetEntryBytes = 64 << 20

// errBadEntry is returned for a Raft entry that this code cannot have written.
var errBadEntry = errors.New("malformed raft entry")

func appendEntryHeader(dst []byte, h entryHeader) []byte {
	dst = append(dst, entryFormat)
	dst = binary.AppendUvarint(dst, h.term)
	dst = binary.AppendUvarint(dst, h.epoch)
	return binary.AppendUvarint(dst, h.seq)
}

// appendWrite appends a write command whose effects are not encoded yet.
func appendWrite(dst []byte, revision int64, effects []mvcc.Effect) []byte {
	dst = append(dst, byte(commandWrite))
	dst = binary.AppendUvarint(dst, uint64(revision))
	at := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst = mvcc.AppendEffects(dst, effects)
	binary.BigEndian.PutUint32(dst[at:], uint32(len(dst)-at-4))
	return dst
}

// appendCommand appends a command to an entry.
func appendCommand(dst []byte, c command) []byte {
	dst = append(dst, byte(c.kind))
	dst = binary.AppendUvarint(dst, uint64(c.revision))
	switch c.kind {
	case commandResolve:
		return dst
	case commandTxn, commandSplit:
		dst = binary.AppendUvarint(dst, c.metaIndex)
	}
	at := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	if c.kind == commandSplit {
		out, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(dst, c.split)
		if err != nil {
			panic(fmt.Sprintf("replica: encode split: %v", err))
		}
		dst = out
	} else {
		dst = append(dst, c.effects...)
	}
	binary.BigEndian.PutUint32(dst[at:], uint32(len(dst)-at-4))
	return dst
}

// entryReader decodes an entry step by step without allocating per command.
type entryReader struct {
	entryHeader
	rest []byte
	done bool // a split was read: nothing may follow
}

// openEntry decodes the header of an entry.
func openEntry(data []byte) (entryReader, error) {
	var r entryReader
	if len(data) > maxEntryBytes {
		return r, fmt.Errorf("%w: %d bytes", errBadEntry, len(data))
	}
	if len(data) == 0 {
		return r, fmt.Errorf("%w: empty", errBadEntry)
	}
	if data[0] != entryFormat {
		return r, fmt.Errorf("%w: format %d, this version reads %d", errBadEntry, data[0], entryFormat)
	}
	r.rest = data[1:]
	for _, f := range []*uint64{&r.term, &r.epoch, &r.seq} {
		var err error
		if *f, err = r.uvarint(); err != nil {
			return r, err
		}
	}
	return r, nil
}

// next decodes the next command. ok is false at the end of the entry.
func (r *entryReader) next() (c command, ok bool, err error) {
	if len(r.rest) == 0 {
		return c, false, nil
	}
	if r.done {
		return c, false, fmt.Errorf("%w: %d bytes after a split", errBadEntry, len(r.rest))
	}
	c.kind = commandKind(r.rest[0])
	r.rest = r.rest[1:]
	rev, err := r.uvarint()
	if err != nil {
		return c, false, err
	}
	c.revision = int64(rev)
	if c.revision < 0 {
		return c, false, fmt.Errorf("%w: revision %d", errBadEntry, rev)
	}
	switch c.kind {
	case commandResolve:
		return c, true, nil
	case commandWrite:
	case commandTxn, commandSplit:
		if c.metaIndex, err = r.uvarint(); err != nil {
			return c, false, err
		}
	default:
		return c, false, fmt.Errorf("%w: unknown command %d", errBadEntry, c.kind)
	}
	body, err := r.body()
	if err != nil {
		return c, false, err
	}
	if c.kind != commandSplit {
		c.effects = body
		return c, true, nil
	}
	r.done = true
	c.split = new(placementpb.DecidedSplit)
	if err := proto.Unmarshal(body, c.split); err != nil {
		return c, false, fmt.Errorf("%w: split: %v", errBadEntry, err)
	}
	if c.split.Left == nil || c.split.Right == nil || len(c.split.Key) == 0 {
		return c, false, fmt.Errorf("%w: incomplete split", errBadEntry)
	}
	return c, true, nil
}

func (r *entryReader) uvarint() (uint64, error) {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 {
		return 0, fmt.Errorf("%w: bad number", errBadEntry)
	}
	r.rest = r.rest[n:]
	return v, nil
}

func (r *entryReader) body() ([]byte, error) {
	if len(r.rest) < 4 {
		return nil, fmt.Errorf("%w: truncated length", errBadEntry)
	}
	n := binary.BigEndian.Uint32(r.rest)
	if uint64(n) > uint64(len(r.rest)-4) {
		return nil, fmt.Errorf("%w: %d bytes announced, %d left", errBadEntry, n, len(r.rest)-4)
	}
	body := r.rest[4 : 4+n : 4+n]
	r.rest = r.rest[4+n:]
	return body, nil
}
