package engine

import (
	"encoding/binary"
	"hash/crc32"
)

// The engine's log is made of blocks, these of chunks, which do not cross
// blocks; a record is one chunk or several. A chunk is a checksum, a length, a
// type, the number of the log, in newer ones an offset, and the payload.
const (
	logBlock       = 32 << 10
	logHeader      = 11
	logHeaderSync  = 19
	firstLogType   = 5 // whole, first, middle, last
	firstSyncType  = 9 // the same with the longer header
	beyondSyncType = 13
)

// chunkHeader is the size of a chunk's header in the manifest: checksum,
// length, type. A record is one chunk or several.
const chunkHeader = 7

// chunk returns where a chunk at the beginning of b would end, 0 if there is
// none, and whether it is whole.
func chunk(b []byte) (end int, whole bool) {
	if len(b) <= chunkHeader || b[6] < 1 || b[6] > 4 {
		return 0, false
	}
	end = chunkHeader + int(binary.LittleEndian.Uint16(b[4:]))
	if end == chunkHeader || end > len(b) {
		return 0, false
	}
	return end, binary.LittleEndian.Uint32(b) == masked(b[6:end])
}

// masked is the engine's checksum of a chunk's type and payload.
func masked(b []byte) uint32 {
	sum := crc32.Checksum(b, castagnoli)
	return (sum>>15 | sum<<17) + 0xa282ead8
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)
