// Package engine opens and closes the one Pebble engine of a node: its data
// directory and whose it is, its options, the checks that it is what was
// written, and the fault that ends it. It knows nothing of what the rows mean,
// but for the few that prove what was durable. What it leans on inside Pebble is
// listed in pebble_test.go.
package engine

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
)

const (
	// DefaultCacheBytes is enough for the index and filter blocks of some ten
	// million keys, and small beside etcd's index of them.
	DefaultCacheBytes = 128 << 20
	// DefaultMemTableBytes: a store that holds little and is written much does not
	// take hundreds of MiB.
	DefaultMemTableBytes = 16 << 20
	// maxMemTables that wait for the disk stop writers.
	maxMemTables = 8
)

// Config says which engine is opened, and how.
type Config struct {
	// FS is the disk.
	FS vfs.FS
	// Dir is the data directory. It is made if it is missing.
	Dir string
	// NewIDs gives a new data directory its cluster and node id; neither is 0.
	NewIDs func() (clusterID, nodeID uint64)
	// MustExist refuses a directory without data with ErrNoData.
	MustExist bool
	// CacheBytes bounds the memory for blocks of tables that were read, with that of
	// the memtables in it. It is taken as it is needed. 0 means DefaultCacheBytes.
	CacheBytes int64
	// MaxOpenFiles bounds the file descriptors of tables. 0: Pebble's default. Below
	// 74 there is no difference.
	MaxOpenFiles int
	// MemTableBytes is how much of what was written is gathered in memory before it
	// goes to a table, and about the size of a log. The first ones of a start are
	// smaller. More of it means less rewriting in a large store that is written much,
	// and more memory; up to two are there under load, and up to maxMemTables if
	// the disk is slow. 0 means DefaultMemTableBytes.
	MemTableBytes int64
	// NoSync never waits for the disk (--unsafe-no-fsync): a power failure loses
	// what was acknowledged, and may damage the rest.
	NoSync bool
	// Stalled is told when the engine begins to make all writers wait, again for
	// each further reason, and when it ends. May be nil.
	Stalled func(bool)
	// Tune changes the options before the engine is opened, for tests. May be nil.
	Tune   func(*pebble.Options)
	Logger *zap.Logger
}

// Engine is the open engine of a data directory, which it keeps locked.
type Engine struct {
	// DB is the engine. Who writes to it does so through Fault.Write, or reports
	// what it finds to Fault.
	DB *pebble.DB
	// Fault is the end of the engine, whoever finds it.
	Fault *Fault
	// Identity says whose the data directory is.
	Identity Identity

	dir *dataDir
	// synced is the notes of what is synced; nil if none are made.
	synced *syncedTable
	logs   *logFiles
	spare  *spareFS
}

// Open locks a data directory, or makes a new one, checks it and opens its
// engine. The error names what to do where the user can do something; the data is
// untouched then.
func Open(cfg Config) (_ *Engine, err error) {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	cfg.CacheBytes = cmp.Or(cfg.CacheBytes, DefaultCacheBytes)
	cfg.MemTableBytes = cmp.Or(cfg.MemTableBytes, DefaultMemTableBytes)
	newID := func() Identity {
		cluster, node := cfg.NewIDs()
		return Identity{ClusterID: cluster, NodeID: node}
	}
	if cfg.MustExist {
		newID = nil
	}
	dir, err := openDataDir(cfg.FS, cfg.Dir, cfg.Logger, newID)
	if err != nil {
		return nil, err
	}
	e := &Engine{Fault: NewFault(), Identity: dir.id, dir: dir}
	if err := e.Fault.Write(func() error { return e.open(cfg) }); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

func (e *Engine) open(cfg Config) error {
	opts, err := e.options(cfg)
	if err != nil {
		return err
	}
	db, err := pebble.Open(e.dir.enginePath(), opts)
	if lacksFile(err) {
		err = fmt.Errorf("%w: %w", pebble.ErrCorruption, err)
	}
	if err != nil {
		return explain(e.dir.path, "open the engine", err)
	}
	e.DB = db
	e.spare.opened()
	if err := e.dir.checkEngine(db); err != nil {
		return fmt.Errorf("%s: %w", e.dir.path, err)
	}
	return nil
}

// IsNew reports whether the engine was never complete: what it lacks is still to be
// written. In any other engine it is damage.
func (e *Engine) IsNew() bool { return e.dir.isNew }

// Complete says, durably, that the engine has what its node must find in it.
func (e *Engine) Complete() error { return e.dir.complete() }

// Poll looks whether a shortage that the engine has met is over, which it logs then.
// Call it every now and then, as with each look for free space.
func (e *Engine) Poll() { e.spare.look() }

// Dir returns the data directory.
func (e *Engine) Dir() string { return e.dir.path }

// ErrNotClosed is returned by Close after a fault that left locks held: what is
// open ends with the process.
var ErrNotClosed = errors.New("the engine is not closed after its fault")

// Close closes the engine, unless its fault left it with locks held, on which
// closing would wait for ever, and unlocks the data directory.
func (e *Engine) Close() error {
	err := e.closeDB()
	if e.synced != nil {
		err = errors.Join(err, e.synced.close())
	}
	if e.spare != nil {
		e.spare.close()
	}
	return errors.Join(err, e.dir.close())
}

func (e *Engine) closeDB() error {
	if e.DB == nil {
		return nil
	}
	select {
	case <-e.Fault.Locked():
		return ErrNotClosed
	default:
		return Guard(e.DB.Close)
	}
}
