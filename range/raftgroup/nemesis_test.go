package raftgroup

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Three voters under lost, delayed, repeated and reordered messages, crashes that
// lose what was not synced, and elections: all replicas apply the same entries,
// a term has one leader, no entry that anybody applied is lost, and when the
// faults end the group goes on.
func TestReplicasAgreeUnderFaults(t *testing.T) {
	seeds, steps := uint64(12), 3000
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			n := newNetwork(t, 1, 2, 3)
			defer n.close()
			n.elect(1)
			n.stabilize()
			proposals := 0
			for range steps {
				n.fault(rng, &proposals)
			}
			clear(n.cut)
			leader := n.mustElect()
			for range 3 { // what was lost while the faults lasted is sent again
				must(t, leader.g.Tick())
				n.stabilize()
			}
			if err := leader.g.Propose([]byte("last")); err != nil {
				t.Fatalf("%s: %v", leader.status(), err)
			}
			n.stabilize()
			must(t, leader.g.Tick())
			n.stabilize()
			n.checkAll(t)
			if len(n.history) < 20 || len(n.leaders) < 2 {
				t.Errorf("only %d entries and %d leaders", len(n.history), len(n.leaders))
			}
			t.Logf("%d entries, %d terms with a leader", len(n.history), len(n.leaders))
		})
	}
}

func (n *network) fault(rng *rand.Rand, proposals *int) {
	nd := n.nodes[1+rng.Uint64N(3)]
	switch rng.IntN(20) {
	case 0, 1, 2:
		*proposals++
		if err := nd.g.Propose(fmt.Appendf(nil, "p%d", *proposals)); err != nil && !errors.Is(err, ErrNotLeader) {
			n.t.Fatal(err)
		}
	case 3, 4, 5, 6:
		nd.ready()
	case 7:
		nd.syncLog()
	case 8, 9:
		nd.sync()
	case 10, 11, 12, 13, 14:
		if len(n.msgs) == 0 {
			return
		}
		i := 0
		if rng.IntN(4) == 0 {
			i = rng.IntN(len(n.msgs)) // out of order
		}
		switch rng.IntN(12) {
		case 0: // lost
			n.msgs = append(n.msgs[:i], n.msgs[i+1:]...)
		case 1: // twice
			n.msgs = append(n.msgs, n.msgs[i])
			n.deliver(i)
		default:
			n.deliver(i)
		}
	case 15, 16:
		nd.ready()
		must(n.t, nd.g.Tick())
	case 17:
		if rng.IntN(4) == 0 {
			n.elect(nd.id)
		}
	case 18:
		if rng.IntN(4) == 0 {
			other := 1 + rng.Uint64N(3)
			n.cut[[2]uint64{nd.id, other}] = true
		} else {
			clear(n.cut)
		}
	default:
		if rng.IntN(6) == 0 {
			nd.crash(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(3) * 50, RNG: rng})
		}
	}
}

// mustElect elects somebody, now that there are no faults, and returns it.
func (n *network) mustElect() *node {
	for _, id := range n.ids() {
		n.stabilize()
		n.elect(id) // in vain if its log lacks what others have
		n.stabilize()
		var top uint64
		for _, nd := range n.nodes {
			top = max(top, nd.g.Term())
		}
		if nd := n.nodes[n.leaders[top]]; nd != nil && nd.g.Serving() {
			return nd
		}
	}
	n.t.Fatal("no leader")
	return nil
}

// checkAll compares every replica's rows and applied state with the history.
func (n *network) checkAll(t *testing.T) {
	t.Helper()
	var hash, count uint64
	rows := ""
	for index := uint64(2); ; index++ {
		says, ok := n.history[index]
		if !ok {
			if len(n.history) != int(index-2) {
				t.Fatalf("the history has a hole at %d", index)
			}
			break
		}
		var term uint64
		var text string
		if _, err := fmt.Sscanf(says, "%d %s", &term, &text); err != nil {
			text = ""
		}
		hash, count = nextHash(hash, index, term, []byte(text)), count+1
		rows += fmt.Sprintf(" %d:%s", index, text)
	}
	for _, id := range n.ids() {
		nd := n.nodes[id]
		if got := nd.j.rows(t, nd.db); " "+got != rows {
			t.Errorf("replica %d has\n%s\nwant\n%s\n%s", id, got, rows, nd.status())
		}
		j := &journal{id: netGroup}
		must(t, j.load(nd.db))
		if j.hash != hash || j.count != count {
			t.Errorf("replica %d: applied state counts %d (%x), want %d (%x)", id, j.count, j.hash, count, hash)
		}
	}
}
