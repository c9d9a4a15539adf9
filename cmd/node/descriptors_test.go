package node

import "testing"

func TestDescriptorsAreShared(t *testing.T) {
	for _, tc := range []struct {
		limit                  uint64
		openFiles, connections int
	}{
		{0, maxOpenFiles, 0},
		{151, 74, 1},
		{256, 74, 106},
		{1024, 256, 692},
		{65536, 1000, 64460},
		{1 << 63, 1000, 1 << 30},
	} {
		openFiles, connections, err := shareDescriptors(tc.limit)
		if err != nil || openFiles != tc.openFiles || connections != tc.connections {
			t.Errorf("%d: %d, %d, %v, want %d, %d", tc.limit, openFiles, connections, err, tc.openFiles, tc.connections)
		}
	}
	if _, _, err := shareDescriptors(150); err == nil {
		t.Error("150 are enough")
	}
}
