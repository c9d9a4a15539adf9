package testcluster

import (
	"syscall"
	"testing"
)

// tmpfs is the type of a file system in memory, in statfs(2).
const tmpfs = 0x01021994

// Dir returns a directory of the test on a real disk: on a file system in
// memory a sync costs nothing and a crash loses nothing, so tests of either
// would prove nothing.
func Dir(tb testing.TB) string {
	tb.Helper()
	dir := tb.TempDir()
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		tb.Fatal(err)
	}
	if st.Type == tmpfs {
		tb.Fatalf("%s is in memory: set TMPDIR to a directory on a disk", dir)
	}
	return dir
}
