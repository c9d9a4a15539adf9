package node

import "testing"

// TestQuotaEndsAndBeginsAtItself: the store is low when the quota is exceeded,
// however small it is beside the reserve, and no longer when a sixteenth is free.
func TestQuotaEndsAndBeginsAtItself(t *testing.T) {
	const reserve = 256 << 20
	for _, quota := range []int64{1 << 20, 100 << 20, 8 << 30, 1 << 50} {
		for _, c := range []struct {
			size       int64
			low, again bool // low now; still low if it was
		}{
			{0, false, false},
			{quota - quota/16 - quota/1000, false, false},
			{quota - quota/16 + quota/1000, false, true},
			{quota - quota/1000, false, true},
			{quota + quota/1000, true, true},
			{3 * quota, true, true},
		} {
			room := quotaRoom(quota, c.size, reserve)
			if low, again := room < reserve, room <= reserve+reserve/4; low != c.low || again != c.again {
				t.Errorf("quota %d, size %d: room %d: low %v, still low %v, want %v, %v", quota, c.size, room, low, again, c.low, c.again)
			}
		}
	}
}
