package testcluster

import (
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Gate is a disk that can be made to stand still: while it is shut, no sync
// ends.
type Gate struct {
	mu   sync.Mutex
	open chan struct{}
}

// NewGate returns an open gate.
func NewGate() *Gate {
	g := &Gate{open: make(chan struct{})}
	close(g.open)
	return g
}

// Shut makes the disk stand still.
func (g *Gate) Shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = make(chan struct{})
}

// Open lets it go on. It may be open already.
func (g *Gate) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.open:
	default:
		close(g.open)
	}
}

func (g *Gate) pass() {
	g.mu.Lock()
	open := g.open
	g.mu.Unlock()
	<-open
}

// FS returns the disk behind the gate.
func (g *Gate) FS(disk vfs.FS) vfs.FS { return gatedFS{disk, g} }

type gatedFS struct {
	vfs.FS
	gate *Gate
}

func (fs gatedFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, c)
	return fs.wrap(f, err)
}

func (fs gatedFS) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.ReuseForWrite(oldname, newname, c)
	return fs.wrap(f, err)
}

func (fs gatedFS) wrap(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return gatedFile{f, fs.gate}, nil
}

type gatedFile struct {
	vfs.File
	gate *Gate
}

func (f gatedFile) Sync() error {
	f.gate.pass()
	return f.File.Sync()
}

func (f gatedFile) SyncData() error {
	f.gate.pass()
	return f.File.SyncData()
}

func (f gatedFile) SyncTo(n int64) (bool, error) {
	f.gate.pass()
	return f.File.SyncTo(n)
}
