package txn

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
)

// TestCoordinator runs the scenarios in testdata. Commands:
//
//	begin                     a new attempt over the ranges of the body
//	latched term=2 session=3  the leader gave the last latch
//	latch-failed [retry|stale] the leader gave none; retry: the reason passes;
//	                          times=n with stale: n times, each recut with the body
//	recut                     the ranges of the body take the place of the stale ones
//	evaluated a=1 d=x@9 e-    effects: put, put with a lease, delete; none: nothing to do
//	evaluation-failed [retry]
//	decided rev=7             S decided it at revision 7
//	refused ABORTED           S refused it for this reason
//	lost                      no answer of S will come
//	cancel                    the caller left
//
// A range is r2@3 [c,m), the epoch 1 if it is not given; it writes all of its
// span, or what is said: reads, touches [d,e).
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
				if d.HasArg("cancelled") {
					acts = c.Cancel()
				}
				acts = append(acts, c.Start()...)
			case "latched":
				var l Latch
				d.ScanArgs(t, "term", &l.Term)
				d.ScanArgs(t, "session", &l.Session)
				acts = c.Latched(l)
			case "latch-failed":
				l := Latch{Err: errors.New("no latch")}
				switch {
				case d.HasArg("retry"):
					l.Refusal = Passing
				case d.HasArg("stale"):
					l.Refusal = Stale
				}
				times := 0
				d.MaybeScanArgs(t, "times", &times)
				for range times {
					acts = append(acts, c.Latched(l)...)
					acts = append(acts, c.Recut(parseParts(t, d))...)
				}
				if times == 0 {
					acts = c.Latched(l)
				}
			case "recut":
				acts = c.Recut(parseParts(t, d))
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
	for line := range strings.Lines(d.Input) {
		words := strings.Fields(line)
		id, epoch, ok := strings.Cut(words[0], "@")
		if !ok {
			epoch = "1"
		}
		var p Participant
		if _, err := fmt.Sscanf(id+" "+epoch, "r%d %d", &p.RangeID, &p.Epoch); err != nil {
			d.Fatalf(t, "%s: %v", line, err)
		}
		p.Start, p.End = parseSpan(words[1])
		p.Spans = []mvcc.Access{{Start: p.Start, End: p.End, Write: true}}
		switch {
		case len(words) == 3 && words[2] == "reads":
			p.Spans[0].Write = false
		case len(words) == 4 && words[2] == "touches":
			p.Spans[0].Start, p.Spans[0].End = parseSpan(words[3])
		case len(words) != 2:
			d.Fatalf(t, "%s: what does it do?", line)
		}
		parts = append(parts, p)
	}
	return parts
}

func parseSpan(text string) (start, end []byte) {
	a, b, _ := strings.Cut(strings.Trim(text, "[)"), ",")
	if b != "" {
		end = []byte(b)
	}
	return []byte(a), end
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
		case ActRecut:
			fmt.Fprintf(&b, "%s %s (%d)\n", a.Kind, a.Participant, a.Recut)
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
	c.Latched(Latch{Term: 1, Session: 1})
	defer func() {
		if recover() == nil {
			t.Fatal("no panic")
		}
	}()
	c.Evaluated([]mvcc.Effect{{Key: []byte("z"), Version: 1}}, nil, false)
}

// TestEffectsFindTheirParticipant holds the search for a participant against a scan, for
// ranges with gaps between them, to the end of the keyspace.
func TestEffectsFindTheirParticipant(t *testing.T) {
	key := func(i int) []byte { return fmt.Appendf(nil, "%03d", i) }
	var parts []Participant
	for i := 10; i < 990; i += 10 {
		if i%30 != 0 {
			parts = append(parts, Participant{RangeID: uint64(i), Start: key(i), End: key(i + 10)})
		}
	}
	parts = append(parts, Participant{RangeID: 990, Start: key(990)})
	c := New(&placementpb.TxnID{Number: 1}, parts)
	partOf := func(k []byte) (i int) {
		defer func() {
			if recover() != nil {
				i = -1 // outside of all
			}
		}()
		return c.partOf(k)
	}
	for i := range 1000 {
		for _, k := range [][]byte{key(i), append(key(i), 0)} {
			want := slices.IndexFunc(parts, func(p Participant) bool { return p.span().Contains(k) })
			if got := partOf(k); got != want {
				t.Errorf("key %q is in participant %d, want %d", k, got, want)
			}
		}
	}
}
