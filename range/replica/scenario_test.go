package replica_test

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/range/replica"
)

// TestScenarios runs the stories of testdata/scenarios, in which the file plays the
// sequencer and the coordinators. Each is one of the scenarios of
// revisions.md section 5 in which a range takes part, or a rule of section 4.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		s := &scenario{t: t, net: &network{nodes: map[uint64]*node{}, queues: map[[2]uint64][]sentMessage{}}, cut: map[uint64]bool{}}
		defer func() {
			for _, n := range s.net.nodes {
				n.close()
			}
		}()
		datadriven.RunTest(t, path, s.run)
	})
}

type scenario struct {
	t     *testing.T
	net   *network
	trace bytes.Buffer
	links map[uint64]*scriptedLink
	cut   map[uint64]bool // nodes that no message reaches
	muted bool
}

// run executes one command. Every command lets the stores work until they wait for a
// sync, the network or the sequencer, and prints what came out.
//
//	cluster nodes=N [idle=ticks] [silent=..] [wait=..] [max-queued=..]  one range over all keys
//	session e= session= [node=]      a session begins (end: session end)
//	put name= key= value= [epoch=] [range=] [node=] [lease=]
//	del name= key= [end=]   cas name= key= old= new=
//	latch name= owner= spans=a-c:w,d:r    unlatch owner=
//	registered r0= [epoch=]          the body has decided entries, one a line, as below
//	grant seq= count= first= | refuse seq= count= reason=
//	decided                          the body: txn owner= rev= meta= a=1 b=-   or
//	                                           split key= rev= meta= right= epoch=
//	unlatched owner=   deactivated [refused]   wake   nudge
//	          all of S: [range=] [term=] [e=] [session=] [node=]
//	sync [node=]   settle   tick [n=] [node=]   isolate node=   connect node=
//	deliver | pass from= to=         all Raft messages that are under way | those of one link
//	elect node= [alone]              it campaigns; alone: and that is all for now
//	crash [node=]  read key= [rev=]   dump [rev=]   state   await name= rev= [epoch=] [range=]
func (s *scenario) run(t *testing.T, td *datadriven.TestData) string {
	s.trace.Reset()
	arg := func(key, missing string) string {
		if a, ok := td.Arg(key); ok && len(a.Vals) > 0 {
			return a.Vals[0]
		}
		return missing
	}
	num := func(key string, missing uint64) uint64 {
		v := arg(key, "")
		if v == "" {
			return missing
		}
		n, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			td.Fatalf(t, "%s: %v", key, err)
		}
		return n
	}
	id, rng := num("node", 1), num("range", 1)
	n := s.net.nodes[id]
	fromS := func(m *placementpb.FromSequencer) {
		l := s.links[id]
		m.Epoch, m.Session = num("e", l.e), num("session", l.session)
		n.store.Post(rng, m)
	}
	term := func() uint64 {
		if r := n.loaded[rng]; r != nil {
			return num("term", r.Status().Raft.Term)
		}
		return num("term", 0)
	}
	write := func(req *mvcc.Request) {
		n.store.Post(rng, &replica.Write{Epoch: num("epoch", 1), Req: req, Done: s.writeDone(arg("name", "w"))})
	}
	switch td.Cmd {
	case "cluster":
		s.cluster(int(num("nodes", 1)), replica.Limits{
			IdleTicks: int(num("idle", 1000)), SilentTicks: int(num("silent", 1000)), WaitTicks: int(num("wait", 1000)),
			MaxQueued: int(num("max-queued", 0)), RetryTicks: int(num("retry", 2)), TargetEntryBytes: int(num("entry-bytes", 0)),
		})
	case "session":
		l := s.links[id]
		if td.HasArg("end") {
			l.ok = false
		} else {
			l.e, l.session, l.ok = num("e", l.e), num("session", l.session+1), true
		}
		for _, rng := range loadedIDs(n) {
			n.store.Post(rng, replica.SessionChanged{})
		}
	case "put":
		req := put(arg("key", ""), arg("value", ""))
		req.Put.Lease = int64(num("lease", 0))
		write(req)
	case "puts":
		for _, kv := range strings.Fields(td.Input) {
			k, v, _ := strings.Cut(kv, "=")
			n.store.Post(rng, &replica.Write{Epoch: num("epoch", 1), Req: put(k, v), Done: s.writeDone(k)})
		}
	case "del":
		write(del(arg("key", ""), arg("end", "")))
	case "cas":
		write(cas(arg("key", ""), arg("old", ""), arg("new", "")))
	case "latch":
		name := arg("name", "l")
		a, _ := td.Arg("spans")
		n.store.Post(rng, &replica.Latch{Epoch: num("epoch", 1), Owner: owner(num("owner", 1)), Spans: spans(a.Vals), Done: func(r rangepb.LatchAnswer) {
			if r.Err != nil {
				s.say("%s: %v", name, r.Err)
				return
			}
			s.say("%s: latched T=%d session=%d epoch=%d", name, r.Term, r.Session, r.Epoch)
		}})
	case "unlatch":
		n.store.Post(rng, &replica.Unlatch{Owner: owner(num("owner", 1))})
	case "registered":
		r := &placementpb.Registered{RangeId: rng, Term: term(), R0: int64(num("r0", 0)), Epoch: num("epoch", 1), Decided: s.decided(td.Input, rng)}
		if td.HasArg("refused") {
			r.Refused, r.Reason = true, arg("refused", "a newer leader is known")
		}
		fromS(&placementpb.FromSequencer{Body: &placementpb.FromSequencer_Registered{Registered: r}})
	case "grant":
		fromS(&placementpb.FromSequencer{Body: &placementpb.FromSequencer_Grant{Grant: &placementpb.Grant{
			RangeId: rng, Term: term(), Seq: num("seq", 1), Count: uint32(num("count", 1)), First: int64(num("first", 0))}}})
	case "refuse":
		reason := placementpb.RefusalReason_value["REFUSAL_REASON_"+arg("reason", "NOT_REGISTERED")]
		fromS(&placementpb.FromSequencer{Body: &placementpb.FromSequencer_Grant{Grant: &placementpb.Grant{
			RangeId: rng, Term: term(), Seq: num("seq", 1), Count: uint32(num("count", 1)), Refused: true, Reason: placementpb.RefusalReason(reason)}}})
	case "decided":
		for _, d := range s.decided(td.Input, rng) {
			fromS(&placementpb.FromSequencer{Body: &placementpb.FromSequencer_Decided{Decided: d}})
		}
	case "unlatched":
		fromS(&placementpb.FromSequencer{Body: &placementpb.FromSequencer_Unlatch{Unlatch: &placementpb.Unlatch{RangeId: rng, Owner: owner(num("owner", 1))}}})
	case "deactivated":
		fromS(&placementpb.FromSequencer{Body: &placementpb.FromSequencer_Deactivated{Deactivated: &placementpb.Deactivated{
			RangeId: rng, Term: term(), Refused: td.HasArg("refused")}}})
	case "wake":
		fromS(&placementpb.FromSequencer{Body: &placementpb.FromSequencer_Wake{Wake: &placementpb.Wake{RangeId: rng}}})
	case "nudge":
		n.store.Post(rng, replica.Nudge{})
	case "sync":
		s.runAll()
		if !n.sync() {
			s.say("nothing to sync")
		}
	case "settle":
		s.settle()
	case "tick":
		for range num("n", 1) {
			for _, id := range s.ids() {
				if !td.HasArg("node") || id == n.id {
					s.net.nodes[id].store.Tick()
				}
			}
			s.settle()
		}
	case "deliver":
		s.runAll()
		s.net.deliver(s.connected)
	case "pass":
		s.runAll()
		if !s.net.pass(num("from", 0), num("to", 0)) {
			s.say("nothing to pass")
		}
	case "elect":
		// As if the leader had handed over: no clock takes part.
		term := n.loaded[rng].Status().Raft.Term
		from := id%3 + 1
		n.store.Post(rng, &raftpb.Message{Type: raftpb.MsgTimeoutNow.Enum(), From: &from, To: &id, Term: &term})
		if !td.HasArg("alone") {
			s.settle()
		}
	case "isolate":
		s.cut[id] = true
	case "connect":
		delete(s.cut, id)
	case "crash":
		s.runAll()
		s.muted = true // what the dying process still does is not seen
		n.crash(vfs.CrashCloneCfg{})
		s.muted = false
		s.links[id].ok = false
		s.say("n%d has %v", id, s.listed(n))
	case "load":
		n.store.Load(rng)
	case "await":
		name := arg("name", "a")
		n.readers.Await(rng, num("epoch", 1), int64(num("rev", 0)), func(err error) { s.say("%s: %v", name, errText(err)) })
	case "view":
		err := n.readers.Check(rangepb.Piece{RangeID: rng, Epoch: num("epoch", 1), Start: []byte(arg("start", "")), End: []byte(arg("end", "")), Resolve: int64(num("resolve", 0))})
		s.say("%v", errText(err))
	case "read":
		s.runAll()
		return s.trace.String() + n.get(arg("key", ""), int64(num("rev", uint64(newest)))) + "\n"
	case "dump":
		s.runAll()
		return s.trace.String() + n.dump(int64(num("rev", uint64(newest))))
	case "state":
		s.runAll()
		for _, id := range loadedIDs(n) {
			st := n.loaded[id].Status()
			s.say("%s queued=%d latches=%d last-index=%d", n.loaded[id], st.Queued, st.Latches, st.Raft.LastIndex)
		}
		if len(n.loaded) == 0 {
			s.say("nothing is loaded")
		}
	default:
		td.Fatalf(t, "no such command")
	}
	s.runAll()
	return s.trace.String()
}

