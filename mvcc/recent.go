package mvcc

import (
	"encoding/binary"
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// recent keeps the newest versions of keys that were written or read lately, so
// that the point read or write of such a key needs no engine iterator: opening
// one and seeking in the engine's memory costs more than all else of a read.
//
// The rules that make it answer as the engine would:
//
//  1. Apply puts each version in when it stages it: before any reader may know
//     its revision. So an entry is the newest version of its key that was
//     staged, and a reader at R, for whom all at or below R is visible, may use
//     it if and only if its revision is not above R.
//  2. A reader at R puts in what it found, the newest version of a key, only if
//     nothing above R was dropped from the shard for lack of room: a version of
//     the key that the reader could not see is then still here, and wins.
//  3. What was in the engine when it was opened may be applied again. Such a
//     version may not be the newest, so it only marks the key as unknown.
//
// Whoever changes versions other than by Apply and compaction calls clear; views
// made before that put in nothing after it.
//
// Memory is a ring of chunks for each shard, without pointers for the garbage
// collector to follow. The oldest chunk goes first; what is read often comes in
// again.
type recent struct {
	seed   maphash.Seed
	mask   uint64 // of hashes; a test makes them collide with it
	shards [recentShards]recentShard
	// cleared counts the calls of clear.
	cleared atomic.Uint64
	// known is the largest revision in the engine when it was opened.
	known int64
}

const (
	recentShards = 32
	// maxChunkBytes bounds what goes at once for lack of room.
	maxChunkBytes = 64 << 10
	// maxRecentBytes bounds an entry: large values are copied from the engine's
	// blocks, whose look-up costs little beside the copy.
	maxRecentBytes = 8 << 10
	// recentHeadBytes is enough for all of a row but the value.
	recentHeadBytes = 1 + 3*binary.MaxVarintLen64
	// DefaultRecentBytes holds some 180,000 versions of 256 bytes.
	DefaultRecentBytes = 64 << 20
)

type recentShard struct {
	mu    sync.Mutex
	index map[uint64]uint32 // hash of the key -> place of its entry: chunk * chunkBytes + offset
	// chunks are made as they are needed, up to maxChunks; chunks[at] is being
	// filled.
	chunks     [][]byte
	at         int
	maxChunks  int
	chunkBytes int
	// dropped is the largest revision of an entry that another key displaced.
	dropped int64
}

// An entry is a header, the user key and the row of the version as in the
// engine. An empty row marks the key as unknown.
//
//	hash 8 | revision 8 | sub 4 | key length 4 | row length 4
const recentHeaderBytes = 28

type recentEntry struct {
	rev      int64
	sub      uint32
	key, row []byte
}

func newRecent(bytes int64) *recent {
	c := &recent{seed: maphash.MakeSeed(), mask: math.MaxUint64}
	// Places have 32 bits.
	perShard := min(int(bytes/recentShards), math.MaxUint32/2)
	for i := range c.shards {
		s := &c.shards[i]
		s.chunkBytes = max(min(perShard/2, maxChunkBytes), recentHeaderBytes)
		s.maxChunks = max(2, perShard/s.chunkBytes)
		s.index = make(map[uint64]uint32)
	}
	return c
}

func (c *recent) shard(key []byte) (*recentShard, uint64) {
	h := maphash.Bytes(c.seed, key) & c.mask
	return &c.shards[h%recentShards], h
}

// get appends the row of the newest version of key to dst, provided that it is
// not above rev. ok is false if that version is above rev or not known.
func (c *recent) get(dst, key []byte, rev int64) (row []byte, modRevision int64, ok bool) {
	s, h := c.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.find(h, key)
	if !ok || len(e.row) == 0 || e.rev > rev {
		return dst, 0, false
	}
	return append(dst, e.row...), e.rev, true
}

// head is get without the value.
func (c *recent) head(key []byte, rev int64) (v version, at Place, ok bool) {
	var few [recentHeadBytes]byte
	s, h := c.shard(key)
	s.mu.Lock()
	e, ok := s.find(h, key)
	if ok = ok && len(e.row) > 0 && e.rev <= rev; ok {
		n := copy(few[:], e.row)
		at = Place{e.rev, e.sub}
		s.mu.Unlock()
		v, err := decodeVersionValue(few[:n], at.Revision)
		return v, at, err == nil
	}
	s.mu.Unlock()
	return version{}, Place{}, false
}

// newest returns the revision of the newest version of key that is here, 0 if there
// is none, and all of it but the value if it is known.
func (c *recent) newest(key []byte) (v version, rev int64, known bool) {
	s, h := c.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.find(h, key)
	if !ok {
		return version{}, 0, false
	}
	if len(e.row) == 0 {
		return version{}, e.rev, false
	}
	v, err := decodeVersionValue(e.row[:min(len(e.row), recentHeadBytes)], e.rev)
	return v, e.rev, err == nil
}

// supersede says that key has a tombstone, which may not be its newest version.
func (c *recent) supersede(key []byte, rev int64, sub uint32) {
	s, h := c.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.find(h, key); ok && e.rev < rev {
		s.put(h, key, rev, sub, tombstoneRow)
	}
}

// drop has views of before rev offer nothing any more: of what they see something
// may be dead at rev, whose tombstone is not here.
func (c *recent) drop(rev int64) {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		s.dropped = max(s.dropped, rev)
		s.mu.Unlock()
	}
}

