package watch

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// TestScenarios runs the scenarios in testdata. Commands:
//
//	cut r=<R> [first] [compacted=<c>] with lines "m <range> <revision>" and
//	    "range <id> <start> <end|->": a cut of the subscription
//	apply range=<id> resolved=<r> with lines "<revision> put|del <key>"
//	loaded range=<id> resolved=<r> with the same lines: a replica found on disk
//	complete [<start> <end|->]: up to where the span is complete
//	tick n=<ticks>: time passes; ranges are nudged after 10
//	watch [start=<k>] [end=<k>] [rev=<r>] current=<R>: create on the stream
//	progress current=<R>, cancel id=<id>
//	read: carry out one read of history
//	take: what the stream would send
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		f := NewFrontier()
		h := NewHub(f, Limits{})
		s := h.NewStream(func() {})
		history := &fakeHistory{}
		bound := func(k string) []byte {
			if k == "-" {
				return nil
			}
			return []byte(k)
		}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var i int64
			arg := func(name string) int64 {
				i = 0
				if d.HasArg(name) {
					d.ScanArgs(t, name, &i)
				}
				return i
			}
			lines := strings.FieldsFunc(d.Input, func(r rune) bool { return r == '\n' })
			switch d.Cmd {
			case "cut":
				c := &placementpb.Cut{Revision: arg("r"), First: d.HasArg("first"), Compacted: arg("compacted")}
				for _, l := range lines {
					w := strings.Fields(l)
					switch w[0] {
					case "m":
						m := &placementpb.Mark{}
						fmt.Sscan(w[1], &m.RangeId)
						fmt.Sscan(w[2], &m.Revision)
						c.Marks = append(c.Marks, m)
					case "range":
						r := &rangepb.RangeDescriptor{Start: bound(w[2]), End: bound(w[3])}
						fmt.Sscan(w[1], &r.RangeId)
						c.Descriptors = append(c.Descriptors, r)
					default:
						t.Fatalf("%s: unknown line %q", d.Pos, l)
					}
				}
				f.Cut(c)
				h.Step()
				return ""
			case "apply", "loaded":
				var events []mvcc.Event
				for _, l := range lines {
					var e mvcc.Event
					var kind, key string
					fmt.Sscan(l, &e.Revision, &kind, &key)
					e.Delete = kind == "del"
					e.Sub = uint32(len(events))
					e.Kv = &mvccpb.KeyValue{Key: []byte(key), ModRevision: e.Revision}
					events = append(events, e)
				}
				history.events = append(history.events, events...)
				if d.Cmd == "loaded" {
					h.Loaded(arg("resolved"))
				} else {
					h.Applied(events)
				}
				f.Resolved(uint64(arg("range")), arg("resolved"))
				h.Step()
				return ""
			case "complete":
				var start, end []byte
				if len(d.CmdArgs) == 2 {
					start, end = bound(d.CmdArgs[0].Key), bound(d.CmdArgs[1].Key)
				}
				return fmt.Sprintf("%d lagging=%v\n", f.Complete(start, end), f.Lagging())
			case "tick":
				var b strings.Builder
				for i := range arg("n") {
					if ids := f.Tick(10); len(ids) > 0 {
						fmt.Fprintf(&b, "after %d: nudge %v\n", i+1, ids)
					}
				}
				return b.String()
			case "watch":
				r := CreateRequest{Current: arg("current"), StartRevision: arg("rev")}
				_, r.Compacted = f.Revision()
				var k string
				if d.HasArg("start") {
					d.ScanArgs(t, "start", &k)
					r.Start = []byte(k)
				}
				if d.HasArg("end") {
					d.ScanArgs(t, "end", &k)
					r.End = []byte(strings.ReplaceAll(k, "0", "\x00"))
				}
				s.Create(r)
				return show(s.Take())
			case "progress":
				s.RequestProgress(arg("current"))
				return show(s.Take())
			case "cancel":
				s.Cancel(arg("id"), arg("current"))
				return show(s.Take())
			case "read":
				task, ok := h.NextTask()
				if !ok {
					return "nothing to read\n"
				}
				h.TaskDone(task, task.Run(history))
				return fmt.Sprintf("read (%d, %d]\n", task.After, task.UpTo)
			case "take":
				out := show(s.Take())
				s.Drained()
				return out
			}
			t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
			return ""
		})
	})
}

type fakeHistory struct{ events []mvcc.Event }

func (h *fakeHistory) PickEvents(after, upTo int64, pick func(mvcc.EventRow) (want, more bool), fn func(mvcc.Event) error) error {
	w := &world{history: h.events}
	return w.PickEvents(after, upTo, pick, fn)
}

// show prints responses, one a line.
func show(rs []*Response) string {
	var b strings.Builder
	for _, r := range rs {
		fmt.Fprintf(&b, "id=%d rev=%d", r.WatchID, r.Revision)
		if r.Created {
			b.WriteString(" created")
		}
		if r.Canceled {
			fmt.Fprintf(&b, " canceled %q", r.Reason)
		}
		if r.CompactRevision != 0 {
			fmt.Fprintf(&b, " compact=%d", r.CompactRevision)
		}
		for _, e := range eventsOf(r) {
			kind := "put"
			if e.delete {
				kind = "del"
			}
			fmt.Fprintf(&b, " %d:%s:%s", e.revision, kind, e.kv.Key)
		}
		b.WriteString("\n")
	}
	return b.String()
}
