package engine

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
)

// Names in a data directory. The engine has a directory of its own, so that
// nothing of ours is taken for a file of Pebble's.
const (
	lockFile     = "LOCK"
	identityFile = "HAWSER"
	engineDir    = "engine"
	// newFile is there while the engine is being made, until Engine.Complete: an
	// engine that is not whole is then what a crash has left of the first start.
	newFile = "NEW"
	etcdDir = "member" // what etcd keeps in its data directory
)

// dataDir is a data directory that this process has locked.
type dataDir struct {
	fs   vfs.FS
	path string
	lock io.Closer
	log  *zap.Logger
	id   Identity
	// isNew: the engine was never complete.
	isNew bool
	// firstLog is the number of the first of the engine's logs that is needed.
	firstLog uint64
}

// openDataDir locks a data directory and finds out whose it is; an empty or
// missing one gets the identity that newID makes, or is refused with ErrNoData if
// newID is nil.
func openDataDir(fs vfs.FS, path string, log *zap.Logger, newID func() Identity) (_ *dataDir, err error) {
	if err := makeDir(fs, path); err != nil {
		return nil, fmt.Errorf("data directory %s: %w", path, err)
	}
	if err := makePrivate(fs, path, log); err != nil {
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
	known, isNew := has[identityFile], has[newFile]
	switch {
	case known:
	case has[etcdDir]:
		return nil, fmt.Errorf("%s: %w", path, ErrEtcdData)
	case has[engineDir]:
		return nil, fmt.Errorf("%s: the file %s is missing: %w", path, identityFile, ErrDamaged)
	}
	for _, n := range []string{lockFile, identityFile, identityFile + ".tmp", newFile, newFile + ".tmp", engineDir} {
		delete(has, n)
	}
	for _, n := range slices.Sorted(maps.Keys(has)) {
		log.Warn("found a file of somebody else in the data directory", zap.String("data-dir", path), zap.String("name", n))
	}
	lock, err := fs.Lock(fs.PathJoin(path, lockFile))
	if err != nil {
		return nil, fmt.Errorf("%s: %w (%v)", path, ErrInUse, err)
	}
	d := &dataDir{fs: fs, path: path, lock: lock, log: log, isNew: isNew}
	defer func() {
		if err != nil {
			err = errors.Join(err, lock.Close())
		}
	}()
	if known {
		if d.id, err = readIdentity(fs, path); err != nil {
			return nil, err
		}
		return d, d.check()
	}
	if newID == nil {
		return nil, fmt.Errorf("%s: %w", path, ErrNoData)
	}
	d.id = newID().sealed()
	d.isNew = true
	return d, errors.Join(replaceFile(fs, path, newFile, nil), writeIdentity(fs, path, d.id))
}

// check refuses a directory whose engine is not what was written.
func (d *dataDir) check() (err error) {
	if err := d.checkEngineFile(); err != nil {
		return err
	}
	exists, firstLog, err := d.checkManifest()
	switch {
	case err != nil:
		return err
	case exists:
		d.firstLog = firstLog
		return errors.Join(d.checkLogs(firstLog), d.checkRoom(firstLog))
	case !d.isNew:
		return fmt.Errorf("%s: the engine's manifest is missing in %s: %w", d.path, d.enginePath(), ErrDamaged)
	}
	return nil
}

// complete says durably that the engine is whole.
func (d *dataDir) complete() error {
	if !d.isNew {
		return nil
	}
	if err := errors.Join(d.fs.Remove(d.fs.PathJoin(d.path, newFile)), syncDir(d.fs, d.path)); err != nil {
		return fmt.Errorf("%s: %w", d.path, err)
	}
	d.isNew = false
	return nil
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
		if err := syncDir(fs, p); err != nil {
			return err
		}
	}
	return nil
}

// makePrivate takes from others the right to read a directory (etcd's rule, and
// CVE-2020-15113), where the file system has permissions. A volume may belong to
// somebody else, who gave this process the right to write: then, as in etcd, that
// is no reason not to serve.
func makePrivate(fs vfs.FS, path string, log *zap.Logger) error {
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
		log.Warn("others may read the data directory, and that cannot be changed", zap.String("data-dir", path), zap.Error(err))
	}
	return nil
}

func (d *dataDir) enginePath() string { return d.fs.PathJoin(d.path, engineDir) }

func (d *dataDir) close() error { return d.lock.Close() }
