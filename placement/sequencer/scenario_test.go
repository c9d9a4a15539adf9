package sequencer

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/hawser-kv/hawser/placement/meta"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// TestScenarios plays the conversations of testdata/scenarios: one meta log, some
// sequencers on it, and nodes whose messages the scenario writes itself.
//
//	cluster boundaries=(c,m) nodes=(1,2) [step=N] [sole]
//	lead s=1 term=2        applies the log to s and makes it lead
//	stepdown s=1
//	send s=1 n=1/1         the lines below are messages of node 1, session 1:
//	  subscribe | register r1 epoch=1 term=5 | grant r1 ... | query r1@1 ...
//	commit s=1 [count=N]   commits proposals of s (default: until none is left)
//	lose s=1               what s proposed and did not commit never will be
//	confirm s=1 round=N
//	cut s=1 | tick s=1 [count=N] | handover s=1 | resume s=1
//	ledger s=1             what S knows of every range
//
// Each prints what S wants done. A sequencer named sole confirms no rounds.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		w := &world{}
		datadriven.RunTest(t, path, w.run)
	})
}

type world struct {
	t    *testing.T
	cfg  Config
	sole bool
	// log is the meta group's committed log, from index 1.
	log []logEntry
	ss  map[int]*voter
}

type logEntry struct {
	term uint64
	cmd  *placementpb.MetaCommand
}

// voter is one node's copy of the meta state with its S.
type voter struct {
	w       *world
	seq     *Sequencer
	state   *meta.State
	applied int
	pending []*placementpb.MetaCommand
}

func (w *world) voter(id int) *voter {
	if w.ss[id] == nil {
		w.ss[id] = &voter{w: w, seq: New(w.cfg), state: meta.New()}
		w.ss[id].seq.SetSoleVoter(w.sole)
	}
	return w.ss[id]
}

func (w *world) run(t *testing.T, d *datadriven.TestData) string {
	w.t = t
	var out strings.Builder
	if d.Cmd == "cluster" {
		w.cfg, w.sole = Config{}, false
		var boundaries [][]byte
		var replicas []*rangepb.Replica
		for _, a := range d.CmdArgs {
			switch a.Key {
			case "boundaries":
				for _, v := range a.Vals {
					boundaries = append(boundaries, []byte(v))
				}
			case "nodes":
				for i, v := range a.Vals {
					replicas = append(replicas, &rangepb.Replica{NodeId: number(v), ReplicaId: uint64(i + 1)})
				}
			case "step":
				w.cfg.MinBoundStep = int64(number(a.Vals[0]))
				w.cfg.MaxBoundStep = w.cfg.MinBoundStep
			case "aborted":
				w.cfg.MaxAborted = int(number(a.Vals[0]))
			case "held":
				w.cfg.MaxHeld = int(number(a.Vals[0]))
			case "sole":
				w.sole = true
			}
		}
		if len(replicas) == 0 {
			replicas = []*rangepb.Replica{{NodeId: 1, ReplicaId: 1}}
		}
		w.cfg.Bootstrap = meta.NewBootstrap(7, boundaries, replicas)
		w.ss, w.log = map[int]*voter{}, nil
		return "ok\n"
	}
	id, count, term, round := 1, 1, uint64(0), uint64(0)
	d.MaybeScanArgs(t, "s", &id)
	v := w.voter(id)
	counted := d.HasArg("count")
	d.MaybeScanArgs(t, "count", &count)
	d.MaybeScanArgs(t, "term", &term)
	d.MaybeScanArgs(t, "round", &round)
	switch d.Cmd {
	case "lead":
		v.catchUp()
		v.seq.Lead(term, v.state)
	case "stepdown":
		v.seq.StepDown()
	case "send":
		var from string
		d.ScanArgs(t, "n", &from)
		for _, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
			v.seq.Receive(parseMessage(t, from, line))
		}
	case "commit":
		for i := 0; len(v.pending) > 0 && (!counted || i < count); i++ {
			v.commitOne()
			v.print(&out)
		}
		if out.Len() == 0 {
			return "nothing\n"
		}
		return out.String()
	case "lose":
		fmt.Fprintf(&out, "lost %d\n", len(v.pending))
		v.pending = nil
	case "confirm":
		v.seq.Confirmed(round)
	case "cut":
		v.seq.Cut()
	case "tick":
		for range count {
			v.seq.Tick()
		}
	case "handover":
		v.seq.HandOver()
	case "resume":
		v.seq.Resume()
	case "ledger":
		fmt.Fprintf(&out, "%s next=%d bound=%d\n", v.seq.phase, v.seq.bound.next, v.seq.bound.committed)
		v.seq.directory.all(func(x *ledger) { fmt.Fprintln(&out, x) })
		return out.String()
	default:
		t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
	}
	v.print(&out)
	if out.Len() == 0 {
		return "nothing\n"
	}
	return out.String()
}

func (v *voter) catchUp() {
	for ; v.applied < len(v.w.log); v.applied++ {
		v.apply()
	}
}

func (v *voter) apply() {
	e := v.w.log[v.applied]
	index := uint64(v.applied + 1)
	ch, err := v.state.Apply(index, e.term, e.cmd)
	if err != nil {
		v.w.t.Fatal(err)
	}
	if !ch.Ignored {
		v.seq.Applied(index, e.cmd)
	}
}

func (v *voter) commitOne() {
	v.catchUp()
	// The log holds bytes.
	cmd, err := meta.DecodeCommand(meta.EncodeCommand(v.pending[0]))
	if err != nil {
		v.w.t.Fatal(err)
	}
	v.pending = v.pending[1:]
	v.w.log = append(v.w.log, logEntry{cmd.Epoch, cmd})
	v.catchUp()
}

