package node

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hawser-kv/hawser/range/keys"
)

// dataFormat is the version of the layout of a data directory. A server
// refuses one that is newer than its own.
const dataFormat = 1

// Names in a data directory. The engine has a directory of its own, so that
// nothing of ours is taken for a file of Pebble's.
const (
	lockFile     = "LOCK"
	identityFile = "HAWSER"
	engineDir    = "engine"
	etcdDir      = "member" // what etcd keeps in its data directory
)

// Errors of a data directory that cannot be used. Nothing in it is changed.
var (
	// ErrInUse: another process has the directory.
	ErrInUse = errors.New("the data directory is in use by another process: stop that one, or choose another --data-dir")
	// ErrNewerFormat: a newer release wrote it.
	ErrNewerFormat = errors.New("the data directory was written by a newer release of hawser: run that release, or one that is newer still")
	// ErrEtcdData: it belongs to an etcd.
	ErrEtcdData = errors.New("the data directory belongs to an etcd server: choose an empty --data-dir")
	// ErrOtherCluster: its parts come from different clusters.
	ErrOtherCluster = errors.New("the data directory holds parts of different clusters or nodes: restore all of it from one copy")
	// ErrDamaged: it cannot be read.
	ErrDamaged = errors.New("the data directory is damaged: restore it from a copy, or start with an empty --data-dir")
	// ErrNoData: it is empty, and was said to have data.
	ErrNoData = errors.New("the data directory is empty, and --initial-cluster-state=existing asks for one with data: " +
		"joining a cluster is not supported yet; give the right --data-dir, or --initial-cluster-state=new for a new one")
	// ErrForeignData: it has files, but none of ours.
	ErrForeignData = errors.New("the data directory is not empty and was not made by hawser: choose an empty --data-dir")
)

// identity says whose a data directory is.
type identity struct {
	Format    int    `json:"format"`
	ClusterID uint64 `json:"cluster_id,string"`
	NodeID    uint64 `json:"node_id,string"`
	// Checksum is the CRC32C of the fields above, against a damaged file.
	Checksum uint32 `json:"checksum"`
}

func (id identity) sum() uint32 {
	var b [20]byte
	binary.BigEndian.PutUint32(b[:], uint32(id.Format))
	binary.BigEndian.PutUint64(b[4:], id.ClusterID)
	binary.BigEndian.PutUint64(b[12:], id.NodeID)
	return crc32.Checksum(b[:], crc32.MakeTable(crc32.Castagnoli))
}

// dataDir is a data directory that this process has locked.
type dataDir struct {
	fs   vfs.FS
	path string
	lock io.Closer
	id   identity
}

// openDataDir locks a data directory and finds out whose it is; an empty or
// missing one gets the identity that newID makes, or is refused with ErrNoData if
// newID is nil.
func openDataDir(fs vfs.FS, path string, newID func() identity) (_ *dataDir, err error) {
	if err := makeDir(fs, path); err != nil {
		return nil, fmt.Errorf("data directory %s: %w", path, err)
	}
	if err := requirePrivate(fs, path); err != nil {
		return nil, err
	}
	names, err := fs.List(path)
	if err != nil {
		return nil, fmt.Errorf("data directory %s: %w", path, err)
	}
	has := make(map[string]bool, len(names))
	for _, n := range names {
		has[strings.TrimSuffix(n, "/")] = true
	}
	switch {
	case has[identityFile]:
	case has[etcdDir]:
		return nil, fmt.Errorf("%s: %w", path, ErrEtcdData)
	case has[engineDir]:
		return nil, fmt.Errorf("%s: the file %s is missing: %w", path, identityFile, ErrDamaged)
	default:
		delete(has, lockFile)
		delete(has, identityFile+".tmp")
		if len(has) > 0 {
			return nil, fmt.Errorf("%s: %w", path, ErrForeignData)
		}
	}
	lock, err := fs.Lock(fs.PathJoin(path, lockFile))
	if err != nil {
		return nil, fmt.Errorf("%s: %w (%v)", path, ErrInUse, err)
	}
	d := &dataDir{fs: fs, path: path, lock: lock}
	defer func() {
		if err != nil {
			err = errors.Join(err, lock.Close())
		}
	}()
	if has[identityFile] {
		if d.id, err = readIdentity(fs, path); err != nil {
			return nil, err
		}
		return d, errors.Join(d.checkEngineFile(), d.checkManifest(), d.checkLog())
	}
	if newID == nil {
		return nil, fmt.Errorf("%s: %w", path, ErrNoData)
	}
	d.id = newID()
	d.id.Format = dataFormat
	d.id.Checksum = d.id.sum()
	return d, writeIdentity(fs, path, d.id)
}

