package node

import "testing"

func TestMemoryIsGivenBackAfterLargeResponses(t *testing.T) {
	var g giveBack
	for i, c := range []struct {
		held, released int64
		want           bool
	}{
		{0, 0, false},
		{giveBackBytes + 1, giveBackBytes + 1, false}, // others hold it
		{0, giveBackBytes - 1, false},
		{1, giveBackBytes + 1, true},
		{1, giveBackBytes + 1, false},
		{1, 2 * giveBackBytes, false},
		{0, 2*giveBackBytes + 1, true},
	} {
		if got := g.due(c.held, c.released); got != c.want {
			t.Errorf("step %d: %v", i, got)
		}
	}
}
