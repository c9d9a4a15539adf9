package engine_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/hawser-kv/hawser/range/engine"
)

func openEngine(fs vfs.FS) (*engine.Engine, error) {
	return engine.Open(engine.Config{
		FS: fs, Dir: "data", NewIDs: func() (uint64, uint64) { return 7, 9 },
		Tune: func(o *pebble.Options) {
			o.DisableAutomaticCompactions = true
			o.MemTableSize = 64 << 10 // so that logs end, are recycled, and several are there
		},
	})
}

// acked is what an engine has acknowledged.
type acked struct {
	t    *testing.T
	e    *engine.Engine
	next int
}

func key(i int) []byte { return fmt.Appendf(nil, "%06d", i) }

// put writes n rows, each synced.
func (a *acked) put(n int) {
	a.t.Helper()
	for range n {
		if err := a.e.DB.Set(key(a.next), bytes.Repeat(key(a.next), 1+a.next%40*10), pebble.Sync); err != nil {
			a.t.Fatal(err)
		}
		a.next++
	}
}

// missing returns how many of the first n rows an engine lacks.
func missing(t *testing.T, e *engine.Engine, n int) (lost int) {
	t.Helper()
	for i := range n {
		v, closer, err := e.DB.Get(key(i))
		if errors.Is(err, pebble.ErrNotFound) {
			lost++
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(v, bytes.Repeat(key(i), 1+i%40*10)) {
			t.Errorf("row %d has another value", i)
		}
		_ = closer.Close()
	}
	return lost
}

func rng() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }

func fileNames(t *testing.T, fs vfs.FS) []string {
	t.Helper()
	names, err := fs.List("data/engine")
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	return names
}

func read(t *testing.T, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, info.Size())
	if _, err := f.ReadAt(b, 0); err != nil && len(b) > 0 {
		t.Fatal(err)
	}
	_ = f.Close()
	return b
}

func write(t *testing.T, fs vfs.FS, name string, content []byte) {
	t.Helper()
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = f.Write(content)
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// all keeps, in a copy of the disk, everything that was written: what the end of
// the process leaves.
func all(mem *vfs.MemFS) *vfs.MemFS {
	return mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng()})
}

