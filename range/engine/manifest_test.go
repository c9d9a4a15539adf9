package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/record"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
)

// manifestOf is a directory with an engine whose manifest has many records.
func manifestOf(t *testing.T) (d *dataDir, name string, content []byte) {
	t.Helper()
	fs := vfs.NewMem()
	d, err := openDataDir(fs, "dir", zap.NewNop(), testID)
	if err != nil {
		t.Fatal(err)
	}
	db, err := pebble.Open(d.enginePath(), &pebble.Options{FS: fs, Logger: quiet{}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		if err := errors.Join(db.Set(fmt.Appendf(nil, "%d", i), nil, pebble.Sync), db.Flush()); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	desc, err := pebble.Peek(d.enginePath(), fs)
	if err != nil {
		t.Fatal(err)
	}
	f, err := fs.Open(desc.ManifestFilename)
	if err != nil {
		t.Fatal(err)
	}
	if content, err = io.ReadAll(f); err != nil {
		t.Fatal(err)
	}
	return d, desc.ManifestFilename, content
}

func (d *dataDir) setForTesting(t *testing.T, name string, content []byte) {
	t.Helper()
	f, err := d.fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(bytes.Clone(content)) // what a file is given it overwrites under the race detector
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestDamagedManifestIsRefused flips every byte of a manifest: the engine would
// take most of them for the end of it.
func TestDamagedManifestIsRefused(t *testing.T) {
	d, name, content := manifestOf(t)
	if _, _, err := d.checkManifest(); err != nil {
		t.Fatal(err)
	}
	for i := range content {
		damaged := append([]byte(nil), content...)
		damaged[i] ^= 0x41
		d.setForTesting(t, name, damaged)
		if _, _, err := d.checkManifest(); !errors.Is(err, ErrDamaged) {
			t.Errorf("byte %d of %d: %v", i, len(content), err)
		}
	}
}

// TestCutManifestIsNot: a crash in the middle of a write. Before its first record
// is there a manifest is not the engine's.
func TestCutManifestIsNot(t *testing.T) {
	d, name, content := manifestOf(t)
	records := record.NewReader(bytes.NewReader(content), 0)
	r, err := records.Next()
	if err == nil {
		_, err = io.Copy(io.Discard, r)
	}
	if err != nil {
		t.Fatal(err)
	}
	first := int(records.Offset())
	if first < 20 || first > len(content)/2 {
		t.Fatalf("the first record ends at %d of %d", first, len(content))
	}
	for n := len(content); n >= first; n-- {
		for _, zeros := range []int{0, 1, 500} {
			d.setForTesting(t, name, append(content[:n:n], make([]byte, zeros)...))
			if _, _, err := d.checkManifest(); err != nil {
				t.Errorf("cut at %d of %d, then %d zeros: %v", n, len(content), zeros, err)
			}
		}
	}
}

// TestEmptyManifestIsRefused: the engine has written a record before it says which
// manifest is its own.
func TestEmptyManifestIsRefused(t *testing.T) {
	d, name, _ := manifestOf(t)
	d.setForTesting(t, name, nil)
	if _, _, err := d.checkManifest(); !errors.Is(err, ErrDamaged) {
		t.Errorf("empty: %v", err)
	}
	if err := d.fs.Remove(name); err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.checkManifest(); !errors.Is(err, ErrDamaged) {
		t.Errorf("missing: %v", err)
	}
}
