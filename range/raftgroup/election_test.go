package raftgroup

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
)

// A timeout lies between one and two times ElectionTicks, replicas of a group
// draw different ones, and what they draw follows from the seed.
func TestElectionTimeoutsFollowFromTheSeed(t *testing.T) {
	const ticks, draws = 10, 1000
	series := func(seed, group, replica uint64) []int {
		timer := newElectionTimer(ticks, seed, group, replica)
		var out []int
		for range draws {
			if timer.timeout < ticks || timer.timeout >= 2*ticks {
				t.Fatalf("timeout of %d ticks", timer.timeout)
			}
			out = append(out, timer.timeout)
			timer.restart()
		}
		return out
	}
	first := series(1, 5, 1)
	if !slices.Equal(first, series(1, 5, 1)) {
		t.Error("the same seed gives other timeouts")
	}
	seen := make(map[int]bool)
	for _, n := range first {
		seen[n] = true
	}
	if len(seen) != ticks {
		t.Errorf("%d different timeouts of %d possible", len(seen), ticks)
	}
	for _, other := range [][]int{series(2, 5, 1), series(1, 6, 1), series(1, 5, 2)} {
		same := 0
		for i := range other {
			if other[i] == first[i] {
				same++
			}
		}
		if same > draws/5 { // a tenth by chance
			t.Errorf("another seed, group or replica draws the same timeout %d of %d times", same, draws)
		}
	}
}

// A follower whose leader is silent forgets it after ElectionTicks, not before,
// and campaigns before twice as many; a word of the leader begins the silence
// anew.
func TestSilenceOfTheLeaderEndsInACampaign(t *testing.T) {
	n := newNetwork(t, 1, 2, 3)
	defer n.close()
	n.elect(1)
	n.stabilize()
	follower := n.nodes[2]
	silent := func(ticks int) {
		for range ticks {
			must(t, follower.g.Tick())
			follower.ready()
			follower.sync()
			follower.ready()
		}
	}
	silent(defaultElection - 1)
	if follower.g.Leader() != 1 {
		t.Fatalf("after %d ticks: %s", defaultElection-1, follower.status())
	}
	// The leader speaks: everything begins anew.
	must(t, n.nodes[1].g.Tick())
	n.stabilize()
	silent(defaultElection - 1)
	if follower.g.Leader() != 1 {
		t.Fatalf("%d ticks after a heartbeat: %s", defaultElection-1, follower.status())
	}
	silent(1)
	if follower.g.Leader() != 0 {
		t.Fatalf("after %d ticks: %s", defaultElection, follower.status())
	}
	silent(defaultElection)
	if !slices.ContainsFunc(n.msgs, func(m *raftpb.Message) bool { return m.GetFrom() == 2 && m.GetType() == raftpb.MsgPreVote }) {
		t.Fatalf("no campaign after %d ticks: %s", 2*defaultElection, follower.status())
	}
}

// Ticks alone elect a leader, replace it when it is gone, and do exactly the
// same again: nothing is drawn from a source that cannot be seeded.
func TestElectionsByTicksRepeat(t *testing.T) {
	transcript := func() string {
		var s strings.Builder
		n := newNetwork(t, 1, 2, 3)
		defer n.close()
		run := func(ticks int, until func() bool) {
			for i := range ticks {
				for _, id := range n.ids() {
					if nd := n.nodes[id]; !nd.down {
						must(t, nd.g.Tick())
					}
				}
				n.stabilize()
				for _, id := range n.ids() {
					fmt.Fprintln(&s, n.nodes[id].status())
				}
				if until() {
					fmt.Fprintf(&s, "after %d ticks\n", i+1)
					return
				}
			}
			t.Fatalf("no leader after %d ticks\n%s", ticks, s.String())
		}
		leader := func() *node {
			for _, id := range n.ids() {
				if nd := n.nodes[id]; !nd.down && nd.g.Serving() {
					return nd
				}
			}
			return nil
		}
		for range 2 {
			run(20*defaultElection, func() bool { return leader() != nil })
			leader().down = true
			run(20*defaultElection, func() bool { return leader() != nil })
			for _, id := range n.ids() {
				n.nodes[id].down = false
			}
			n.stabilize()
		}
		return s.String()
	}
	if first, second := transcript(), transcript(); first != second {
		t.Errorf("two runs differ:\n%s\n\n%s", first, second)
	}
}
