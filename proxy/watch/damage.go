package watch

import (
	"errors"
	"maps"
	"slices"

	"github.com/hawser-kv/hawser/proto/rangepb"
)

// ErrDamaged ends the streams of watchers that miss events because of damage. A
// History wraps it.
var ErrDamaged = errors.New("watch: damaged")

// ErrShortage ends the streams of watchers whose events cannot be read now, for the
// machine is short of something. A client that watches again from where it was
// misses nothing.
var ErrShortage = errors.New("watch: the machine is short of file descriptors, memory or threads")

// reasonDamaged refuses watchers of what is damaged: etcd's text for corruption,
// which its client takes for the error of the same name.
const reasonDamaged = "etcdserver: corrupt cluster"

// Damaged ends the streams that have a watcher of keys of [start, end), whose events
// will not come, and refuses those to be created. To cancel these watchers alone
// would be gentler, but etcd's client closes the channel of a watcher that the server
// cancels and tells no reason. Its other watchers come again on a new stream.
func (h *Hub) Damaged(start, end []byte) {
	d := rangepb.Span{Start: start, End: end}
	h.damaged = append(h.damaged, d)
	for _, number := range slices.Sorted(maps.Keys(h.streams)) {
		s := h.streams[number]
		for _, w := range s.watchers {
			if d.Overlaps(rangepb.Span{Start: w.start, End: w.end}) {
				s.fail(ErrDamaged)
				break
			}
		}
	}
}

// isDamaged says whether [start, end) has keys that are not served.
func (h *Hub) isDamaged(start, end []byte) bool {
	return slices.ContainsFunc(h.damaged, rangepb.Span{Start: start, End: end}.Overlaps)
}
