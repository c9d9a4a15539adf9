package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/record"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/mvcc"
)

// These tests hold what this package takes for granted of Pebble and Pebble does
// not promise: a new version of it that changes one of these breaks the test, and
// not a node. What the bytes of a manifest are is held by TestDamagedManifestIsRefused.

func openPebble(t *testing.T, fs vfs.FS) *pebble.DB {
	t.Helper()
	opts := mvcc.EngineOptions(fs)
	opts.Logger = Logger(zap.NewNop())
	db, err := pebble.Open("db", opts)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// readFile returns the last file in the engine's directory whose name ends so.
func readFile(t *testing.T, fs vfs.FS, suffix string) (name string, content []byte) {
	t.Helper()
	names, err := fs.List("db")
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	for _, n := range names {
		if strings.HasSuffix(n, suffix) {
			name = fs.PathJoin("db", n)
		}
	}
	f, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	if content, err = io.ReadAll(f); err != nil {
		t.Fatal(err)
	}
	return name, content
}

// newReader is make, whose number has a type that only Pebble can name.
func newReader[Number ~uint64](make func(io.Reader, Number) *record.Reader, log []byte, number uint32) *record.Reader {
	return make(bytes.NewReader(log), Number(number))
}

// The log is made of the chunks that logScan knows: it finds every record that
// Pebble's own reader finds, and no unreadable place.
func TestPebbleWritesTheLogThatIsRead(t *testing.T) {
	fs := vfs.NewMem()
	db := openPebble(t, fs)
	if err := errors.Join(db.Set([]byte("a"), nil, pebble.Sync), db.Flush()); err != nil {
		t.Fatal(err) // the first log is in an older format
	}
	for i := range 60 {
		if err := db.LogData(make([]byte, i*i*20), pebble.Sync); err != nil {
			t.Fatal(err)
		}
	}
	name, log := readFile(t, fs, ".log")
	var number uint32
	if _, err := fmt.Sscanf(fs.PathBase(name), "%d.log", &number); err != nil {
		t.Fatal(err)
	}
	if at, _ := ScanLog(log, number, false); at >= 0 {
		t.Errorf("unreadable at %d of %d", at, len(log))
	}
	r := newReader(record.NewReader, log, number)
	records := 0
	for ; ; records++ {
		next, err := r.Next()
		if err == nil {
			_, err = io.Copy(io.Discard, next)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if records < 60 || r.Offset() != int64(len(log)) {
		t.Errorf("%d records up to %d of %d", records, r.Offset(), len(log))
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// A table that has not the size of which the manifest tells is named so in the
// error, which is not marked as damage.
func TestPebbleSaysThatAFileHasAnotherSize(t *testing.T) {
	fs := vfs.NewMem()
	db := openPebble(t, fs)
	if err := errors.Join(db.Set([]byte("a"), nil, pebble.Sync), db.Flush(), db.Close()); err != nil {
		t.Fatal(err)
	}
	table, _ := readFile(t, fs, ".sst")
	f, err := fs.Create(table, vfs.WriteCategoryUnspecified)
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	opts := mvcc.EngineOptions(fs)
	opts.Logger = quiet{}
	_, err = pebble.Open("db", opts)
	if !lacksFile(err) || IsDamage(err) {
		t.Errorf("open: %v", err)
	}
}

// A commit that finds the log broken panics in commitFunc.
func TestPebblePanicsWhereGuardLooks(t *testing.T) {
	var broken atomic.Bool
	db := openPebble(t, errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if broken.Load() && op.Kind == errorfs.OpFileWrite && strings.HasSuffix(op.Path, ".log") {
			return errorfs.ErrInjected
		}
		return nil
	})))
	broken.Store(true)
	err := Guard(func() error {
		large := make([]byte, 100<<10)
		for range 10_000 {
			if err := db.LogData(large, pebble.NoSync); err != nil {
				return err
			}
		}
		return nil
	})
	var fatal *FatalError
	if !errors.As(err, &fatal) || !fatal.Locked || !errors.Is(err, errorfs.ErrInjected) {
		t.Errorf("%v", err)
	}
}
