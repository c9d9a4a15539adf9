package sequencer

import (
	"slices"
	"testing"
)

func TestSessionsOfANodeOnlyGrow(t *testing.T) {
	s := newSessions(10)
	n, newer := s.begin(3, 5)
	if !newer || !n.in(5) || n.in(4) || n.in(6) || n.past(5) || !n.past(4) {
		t.Fatalf("begun: %+v", n)
	}
	n.began, n.cut = true, 9
	for _, old := range []uint64{0, 4, 5} {
		if _, newer := s.begin(3, old); newer || !n.in(5) || !n.began {
			t.Fatalf("session %d began after 5", old)
		}
	}
	s.end(n, 5)
	if n.in(5) || !n.past(5) || n.past(6) || n.began {
		t.Fatalf("ended: %+v", n)
	}
	if _, newer := s.begin(3, 5); newer {
		t.Fatal("an ended session began again")
	}
	if m, newer := s.begin(3, 6); m != n || !newer || !n.in(6) || n.began || n.cut != 0 {
		t.Fatalf("after the next began: %+v: its first cut must come", n)
	}
}

func TestSessionsKnowNodesInOrder(t *testing.T) {
	s := newSessions(10)
	if s.get(2) != nil || s.speaker(2) != nil {
		t.Fatal("an unknown node is known")
	}
	for _, id := range []uint64{5, 2, 9, 2} {
		s.begin(id, 1)
		if n := s.speaker(id); n == nil || n.id != id || s.newest != n {
			t.Fatalf("node %d spoke, found %+v", id, n)
		}
	}
	var ids []uint64
	for _, n := range s.order {
		ids = append(ids, n.id)
	}
	if !slices.Equal(ids, []uint64{2, 5, 9}) {
		t.Fatalf("order %v", ids)
	}
	if s.lagging(4) {
		t.Fatal("nodes without a first cut lag behind")
	}
	s.get(5).began, s.get(5).cut = true, 3
	if !s.lagging(4) || s.lagging(3) {
		t.Fatal("node 5 has the changes up to 3")
	}
}

// An aborted owner is remembered exactly while its session may still commit.
func TestAbortedOwnersAreRememberedWhileTheyMayCommit(t *testing.T) {
	for _, c := range []struct {
		name  string
		ended bool // session 5 is over
		next  bool // session 6 has begun, after the aborts
		want  []uint64
	}{
		{"in the session", false, false, []uint64{5, 6}},
		{"session ended by S before", true, false, []uint64{6}},
		{"the next session began", false, true, []uint64{6}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSessions(10)
			n, _ := s.begin(1, 5)
			if c.ended {
				s.end(n, 5)
			}
			for session := uint64(4); session <= 6; session++ {
				if full := s.forbid(ownerID{1, session, 7}); full != nil {
					t.Fatal("full")
				}
			}
			if c.next {
				s.begin(1, 6)
			}
			var got []uint64
			for session := uint64(4); session <= 6; session++ {
				if _, ok := n.aborted[ownerID{1, session, 7}]; ok {
					got = append(got, session)
				}
			}
			if !slices.Equal(got, c.want) || len(n.aborted) != len(c.want) {
				t.Errorf("remembered of sessions %v, want %v", got, c.want)
			}
		})
	}
}

func TestAbortedOwnersAreBounded(t *testing.T) {
	s := newSessions(2)
	if s.forbid(ownerID{0, 1, 1}) != nil || s.get(0) != nil {
		t.Fatal("an owner of no node is remembered")
	}
	// The node has no session in this term yet.
	for number := range uint64(2) {
		if s.forbid(ownerID{1, 5, number}) != nil {
			t.Fatal("full too early")
		}
	}
	n := s.forbid(ownerID{1, 5, 9})
	if n == nil || n.id != 1 || len(n.aborted) != 2 {
		t.Fatalf("full: %+v", n)
	}
	s.end(n, 5)
	if len(n.aborted) != 0 || s.forbid(ownerID{1, 5, 9}) != nil || len(n.aborted) != 0 {
		t.Fatalf("owners of an ended session are remembered: %v", n.aborted)
	}
}
