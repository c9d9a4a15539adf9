package sequencer

// Stats says how S stands, for status and metrics.
type Stats struct {
	// Epoch is e; 0 when S never led on this node.
	Epoch uint64
	// Phase in words.
	Phase string
	// Revision is R, 0 while S does not lead; Bound is the committed bound.
	Revision, Bound int64
	Compacted       int64
	// Ranges in the directory, and how many of them are active and open.
	Ranges, Active, Open int
	// Nodes with a session.
	Nodes int
	// Held messages, proposed entries not applied, decided entries unreported.
	Held, Proposed, Unreported int
}

// Stats counts; it costs a walk over all ranges.
func (s *Sequencer) Stats() Stats {
	st := Stats{Epoch: s.epoch, Phase: s.phase.String()}
	if s.phase == idle {
		return st
	}
	st.Revision, st.Bound, st.Compacted = s.bound.revision(), s.bound.committed, s.compaction.committed
	st.Ranges, st.Held, st.Proposed = s.directory.len(), len(s.held), len(s.proposals.queue)
	s.directory.all(func(x *ledger) {
		if x.active {
			st.Active++
		}
		if x.open {
			st.Open++
		}
		st.Unreported += len(x.decided)
	})
	for _, n := range s.sessions.order {
		if n.began {
			st.Nodes++
		}
	}
	return st
}
