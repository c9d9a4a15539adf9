package meta

import (
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"

	"github.com/hawser-kv/hawser/proto/placementpb"
)

// recordedCommands have every command, and every kind of row, in format 1.
func recordedCommands() []*placementpb.MetaCommand {
	split := split(9, desc(1, 2, "", "c"), desc(3, 2, "c", "h"))
	return []*placementpb.MetaCommand{
		bootstrap("h"), raise(50), activate(1, 2), transaction(9, 1, 2), split, reported(1, 4), reported(2, 4),
		deactivate(2, 20), compact(0), handOver(30), activate(2, 3), transaction(21, 2), compact(15),
	}
}

// TestFormat1IsWhatItWas holds the durable bytes against testdata/format1.txt,
// which the first version with this format wrote: each command as it lies in the
// meta log, and the rows set and deleted when it is applied, in order. If it
// fails, this version cannot continue the data of another one: a change of bytes
// needs a new format, and a recording of its own beside this one.
func TestFormat1IsWhatItWas(t *testing.T) {
	content, err := os.ReadFile("testdata/format1.txt")
	if err != nil {
		t.Fatal(err)
	}
	db := newMachine(t).db
	s := New()
	var want, got strings.Builder
	commands := recordedCommands()
	index := uint64(0)
	for _, line := range strings.Split(string(content), "\n") {
		if strings.HasPrefix(line, "#") || line == "" {
			continue
		}
		fmt.Fprintln(&want, line)
		data, isCommand := strings.CutPrefix(line, "command ")
		if !isCommand {
			continue
		}
		index++
		b, err := hex.DecodeString(data)
		if err != nil {
			t.Fatal(err)
		}
		// Read as another version wrote it, and written anew by this one.
		cmd, err := DecodeCommand(b)
		if err != nil {
			t.Fatalf("command %d: %v", index, err)
		}
		made := commands[index-1]
		made.Epoch = 3
		fmt.Fprintf(&got, "command %x\n", EncodeCommand(made))
		ch, err := s.Apply(index, 3, cmd)
		if err != nil {
			t.Fatal(err)
		}
		batch := db.NewBatch()
		if err := s.Stage(batch, ch); err != nil {
			t.Fatal(err)
		}
		describeBatch(t, &got, batch)
		if err := batch.Commit(pebble.NoSync); err != nil {
			t.Fatal(err)
		}
	}
	if int(index) != len(commands) {
		t.Errorf("%d commands are recorded, want %d", index, len(commands))
	}
	if got.String() != want.String() {
		t.Errorf("this version writes\n%swant\n%s", got.String(), want.String())
	}
	loaded, err := Load(db)
	if err != nil {
		t.Fatal(err)
	}
	const state = "cluster=7 bound=30 compacted=15 next=4\n" +
		"r1@2[,c) active=true mark=1 {5 at 9 split=true }\n" +
		"r3@2[c,h) active=true mark=9\n" +
		"r2@1[h,) active=true mark=20 {12 at 21 split=false \x02}\n"
	if d := dump(loaded); d != state {
		t.Errorf("loaded\n%swant\n%s", d, state)
	}
}

// describeBatch writes what the batch sets and deletes, in order.
func describeBatch(t *testing.T, out *strings.Builder, b *pebble.Batch) {
	t.Helper()
	for r := b.Reader(); ; {
		kind, key, value, ok, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return
		}
		switch kind {
		case pebble.InternalKeyKindSet:
			fmt.Fprintf(out, "set %x %x\n", key, value)
		case pebble.InternalKeyKindDelete:
			fmt.Fprintf(out, "delete %x\n", key)
		default:
			t.Fatalf("%v of %x", kind, key)
		}
	}
}
