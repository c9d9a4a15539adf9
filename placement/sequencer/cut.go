package sequencer

import (
	"cmp"
	"slices"

	"github.com/hawser-kv/hawser/proto/placementpb"
)

// flushCuts sends the first cut of each session that has begun, and after Cut
// what changed to every node (R6).
func (s *Sequencer) flushCuts() {
	if s.phase != serving {
		return
	}
	if s.cutSeq == s.changeSeq {
		s.cutNow = false
		return
	}
	for _, n := range s.nodeOrder {
		switch {
		case n.session == 0 || n.ended:
		case !n.began:
			s.firstCut(n)
		case s.cutNow && n.cut < s.changeSeq:
			s.cutTo(n)
		}
	}
	if s.cutNow {
		s.cutSeq, s.cutNow = s.changeSeq, false
	} else {
		s.out.CutsDue = s.lagging()
	}
}

// lagging says whether some node's newest cut is old.
func (s *Sequencer) lagging() bool {
	for _, n := range s.nodeOrder {
		if n.began && n.cut < s.changeSeq {
			return true
		}
	}
	s.cutSeq = s.changeSeq
	return false
}

// firstCut begins a subscription: R, the directory and m of all ranges in one
// message; then the node is told which active ranges need a leader.
func (s *Sequencer) firstCut(n *node) {
	c := &placementpb.Cut{First: true, Revision: s.next - 1, Compacted: s.committedCompacted}
	s.directory.all(func(x *ledger) {
		if x.committed != nil {
			c.Descriptors = append(c.Descriptors, x.committed)
			c.Marks = append(c.Marks, &placementpb.Mark{RangeId: x.id, Revision: x.last})
		}
	})
	s.sendCut(n, c)
	n.began = true
	s.directory.all(func(x *ledger) {
		if x.committed == nil || !x.active || x.open || x.barrier > s.applied {
			return
		}
		for _, r := range x.committed.Replicas {
			if r.NodeId == n.id {
				s.wakeOn(n, x)
			}
		}
	})
}

// cutTo sends what changed since the node's last cut.
func (s *Sequencer) cutTo(n *node) {
	c := &placementpb.Cut{Revision: s.next - 1, Compacted: s.committedCompacted}
	var described []*ledger
	for x := s.changes.root.nextChange; x != &s.changes.root && x.changed > n.cut; x = x.nextChange {
		if x.committed == nil {
			continue
		}
		c.Marks = append(c.Marks, &placementpb.Mark{RangeId: x.id, Revision: x.last})
		if x.described > n.cut {
			described = append(described, x)
		}
	}
	slices.SortFunc(described, func(a, b *ledger) int { return cmp.Compare(a.described, b.described) })
	for _, x := range described {
		c.Descriptors = append(c.Descriptors, x.committed)
	}
	s.sendCut(n, c)
}

func (s *Sequencer) sendCut(n *node, c *placementpb.Cut) {
	m := s.to(n)
	m.Body = &placementpb.FromSequencer_Cut{Cut: c}
	s.emit(n, m)
	n.cut = s.changeSeq
}
