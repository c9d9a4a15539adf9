package crash

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/range/keys"
	"github.com/hawser-kv/hawser/tests/testcluster"
)

// contents is a hash of every file below a directory, by name.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		sum := sha256.Sum256(b)
		all[name] = hex.EncodeToString(sum[:8])
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// wantSame wants the files of a directory to be as they were, but for the lock,
// which is empty.
func wantSame(t *testing.T, dir string, before map[string]string) {
	t.Helper()
	after := contents(t, dir)
	for name := range maps.Keys(before) {
		if after[name] == "" {
			t.Errorf("%s is gone", name)
		} else if after[name] != before[name] {
			t.Errorf("%s has changed", name)
		}
	}
	for name := range maps.Keys(after) {
		if _, ok := before[name]; !ok && filepath.Base(name) != "LOCK" {
			t.Errorf("%s is new", name)
		}
	}
}

// refused starts the server on a directory and wants it to end with an error
// that has all of texts.
func refused(t *testing.T, dir string, texts ...string) {
	t.Helper()
	p := launch(t, dir)
	select {
	case <-p.ready:
		t.Fatalf("it serves from %s", dir)
	case <-p.exited:
	}
	if code := p.exitCode(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	out := p.output()
	_, message, ok := strings.Cut(out, "Error: ")
	if !ok {
		t.Fatalf("no error:\n%s", out)
	}
	for _, text := range texts {
		if !strings.Contains(message, text) {
			t.Errorf("the error does not say %q: %s", text, message)
		}
	}
	if strings.Contains(out, "goroutine ") {
		t.Errorf("it panicked:\n%s", out)
	}
}

// made is a data directory with some keys, of a server that was stopped.
func made(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(testcluster.Dir(t), "data")
	p := start(t, dir)
	fill(t, p.address, madeKeys)
	p.stop(t)
	return dir
}

const madeKeys = 50

// killed is a data directory with some keys, of a server that was killed, and
// where in the engine's newest log each of them was written: from ends[i] to
// ends[i+1] for the key i.
func killed(t *testing.T) (dir string, ends []int64) {
	t.Helper()
	dir = filepath.Join(testcluster.Dir(t), "data")
	p := start(t, dir)
	mark := func() {
		info, err := os.Stat(newest(t, dir, "*.log"))
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, info.Size())
	}
	for i := range madeKeys {
		mark()
		put(t, p.address, keyName(i), string(valueOf(i)))
	}
	mark()
	p.kill()
	return dir, ends
}

func keyName(i int) string { return fmt.Sprintf("key-%05d", i) }

// valueOf is what fill writes: one kilobyte that cannot be compressed.
func valueOf(i int) []byte {
	b := make([]byte, 1024)
	_, _ = rand.NewChaCha8([32]byte{byte(i), byte(i >> 8)}).Read(b) // never fails
	return b
}

// page is how many keys fill writes, and readable reads, at once.
const page = 100

func fill(t *testing.T, address string, n int) {
	t.Helper()
	kv := pb.NewKVClient(at(address).conn(t))
	for i := 0; i < n; i += page {
		txn := &pb.TxnRequest{}
		for k := i; k < min(i+page, n); k++ {
			txn.Success = append(txn.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{
				RequestPut: &pb.PutRequest{Key: []byte(keyName(k)), Value: valueOf(k)}}})
		}
		if _, err := kv.Txn(within(t), txn); err != nil {
			t.Fatalf("put %s and others: %v", keyName(i), err)
		}
	}
}