// print says what S wants done, until it wants nothing.
func (v *voter) print(b *strings.Builder) {
	for {
		out := v.seq.Ready()
		for _, p := range out.Proposals {
			v.pending = append(v.pending, p)
			fmt.Fprintf(b, "propose %s\n", describeCommand(p))
		}
		if out.Round != 0 {
			fmt.Fprintf(b, "round %d\n", out.Round)
		}
		for _, m := range out.Messages {
			fmt.Fprintf(b, "n%d/%d e%d %s\n", m.NodeID, m.Message.Session, m.Message.Epoch, describeMessage(m.Message))
		}
		if out.Empty() {
			if out.CutsDue {
				fmt.Fprintln(b, "cuts due")
			}
			return
		}
	}
}

func number(s string) uint64 {
	n, err := strconv.ParseUint(strings.TrimLeft(s, "rn"), 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

// parseMessage reads "grant r1 epoch=1 term=5 seq=1 count=2" and the like.
func parseMessage(t *testing.T, from, line string) *placementpb.ToSequencer {
	node, session, _ := strings.Cut(from, "/")
	m := &placementpb.ToSequencer{ClusterId: 7, NodeId: number(node), Session: number(session)}
	words := strings.Fields(line)
	get := func(key string) uint64 {
		for _, w := range words[1:] {
			if k, v, ok := strings.Cut(w, "="); ok && k == key {
				return number(v)
			}
		}
		if key == "epoch" || key == "count" {
			return 1
		}
		return 0
	}
	text := func(key string) string {
		for _, w := range words[1:] {
			if k, v, ok := strings.Cut(w, "="); ok && k == key {
				return v
			}
		}
		return ""
	}
	leases := func() []int64 {
		if l := get("lease"); l != 0 {
			return []int64{int64(l)}
		}
		return nil
	}
	rangeID := func() uint64 {
		if len(words) > 1 && strings.HasPrefix(words[1], "r") && !strings.Contains(words[1], "=") {
			return number(strings.Split(words[1], "@")[0])
		}
		return 0
	}
	ownerOf := func(s string) *placementpb.TxnID { // n1/1#3
		n, rest, _ := strings.Cut(s, "/")
		sess, num, _ := strings.Cut(rest, "#")
		return &placementpb.TxnID{NodeId: number(n), Session: number(sess), Number: number(num)}
	}
	switch words[0] {
	case "subscribe":
		m.Body = &placementpb.ToSequencer_Subscribe{Subscribe: &placementpb.Subscribe{}}
	case "register":
		m.Body = &placementpb.ToSequencer_Register{Register: &placementpb.Register{
			RangeId: rangeID(), Epoch: get("epoch"), Term: get("term")}}
	case "grant":
		m.Body = &placementpb.ToSequencer_Grant{Grant: &placementpb.GrantRequest{
			RangeId: rangeID(), Epoch: get("epoch"), Term: get("term"), Seq: get("seq"), Count: uint32(get("count")),
			Leases: leases()}}
	case "query":
		q := &placementpb.Query{Id: get("id")}
		for _, w := range words[1:] {
			if id, epoch, ok := strings.Cut(w, "@"); ok {
				q.Ranges = append(q.Ranges, &placementpb.RangeEpoch{RangeId: number(id), Epoch: number(epoch)})
			}
		}
		m.Body = &placementpb.ToSequencer_Query{Query: q}
	case "txn": // txn owner=n1/1#1 r1@1:term=5:session=1:effects=x r2@...
		txn := &placementpb.TxnCommit{Owner: ownerOf(text("owner")), Leases: leases()}
		for _, w := range words[1:] {
			id, rest, ok := strings.Cut(w, "@")
			if !ok {
				continue
			}
			p := &placementpb.Participant{RangeId: number(id)}
			for i, f := range strings.Split(rest, ":") {
				k, v, _ := strings.Cut(f, "=")
				switch {
				case i == 0:
					p.Epoch = number(k)
				case k == "term":
					p.Term = number(v)
				case k == "session":
					p.Session = number(v)
				case k == "effects":
					p.Effects = []byte(v)
				}
			}
			txn.Participants = append(txn.Participants, p)
		}
		m.Body = &placementpb.ToSequencer_TxnCommit{TxnCommit: txn}
	case "abort":
		m.Body = &placementpb.ToSequencer_TxnAbort{TxnAbort: &placementpb.TxnAbort{Owner: ownerOf(text("owner")), RangeId: rangeID()}}
	case "report":
		m.Body = &placementpb.ToSequencer_Report{Report: &placementpb.Report{RangeId: rangeID(), MetaIndex: get("index")}}
	case "deactivate":
		m.Body = &placementpb.ToSequencer_Deactivate{Deactivate: &placementpb.Deactivate{
			RangeId: rangeID(), Term: get("term"), Resolved: int64(get("resolved"))}}
	case "split":
		m.Body = &placementpb.ToSequencer_Split{Split: &placementpb.SplitRequest{Id: get("id"), Key: []byte(text("key"))}}
	case "compact":
		m.Body = &placementpb.ToSequencer_Compact{Compact: &placementpb.CompactRequest{Id: get("id"), Revision: int64(get("rev"))}}
	case "other-cluster":
		m.ClusterId = 8
		m.Body = &placementpb.ToSequencer_Subscribe{Subscribe: &placementpb.Subscribe{}}
	default:
		t.Fatalf("unknown message %q", line)
	}
	return m
}
