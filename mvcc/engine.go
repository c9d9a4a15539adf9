package mvcc

import (
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/sstable/colblk"
	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// bloomBitsPerKey costs 10 bits a version in memory when cached and leaves
	// one of a hundred look-ups of a missing key to read a block.
	bloomBitsPerKey = 10

	// keyBundleSize is the number of user keys that share a key prefix in a
	// columnar block; Pebble's default.
	keyBundleSize = 16

	// blockSizeBytes: lists read blocks in order and gain from large ones,
	// point reads pay for them on a miss of the cache.
	blockSizeBytes      = 16 << 10
	indexBlockSizeBytes = 128 << 10
)

// EngineOptions returns the options of a node's engine on fs. Comparer, key
// schema and format version belong to the stored data and must stay as they
// are; cache, sizes, concurrency and listeners are the caller's to set.
func EngineOptions(fs vfs.FS) *pebble.Options {
	schema := colblk.DefaultKeySchema(Comparer, keyBundleSize)
	opts := &pebble.Options{
		FS:                         fs,
		Comparer:                   Comparer,
		FormatMajorVersion:         pebble.FormatNewest,
		KeySchema:                  schema.Name,
		KeySchemas:                 sstable.MakeKeySchemas(&schema),
		L0CompactionThreshold:      6,
		L0StopWritesThreshold:      1000,
		LBaseMaxBytes:              256 << 20,
		CompactionConcurrencyRange: func() (lower, upper int) { return 1, 2 },
	}
	opts.Experimental.EnableColumnarBlocks = func() bool { return true }
	opts.Experimental.ValueSeparationPolicy = func() pebble.ValueSeparationPolicy {
		return pebble.ValueSeparationPolicy{Enabled: false}
	}
	for i := range opts.Levels {
		opts.Levels[i].BlockSize = blockSizeBytes
		opts.Levels[i].IndexBlockSize = indexBlockSizeBytes
		opts.Levels[i].FilterPolicy = bloom.FilterPolicy(bloomBitsPerKey)
	}
	return opts
}