// readable reads what fill wrote. It is answered as it was written, or with an
// error that says that there is damage: never with anything else. It returns how
// many keys were not answered.
func readable(t *testing.T, address string, n int) (damaged int) {
	t.Helper()
	kv := pb.NewKVClient(at(address).conn(t))
	for i := 0; i < n; i += page {
		end := min(i+page, n)
		resp, err := kv.Range(within(t), &pb.RangeRequest{Key: []byte(keyName(i)), RangeEnd: []byte(keyName(end))})
		switch {
		case isCorrupt(err):
			damaged += end - i
			continue
		case err != nil:
			t.Errorf("get %s and others: %v", keyName(i), err)
			continue
		case len(resp.Kvs) != end-i:
			t.Errorf("get %s and others: %d keys of %d", keyName(i), len(resp.Kvs), end-i)
			continue
		}
		for k, kv := range resp.Kvs {
			if string(kv.Key) != keyName(i+k) || !bytes.Equal(kv.Value, valueOf(i+k)) {
				t.Errorf("get %s and others: %s has a wrong value", keyName(i), kv.Key)
			}
		}
	}
	return damaged
}

func TestDataDirectoryInUse(t *testing.T) {
	dir := filepath.Join(testcluster.Dir(t), "data")
	p := start(t, dir)
	fill(t, p.address, 10)
	refused(t, dir, "in use by another process", "choose another --data-dir")
	if n := readable(t, p.address, 10); n > 0 {
		t.Errorf("%d keys of the first process are damaged", n)
	}
	p.stop(t)
}

func TestDataDirectoryOfANewerFormat(t *testing.T) {
	dir := made(t)
	name := filepath.Join(dir, "HAWSER")
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, bytes.Replace(b, []byte(`"format":2`), []byte(`"format":3,"more":[1]`), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	before := contents(t, dir)
	refused(t, dir, "newer release", "run that release", "format 3")
	wantSame(t, dir, before)
}

func TestDataDirectoryOfEtcd(t *testing.T) {
	dir := filepath.Join(testcluster.Dir(t), "data")
	for _, name := range []string{"member/snap/db", "member/wal/0000000000000000-0000000000000000.wal"} {
		name = filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte("etcd's"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	before := contents(t, dir)
	refused(t, dir, "belongs to an etcd", "choose an empty --data-dir")
	wantSame(t, dir, before)
}

// TestDataDirectoryOnAFreshVolume: what a file system puts there is no reason not to
// serve, and is left alone.
func TestDataDirectoryOnAFreshVolume(t *testing.T) {
	dir := filepath.Join(testcluster.Dir(t), "data")
	if err := os.MkdirAll(filepath.Join(dir, "lost+found"), 0o700); err != nil {
		t.Fatal(err)
	}
	p := start(t, dir)
	fill(t, p.address, 10)
	p.stop(t)
	p = start(t, dir)
	if n := readable(t, p.address, 10); n > 0 {
		t.Errorf("%d keys are damaged", n)
	}
	p.stop(t)
	if !strings.Contains(p.output(), `"name":"lost+found"`) {
		t.Errorf("no warning:\n%s", p.tail(4<<10))
	}
}

// TestDataDirectoryOfTwoClusters: the engine of one cluster below the identity
// of another.
func TestDataDirectoryOfTwoClusters(t *testing.T) {
	dir, other := made(t), made(t)
	if err := os.RemoveAll(filepath.Join(dir, "engine")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(other, "engine"), filepath.Join(dir, "engine")); err != nil {
		t.Fatal(err)
	}
	before := contents(t, dir)
	refused(t, dir, "different clusters", "restore all of it from one copy")
	wantSame(t, dir, before)
}

// flip inverts a byte of a file at a part of its length, 0 to 1.
func flip(t *testing.T, name string, part float64) {
	t.Helper()
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	flipAt(t, name, int64(part*float64(info.Size()-1)))
}

// flipAt inverts the byte of a file at an offset.
func flipAt(t *testing.T, name string, offset int64) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], offset); err != nil {
		t.Fatal(err)
	}
	b[0] = ^b[0]
	if _, err := f.WriteAt(b[:], offset); err != nil {
		t.Fatal(err)
	}
}

// files are the engine's files of a pattern, by number.
func files(t *testing.T, dir, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "engine", pattern))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	return names
}

