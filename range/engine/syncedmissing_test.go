package engine_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/hawser-kv/hawser/range/engine"
)

// identityFormat1 is the identity file of a release that did not write notes.
const identityFormat1 = `{"format":1,"cluster_id":"7","node_id":"9","checksum":1559470007}` + "\n"

const (
	identityPath = "data/HAWSER"
	notesPath    = "data/engine/" + engine.SyncedFile
)

// killedEngine returns the disk of an engine whose process was killed after so many
// synced rows.
func killedEngine(t *testing.T, rows int, cfg engine.Config) *vfs.MemFS {
	t.Helper()
	mem := vfs.NewCrashableMem()
	cfg.FS, cfg.Dir, cfg.NewIDs = mem, "data", func() (uint64, uint64) { return 7, 9 }
	e, err := engine.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Complete(); err != nil {
		t.Fatal(err)
	}
	(&acked{t: t, e: e}).put(rows)
	disk := all(mem)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	return disk
}

// damageLastRow flips a byte in the last row of the newest log.
func damageLastRow(t *testing.T, fs vfs.FS, row int) {
	t.Helper()
	for _, name := range fileNames(t, fs) {
		path := fs.PathJoin("data/engine", name)
		if content := read(t, fs, path); strings.HasSuffix(name, ".log") && bytes.Contains(content, key(row)) {
			content[bytes.LastIndex(content, key(row))] ^= 1
			write(t, fs, path, content)
			return
		}
	}
	t.Fatalf("no log has row %d", row)
}

// serves opens an engine and returns how many of its rows are lost.
func serves(t *testing.T, fs vfs.FS, rows int, log *zap.Logger) (lost int) {
	t.Helper()
	e, err := engine.Open(engine.Config{FS: fs, Dir: "data", Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	lost = missing(t, e, rows)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	return lost
}

func wantNotesMissing(t *testing.T, fs *vfs.MemFS) {
	t.Helper()
	before := fs.String()
	_, err := engine.Open(engine.Config{FS: fs, Dir: "data"})
	if !errors.Is(err, engine.ErrDamaged) || !strings.Contains(err.Error(), notesPath) || !strings.Contains(err.Error(), "empty file") {
		t.Fatalf("opened without its notes: %v", err)
	}
	if after := fs.String(); after != before {
		t.Errorf("the refused start has changed\n%s\nto\n%s", before, after)
	}
}

// TestMissingNotesAreRefused: without them a damaged last record, which was
// acknowledged, would be taken for what a crash leaves. An empty file is the way on
// for who would rather have the rest.
func TestMissingNotesAreRefused(t *testing.T) {
	fs := killedEngine(t, 6, engine.Config{})
	if err := fs.Remove(notesPath); err != nil {
		t.Fatal(err)
	}
	wantNotesMissing(t, fs)
	damageLastRow(t, fs, 5)
	wantNotesMissing(t, fs)
	write(t, fs, notesPath, nil)
	seen, logs := observer.New(zap.WarnLevel)
	if lost := serves(t, fs, 6, zap.New(seen)); lost != 1 {
		t.Errorf("%d rows are lost, want the damaged one", lost)
	}
	if logs.FilterMessageSnippet("notes of what was synced are damaged").Len() != 1 {
		t.Errorf("no warning: %v", logs.All())
	}
	// The start has written new ones.
	if err := fs.Remove(notesPath); err != nil {
		t.Fatal(err)
	}
	wantNotesMissing(t, fs)
}

// TestDirectoryOfAnOlderReleaseGetsNotes, and lacks them from then on if they go.
func TestDirectoryOfAnOlderReleaseGetsNotes(t *testing.T) {
	fs := killedEngine(t, 6, engine.Config{})
	if err := fs.Remove(notesPath); err != nil {
		t.Fatal(err)
	}
	write(t, fs, identityPath, []byte(identityFormat1))
	write(t, fs, "data/engine/HAWSER", []byte(identityFormat1))
	if lost := serves(t, fs, 6, nil); lost > 0 {
		t.Errorf("%d rows are lost", lost)
	}
	if lost := serves(t, fs, 6, nil); lost > 0 {
		t.Errorf("%d rows are lost with the second start", lost)
	}
	if err := fs.Remove(notesPath); err != nil {
		t.Fatal(err)
	}
	wantNotesMissing(t, fs)
}

// TestDirectoryThatNeverHadNotes opens: --unsafe-no-fsync makes none.
func TestDirectoryThatNeverHadNotes(t *testing.T) {
	fs := killedEngine(t, 6, engine.Config{NoSync: true})
	if _, err := fs.Stat(notesPath); err == nil {
		t.Fatal("there are notes")
	}
	if lost := serves(t, fs, 6, nil); lost > 0 {
		t.Errorf("%d rows are lost", lost)
	}
	if _, err := fs.Stat(notesPath); err != nil {
		t.Fatal(err)
	}
}

// TestChangedNotesMark: that there are notes is covered by the checksum.
func TestChangedNotesMark(t *testing.T) {
	fs := killedEngine(t, 1, engine.Config{})
	content := read(t, fs, identityPath)
	changed := bytes.Replace(content, []byte(`"notes":true,`), nil, 1)
	if bytes.Equal(changed, content) {
		t.Fatalf("the identity file is %s", content)
	}
	write(t, fs, identityPath, changed)
	if _, err := engine.Open(engine.Config{FS: fs, Dir: "data"}); !errors.Is(err, engine.ErrDamaged) {
		t.Errorf("opened: %v", err)
	}
}
