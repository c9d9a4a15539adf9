package main

import "testing"

func TestHeapGrowsByASlackWhileLittleIsLive(t *testing.T) {
	for _, c := range []struct {
		liveMiB uint64
		want    int
	}{
		{0, 400}, {1, 400}, {8, 400}, {16, 200}, {25, 128}, {32, 100}, {1 << 20, 100},
	} {
		if got := gcPercent(c.liveMiB << 20); got != c.want {
			t.Errorf("%d MiB live: %d percent, want %d", c.liveMiB, got, c.want)
		}
	}
}
