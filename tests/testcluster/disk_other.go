//go:build !linux

package testcluster

import "testing"

// Dir returns a directory of the test; on this system it is not known whether
// it is on a real disk.
func Dir(tb testing.TB) string {
	tb.Helper()
	return tb.TempDir()
}
