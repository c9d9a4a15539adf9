package sequencer

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/hawser-kv/hawser/proto/placementpb"
)

// TestSpeech says messages by hand and shows when each may leave
// (testdata/speech.txt). "flush" is what Ready does.
//
//	new [sole]
//	say range=r1 NAME [round] [session=N]   about a range's leader
//	reply NAME [round] [barrier=N] [session=N]
//	propose range=r1 barrier=N              what is said of r1 from now on waits for N
//	applied N | begin | confirm N | tick | sole
//	session N                               the node's session is N now
//	flush
func TestSpeech(t *testing.T) {
	var p *speech
	var n *node
	var boxes map[string]*outbox
	datadriven.RunTest(t, "testdata/speech.txt", func(t *testing.T, d *datadriven.TestData) string {
		text := func(key string) (v string) {
			d.MaybeScanArgs(t, key, &v)
			return v
		}
		num := func(key string) (v uint64) {
			d.MaybeScanArgs(t, key, &v)
			return v
		}
		box := func() *outbox {
			name := text("range")
			if boxes[name] == nil {
				boxes[name] = &outbox{}
			}
			return boxes[name]
		}
		message := func() (*placementpb.FromSequencer, uint64) {
			m := p.to(n)
			if s := num("session"); s != 0 {
				m.Session = s
			}
			m.Body = &placementpb.FromSequencer_Query{Query: &placementpb.QueryAnswer{Id: num("id")}}
			if d.HasArg("round") {
				return m, p.rounds.needed()
			}
			return m, 0
		}
		switch d.Cmd {
		case "new":
			p = &speech{clusterID: 7, epoch: 2, rounds: newRounds(d.HasArg("sole"))}
			n, boxes = &node{id: 1, session: 1}, map[string]*outbox{}
			return "ok\n"
		case "say":
			m, round := message()
			p.say(box(), n, m, round)
		case "reply":
			m, round := message()
			p.reply(n, m, round, num("barrier"))
		case "propose":
			box().barrier = num("barrier")
		case "applied":
			p.applied = num("n")
		case "begin":
			return fmt.Sprintf("round %d\n", p.rounds.begin())
		case "confirm":
			p.rounds.confirm(num("n"))
		case "tick":
			p.rounds.tick()
		case "sole":
			p.rounds.sole = true
			p.rounds.becomeSole()
		case "session":
			n.session = num("n")
		case "flush":
			p.flushOutboxes()
			p.flushReplies()
		default:
			t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
		}
		var left []string
		for _, e := range p.drain(nil) {
			left = append(left, fmt.Sprintf("%d", e.Message.GetQuery().Id))
		}
		if len(left) == 0 {
			return fmt.Sprintf("nothing leaves; %d outboxes, %d by round, %d by barrier wait\n",
				len(p.waiting), len(p.byRound.replies)-p.byRound.head, len(p.byBarrier))
		}
		return "leaves: " + strings.Join(left, " ") + "\n"
	})
}

func TestConfirmingARoundThatHasNotBegunPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Fatal("no panic")
		}
	}()
	r := newRounds(false)
	r.needed()
	r.confirm(1)
}
