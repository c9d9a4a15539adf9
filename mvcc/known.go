package mvcc

import (
	"fmt"
	"hash/maphash"
	"math/bits"
	"sync"
	"sync/atomic"
)

// known tells of a key that it never was, without a look into the engine: much
// of what a busy keyspace writes are new keys, and the search for what is not
// there walks down every memtable.
//
// It is a Bloom filter of the keys that have versions. Apply adds each key before
// a version of it can be seen. What was in the engine before is added by a walk
// over it (TendKnown); only when that has ended, known answers. Nothing is ever
// removed: what it says stays true, and keys that went cost a look-up.
//
// Whoever brings versions in other than by Apply calls restart before and after.
type known struct {
	seed maphash.Seed
	// answers is set when every key of the engine is in.
	answers atomic.Bool
	// filters are asked all; keys are added to the last one.
	filters atomic.Pointer[[]*keyFilter]

	mu struct {
		sync.Mutex
		walks  int    // begun
		walked bool   // the last one has ended
		next   []byte // where it goes on: an engine key; nil: at the start
	}
}

const (
	minKnownKeys = 1 << 16
	// maxKnownKeys bounds the memory, to some 50 MiB over all filters. Beyond,
	// more and more keys that never were have to be looked up.
	maxKnownKeys    = 32 << 20
	openKnownKeys   = 10_000
	knownGrowth     = 4 // each filter is so much larger than the one before
	knownBitsPerKey = 10
	knownProbes     = 6
	knownProbeBits  = 9 // of the bits in a block
	knownBlockWords = 1 << knownProbeBits / 64
)

// keyFilter is a Bloom filter whose probes for a key lie in one cache line.
type keyFilter struct {
	words    []atomic.Uint64
	blocks   uint64
	capacity int64
	added    atomic.Int64
}

func newKeyFilter(capacity int64) *keyFilter {
	capacity = min(max(capacity, minKnownKeys), maxKnownKeys)
	f := &keyFilter{capacity: capacity, blocks: uint64(capacity*knownBitsPerKey)>>knownProbeBits + 1}
	f.words = make([]atomic.Uint64, f.blocks*knownBlockWords)
	return f
}

// block returns the words that the probes for a hash lie in. The high bits of the
// hash choose it, the low ones the probes.
func (f *keyFilter) block(h uint64) []atomic.Uint64 {
	i, _ := bits.Mul64(h, f.blocks)
	return f.words[i*knownBlockWords:][:knownBlockWords]
}

func (f *keyFilter) add(h uint64) {
	block := f.block(h)
	fresh := false
	for range knownProbes {
		bit := h & (1<<knownProbeBits - 1)
		word, mask := &block[bit/64], uint64(1)<<(bit%64)
		if word.Load()&mask == 0 {
			word.Or(mask)
			fresh = true
		}
		h >>= knownProbeBits
	}
	if fresh {
		f.added.Add(1)
	}
}

func (f *keyFilter) has(h uint64) bool {
	block := f.block(h)
	for range knownProbes {
		bit := h & (1<<knownProbeBits - 1)
		if block[bit/64].Load()&(1<<(bit%64)) == 0 {
			return false
		}
		h >>= knownProbeBits
	}
	return true
}

func (f *keyFilter) full() bool { return f.added.Load() > f.capacity && f.capacity < maxKnownKeys }

// newKnown returns a filter made for so many keys to begin with.
func newKnown(capacity int64) *known {
	k := &known{seed: maphash.MakeSeed()}
	k.filters.Store(&[]*keyFilter{newKeyFilter(capacity)})
	return k
}

// add takes in a key.
func (k *known) add(key []byte) {
	filters := *k.filters.Load()
	last := filters[len(filters)-1]
	last.add(maphash.Bytes(k.seed, key))
	if last.full() {
		k.grow(last)
	}
}

func (k *known) grow(last *keyFilter) {
	k.mu.Lock()
	defer k.mu.Unlock()
	filters := *k.filters.Load()
	if filters[len(filters)-1] != last {
		return
	}
	grown := append(append([]*keyFilter(nil), filters...), newKeyFilter(last.capacity*knownGrowth))
	k.filters.Store(&grown)
}

// never reports that no version of key is there or was ever staged.
func (k *known) never(key []byte) bool {
	if !k.answers.Load() {
		return false
	}
	h := maphash.Bytes(k.seed, key)
	for _, f := range *k.filters.Load() {
		if f.has(h) {
			return false
		}
	}
	return true
}

// restart makes the filter silent until another walk has ended.
func (k *known) restart() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.answers.Store(false)
	k.mu.walks++
	k.mu.walked, k.mu.next = false, nil
}

// TendKnown takes keys that the engine has from before into the filter of known
// keys, at most so many of them; done when all are in. Whoever runs the store
// calls it now and then, from one goroutine: until it is done, and again after
// InvalidateCounts and RebuildCounts, writes of new keys cost a look into the
// engine.
func (s *Store) TendKnown(maxKeys int) (done bool, err error) {
	k := s.known
	k.mu.Lock()
	walk, from, walked := k.mu.walks, k.mu.next, k.mu.walked
	k.mu.Unlock()
	if walked {
		return true, nil
	}
	lower, upper := VersionSpan(nil, nil)
	if from != nil {
		lower = from
	}
	c, err := s.openCursor(lower, upper, false)
	if err != nil {
		return false, err
	}
	next, err := c.addKnown(k, maxKeys)
	if err = s.releaseAfter(c, err); err != nil {
		return false, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.mu.walks != walk {
		return false, nil
	}
	k.mu.next, k.mu.walked = next, next == nil
	k.answers.Store(k.mu.walked)
	return k.mu.walked, nil
}

// addKnown adds the keys within the cursor's bounds, at most so many. It returns
// the engine key to go on with, nil at the end.
func (c *cursor) addKnown(k *known, maxKeys int) (next []byte, err error) {
	var key []byte
	n := 0
	for ok := c.it.First(); ok; ok = c.it.NextPrefix() {
		if n == maxKeys {
			return append([]byte(nil), c.it.Key()...), nil
		}
		n++
		prefix, _, _, isVersion := splitVersionKey(c.it.Key())
		if !isVersion {
			return nil, fmt.Errorf("%w: version key %x", errCorruptRow, c.it.Key())
		}
		if key, err = appendUserKey(key[:0], prefix); err != nil {
			return nil, err
		}
		k.add(key)
	}
	if err := c.it.Error(); err != nil {
		return nil, fmt.Errorf("mvcc: walk over keys: %w", err)
	}
	return nil, nil
}
