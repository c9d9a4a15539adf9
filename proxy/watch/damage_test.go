package watch

import (
	"errors"
	"testing"

	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// TestWatchersOfADamagedRange: the streams that have one end with an error, and the
// others get their events though the frontier stays where the range has left it; new
// watchers are refused if they touch it.
func TestWatchersOfADamagedRange(t *testing.T) {
	f := NewFrontier()
	f.Cut(&placementpb.Cut{First: true, Revision: 5, Compacted: -1, Descriptors: []*rangepb.RangeDescriptor{
		{RangeId: 1, Epoch: 1, End: []byte("f")},
		{RangeId: 2, Epoch: 1, Start: []byte("f"), End: []byte("m")},
		{RangeId: 3, Epoch: 1, Start: []byte("m")},
	}, Marks: []*placementpb.Mark{{RangeId: 1, Revision: 4}, {RangeId: 2, Revision: 5}, {RangeId: 3, Revision: 3}}})
	f.Resolved(1, 4)
	f.Resolved(3, 3) // 2 never resolves what it was granted
	h := NewHub(f, Limits{})
	h.Step()
	open := func(spans ...string) *Stream {
		s := h.NewStream(func() {})
		for i := 0; i < len(spans); i += 2 {
			s.Create(CreateRequest{Start: []byte(spans[i]), End: []byte(spans[i+1]), Current: 5, Compacted: -1})
		}
		s.Take()
		return s
	}
	for _, c := range []struct {
		what  string
		s     *Stream
		fails bool
	}{
		{"below and above", open("a", "f", "m", "\x00"), false},
		{"one key in it", open("g", ""), true},
		{"the first key in it", open("f", ""), true},
		{"everything", open("a", "\x00"), true},
		{"one of two in it", open("a", "b", "l", "m"), true},
		{"one key behind it", open("m", ""), false},
		{"up to it", open("e", "f"), false},
	} {
		defer c.s.Close()
		if c.s.Err() != nil {
			t.Fatalf("%s: %v before the damage", c.what, c.s.Err())
		}
		defer func() {
			if err := c.s.Err(); errors.Is(err, ErrDamaged) != c.fails {
				t.Errorf("%s: %v", c.what, err)
			}
		}()
	}
	h.Damaged([]byte("f"), []byte("m"))
	h.Step()
	s := open("a", "b")
	for _, span := range [][2]string{{"a", "g"}, {"l", ""}, {"", "\x00"}} {
		s.Create(CreateRequest{Start: []byte(span[0]), End: []byte(span[1]), Current: 5, Compacted: -1})
		out := s.Take()
		if len(out) != 1 || !out[0].Created || !out[0].Canceled || out[0].Reason != reasonDamaged || out[0].WatchID != InvalidWatchID {
			t.Errorf("a watcher of %q: %+v", span, out)
		}
	}
	f.Cut(&placementpb.Cut{Revision: 6, Compacted: -1, Marks: []*placementpb.Mark{{RangeId: 1, Revision: 6}}})
	f.Resolved(1, 6)
	h.Step()
	s.RequestProgress(6)
	if out := s.Take(); len(out) != 1 || out[0].Revision != 6 || s.Err() != nil {
		t.Errorf("progress of the others: %+v, %v", out, s.Err())
	}
	s.Close()
	if len(h.streams) != 7 {
		t.Errorf("%d streams are open, want 7", len(h.streams))
	}
}
