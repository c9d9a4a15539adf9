package client

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/hawser-kv/hawser/proto/placementpb"
)

// TestScenarios plays a node's end of conversations with sequencers (testdata).
//
//	new [calls=N]       a client of node 1, first session 10; N is MaxCalls
//	start | stop | session | direct on/off (the link answers queries itself)
//	query NAME | split NAME | compact NAME | txn NAME [owner=SESSION#NUMBER]
//	abort | send [session=N]
//	say e=EPOCH s=SESSION [cluster=N]   the lines below come from a sequencer:
//	  hello | first cut R | cut R | grant ID | registered ID | decided ID |
//	  unlatch ID | deactivated ID | wake ID |
//	  query ID R | split ID | compact ID R | txn SESSION#NUMBER R
//
// Printed is, in order, what the client sends (>), what the node is told, and
// how calls end.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		p := &play{}
		datadriven.RunTest(t, path, p.run)
	})
}

// play is one scenario: the link and the node, which write down what they hear.
type play struct {
	c      *Client
	out    strings.Builder
	direct bool
}

func (p *play) note(format string, args ...any) { fmt.Fprintf(&p.out, format+"\n", args...) }

func (p *play) Receive(m *placementpb.ToSequencer) {
	what := strings.TrimPrefix(fmt.Sprintf("%T", m.Body), "*placementpb.ToSequencer_")
	if q := m.GetQuery(); q != nil {
		what += fmt.Sprintf(" id=%d", q.Id)
	}
	if q := m.GetSplit(); q != nil {
		what += fmt.Sprintf(" id=%d", q.Id)
	}
	if q := m.GetCompact(); q != nil {
		what += fmt.Sprintf(" id=%d", q.Id)
	}
	if o := m.GetTxnCommit().GetOwner(); o != nil {
		what += fmt.Sprintf(" owner=%d#%d", o.Session, o.Number)
	}
	if o := m.GetTxnAbort().GetOwner(); o != nil {
		what += fmt.Sprintf(" owner=%d#%d", o.Session, o.Number)
	}
	p.note("> %s c%d n%d/%d", what, m.ClusterId, m.NodeId, m.Session)
}

func (p *play) Query(_, session uint64, ranges []*placementpb.RangeEpoch, marks []int64) (int64, int64, bool) {
	return 50, 3, p.direct
}

