// Package version says which build of Hawser this is.
//
// It is not the version that etcd clients see: that one is an etcd version,
// because clients choose features by it.
package version

import "runtime"

// Version and Commit are set by the linker (see the Makefile): the output of
// `git describe` and the short commit id.
var (
	Version = "unknown"
	Commit  = "unknown"
)

// Info is a build in words.
type Info struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// Get returns this build.
func Get() Info {
	return Info{
		Version:  Version,
		Commit:   Commit,
		Go:       runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
}
