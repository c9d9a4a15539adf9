package mvcc

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"github.com/hawser-kv/hawser/mvcc/counts"
	"github.com/hawser-kv/hawser/mvcc/keys"
)

// storeFormat is the version of everything this package keeps in the engine as
// a whole; rows have their own (rowFormat). A store of the format before becomes
// one of this when it is opened: it only has fewer kinds of rows.
const (
	storeFormat       byte = 3 // deletions of spans may be pending
	storeFormatBefore byte = 2 // events may name the prior
	storeFormatFirst  byte = 1
)

// Rows about the store itself.
var (
	storeFormatKey = keys.MVCCMeta("format")
	forgottenKey   = keys.MVCCMeta("forgotten")
)

// ErrStoreFormat is returned by Open for data written by a newer program.
var ErrStoreFormat = errors.New("mvcc: store format not known to this version")

// Options of a Store. The zero value means the defaults.
type Options struct {
	// Counts are those of the live-key counts.
	Counts counts.Options
	// RecentBytes is the memory for the newest versions of keys that were
	// written or read lately; 0 means DefaultRecentBytes. It is taken as it is
	// needed.
	RecentBytes int64
	// CompactionWindow is how many events a compaction puts in order at a time,
	// each some 150 bytes of memory; 0 means DefaultCompactionWindow.
	CompactionWindow int
}

// DefaultCompactionWindow takes about 3 MiB with the keys of Kubernetes, and 10 ms
// of a core to read and put in order.
const DefaultCompactionWindow = 16 << 10

// Store is all MVCC data on one engine: the versions and events of every range
// that has a replica on the node. Reads may come from any goroutine; Apply may
// come from several at a time for different ranges. The engine belongs to the
// caller, who closes it after Close.
type Store struct {
	db *pebble.DB

	// forgotten is the largest revision below which nothing can be read any
	// more. It is durable before the first version goes (revisions.md R9).
	forgotten atomic.Int64

	// counts knows the live keys at every readable revision. It is ahead of the
	// engine by what is staged and not committed.
	counts   *counts.Index
	counting counting

	compaction compaction

	pending pendings

	recent *recent
	known  *known

	cursors sync.Pool // of *cursor, without an engine iterator
}

// Open opens the MVCC data of an engine made with EngineOptions, also a new one.
func Open(db *pebble.DB, opts Options) (*Store, error) {
	if opts.RecentBytes == 0 {
		opts.RecentBytes = DefaultRecentBytes
	}
	s := &Store{db: db, recent: newRecent(opts.RecentBytes)}
	s.compaction.windowEvents = cmp.Or(max(opts.CompactionWindow, 0), DefaultCompactionWindow)
	format, err := s.readFormat()
	if err != nil {
		return nil, err
	}
	forgotten, err := s.loadForgotten()
	if err != nil {
		return nil, err
	}
	s.forgotten.Store(forgotten)
	if err := s.pending.load(db); err != nil {
		return nil, err
	}
	if s.recent.known, err = s.lastRevision(); err != nil {
		return nil, err
	}
	if err := s.loadCounts(opts.Counts); err != nil {
		return nil, err
	}
	live, err := s.count(nil, nil, latestRevision)
	if err != nil {
		return nil, err
	}
	s.known = newKnown(2 * live)
	// All of a small store; some milliseconds.
	if _, err := s.TendKnown(openKnownKeys); err != nil {
		return nil, err
	}
	if format != storeFormat {
		// Last: what cannot be opened stays as it was.
		if err := s.db.Set(storeFormatKey, []byte{storeFormat}, pebble.Sync); err != nil {
			return nil, fmt.Errorf("mvcc: write the format of the store: %w", err)
		}
	}
	return s, nil
}

// Forgotten returns the revision below which nothing can be read. It is zero
// while nothing was compacted.
func (s *Store) Forgotten() int64 { return s.forgotten.Load() }

// readFormat returns the format of the store, 0 if it is new. ErrStoreFormat for
// one that this version does not know.
func (s *Store) readFormat() (byte, error) {
	row, err := s.metaRow(storeFormatKey)
	if err != nil || row == nil {
		return 0, err
	}
	if len(row) != 1 || row[0] < storeFormatFirst || row[0] > storeFormat {
		return 0, fmt.Errorf("%w: %x", ErrStoreFormat, row)
	}
	return row[0], nil
}

func (s *Store) loadForgotten() (int64, error) {
	row, err := s.metaRow(forgottenKey)
	if err != nil || row == nil {
		return 0, err
	}
	if len(row) != 8 || row[0]&0x80 != 0 {
		return 0, fmt.Errorf("%w: forgotten revision %x", errCorruptRow, row)
	}
	return int64(binary.BigEndian.Uint64(row)), nil
}

// lastRevision returns the largest revision of an event in the engine, or of a
// pending deletion. Events outlive their versions only, so no version is newer.
func (s *Store) lastRevision() (rev int64, err error) {
	lower, upper := EventSpan(0, latestRevision)
	c, err := s.openCursor(lower, upper, false)
	if err != nil {
		return 0, err
	}
	if c.it.Last() {
		rev, _, _, err = splitEventKey(c.it.Key())
	} else {
		err = c.it.Error()
	}
	if list := s.pending.list.Load(); list != nil {
		rev = max(rev, (*list)[len(*list)-1].rev)
	}
	return rev, s.releaseAfter(c, err)
}

// metaRow returns a copy of a row, nil if there is none.
func (s *Store) metaRow(key []byte) ([]byte, error) {
	row, closer, err := s.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("mvcc: read %x: %w", key, err)
	}
	row = append([]byte(nil), row...)
	return row, closer.Close()
}
