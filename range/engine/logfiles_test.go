package engine

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// openSmall opens an engine whose memtables are full soon.
func openSmall(t *testing.T, fs vfs.FS, tune func(*pebble.Options)) *Engine {
	t.Helper()
	e, err := Open(Config{
		FS: fs, Dir: "data", NewIDs: func() (uint64, uint64) { return 7, 9 }, MemTableBytes: 256 << 10, Tune: tune,
	})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// logSizes returns the sizes of the logs that there are.
func logSizes(t *testing.T, fs vfs.FS) (sizes []int64) {
	t.Helper()
	names, err := fs.List("data/engine")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if strings.HasSuffix(n, ".log") {
			info, err := fs.Stat(fs.PathJoin("data/engine", n))
			if err != nil {
				t.Fatal(err)
			}
			sizes = append(sizes, info.Size())
		}
	}
	return sizes
}

func sum(sizes []int64) (n int64) {
	for _, s := range sizes {
		n += s
	}
	return n
}

// TestLogsAreKeptForReuseOnlyWithinBounds: some are overwritten by the next ones,
// however many there were at a time; a huge one is not kept, and Defragment
// keeps none.
func TestLogsAreKeptForReuseOnlyWithinBounds(t *testing.T) {
	fs := vfs.NewMem()
	e := openSmall(t, fs, nil)
	value := make([]byte, 8<<10)
	fill := func(bytes int) {
		for i := range bytes / len(value) {
			if err := e.DB.Set(fmt.Appendf(nil, "%06d", i), value, pebble.Sync); err != nil {
				t.Fatal(err)
			}
		}
		if err := e.DB.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	fill(4 << 20)
	e.DB.TestOnlyWaitForCleaning()
	sizes := logSizes(t, fs)
	if got := e.logs.bytes(); got != sum(sizes) {
		t.Errorf("%d bytes of logs are counted, there are %v", got, sizes)
	}
	if len(sizes) < 2 || len(sizes) > 1+maxSpareLogs {
		t.Errorf("there are logs of %v, want one and at least one and at most %d for the next", sizes, maxSpareLogs)
	}
	if err := e.DB.Set([]byte("huge"), make([]byte, 10<<20), pebble.Sync); err != nil {
		t.Fatal(err)
	}
	fill(1 << 20)
	e.DB.TestOnlyWaitForCleaning()
	if sizes := logSizes(t, fs); sum(sizes) > 3<<20 {
		t.Errorf("a huge write leaves logs of %v", sizes)
	}
	if err := e.Defragment(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.DB.TestOnlyWaitForCleaning()
	sizes = logSizes(t, fs)
	if got := e.logs.bytes(); got != sum(sizes) || got > 64<<10 {
		t.Errorf("after a defragmentation there are logs of %v, %d are counted", sizes, got)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestNothingSyncedIsLostWhenLogsAreReused kills an engine at many points between writes,
// flushes and reuses of logs: what was synced is there, whatever log it is in.
func TestNothingSyncedIsLostWhenLogsAreReused(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	fs := vfs.NewCrashableMem()
	e := openSmall(t, fs, nil)
	want := map[string]string{}
	for step := range 400 {
		key, value := fmt.Sprint("k", r.IntN(50)), strings.Repeat(fmt.Sprint(step, "."), 1+r.IntN(8000))
		if err := e.DB.Set([]byte(key), []byte(value), pebble.Sync); err != nil {
			t.Fatal(err)
		}
		want[key] = value
		switch r.IntN(20) {
		case 0:
			if err := e.DB.Flush(); err != nil {
				t.Fatal(err)
			}
		case 1:
			if err := e.Defragment(t.Context()); err != nil {
				t.Fatal(err)
			}
		case 2, 3:
			crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: r.IntN(101), RNG: r})
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			fs = crashed
			e = openSmall(t, fs, nil)
			for k, v := range want {
				got, closer, err := e.DB.Get([]byte(k))
				if err != nil {
					t.Fatalf("step %d: %s: %v", step, k, err)
				}
				if string(got) != v {
					t.Fatalf("step %d: %s has %d bytes, want %d", step, k, len(got), len(v))
				}
				if err := closer.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if got, sizes := e.logs.bytes(), logSizes(t, fs); got < sum(sizes) {
				t.Errorf("step %d: logs of %v, counted as %d bytes", step, sizes, got)
			}
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}
