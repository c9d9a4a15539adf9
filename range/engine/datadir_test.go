package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func testID() Identity { return Identity{ClusterID: 7, NodeID: 9} }

// listing returns every file below dir with its content, to show that a
// refusal changes nothing.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var out []string
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() || info.Name() == lockFile {
			return err
		}
		b, err := os.ReadFile(path)
		out = append(out, fmt.Sprintf("%s: %q", path, b))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	sort.Strings(out)
	return strings.Join(out, "\n")
}

// TestDataDirectoryThatCannotBeUsedIsRefusedAndUntouched covers issue item
// "start and stop": each directory is refused with its own error and stays as
// it was.
func TestDataDirectoryThatCannotBeUsedIsRefusedAndUntouched(t *testing.T) {
	write := func(t *testing.T, path, content string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		make func(t *testing.T, dir string)
		want error
	}{
		{"newer format", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, identityFile), `{"format":3,"shape":"unknown"}`)
		}, ErrNewerFormat},
		{"damaged identity", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, identityFile), `{"format":1,"cluster_id":"7","node_id":"8","checksum":1}`)
		}, ErrDamaged},
		{"no JSON", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, identityFile), "\x00\x00")
		}, ErrDamaged},
		{"identity missing", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, engineDir, "MANIFEST-000001"), "x")
		}, ErrDamaged},
		{"etcd's", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, etcdDir, "snap", "db"), "x")
		}, ErrEtcdData},
		{"engine missing", func(t *testing.T, dir string) {
			if err := writeIdentity(vfs.Default, dir, testID().sealed()); err != nil {
				t.Fatal(err)
			}
		}, ErrDamaged},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			c.make(t, dir)
			before := listing(t, dir)
			_, err := openDataDir(vfs.Default, dir, zap.NewNop(), testID)
			if !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			if !strings.Contains(err.Error(), dir) {
				t.Errorf("the error does not name the directory: %v", err)
			}
			if after := listing(t, dir); after != before {
				t.Errorf("changed from\n%s\nto\n%s", before, after)
			}
		})
	}
}

// TestFilesOfOthersAreNamedAndLeftAlone: as etcd does, for a fresh volume has
// lost+found, and others have other things.
func TestFilesOfOthersAreNamedAndLeftAlone(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"lost+found", ".snapshot"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "photo.jpg"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		core, log := observer.New(zap.WarnLevel)
		d, err := openDataDir(vfs.Default, dir, zap.New(core), testID)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.close(); err != nil {
			t.Fatal(err)
		}
		var named []any
		for _, e := range log.All() {
			named = append(named, e.ContextMap()["name"])
		}
		if got, want := fmt.Sprint(named), "[.snapshot lost+found photo.jpg]"; got != want {
			t.Errorf("named %s, want %s", got, want)
		}
	}
	if b, err := os.ReadFile(filepath.Join(dir, "photo.jpg")); err != nil || string(b) != "x" {
		t.Errorf("%q, %v", b, err)
	}
}

func TestDataDirectoryIsLocked(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "data")
	d, err := openDataDir(vfs.Default, dir, zap.NewNop(), testID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openDataDir(vfs.Default, dir, zap.NewNop(), testID); !errors.Is(err, ErrInUse) {
		t.Fatalf("second open: got %v, want ErrInUse", err)
	}
	if err := d.close(); err != nil {
		t.Fatal(err)
	}
	other := func() Identity { return Identity{ClusterID: 1, NodeID: 1} }
	d, err = openDataDir(vfs.Default, dir, zap.NewNop(), other)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.close() }()
	if d.id.ClusterID != 7 || d.id.NodeID != 9 {
		t.Fatalf("the identity changed to %+v", d.id)
	}
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if perm := info.Mode().Perm(); perm != 0o700 {
		t.Fatalf("the directory has mode %o, want 700", perm)
	}
}

// TestEngineOfAnotherClusterIsRefused puts the engine of one directory into
// another: the file beside the engine tells before the engine is opened, and
// where that is missing the row in it.
func TestEngineOfAnotherClusterIsRefused(t *testing.T) {
	root := t.TempDir()
	open := func(name string, id Identity) (*dataDir, error) {
		return openDataDir(vfs.Default, filepath.Join(root, name), zap.NewNop(), func() Identity { return id })
	}
	a, err := open("a", testID())
	if err != nil {
		t.Fatal(err)
	}
	engine := func(d *dataDir) *pebble.DB {
		t.Helper()
		db, err := pebble.Open(d.enginePath(), &pebble.Options{FS: vfs.Default, Logger: quiet{}})
		if err != nil {
			t.Fatal(err)
		}
		return db
	}
	db := engine(a)
	if err := errors.Join(a.checkEngine(db), a.checkEngine(db), db.Close(), a.close()); err != nil {
		t.Fatal(err)
	}
	b, err := open("b", Identity{ClusterID: 8, NodeID: 9})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(b.close(), os.Rename(a.enginePath(), b.enginePath())); err != nil {
		t.Fatal(err)
	}
	if _, err := open("b", testID()); !errors.Is(err, ErrOtherCluster) {
		t.Fatalf("got %v, want ErrOtherCluster", err)
	}
	if err := os.Remove(filepath.Join(b.enginePath(), identityFile)); err != nil {
		t.Fatal(err)
	}
	if b, err = open("b", testID()); err != nil {
		t.Fatal(err)
	}
	db = engine(b)
	if err := b.checkEngine(db); !errors.Is(err, ErrOtherCluster) {
		t.Fatalf("got %v, want ErrOtherCluster", err)
	}
	if err := errors.Join(db.Close(), b.close()); err != nil {
		t.Fatal(err)
	}
}

type quiet struct{}

func (quiet) Infof(string, ...any)           {}
func (quiet) Errorf(string, ...any)          {}
func (quiet) Fatalf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }

// TestNewDataDirectorySurvivesACrash: what was made on the way to a new data
// directory is there after a power failure.
func TestNewDataDirectorySurvivesACrash(t *testing.T) {
	mem := vfs.NewCrashableMem()
	d, err := openDataDir(mem, "var/lib/data", zap.NewNop(), testID)
	if err != nil {
		t.Fatal(err)
	}
	clone := mem.CrashClone(vfs.CrashCloneCfg{})
	if err := d.close(); err != nil {
		t.Fatal(err)
	}
	d, err = openDataDir(clone, "var/lib/data", zap.NewNop(), func() Identity {
		t.Fatal("the directory is new again")
		return Identity{}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.close(); err != nil {
		t.Fatal(err)
	}
}
