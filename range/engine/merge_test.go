package engine

import (
	"bytes"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
)

func TestMergeLeavesOutWhatHasNoDeletions(t *testing.T) {
	table := func(from, to string, size, deletions uint64) (s pebble.SSTableInfo) {
		s.Smallest.UserKey, s.Largest.UserKey = []byte(from), []byte(to)
		s.Size = size
		s.Properties = &sstable.Properties{CommonProperties: sstable.CommonProperties{NumDeletions: deletions}}
		return s
	}
	levels := [][]pebble.SSTableInfo{
		{table("f", "h", 10, 3)},
		{table("a", "z", 10, 0)},
		{table("a", "c", pieceBytes, 0), table("d", "g", pieceBytes, 0), table("h", "k", pieceBytes/2, 0), table("l", "o", pieceBytes, 0), table("p", "z", 10, 0)},
	}
	got := pieces(levels)
	want := []piece{{[]byte("d"), []byte("h")}, {[]byte("h"), []byte("p")}}
	if len(got) != len(want) {
		t.Fatalf("got %q, want %q", got, want)
	}
	for i := range got {
		if !bytes.Equal(got[i].start, want[i].start) || !bytes.Equal(got[i].end, want[i].end) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := pieces(make([][]pebble.SSTableInfo, 7)); len(got) != 0 {
		t.Errorf("an empty engine is merged: %q", got)
	}
}