// TestWhatIsAcknowledgedIsServedOrRefused harms the files of an engine whose
// process was killed, one after the other: each byte of the logs, the whole file
// gone, emptied, or cut. The start is refused, or everything that was acknowledged
// is there.
func TestWhatIsAcknowledgedIsServedOrRefused(t *testing.T) {
	mem := vfs.NewCrashableMem()
	flush := make(chan struct{})
	var armed atomic.Bool
	e, err := openEngine(errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if armed.Load() && op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, ".sst") {
			<-flush // so that several logs are needed
		}
		return nil
	})))
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Complete(); err != nil {
		t.Fatal(err)
	}
	a := acked{t: t, e: e}
	live := func() (n int) {
		for _, name := range fileNames(t, mem) {
			if strings.HasSuffix(name, ".log") {
				n++
			}
		}
		return n
	}
	armed.Store(true)
	for before := live(); live() < before+2; {
		a.put(10)
	}
	a.put(10)
	disk := all(mem)
	close(flush)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}

	refused := 0
	try := func(what string, harm func(fs vfs.FS)) {
		t.Helper()
		fs := all(disk)
		harm(fs)
		e, err := openEngine(fs)
		if err != nil {
			if !errors.Is(err, engine.ErrDamaged) || !strings.Contains(err.Error(), "data") {
				t.Errorf("%s: an error that does not say what to do: %v", what, err)
			}
			refused++
			return
		}
		if lost := missing(t, e, a.next); lost > 0 {
			t.Errorf("%s: serves, and %d rows are lost", what, lost)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
	try("nothing", func(vfs.FS) {})
	if refused > 0 {
		t.Fatal("nothing was harmed")
	}
	names := fileNames(t, disk)
	logs := 0
	for _, name := range names {
		path := disk.PathJoin("data/engine", name)
		content := read(t, disk, path)
		try(name+" gone", func(fs vfs.FS) { _ = fs.Remove(path) })
		try(name+" empty", func(fs vfs.FS) { write(t, fs, path, nil) })
		try(name+" cut", func(fs vfs.FS) { write(t, fs, path, content[:len(content)/2]) })
		try(name+" without its end", func(fs vfs.FS) { write(t, fs, path, content[:max(0, len(content)-1)]) })
		if !strings.HasSuffix(name, ".log") && name != engine.SyncedFile {
			continue
		}
		logs++
		before := refused
		step := max(1, len(content)/20)
		for at := 0; at < len(content); at += step {
			if at+40 > len(content) {
				step = 1 // the last record byte for byte
			}
			try(fmt.Sprintf("%s, byte %d of %d", name, at, len(content)), func(fs vfs.FS) {
				harmed := bytes.Clone(content)
				harmed[at] ^= 0x10
				write(t, fs, path, harmed)
			})
			if at%3 == 0 {
				try(fmt.Sprintf("%s, 64 bytes of garbage at %d of %d", name, at, len(content)), func(fs vfs.FS) {
					harmed := bytes.Clone(content)
					copy(harmed[at:], bytes.Repeat([]byte("junk"), 16))
					write(t, fs, path, harmed)
				})
			}
		}
		t.Logf("%s: %d of what was tried refused", name, refused-before)
	}
	if logs < 4 || refused < 100 {
		t.Errorf("%d logs and notes, %d refused: too little was tried", logs, refused)
	}
	try("engine gone", func(fs vfs.FS) {
		if err := fs.RemoveAll("data/engine"); err != nil {
			t.Fatal(err)
		}
	})
	try("all logs gone", func(fs vfs.FS) {
		for _, n := range names {
			if strings.HasSuffix(n, ".log") {
				_ = fs.Remove(fs.PathJoin("data/engine", n))
			}
		}
	})
}

// TestWhatACrashLeavesIsServed cuts the life of an engine at many places, with all,
// some or none of what was not synced: the start succeeds and has everything that
// was acknowledged.
func TestWhatACrashLeavesIsServed(t *testing.T) {
	mem := vfs.NewCrashableMem()
	e, err := openEngine(mem)
	if err != nil {
		t.Fatal(err)
	}
	a := acked{t: t, e: e}
	for round := range 20 {
		a.put(round % 17)
		// Some that nobody is told of.
		for i := range round % 5 {
			if err := e.DB.Set(fmt.Appendf(nil, "unsynced/%d", i), make([]byte, 3000*i), pebble.NoSync); err != nil {
				t.Fatal(err)
			}
		}
		if round == 1 {
			if err := e.Complete(); err != nil {
				t.Fatal(err)
			}
		}
		for _, percent := range []int{0, 30, 70, 100} {
			crashed := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng()})
			again, err := openEngine(crashed)
			if err != nil {
				t.Fatalf("round %d, %d%%: %v", round, percent, err)
			}
			if lost := missing(t, again, a.next); lost > 0 {
				t.Errorf("round %d, %d%%: %d rows are lost", round, percent, lost)
			}
			// And what the start itself leaves.
			twice := crashed.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng()})
			if err := again.Close(); err != nil {
				t.Fatal(err)
			}
			if again, err = openEngine(twice); err != nil {
				t.Fatalf("round %d, %d%%, second start: %v", round, percent, err)
			}
			if lost := missing(t, again, a.next); lost > 0 {
				t.Errorf("round %d, %d%%, second start: %d rows are lost", round, percent, lost)
			}
			if err := again.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestGarbageBehindWhatIsSyncedIsForgiven: whatever stands behind it, a torn write,
// zeros of a preallocation or an older log, was promised to nobody.
func TestGarbageBehindWhatIsSyncedIsForgiven(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	n, c := startNode(t, dir)
	for i := range 6 {
		if _, err := c.Put(t.Context(), fmt.Sprint("k", i), "v"); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	name := newestLog(t, dir)
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var number uint64
	if _, err := fmt.Sscanf(filepath.Base(name), "%d.log", &number); err != nil {
		t.Fatal(err)
	}
	synced, err := engine.Synced(vfs.Default, dir, number)
	if err != nil || synced < 500 || synced > int64(len(content)) {
		t.Fatalf("%d of %d bytes are synced, %v", synced, len(content), err)
	}
	for _, tail := range [][]byte{nil, {1}, make([]byte, 5000), make([]byte, 40_000), bytes.Repeat([]byte("junk"), 9000)} {
		if err := os.WriteFile(name, append(content[:synced:synced], tail...), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := engine.CheckLog(vfs.Default, dir); err != nil {
			t.Errorf("%d bytes behind: %v", len(tail), err)
		}
	}
	for at := range synced {
		harmed := bytes.Clone(content)
		harmed[at] ^= 1
		if err := os.WriteFile(name, harmed, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := engine.CheckLog(vfs.Default, dir); !errors.Is(err, engine.ErrDamaged) {
			t.Fatalf("byte %d of %d: %v", at, synced, err)
		}
	}
}
