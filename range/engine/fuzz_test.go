package engine

import (
	"errors"
	"io"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// FuzzIdentity: whatever the identity file holds, it is taken as it was written
// or refused with one of the errors that say what to do.
func FuzzIdentity(f *testing.F) {
	const dir = "data"
	fs := vfs.NewMem()
	if err := fs.MkdirAll(dir, 0o700); err != nil {
		f.Fatal(err)
	}
	write := func(t testing.TB, b []byte) {
		w, err := fs.Create(fs.PathJoin(dir, identityFile), vfs.WriteCategoryUnspecified)
		if err == nil {
			_, err = w.Write(b)
		}
		if err = errors.Join(err, w.Close()); err != nil {
			t.Fatal(err)
		}
	}
	id := Identity{Format: dataFormat, ClusterID: 1 << 63, NodeID: 7}
	id.Checksum = id.sum()
	if err := writeIdentity(fs, dir, id); err != nil {
		f.Fatal(err)
	}
	r, err := fs.Open(fs.PathJoin(dir, identityFile))
	if err != nil {
		f.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err = errors.Join(err, r.Close()); err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"format":2}`))
	f.Add([]byte(`{"format":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		write(t, b)
		got, err := readIdentity(fs, dir)
		switch {
		case errors.Is(err, ErrDamaged), errors.Is(err, ErrNewerFormat):
		case err != nil:
			t.Errorf("an error that names no way out: %v", err)
		case got.Checksum != got.sum() || got.Format != dataFormat:
			t.Errorf("taken: %+v", got)
		}
	})
}

// FuzzLog: the look at the engine's log takes any bytes, and finds nothing wrong
// with those that the engine wrote.
func FuzzLog(f *testing.F) {
	fs := vfs.NewMem()
	db, err := pebble.Open("", &pebble.Options{FS: fs, Logger: quiet{}})
	if err != nil {
		f.Fatal(err)
	}
	for i := range 40 {
		if err := db.Set([]byte{byte(i)}, make([]byte, i*i), pebble.Sync); err != nil {
			f.Fatal(err)
		}
	}
	names, err := fs.List("")
	if err != nil {
		f.Fatal(err)
	}
	at := slices.IndexFunc(names, func(n string) bool { return filepath.Ext(n) == ".log" })
	r, err := fs.Open(names[at])
	if err != nil {
		f.Fatal(err)
	}
	log, err := io.ReadAll(r)
	if err = errors.Join(err, r.Close(), db.Close()); err != nil {
		f.Fatal(err)
	}
	const number = 2 // of the first log of an engine
	if at, _ := ScanLog(log, number, false); at >= 0 && at != int64(len(log)) {
		f.Fatalf("a good log of %d bytes is bad at %d", len(log), at)
	}
	f.Add(log, uint32(number))
	f.Add(log[:len(log)/2], uint32(number))
	f.Add(slices.Concat(log[:3000], []byte{1}, log[3001:]), uint32(number))
	f.Fuzz(func(t *testing.T, log []byte, number uint32) {
		if at, proven := ScanLog(log, number, false); at > int64(len(log)) {
			t.Errorf("bad at %d of %d bytes", at, len(log))
		} else if proven && at < 0 {
			t.Error("damage is proven in a good log")
		}
	})
}

// FuzzManifest: the judgement of a manifest's end takes any bytes.
func FuzzManifest(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, chunkHeader+1))
	f.Add([]byte{0, 0, 0, 0, 1, 0, 1, 'x'})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 4<<10 {
			return // every place in it is tried
		}
		if cutOff(b) && cutOff(slices.Concat(b, whole([]byte("a record")))) {
			t.Error("a good record follows, and it is taken for what a crash leaves")
		}
	})
}

// whole is a chunk of a manifest.
func whole(payload []byte) []byte {
	b := append([]byte{0, 0, 0, 0, byte(len(payload)), byte(len(payload) >> 8), 1}, payload...)
	sum := masked(b[6:])
	b[0], b[1], b[2], b[3] = byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24)
	return b
}
