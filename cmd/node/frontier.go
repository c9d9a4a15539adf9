package node

import (
	"github.com/hawser-kv/hawser/proxy/watch"
)

// frontier is the watch frontier as the router asks it.
type frontier struct{ f *watch.Frontier }

// Complete returns the newest revision complete here, and the compacted one.
func (f frontier) Complete(start, end []byte) (rev, compacted int64, ok bool) {
	rev = f.f.Complete(start, end)
	_, compacted = f.f.Revision()
	return rev, compacted, rev > 0
}

// Revision returns what the newest cut said.
func (f frontier) Revision() (rev, compacted int64) { return f.f.Revision() }
