package replica

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

func testSplit() *placementpb.DecidedSplit {
	return &placementpb.DecidedSplit{
		Key:   []byte("m"),
		Left:  &rangepb.RangeDescriptor{RangeId: 1, End: []byte("m"), Epoch: 2},
		Right: &rangepb.RangeDescriptor{RangeId: 2, Start: []byte("m"), Epoch: 1},
	}
}

// testEntry has one command of each kind.
func testEntry() []byte {
	effects := []mvcc.Effect{{Key: []byte("k"), Value: []byte("v"), Version: 1}}
	e := appendEntryHeader(nil, entryHeader{term: 3, epoch: 1, seq: 300})
	e = appendWrite(e, 7, effects)
	e = appendCommand(e, command{kind: commandResolve, revision: 9})
	e = appendCommand(e, command{kind: commandTxn, revision: 10, metaIndex: 44, effects: mvcc.AppendEffects(nil, effects)})
	return appendCommand(e, command{kind: commandSplit, revision: 10, metaIndex: 45, split: testSplit()})
}

func decodeAll(data []byte) (entryHeader, []command, error) {
	r, err := openEntry(data)
	if err != nil {
		return entryHeader{}, nil, err
	}
	var out []command
	for {
		c, ok, err := r.next()
		if err != nil || !ok {
			return r.entryHeader, out, err
		}
		out = append(out, c)
	}
}

func TestEntriesDecodeToWhatWasEncoded(t *testing.T) {
	h, got, err := decodeAll(testEntry())
	if err != nil {
		t.Fatal(err)
	}
	if want := (entryHeader{term: 3, epoch: 1, seq: 300}); h != want {
		t.Errorf("header %+v, want %+v", h, want)
	}
	effects := mvcc.AppendEffects(nil, []mvcc.Effect{{Key: []byte("k"), Value: []byte("v"), Version: 1}})
	want := []command{
		{kind: commandWrite, revision: 7, effects: effects},
		{kind: commandResolve, revision: 9},
		{kind: commandTxn, revision: 10, metaIndex: 44, effects: effects},
		{kind: commandSplit, revision: 10, metaIndex: 45, split: testSplit()},
	}
	if len(got) != len(want) {
		t.Fatalf("%d commands, want %d", len(got), len(want))
	}
	for i := range want {
		if !proto.Equal(got[i].split, want[i].split) {
			t.Errorf("split %v, want %v", got[i].split, want[i].split)
		}
		got[i].split, want[i].split = nil, nil
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Errorf("command %d: %+v, want %+v", i, got[i], want[i])
		}
	}
}

func TestDamagedEntriesAreErrors(t *testing.T) {
	good := testEntry()
	header := appendEntryHeader(nil, entryHeader{term: 3, epoch: 1, seq: 1})
	for name, data := range map[string][]byte{
		"empty":               {},
		"another format":      append([]byte{9}, good[1:]...),
		"header cut":          good[:3],
		"unknown command":     append(bytes.Clone(header), 99, 1),
		"length beyond entry": append(bytes.Clone(header), byte(commandWrite), 7, 0xff, 0xff, 0xff, 0xff, 1),
		"length cut":          append(bytes.Clone(header), byte(commandWrite), 7, 0, 0),
		"revision too large":  append(bytes.Clone(header), byte(commandResolve), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01),
		"split without range": append(bytes.Clone(header), byte(commandSplit), 7, 1, 0, 0, 0, 0),
		"command after split": append(bytes.Clone(good), byte(commandResolve), 11),
	} {
		if _, _, err := decodeAll(data); !errors.Is(err, errBadEntry) {
			t.Errorf("%s: %v, want %v", name, err, errBadEntry)
		}
	}
	for n := range len(good) {
		// A prefix is an error, or ends between two commands.
		if _, _, err := decodeAll(good[:n]); err != nil && !errors.Is(err, errBadEntry) {
			t.Errorf("prefix of %d bytes: %v", n, err)
		}
	}
}

func FuzzEntry(f *testing.F) {
	f.Add(testEntry())
	f.Add(appendEntryHeader(nil, entryHeader{}))
	f.Add([]byte{entryFormat, 1, 1, 1, byte(commandSplit), 7, 1, 0, 0, 0, 1, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		h, commands, err := decodeAll(data)
		if err != nil {
			return
		}
		again := appendEntryHeader(nil, h)
		for _, c := range commands {
			again = appendCommand(again, c)
		}
		h2, commands2, err := decodeAll(again)
		if err != nil || h2 != h || len(commands2) != len(commands) {
			t.Fatalf("%x decodes to %d commands, and those encoded to %d, %v", data, len(commands), len(commands2), err)
		}
	})
}

func FuzzDescriptor(f *testing.F) {
	key := []byte("key")
	f.Add([]byte{1, 10, 1, 2, 3, 4})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, body []byte) {
		// As found on disk, most likely refused by the checksum; and behind it.
		if _, err := decodeDescriptor(key, body); err == nil && len(body) < 5 {
			t.Fatal("a row without checksum passes")
		}
		row := append([]byte{descriptorFormat}, body...)
		sum := descriptorChecksum(key, row)
		row = append(row, byte(sum>>24), byte(sum>>16), byte(sum>>8), byte(sum))
		if d, err := decodeDescriptor(key, row); err == nil && d == nil {
			t.Fatal("neither a descriptor nor an error")
		}
		if _, err := decodeRangeState(body); err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
	})
}
