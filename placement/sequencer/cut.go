package sequencer

import "github.com/hawser-kv/hawser/proto/placementpb"

// Cut makes the next Ready bring every node's cut up to date (R6). Drivers
// call it soon after Ready said that cuts are due; calls coalesce.
func (s *Sequencer) Cut() { s.changes.now = true }

// flushCuts sends the first cut of each session that has begun, and after Cut
// what changed to every node (R6).
func (s *Sequencer) flushCuts() {
	if s.phase != serving {
		return
	}
	c := &s.changes
	if c.sent == c.newest {
		c.now = false
		return
	}
	for _, n := range s.sessions.order {
		switch {
		case n.session == 0 || n.ended:
		case !n.began:
			s.firstCut(n)
		case c.now && n.cut < c.newest:
			cut := &placementpb.Cut{Revision: s.bound.revision(), Compacted: s.compaction.committed}
			c.fill(cut, n.cut)
			s.speech.cut(n, cut)
			n.cut = c.newest
		}
	}
	switch {
	case c.now:
		c.sent, c.now = c.newest, false
	case s.sessions.lagging(c.newest):
		s.out.CutsDue = true
	default:
		c.sent = c.newest
	}
}

// firstCut begins a subscription: R, the directory and m of all ranges in one
// message; then the node is told which active ranges need a leader.
func (s *Sequencer) firstCut(n *node) {
	cut := &placementpb.Cut{First: true, Revision: s.bound.revision(), Compacted: s.compaction.committed}
	s.directory.fill(cut)
	s.speech.cut(n, cut)
	n.cut, n.began = s.changes.newest, true
	s.directory.all(func(x *ledger) {
		if x.committed == nil || !x.active || x.open || !s.speech.settled(x.outbox.barrier) {
			return
		}
		for _, r := range x.committed.Replicas {
			if r.NodeId == n.id {
				s.speech.wake(n, x)
			}
		}
	})
}