func (s *scenario) say(format string, args ...any) {
	if !s.muted {
		fmt.Fprintf(&s.trace, format+"\n", args...)
	}
}

func errText(err error) string {
	if err == nil {
		return "ok"
	}
	return err.Error()
}

func (s *scenario) ids() (ids []uint64) {
	for id := range s.net.nodes {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func loadedIDs(n *node) (ids []uint64) {
	for id := range n.loaded {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (s *scenario) listed(n *node) []string {
	ids, err := replica.List(n.db)
	if err != nil {
		s.t.Fatal(err)
	}
	var out []string
	for _, id := range ids {
		saved, err := replica.Load(n.db, id)
		if err != nil {
			s.t.Fatal(err)
		}
		out = append(out, fmt.Sprintf("r%d:{%q-%q} epoch=%d resolved=%d", id, saved.Descriptor.Start, saved.Descriptor.End, saved.Descriptor.Epoch, saved.Resolved))
	}
	return out
}

func (s *scenario) connected(from, to uint64) bool { return !s.cut[from] && !s.cut[to] }

func (s *scenario) runAll() (worked bool) {
	for again := true; again; worked = worked || again {
		again = false
		for _, id := range s.ids() {
			again = s.net.nodes[id].run() || again
		}
	}
	return worked
}

func (s *scenario) settle() {
	for again := true; again; {
		again = s.runAll()
		for _, id := range s.ids() {
			again = s.net.nodes[id].sync() || again
		}
		again = s.net.deliver(s.connected) || again
	}
}

func (s *scenario) cluster(nodes int, limits replica.Limits) {
	s.links = map[uint64]*scriptedLink{}
	var ids []uint64
	for id := uint64(1); id <= uint64(nodes); id++ {
		ids = append(ids, id)
	}
	for _, id := range ids {
		link := &scriptedLink{sent: func(m *placementpb.ToSequencer) { s.say("n%d -> S: %s", id, toText(m)) }}
		n := &node{tb: s.t, id: id, link: link, limits: limits, events: sink{s, id}, transport: networkEnd{s.net, id}, logger: warnings(&s.trace)}
		n.began = func(d *rangepb.RangeDescriptor) { s.say("n%d begins r%d:{%q-%q}", id, d.RangeId, d.Start, d.End) }
		s.links[id], s.net.nodes[id] = link, n
		n.open()
		n.bootstrap(descriptor(1, "", "", 1, ids...), 1)
		n.store.Load(1)
	}
}

func (s *scenario) writeDone(name string) replica.WriteDone {
	return func(res *mvcc.Result, r rangepb.WriteAnswer) {
		switch {
		case r.NoEffect && r.Err != nil:
			s.say("%s: no effect: %v", name, r.Err)
		case r.NoEffect:
			s.say("%s: no effect", name)
		case r.Err != nil:
			s.say("%s: %v (not applied: %v)", name, r.Err, replica.NotApplied(r.Err))
		default:
			res.Finish(r.Revision)
			s.say("%s: ok at %d", name, r.Revision)
		}
	}
}

// sink shows what became visible.
type sink struct {
	s    *scenario
	node uint64
}

func (k sink) Applied(rangeID uint64, resolved int64, events []mvcc.Event) {
	var b strings.Builder
	for _, e := range events {
		if e.Delete {
			fmt.Fprintf(&b, " -%s@%d", e.Kv.Key, e.Revision)
			continue
		}
		fmt.Fprintf(&b, " %s=%s@%d", e.Kv.Key, e.Kv.Value, e.Revision)
	}
	k.s.say("n%d r%d resolved=%d%s", k.node, rangeID, resolved, &b)
}

func owner(number uint64) *placementpb.TxnID {
	return &placementpb.TxnID{NodeId: 9, Session: 1, Number: number}
}

// spans parses a-c:w, or d:r for one key.
func spans(texts []string) (out []mvcc.Access) {
	for _, text := range texts {
		text, mode, _ := strings.Cut(text, ":")
		start, end, wide := strings.Cut(text, "-")
		a := mvcc.Access{Start: []byte(start), End: []byte(end), Write: mode == "w"}
		if !wide {
			a.End = append([]byte(start), 0)
		}
		out = append(out, a)
	}
	return out
}

// decided parses decided entries, one a line.
func (s *scenario) decided(input string, rng uint64) (out []*placementpb.Decided) {
	for line := range strings.Lines(input) {
		words := strings.Fields(line)
		args, order := map[string]string{}, []string(nil)
		for _, w := range words[1:] {
			k, v, _ := strings.Cut(w, "=")
			args[k] = v
			order = append(order, k)
		}
		number := func(key string) uint64 {
			v, err := strconv.ParseUint(args[key], 10, 64)
			if err != nil {
				s.t.Fatalf("%s: %s: %v", line, key, err)
			}
			return v
		}
		d := &placementpb.Decided{RangeId: rng, Revision: int64(number("rev")), MetaIndex: number("meta")}
		switch words[0] {
		case "txn":
			var effs []mvcc.Effect
			for _, k := range order {
				if slices.Contains([]string{"rev", "meta", "owner"}, k) {
					continue
				}
				e := mvcc.Effect{Key: []byte(k), Sub: uint32(len(effs)), Tombstone: args[k] == "-"}
				if !e.Tombstone {
					e.Value, e.Version = []byte(args[k]), 1
				}
				effs = append(effs, e)
			}
			d.Entry = &placementpb.Decided_Txn{Txn: &placementpb.DecidedTxn{Owner: owner(number("owner")), Effects: mvcc.AppendEffects(nil, effs)}}
		case "split":
			left := s.descriptorOf(rng)
			right := descriptor(number("right"), args["key"], string(left.End), 1)
			for _, r := range left.Replicas {
				right.Replicas = append(right.Replicas, &rangepb.Replica{NodeId: r.NodeId, ReplicaId: r.ReplicaId})
			}
			left.End, left.Epoch = []byte(args["key"]), number("epoch")
			d.Entry = &placementpb.Decided_Split{Split: &placementpb.DecidedSplit{Key: []byte(args["key"]), Left: left, Right: right}}
		default:
			s.t.Fatalf("decided: %s", line)
		}
		out = append(out, d)
	}
	return out
}

// descriptorOf returns the descriptor of a range as the sequencer has it.
func (s *scenario) descriptorOf(rng uint64) *rangepb.RangeDescriptor {
	for _, id := range s.ids() {
		if d := s.net.nodes[id].readers.Descriptor(rng); d != nil {
			c := descriptor(d.RangeId, string(d.Start), string(d.End), d.Epoch)
			c.Replicas = d.Replicas
			return c
		}
	}
	s.t.Fatalf("no range %d", rng)
	return nil
}

// toText is a message to S on one line.
func toText(m *placementpb.ToSequencer) string {
	text := ""
	switch b := m.Body.(type) {
	case *placementpb.ToSequencer_Register:
		text = fmt.Sprintf("register r%d epoch=%d T=%d", b.Register.RangeId, b.Register.Epoch, b.Register.Term)
	case *placementpb.ToSequencer_Grant:
		text = fmt.Sprintf("grant r%d epoch=%d T=%d seq=%d count=%d", b.Grant.RangeId, b.Grant.Epoch, b.Grant.Term, b.Grant.Seq, b.Grant.Count)
		if len(b.Grant.Leases) > 0 {
			text += fmt.Sprintf(" leases=%v", b.Grant.Leases)
		}
	case *placementpb.ToSequencer_TxnAbort:
		text = fmt.Sprintf("abort owner=%d for r%d", b.TxnAbort.Owner.Number, b.TxnAbort.RangeId)
	case *placementpb.ToSequencer_Report:
		text = fmt.Sprintf("report r%d meta=%d", b.Report.RangeId, b.Report.MetaIndex)
	case *placementpb.ToSequencer_Deactivate:
		text = fmt.Sprintf("deactivate r%d T=%d resolved=%d", b.Deactivate.RangeId, b.Deactivate.Term, b.Deactivate.Resolved)
	default:
		text = fmt.Sprintf("%T", b)
	}
	return fmt.Sprintf("%s (session %d)", text, m.Session)
}
