package raftgroup

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/hawser-kv/hawser/range/raftlog"
)

// Scenarios: a group's replicas on nodes with their own disks, driven step by
// step. Commands, whose first argument is a replica:
//
//	begin 1 2 3         a new group with these voters
//	elect R             R campaigns and the others are willing
//	propose R TEXT      answers how Propose answered
//	ready R             one Ready, written, not synced; says what it asked for
//	sync R              the oldest unsynced Ready of R becomes durable
//	deliver [N]         all messages in flight, or the first N, reach their nodes
//	repeat              all messages in flight arrive, and stay in flight
//	stabilize           ready, sync and deliver until nothing happens
//	tick R [N]
//	read R CTX, reads R ReadIndex, and what was confirmed
//	transfer R TO       R hands leadership over
//	resign R            R gives leadership up
//	change R add|learn|remove N
//	crash R             R loses what is not synced and starts again
//	stop R, start R     R takes part in nothing for a while
//	cut A B, heal       messages between A and B are lost
//	status, messages, journal R, log R
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var n *network
		t.Cleanup(func() { n.close() })
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if n != nil {
				n.t = t
			}
			var out strings.Builder
			for _, line := range append([]string{""}, strings.Split(d.Input, "\n")...) {
				cmd, args := d.Cmd, []string(nil)
				for _, a := range d.CmdArgs {
					args = append(args, a.Key)
				}
				if line == "" && d.Input != "" {
					continue // the commands are the lines of the input
				}
				if line != "" {
					f := strings.Fields(line)
					cmd, args = f[0], f[1:]
				}
				if cmd == "begin" {
					if n != nil {
						n.close()
					}
					n = newNetwork(t, ids(t, args)...)
					continue
				}
				if s := n.command(t, cmd, args); s != "" {
					if line != "" && d.Input != "" {
						fmt.Fprintf(&out, "> %s\n", line)
					}
					out.WriteString(strings.TrimSpace(s) + "\n")
				}
				if d.Input == "" {
					break
				}
			}
			if out.Len() == 0 {
				return "ok"
			}
			return out.String()
		})
	})
}

func ids(t *testing.T, args []string) (ids []uint64) {
	t.Helper()
	for _, a := range args {
		v, err := strconv.ParseUint(a, 10, 64)
		must(t, err)
		ids = append(ids, v)
	}
	return ids
}

func (n *network) command(t *testing.T, cmd string, args []string) string {
	t.Helper()
	var nd *node
	if len(args) > 0 {
		nd = n.nodes[ids(t, args[:1])[0]]
	}
	said := func(err error) string {
		if err != nil {
			return err.Error()
		}
		return ""
	}
	switch cmd {
	case "elect":
		n.elect(nd.id)
	case "propose":
		return said(nd.g.Propose([]byte(strings.Join(args[1:], " "))))
	case "ready":
		w, worked := nd.ready()
		if !worked {
			return "nothing to do"
		}
		return w.describe()
	case "sync":
		if !nd.sync() {
			return "nothing to sync"
		}
	case "deliver":
		count := len(n.msgs)
		if len(args) > 0 {
			count = int(ids(t, args)[0])
		}
		for range count {
			n.deliver(0)
		}
	case "repeat":
		msgs := n.msgs
		n.msgs = nil
		n.send(msgs)
		for range len(msgs) {
			n.deliver(0)
		}
		n.msgs = append(msgs, n.msgs...)
	case "messages":
		var out []string
		for _, m := range n.msgs {
			out = append(out, describe(m))
		}
		return strings.Join(append(out, fmt.Sprint(len(n.msgs), " messages")), "\n")
	case "stabilize":
		n.stabilize()
	case "tick":
		times := uint64(1)
		if len(args) > 1 {
			times = ids(t, args[1:])[0]
		}
		for range times {
			must(t, nd.g.Tick())
		}
	case "read":
		return said(nd.g.ReadIndex([]byte(args[1])))
	case "reads":
		reads := nd.reads
		nd.reads = nil
		return fmt.Sprint(len(reads), " confirmed: ", strings.Join(reads, " "))
	case "transfer":
		must(t, nd.g.TransferLeader(ids(t, args[1:])[0]))
	case "resign":
		return said(nd.g.Resign())
	case "change":
		typ := map[string]raftpb.ConfChangeType{"add": raftpb.ConfChangeAddNode,
			"learn": raftpb.ConfChangeAddLearnerNode, "remove": raftpb.ConfChangeRemoveNode}[args[1]]
		cc := &raftpb.ConfChangeV2{Changes: []*raftpb.ConfChangeSingle{
			{Type: &typ, NodeId: new(ids(t, args[2:])[0])}}, Context: []byte(strings.Join(args[1:], " "))}
		return said(nd.g.ProposeConfChange(cc))
	case "crash":
		nd.crash(vfs.CrashCloneCfg{})
	case "stop":
		nd.down = true
	case "start":
		nd.down = false
	case "cut":
		v := ids(t, args)
		n.cut[[2]uint64{v[0], v[1]}], n.cut[[2]uint64{v[1], v[0]}] = true, true
	case "heal":
		clear(n.cut)
	case "status":
		var out []string
		for _, id := range n.ids() {
			if !n.nodes[id].down {
				out = append(out, n.nodes[id].status())
			}
		}
		return strings.Join(out, "\n")
	case "journal":
		return fmt.Sprintf("%d: %s", nd.id, nd.j.rows(t, nd.db))
	case "log":
		l, err := raftlog.Load(nd.db, netGroup)
		must(t, err)
		return l.String()
	default:
		t.Fatalf("unknown command %s", cmd)
	}
	return ""
}