// newest is the last of files.
func newest(t *testing.T, dir, pattern string) string {
	t.Helper()
	names := files(t, dir, pattern)
	if len(names) == 0 {
		t.Fatalf("no file %s in the engine", pattern)
	}
	return names[len(names)-1]
}

// TestDamagedDataDirectory: a flipped byte in what is read at the start.
func TestDamagedDataDirectory(t *testing.T) {
	wantRefused := func(t *testing.T, dir string) {
		before := contents(t, dir)
		refused(t, dir, dir, "damaged", "restore it from a copy")
		wantSame(t, dir, before)
	}
	for _, part := range []float64{0.02, 0.3, 0.6, 0.95} {
		t.Run(fmt.Sprintf("manifest at %v", part), func(t *testing.T) {
			dir := made(t)
			flip(t, newest(t, dir, "MANIFEST-*"), part)
			wantRefused(t, dir)
		})
	}
	// The notes of what was synced tell of each byte that was acknowledged, up to the
	// last.
	for _, key := range []int{0, 20, madeKeys - 2, madeKeys - 1} {
		t.Run(fmt.Sprintf("log at key %d of %d", key, madeKeys), func(t *testing.T) {
			dir, ends := killed(t)
			flipAt(t, newest(t, dir, "*.log"), (ends[key]+ends[key+1])/2)
			wantRefused(t, dir)
		})
	}
	t.Run("garbage at the end of the log", func(t *testing.T) {
		dir, ends := killed(t)
		for at := ends[madeKeys-1]; at < ends[madeKeys-1]+64; at++ {
			flipAt(t, newest(t, dir, "*.log"), at)
		}
		wantRefused(t, dir)
	})
	t.Run("notes missing, and the last record damaged", func(t *testing.T) {
		dir, ends := killed(t)
		if err := os.Remove(filepath.Join(dir, "engine", "SYNCED")); err != nil {
			t.Fatal(err)
		}
		flipAt(t, newest(t, dir, "*.log"), (ends[madeKeys-1]+ends[madeKeys])/2)
		refused(t, dir, dir, "SYNCED", "damaged", "make an empty file in its place")
	})
	// With notes that say nothing, as before a power failure, the records behind the
	// flipped byte tell.
	t.Run("log without notes", func(t *testing.T) {
		dir, ends := killed(t)
		if err := os.WriteFile(filepath.Join(dir, "engine", "SYNCED"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		flipAt(t, newest(t, dir, "*.log"), (ends[20]+ends[21])/2)
		wantRefused(t, dir)
	})
	t.Run("newest log missing", func(t *testing.T) {
		dir, _ := killed(t)
		if err := os.Remove(newest(t, dir, "*.log")); err != nil {
			t.Fatal(err)
		}
		wantRefused(t, dir)
	})
	t.Run("engine missing", func(t *testing.T) {
		dir := made(t)
		if err := os.RemoveAll(filepath.Join(dir, "engine")); err != nil {
			t.Fatal(err)
		}
		wantRefused(t, dir)
	})
	t.Run("identity", func(t *testing.T) {
		dir := made(t)
		flip(t, filepath.Join(dir, "HAWSER"), 0.5)
		before := contents(t, dir)
		refused(t, dir, dir, "HAWSER", "damaged", "restore it from a copy")
		wantSame(t, dir, before)
	})
	// A row that is not what was written, though the engine's own checksums hold.
	t.Run("meta group", func(t *testing.T) {
		dir := made(t)
		db, err := pebble.Open(filepath.Join(dir, "engine"), mvcc.EngineOptions(vfs.Default))
		if err != nil {
			t.Fatal(err)
		}
		key := keys.Group(keys.MetaGroupID, keys.KindHardState)
		if err := errors.Join(db.Set(key, []byte("nonsense"), pebble.Sync), db.Close()); err != nil {
			t.Fatal(err)
		}
		refused(t, dir, dir, "meta group", "damaged", "restore it from a copy")
	})
}