// put takes in a version that is staged.
func (c *recent) put(key []byte, rev int64, sub uint32, row []byte) {
	if rev <= c.known {
		row = nil
	}
	s, h := c.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(h, key, rev, sub, row)
}

// offer takes in the newest version of a key as a view at readRev saw it, which
// was made when clear had been called so often.
func (c *recent) offer(key []byte, rev int64, sub uint32, row []byte, readRev int64, cleared uint64) {
	s, h := c.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dropped <= readRev && cleared == c.cleared.Load() && recentHeaderBytes+len(key)+len(row) <= s.maxBytes() {
		s.put(h, key, rev, sub, row)
	}
}

// clear forgets everything.
func (c *recent) clear() {
	// First, and offers look under the lock: none of before comes after.
	c.cleared.Add(1)
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		clear(s.index)
		for j := range s.chunks {
			s.chunks[j] = s.chunks[j][:0]
		}
		s.at = 0
		s.mu.Unlock()
	}
}

// maxBytes is the size of the largest entry.
func (s *recentShard) maxBytes() int { return min(s.chunkBytes, maxRecentBytes) }

func (s *recentShard) entry(place uint32) recentEntry {
	b := s.chunks[place/uint32(s.chunkBytes)][place%uint32(s.chunkBytes):]
	keyLen, rowLen := binary.LittleEndian.Uint32(b[20:]), binary.LittleEndian.Uint32(b[24:])
	body := b[recentHeaderBytes:]
	return recentEntry{
		rev: int64(binary.LittleEndian.Uint64(b[8:])), sub: binary.LittleEndian.Uint32(b[16:]),
		key: body[:keyLen], row: body[keyLen:][:rowLen],
	}
}

func (s *recentShard) find(h uint64, key []byte) (recentEntry, bool) {
	place, ok := s.index[h]
	if !ok {
		return recentEntry{}, false
	}
	e := s.entry(place)
	return e, string(e.key) == string(key)
}

func (s *recentShard) put(h uint64, key []byte, rev int64, sub uint32, row []byte) {
	if place, ok := s.index[h]; ok {
		e := s.entry(place)
		switch {
		case string(e.key) != string(key): // the same hash: the last one is found
			s.dropped = max(s.dropped, e.rev)
		case e.rev > rev || e.rev == rev && e.sub > sub:
			return
		}
	}
	n := recentHeaderBytes + len(key) + len(row)
	if n > s.maxBytes() {
		row = nil
		if n = recentHeaderBytes + len(key); n > s.maxBytes() {
			// A huge key is never here: as if it had been displaced at once.
			s.dropped = max(s.dropped, rev)
			return
		}
	}
	chunk := s.room(n)
	s.index[h] = uint32(s.at*s.chunkBytes + len(*chunk))
	b := binary.LittleEndian.AppendUint64(*chunk, h)
	b = binary.LittleEndian.AppendUint64(b, uint64(rev))
	b = binary.LittleEndian.AppendUint32(b, sub)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(key)))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(row)))
	b = append(b, key...)
	*chunk = append(b, row...)
}

// room returns the chunk that has room for n bytes at its end; it may drop the
// oldest chunk.
func (s *recentShard) room(n int) *[]byte {
	if s.at < len(s.chunks) && len(s.chunks[s.at])+n <= s.chunkBytes {
		return &s.chunks[s.at]
	}
	if len(s.chunks) > 0 {
		s.at = (s.at + 1) % s.maxChunks
	}
	if s.at == len(s.chunks) {
		s.chunks = append(s.chunks, make([]byte, 0, s.chunkBytes))
		return &s.chunks[s.at]
	}
	b := s.chunks[s.at]
	for off := 0; off < len(b); {
		place := uint32(s.at*s.chunkBytes + off)
		e := s.entry(place)
		h := binary.LittleEndian.Uint64(b[off:])
		if s.index[h] == place {
			delete(s.index, h)
		}
		s.dropped = max(s.dropped, e.rev)
		off += recentHeaderBytes + len(e.key) + len(e.row)
	}
	s.chunks[s.at] = b[:0]
	return &s.chunks[s.at]
}

// recentGet answers a read of key at rev from the recent versions. ok is false
// if they do not tell.
func (s *Store) recentGet(key []byte, rev int64) (kv *mvccpb.KeyValue, ok bool, err error) {
	var few [512]byte
	pending := s.pending.list.Load() // before the look: see pendings
	row, modRevision, ok := s.recent.get(few[:0], key, rev)
	if !ok {
		return nil, false, nil
	}
	v, err := decodeVersionValue(row, modRevision)
	if err != nil {
		return nil, false, err
	}
	if v.tombstone || pending != nil && pending.killsKey(key, modRevision, rev) {
		return nil, true, nil
	}
	return newKeyValue(key, &v, modRevision), true, nil
}

func (s *Store) recentHead(key []byte, rev int64) (h head, ok bool) {
	pending := s.pending.list.Load() // before the look: see pendings
	v, at, ok := s.recent.head(key, rev)
	if !ok || v.tombstone || pending != nil && pending.killsKey(key, at.Revision, rev) {
		return head{}, ok
	}
	return v.head(at), true
}
