package txn

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
)

// TestCoordinator runs the scenarios in testdata. Commands:
//
//	begin r1:[a,c) r2:[c,)    a new attempt over these ranges
//	latched term=2 session=3  the leader gave the last latch
//	latch-failed [retry]      the leader gave none; retry: the reason passes
//	evaluated a=1 d=x@9 e-    effects: put, put with a lease, delete; none: nothing to do
//	evaluation-failed [retry]
//	decided rev=7             S decided it at revision 7
//	refused ABORTED           S refused it for this reason
//	lost                      no answer of S will come
//	cancel                    the caller left
//
// Each prints the actions and the state after it.
func TestCoordinator(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var c *Coordinator
		owner := uint64(0)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var acts []Action
			switch d.Cmd {
			case "begin":
				owner++
				c = New(&placementpb.TxnID{NodeId: 1, Session: 1, Number: owner}, parseParts(t, d))
				acts = c.Start()
			case "latched":
				var l Latch
				d.ScanArgs(t, "term", &l.Term)
				d.ScanArgs(t, "session", &l.Session)
				acts = c.Latched(l, false)
			case "latch-failed":
				acts = c.Latched(Latch{Err: errors.New("no latch")}, d.HasArg("retry"))
			case "evaluated":
				acts = c.Evaluated(parseEffects(d), nil, false)
			case "evaluation-failed":
				acts = c.Evaluated(nil, errors.New("no luck"), d.HasArg("retry"))
			case "decided":
				res := &placementpb.TxnResult{Owner: c.Owner()}
				d.ScanArgs(t, "rev", &res.Revision)
				acts = c.Decided(res, nil)
			case "refused":
				reason, ok := placementpb.RefusalReason_value["REFUSAL_REASON_"+d.CmdArgs[0].Key]
				if !ok {
					t.Fatalf("no reason %s", d.CmdArgs[0].Key)
				}
				acts = c.Decided(&placementpb.TxnResult{Owner: c.Owner(), Refused: true, Reason: placementpb.RefusalReason(reason)}, nil)
			case "lost":
				acts = c.Decided(nil, errors.New("session ended"))
			case "cancel":
				acts = c.Cancel()
			default:
				t.Fatalf("unknown command %s", d.Cmd)
			}
			return show(acts) + c.state.String() + "\n"
		})
	})
}

func parseParts(t *testing.T, d *datadriven.TestData) []Participant {
	var parts []Participant
	for _, arg := range strings.Split(strings.TrimSpace(d.Input), "\n") {
		id, span, ok := strings.Cut(arg, " ")
		if !ok {
			t.Fatalf("bad range %q", arg)
		}
		n, err := strconv.ParseUint(strings.TrimPrefix(id, "r"), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		start, end, _ := strings.Cut(strings.Trim(span, "[)"), ",")
		p := Participant{RangeID: n, Epoch: 1, Start: []byte(start)}
		if end != "" {
			p.End = []byte(end)
		}
		p.Spans = []mvcc.Access{{Start: p.Start, End: p.End, Write: true}}
		parts = append(parts, p)
	}
	return parts
}

func parseEffects(d *datadriven.TestData) []mvcc.Effect {
	var effs []mvcc.Effect
	for i, arg := range strings.Fields(d.Input) {
		e := mvcc.Effect{Sub: uint32(i), Version: 1}
		key, value, put := strings.Cut(arg, "=")
		if !put {
			effs = append(effs, mvcc.Effect{Sub: uint32(i), Key: []byte(strings.TrimSuffix(arg, "-")), Tombstone: true})
			continue
		}
		value, lease, _ := strings.Cut(value, "@")
		e.Key, e.Value = []byte(key), []byte(value)
		e.Lease, _ = strconv.ParseInt(lease, 10, 64)
		effs = append(effs, e)
	}
	return effs
}

func show(acts []Action) string {
	var b strings.Builder
	for _, a := range acts {
		switch a.Kind {
		case ActLatch, ActUnlatch:
			fmt.Fprintf(&b, "%s %s\n", a.Kind, a.Participant)
		case ActCommit:
			fmt.Fprintf(&b, "commit owner=%d leases=%v\n", a.Commit.Owner.Number, a.Commit.Leases)
			for _, p := range a.Commit.Participants {
				fmt.Fprintf(&b, "  r%d@%d term=%d session=%d", p.RangeId, p.Epoch, p.Term, p.Session)
				if len(p.Effects) == 0 {
					fmt.Fprintf(&b, " reads\n")
					continue
				}
				effs, err := mvcc.DecodeEffects(p.Effects)
				if err != nil {
					return err.Error()
				}
				for _, e := range effs {
					fmt.Fprintf(&b, " %d:%s", e.Sub, e.Key)
				}
				fmt.Fprintln(&b)
			}
		case ActEnd:
			fmt.Fprintf(&b, "end: %s", a.Outcome.Verdict)
			if a.Outcome.Verdict == Committed {
				fmt.Fprintf(&b, " at %d", a.Outcome.Revision)
			}
			if a.Outcome.Err != nil {
				fmt.Fprintf(&b, " (%v)", a.Outcome.Err)
			}
			fmt.Fprintln(&b)
		default:
			fmt.Fprintln(&b, a.Kind)
		}
	}
	return b.String()
}

func TestEffectOutsideTheLatchedRangesPanics(t *testing.T) {
	c := New(&placementpb.TxnID{Number: 1}, []Participant{{RangeID: 1, Start: []byte("a"), End: []byte("c")}})
	c.Start()
	c.Latched(Latch{Term: 1, Session: 1}, false)
	defer func() {
		if recover() == nil {
			t.Fatal("no panic")
		}
	}()
	c.Evaluated([]mvcc.Effect{{Key: []byte("z"), Version: 1}}, nil, false)
}
