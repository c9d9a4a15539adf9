package meta

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hawser-kv/hawser/proto/placementpb"
)

func FuzzDecodeCommand(f *testing.F) {
	for _, cmd := range []*placementpb.MetaCommand{
		bootstrap("h"), raise(5), handOver(3), activate(1, 2), deactivate(1, 2), transaction(9, 1, 2),
		split(9, desc(1, 2, "", "c"), desc(3, 2, "c", "h")), reported(1, 2), compact(4),
	} {
		f.Add(EncodeCommand(cmd))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		cmd, err := DecodeCommand(data)
		if err != nil {
			return
		}
		// Whatever decodes either fits the state or is refused.
		s := New()
		for _, c := range []*placementpb.MetaCommand{bootstrap("h"), raise(1 << 40), activate(1), cmd} {
			c.Epoch = 1
			before := dump(s)
			if _, err := s.Apply(1, 1, c); err != nil && dump(s) != before {
				t.Fatalf("%v changed the state and is refused: %v", c, err)
			}
		}
	})
}

func FuzzRow(f *testing.F) {
	m := New()
	if _, err := m.Apply(1, 0, bootstrap("h")); err != nil {
		f.Fatal(err)
	}
	for _, k := range [][]byte{rowKey(headerRow), rowKey(rangeRow, 1), rowKey(decidedRow, 1, 4)} {
		v, err := encodeRow(k, &placementpb.MetaRange{Desc: desc(1, 1, "", "h")})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(k, v[1:len(v)-4])
	}
	prefix := len(rowKey(headerRow)) - 1
	f.Fuzz(func(t *testing.T, key, message []byte) {
		if len(key) < prefix || !bytes.Equal(key[:prefix], rowKey(headerRow)[:prefix]) {
			return
		}
		// A right checksum: what is behind it is attacked.
		v := append([]byte{formatVersion}, message...)
		sum := rowSum(key, v)
		v = append(v, byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24))
		s := New()
		var corrupt *CorruptError
		var newer *NewerFormatError
		if err := s.loadRow(prefix, key, v); err != nil && !errors.As(err, &corrupt) && !errors.As(err, &newer) {
			t.Fatal(err)
		}
		if err := s.check(); err != nil && !errors.As(err, &corrupt) {
			t.Fatal(err)
		}
	})
}

// BenchmarkLoad is what a start with many ranges pays for the meta state.
func BenchmarkLoad(b *testing.B) {
	db, err := pebble.Open("", &pebble.Options{FS: vfs.NewMem()})
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	var boundaries []string
	for i := 1; i < 10_000; i++ {
		boundaries = append(boundaries, fmt.Sprintf("%08d", i))
	}
	s := New()
	ch, err := s.Apply(1, 0, bootstrap(boundaries...))
	if err != nil {
		b.Fatal(err)
	}
	batch := db.NewBatch()
	if err := s.Stage(batch, ch); err != nil {
		b.Fatal(err)
	}
	if err := batch.Commit(pebble.NoSync); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if s, err := Load(db); err != nil || s.Len() != 10_000 {
			b.Fatal(err)
		}
	}
}