func (p *play) run(t *testing.T, d *datadriven.TestData) string {
	p.out.Reset()
	name := ""
	if len(d.CmdArgs) > 0 {
		name = d.CmdArgs[0].Key
	}
	end := func(err error, format string, args ...any) {
		switch {
		case errors.Is(err, ErrSessionOver):
			p.note("%s: session over", name)
		case errors.Is(err, ErrOverloaded):
			p.note("%s: overloaded", name)
		case errors.Is(err, ErrStopped):
			p.note("%s: stopped", name)
		case err != nil:
			t.Errorf("%s: %v", d.Pos, err)
		default:
			p.note("%s: "+format, append([]any{name}, args...)...)
		}
	}
	var session uint64
	switch d.Cmd {
	case "new":
		*p = play{}
		calls := 0
		d.MaybeScanArgs(t, "calls", &calls)
		var err error
		p.c, err = New(Config{
			ClusterID: 7, NodeID: 1, FirstSession: 10, Link: p, MaxCalls: calls,
			Range: func(id uint64, m *placementpb.FromSequencer) {
				p.note("r%d: %s", id, strings.TrimPrefix(fmt.Sprintf("%T", m.Body), "*placementpb.FromSequencer_"))
			},
			NewSession: func(e, s uint64) { p.note("session %d of epoch %d", s, e) },
			Cut: func(c *placementpb.Cut) {
				if c.First {
					p.note("first cut R=%d", c.Revision)
				} else {
					p.note("cut R=%d", c.Revision)
				}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
	case "start":
		p.c.Start()
	case "stop":
		p.c.Stop()
	case "session":
		e, s, ok := p.c.Session()
		p.note("epoch %d, session %d, established %v", e, s, ok)
	case "direct":
		p.direct = name == "on"
	case "query":
		p.c.Query([]*placementpb.RangeEpoch{{RangeId: 3, Epoch: 1}}, func(a *placementpb.QueryAnswer, err error) {
			end(err, "R=%d", a.GetRevision())
		})
	case "split":
		p.c.Split([]byte("m"), func(r *placementpb.SplitResult, err error) { end(err, "done") })
	case "compact":
		p.c.Compact(3, func(r *placementpb.CompactResult, err error) { end(err, "done R=%d", r.GetRevision()) })
	case "txn":
		owner := ""
		if d.HasArg("owner") {
			d.ScanArgs(t, "owner", &owner)
		}
		o := p.c.NewOwner()
		if owner != "" {
			o.Session, o.Number = parseOwner(t, owner)
		}
		p.c.Commit(&placementpb.TxnCommit{Owner: o}, func(r *placementpb.TxnResult, err error) { end(err, "at %d", r.GetRevision()) })
	case "abort":
		p.c.Abort(p.c.NewOwner())
	case "send":
		d.MaybeScanArgs(t, "session", &session)
		p.c.Send(&placementpb.ToSequencer{Session: session, Body: &placementpb.ToSequencer_Grant{}})
	case "say":
		cluster, epoch := uint64(7), uint64(0)
		d.MaybeScanArgs(t, "cluster", &cluster)
		d.ScanArgs(t, "e", &epoch)
		d.ScanArgs(t, "s", &session)
		for _, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
			m := parseWord(t, line)
			m.ClusterId, m.Epoch, m.Session = cluster, epoch, session
			p.c.Deliver(m)
		}
	default:
		t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
	}
	if p.out.Len() == 0 {
		return "nothing\n"
	}
	return p.out.String()
}

func parseNumber(t *testing.T, s string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func parseOwner(t *testing.T, s string) (session, number uint64) {
	t.Helper()
	a, b, _ := strings.Cut(s, "#")
	return parseNumber(t, a), parseNumber(t, b)
}

// parseWord reads a line of "say".
func parseWord(t *testing.T, line string) *placementpb.FromSequencer {
	t.Helper()
	words := strings.Fields(line)
	first := words[0] == "first"
	if first {
		words = words[1:]
	}
	arg := func(i int) uint64 { return parseNumber(t, words[i]) }
	m := &placementpb.FromSequencer{}
	switch words[0] {
	case "hello":
	case "cut":
		m.Body = &placementpb.FromSequencer_Cut{Cut: &placementpb.Cut{First: first, Revision: int64(arg(1))}}
	case "grant":
		m.Body = &placementpb.FromSequencer_Grant{Grant: &placementpb.Grant{RangeId: arg(1)}}
	case "registered":
		m.Body = &placementpb.FromSequencer_Registered{Registered: &placementpb.Registered{RangeId: arg(1)}}
	case "decided":
		m.Body = &placementpb.FromSequencer_Decided{Decided: &placementpb.Decided{RangeId: arg(1)}}
	case "unlatch":
		m.Body = &placementpb.FromSequencer_Unlatch{Unlatch: &placementpb.Unlatch{RangeId: arg(1)}}
	case "deactivated":
		m.Body = &placementpb.FromSequencer_Deactivated{Deactivated: &placementpb.Deactivated{RangeId: arg(1)}}
	case "wake":
		m.Body = &placementpb.FromSequencer_Wake{Wake: &placementpb.Wake{RangeId: arg(1)}}
	case "query":
		m.Body = &placementpb.FromSequencer_Query{Query: &placementpb.QueryAnswer{Id: arg(1), Revision: int64(arg(2))}}
	case "split":
		m.Body = &placementpb.FromSequencer_Split{Split: &placementpb.SplitResult{Id: arg(1)}}
	case "compact":
		m.Body = &placementpb.FromSequencer_Compact{Compact: &placementpb.CompactResult{Id: arg(1), Revision: int64(arg(2))}}
	case "txn":
		session, number := parseOwner(t, words[1])
		m.Body = &placementpb.FromSequencer_Txn{Txn: &placementpb.TxnResult{
			Owner: &placementpb.TxnID{NodeId: 1, Session: session, Number: number}, Revision: int64(arg(2))}}
	default:
		t.Fatalf("unknown word of the sequencer %q", line)
	}
	return m
}
