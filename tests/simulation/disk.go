package simulation

import "github.com/cockroachdb/pebble/v2/vfs"

// lyingFS is a planted bug: files that say that they are synced and are not.
// Directories tell the truth, else there would be no file at all.
type lyingFS struct{ vfs.FS }

type lyingFile struct{ vfs.File }

func (lyingFile) Sync() error                             { return nil }
func (lyingFile) SyncData() error                         { return nil }
func (lyingFile) SyncTo(int64) (fullSync bool, err error) { return true, nil }

func (fs lyingFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, c)
	if err != nil || !isLog(fs.FS, name) {
		return f, err
	}
	return lyingFile{f}, nil
}

// isLog: the lie is about the engine's log only.
func isLog(fs vfs.FS, name string) bool {
	base := fs.PathBase(name)
	return len(base) > 4 && base[len(base)-4:] == ".log"
}
