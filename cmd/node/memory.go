package node

import (
	"runtime/debug"
	"time"
)

// Go's collector runs when the heap has grown by a part of itself, so what a few
// large responses have held would stay with the process for minutes of little load.
const (
	// giveBackBytes is how much large responses must have given back before the
	// system gets it: it costs a collection.
	giveBackBytes = 256 << 20
	// giveBackEvery is the least time between two times.
	giveBackEvery = 5 * time.Second
)

// giveBack decides when memory is given back to the system.
type giveBack struct{ done int64 }

// due says whether it is now, from what large responses hold and have given back
// since the start: not while about as much is held again.
func (g *giveBack) due(held, released int64) bool {
	if held > giveBackBytes || released-g.done < giveBackBytes {
		return false
	}
	g.done = released
	return true
}

func (n *Node) giveMemoryBack() {
	t := time.NewTicker(giveBackEvery)
	defer t.Stop()
	var g giveBack
	for {
		select {
		case <-n.stopping:
			return
		case <-t.C:
			if g.due(n.core.Router.Responses().Held()) {
				debug.FreeOSMemory()
			}
		}
	}
}