// makeDir makes a directory that survives a crash: each new name is synced in
// the directory that holds it.
func makeDir(fs vfs.FS, path string) error {
	var parents []string
	for p := path; ; {
		if _, err := fs.Stat(p); err == nil {
			break
		}
		parent := fs.PathDir(p)
		parents = append(parents, parent)
		if parent == p {
			break
		}
		p = parent
	}
	if err := fs.MkdirAll(path, 0o700); err != nil {
		return err
	}
	for _, p := range parents {
		dir, err := fs.OpenDir(p)
		if err != nil {
			return err
		}
		if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
			return err
		}
	}
	return nil
}

// requirePrivate refuses a directory that others can read (etcd's rule, and
// CVE-2020-15113): only where the file system has permissions.
func requirePrivate(fs vfs.FS, path string) error {
	if fs != vfs.Default {
		return nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("data directory %s: %w", path, err)
	}
	if info.Mode().Perm()&0o077 == 0 {
		return nil
	}
	if err := os.Chmod(path, 0o700); err != nil {
		return fmt.Errorf("data directory %s can be read by others and that cannot be changed: %w", path, err)
	}
	return nil
}

// readIdentity reads the identity file of a directory. Errors: the sentinels
// above; one that wraps os.ErrNotExist if there is none.
func readIdentity(fs vfs.FS, dir string) (identity, error) {
	var id identity
	f, err := fs.Open(fs.PathJoin(dir, identityFile))
	if err != nil {
		return id, fmt.Errorf("%s: %w", dir, err)
	}
	defer func() { _ = f.Close() }() // read only
	b, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		return id, fmt.Errorf("%s: read %s: %w", dir, identityFile, err)
	}
	// The format comes first: a newer one may look different.
	if err := json.Unmarshal(b, &struct {
		Format *int `json:"format"`
	}{&id.Format}); err != nil || id.Format < 1 {
		return id, fmt.Errorf("%s: the file %s cannot be read: %w", dir, identityFile, ErrDamaged)
	}
	if id.Format > dataFormat {
		return id, fmt.Errorf("%s: format %d, this release knows %d: %w", dir, id.Format, dataFormat, ErrNewerFormat)
	}
	if err := json.Unmarshal(b, &id); err != nil || id.Checksum != id.sum() {
		return id, fmt.Errorf("%s: the file %s cannot be read: %w", dir, identityFile, ErrDamaged)
	}
	return id, nil
}

// writeIdentity makes the identity file of a directory, durably.
func writeIdentity(fs vfs.FS, dir string, id identity) error {
	b, err := json.Marshal(id)
	if err != nil {
		return err
	}
	name := fs.PathJoin(dir, identityFile)
	f, err := fs.Create(name+".tmp", vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	_, err = f.Write(append(b, '\n'))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = fs.Rename(name+".tmp", name)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	opened, err := fs.OpenDir(dir)
	if err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	if err := errors.Join(opened.Sync(), opened.Close()); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	return nil
}

func (d *dataDir) enginePath() string { return d.fs.PathJoin(d.path, engineDir) }

func (d *dataDir) close() error { return d.lock.Close() }

// checkEngineFile compares the identity file beside the engine's files with the
// directory's: opening an engine changes it, and one of another cluster is not
// ours to change. Without the file the row in the engine decides.
func (d *dataDir) checkEngineFile() error {
	id, err := readIdentity(d.fs, d.enginePath())
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	return d.checkSame(id)
}

// checkEngine compares the engine's own note of whose it is with the
// directory's, writing it into a new engine.
func (d *dataDir) checkEngine(db *pebble.DB) error {
	if err := d.checkEngineRow(db); err != nil {
		return err
	}
	if _, err := d.fs.Stat(d.fs.PathJoin(d.enginePath(), identityFile)); err == nil {
		return nil
	}
	return writeIdentity(d.fs, d.enginePath(), d.id)
}

func (d *dataDir) checkEngineRow(db *pebble.DB) error {
	key := keys.Node("identity")
	v, closer, err := db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		b, err := json.Marshal(d.id)
		if err != nil {
			return err
		}
		if err := db.Set(key, b, pebble.Sync); err != nil {
			return err
		}
		// The first log of a new engine was begun in an old format, in which a
		// damaged record cannot be told from the log's end. Flush begins another.
		return db.Flush()
	}
	if err != nil {
		return fmt.Errorf("engine identity: %w: %w", ErrDamaged, err)
	}
	var id identity
	err = json.Unmarshal(v, &id)
	if err := errors.Join(err, closer.Close()); err != nil {
		return fmt.Errorf("engine identity: %w: %w", ErrDamaged, err)
	}
	return d.checkSame(id)
}

// checkSame compares an identity found in the engine with the directory's.
func (d *dataDir) checkSame(id identity) error {
	if id != d.id {
		return fmt.Errorf("the engine is of cluster %x node %x, the file %s of cluster %x node %x: %w",
			id.ClusterID, id.NodeID, identityFile, d.id.ClusterID, d.id.NodeID, ErrOtherCluster)
	}
	return nil
}
