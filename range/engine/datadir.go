package engine

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Names in a data directory. The engine has a directory of its own, so that
// nothing of ours is taken for a file of Pebble's.
const (
	lockFile     = "LOCK"
	identityFile = "HAWSER"
	engineDir    = "engine"
	etcdDir      = "member" // what etcd keeps in its data directory
)

// dataDir is a data directory that this process has locked.
type dataDir struct {
	fs   vfs.FS
	path string
	lock io.Closer
	id   Identity
}

// openDataDir locks a data directory and finds out whose it is; an empty or
// missing one gets the identity that newID makes, or is refused with ErrNoData if
// newID is nil.
func openDataDir(fs vfs.FS, path string, newID func() Identity) (_ *dataDir, err error) {
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

func (d *dataDir) enginePath() string { return d.fs.PathJoin(d.path, engineDir) }

func (d *dataDir) close() error { return d.lock.Close() }
