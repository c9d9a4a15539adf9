//go:build unix

package node

import "syscall"

// descriptorLimit is how many file descriptors the process may have, 0 if that is
// not known. The runtime has raised the soft limit to the hard one.
func descriptorLimit() uint64 {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 0
	}
	return uint64(l.Cur)
}
