package client

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// fakeS records what the client sends; the test answers.
type fakeS struct {
	sent   []*placementpb.ToSequencer
	inline bool
	c      *Client
}

func (f *fakeS) Receive(m *placementpb.ToSequencer) { f.sent = append(f.sent, m) }

func (f *fakeS) Query(_, _ uint64, ranges []*placementpb.RangeEpoch, marks []int64) (int64, int64, bool) {
	for i, r := range ranges {
		marks[i] = int64(r.RangeId)
	}
	return 50, 3, f.inline
}

// take returns what was sent since the last call, in short.
func (f *fakeS) take() string {
	var words []string
	for _, m := range f.sent {
		kind := strings.TrimPrefix(fmt.Sprintf("%T", m.Body), "*placementpb.ToSequencer_")
		words = append(words, fmt.Sprintf("%s/%d", kind, m.Session))
	}
	f.sent = nil
	return strings.Join(words, " ")
}

func (f *fakeS) say(epoch, session uint64, body any) {
	m := &placementpb.FromSequencer{ClusterId: 7, Epoch: epoch, Session: session}
	switch b := body.(type) {
	case nil:
	case *placementpb.Cut:
		m.Body = &placementpb.FromSequencer_Cut{Cut: b}
	case *placementpb.QueryAnswer:
		m.Body = &placementpb.FromSequencer_Query{Query: b}
	case *placementpb.TxnResult:
		m.Body = &placementpb.FromSequencer_Txn{Txn: b}
	case *placementpb.SplitResult:
		m.Body = &placementpb.FromSequencer_Split{Split: b}
	case *placementpb.CompactResult:
		m.Body = &placementpb.FromSequencer_Compact{Compact: b}
	case *placementpb.Grant:
		m.Body = &placementpb.FromSequencer_Grant{Grant: b}
	case *placementpb.Registered:
		m.Body = &placementpb.FromSequencer_Registered{Registered: b}
	case *placementpb.Decided:
		m.Body = &placementpb.FromSequencer_Decided{Decided: b}
	case *placementpb.Unlatch:
		m.Body = &placementpb.FromSequencer_Unlatch{Unlatch: b}
	case *placementpb.Deactivated:
		m.Body = &placementpb.FromSequencer_Deactivated{Deactivated: b}
	case *placementpb.Wake:
		m.Body = &placementpb.FromSequencer_Wake{Wake: b}
	default:
		panic(fmt.Sprintf("%T", body))
	}
	f.c.Deliver(m)
}

// events is what the node was told, in order.
type events []string

func newTest(t *testing.T) (*fakeS, *Client, *events) {
	t.Helper()
	f, ev := &fakeS{}, &events{}
	c, err := New(Config{
		ClusterID: 7, NodeID: 1, FirstSession: 10, Link: f, MaxCalls: 4,
		Range:      func(id uint64, m *placementpb.FromSequencer) { *ev = append(*ev, fmt.Sprintf("range %d", id)) },
		NewSession: func(e, s uint64) { *ev = append(*ev, fmt.Sprintf("session %d/%d", e, s)) },
		Cut:        func(c *placementpb.Cut) { *ev = append(*ev, fmt.Sprintf("cut %d", c.Revision)) },
	})
	if err != nil {
		t.Fatal(err)
	}
	f.c = c
	return f, c, ev
}

func (e *events) want(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(*e, want) {
		t.Fatalf("the node was told %q, want %q", *e, want)
	}
	*e = nil
}

func wantSent(t *testing.T, f *fakeS, want string) {
	t.Helper()
	if got := f.take(); got != want {
		t.Fatalf("sent %q, want %q", got, want)
	}
}

func TestConfigNamesAllThatIsMissing(t *testing.T) {
	_, err := New(Config{})
	for _, name := range []string{"ClusterID", "NodeID", "FirstSession", "Link", "Range", "NewSession", "Cut"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named in %v", name, err)
		}
	}
}

// R6: a session begins with its first cut; the directory comes before the
// leaders hear of it, and what was asked before is sent then.
func TestSessionBeginsWithTheFirstCut(t *testing.T) {
	f, c, ev := newTest(t)
	var got *placementpb.QueryAnswer
	c.Query([]*placementpb.RangeEpoch{{RangeId: 3, Epoch: 1}}, func(a *placementpb.QueryAnswer, err error) { got = a })
	c.Send(&placementpb.ToSequencer{Body: &placementpb.ToSequencer_Report{}}) // no session: dropped
	wantSent(t, f, "")
	c.Start()
	wantSent(t, f, "Subscribe/10")
	if _, _, ok := c.Session(); ok {
		t.Fatal("established before the first cut")
	}
	f.say(2, 10, &placementpb.Cut{First: true, Revision: 5})
	ev.want(t, "cut 5", "session 2/10")
	wantSent(t, f, "Query/10")
	f.say(2, 10, &placementpb.QueryAnswer{Id: 1, Revision: 9})
	if got.GetRevision() != 9 {
		t.Fatalf("answered %v", got)
	}
	f.say(2, 10, &placementpb.QueryAnswer{Id: 1, Revision: 10}) // nobody waits any more
	if got.GetRevision() != 9 {
		t.Fatalf("answered twice: %v", got)
	}
	f.say(2, 10, &placementpb.Cut{Revision: 6})
	for _, body := range []any{
		&placementpb.Grant{RangeId: 0}, &placementpb.Registered{RangeId: 1}, &placementpb.Decided{RangeId: 2},
		&placementpb.Unlatch{RangeId: 3}, &placementpb.Deactivated{RangeId: 4}, &placementpb.Wake{RangeId: 5},
	} {

		f.say(2, 10, body)
	}
	ev.want(t, "cut 6", "range 0", "range 1", "range 2", "range 3", "range 4", "range 5")
}

func TestQueryIsAnsweredAtOnceWhereTheLinkCan(t *testing.T) {
	f, c, _ := newTest(t)
	f.inline = true
	c.Start()
	f.say(2, 10, &placementpb.Cut{First: true})
	f.take()
	for n := range 7 {
		var ranges []*placementpb.RangeEpoch
		for id := range n {
			ranges = append(ranges, &placementpb.RangeEpoch{RangeId: uint64(id + 1)})
		}
		called := 0
		c.Query(ranges, func(a *placementpb.QueryAnswer, err error) {
			called++
			if err != nil || a.Revision != 50 || a.Compacted != 3 || len(a.Marks) != n {
				t.Fatalf("%v, %v", a, err)
			}
			for i, m := range a.Marks {
				if m != int64(i+1) {
					t.Fatalf("marks %v", a.Marks)
				}
			}
		})
		if called != 1 {
			t.Fatalf("called %d times", called)
		}
	}
	wantSent(t, f, "")
}

// A node never turns back to an older S, drops what is of an older session or
// another cluster, and begins a new session with a newer S.
func TestOldEpochsAndSessionsAreDropped(t *testing.T) {
	f, c, ev := newTest(t)
	c.Start()
	f.say(5, 10, &placementpb.Cut{First: true, Revision: 1})
	ev.want(t, "cut 1", "session 5/10")
	f.take()

	f.say(4, 10, &placementpb.Cut{Revision: 2})
	f.say(4, 10, nil)
	f.say(5, 9, &placementpb.Cut{Revision: 2})
	f.say(5, 9, &placementpb.Cut{First: true, Revision: 2})
	f.say(5, 0, nil) // the hello of a new S to all, late
	c.Deliver(&placementpb.FromSequencer{ClusterId: 8, Epoch: 9})
	ev.want(t)
	wantSent(t, f, "")

	f.say(6, 10, &placementpb.Grant{RangeId: 1})
	ev.want(t)
	wantSent(t, f, "Subscribe/11")
	f.say(5, 11, &placementpb.Cut{First: true, Revision: 3})
	ev.want(t)
	f.say(6, 11, &placementpb.Cut{First: true, Revision: 3})
	ev.want(t, "cut 3", "session 6/11")

	// S does not know the session, by its own word.
	f.say(6, 11, nil)
	wantSent(t, f, "Subscribe/12")
	// While the node waits, another hello makes it subscribe again.
	f.say(6, 0, nil)
	wantSent(t, f, "Subscribe/13")
	f.say(6, 13, &placementpb.Grant{RangeId: 1}) // before the first cut
	f.say(6, 12, &placementpb.Cut{First: true})
	ev.want(t)
	f.say(6, 13, &placementpb.Cut{First: true, Revision: 4})
	ev.want(t, "cut 4", "session 6/13")
}

// What a leader means for an older session is not sent in a newer one.
func TestSendKeepsTheSessionItIsGiven(t *testing.T) {
	f, c, _ := newTest(t)
	c.Start()
	f.say(5, 10, &placementpb.Cut{First: true})
	f.take()
	c.Send(&placementpb.ToSequencer{Session: 9, Body: &placementpb.ToSequencer_Grant{}})
	wantSent(t, f, "")
	c.Send(&placementpb.ToSequencer{Session: 10, Body: &placementpb.ToSequencer_Grant{}})
	c.Send(&placementpb.ToSequencer{Body: &placementpb.ToSequencer_Grant{}})
	c.Abort(c.NewOwner())
	wantSent(t, f, "Grant/10 Grant/10 TxnAbort/10")
}

// When a session ends, queries are asked again; what may have been decided is
// told so.
func TestCallsWhenTheSessionEnds(t *testing.T) {
	f, c, _ := newTest(t)
	c.Start()
	f.say(5, 10, &placementpb.Cut{First: true})
	f.take()
	var log events
	note := func(what string) func(error) {
		return func(err error) {
			switch {
			case errors.Is(err, ErrSessionOver):
				log = append(log, what+" over")
			case errors.Is(err, ErrOverloaded):
				log = append(log, what+" overloaded")
			case errors.Is(err, ErrStopped):
				log = append(log, what+" stopped")
			case err == nil:
				log = append(log, what)
			default:
				t.Error(err)
			}
		}
	}
	query, commit, split, compact, more := note("query"), note("commit"), note("split"), note("compact"), note("more")
	c.Query(nil, func(_ *placementpb.QueryAnswer, err error) { query(err) })
	c.Commit(&placementpb.TxnCommit{Owner: c.NewOwner()}, func(_ *placementpb.TxnResult, err error) { commit(err) })
	c.Split([]byte("m"), func(_ *placementpb.SplitResult, err error) { split(err) })
	c.Compact(3, func(_ *placementpb.CompactResult, err error) { compact(err) })
	c.Compact(4, func(_ *placementpb.CompactResult, err error) { more(err) }) // MaxCalls
	log.want(t, "more overloaded")
	wantSent(t, f, "Query/10 TxnCommit/10 Split/10 Compact/10")

	c.Start()
	log.want(t, "commit over", "split over", "compact over")
	c.Split([]byte("m"), func(_ *placementpb.SplitResult, err error) { split(err) })
	wantSent(t, f, "Subscribe/11")
	f.say(5, 11, &placementpb.Cut{First: true})
	wantSent(t, f, "Query/11 Split/11") // in the order made
	f.say(5, 11, &placementpb.SplitResult{Id: 5})
	log.want(t, "split")

	c.Stop()
	log.want(t, "query stopped")
	c.Compact(3, func(_ *placementpb.CompactResult, err error) { compact(err) })
	log.want(t, "compact stopped")
	c.Start()
	f.say(6, 12, &placementpb.Cut{First: true})
	wantSent(t, f, "")
}

// Answers find their questions: transactions by owner, the rest by number.
func TestAnswersFindTheirQuestions(t *testing.T) {
	f, c, _ := newTest(t)
	c.Start()
	f.say(5, 10, &placementpb.Cut{First: true})
	var log events
	owners := []*placementpb.TxnID{c.NewOwner(), c.NewOwner()}
	if o := owners[1]; o.NodeId != 1 || o.Session != 10 || o.Number == owners[0].Number {
		t.Fatalf("owners %v", owners)
	}
	for _, o := range owners {
		c.Commit(&placementpb.TxnCommit{Owner: o}, func(r *placementpb.TxnResult, err error) {
			log = append(log, fmt.Sprintf("txn %d at %d %v", o.Number, r.GetRevision(), err))
		})
	}
	c.Compact(3, func(r *placementpb.CompactResult, err error) {
		log = append(log, fmt.Sprintf("compact at %d %v", r.GetRevision(), err))
	})
	f.say(5, 10, &placementpb.TxnResult{Owner: owners[1], Revision: 8})
	f.say(5, 10, &placementpb.TxnResult{Owner: &placementpb.TxnID{Session: 1, Number: 1}, Revision: 9})
	f.say(5, 10, &placementpb.CompactResult{Id: 3, Revision: 9})
	f.say(5, 10, &placementpb.TxnResult{Owner: owners[0], Revision: 7})
	log.want(t, "txn 2 at 8 <nil>", "compact at 9 <nil>", "txn 1 at 7 <nil>")
}

// FuzzDeliver: nothing that S could say is a panic, and cuts reach the node
// only within an established session.
func FuzzDeliver(f *testing.F) {
	f.Add([]byte{0, 10, 1, 0, 10, 2, 1, 10, 0, 2, 11, 1})
	f.Fuzz(func(t *testing.T, script []byte) {
		s := &fakeS{}
		established := false
		c, err := New(Config{
			ClusterID: 7, NodeID: 1, FirstSession: 10, Link: s,
			Range: func(uint64, *placementpb.FromSequencer) {
				if !established {
					t.Fatal("a range hears of S without a session")
				}
			},
			NewSession: func(uint64, uint64) { established = true },
			Cut: func(c *placementpb.Cut) {
				if !c.First && !established {
					t.Fatal("a cut without a first one")
				}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		s.c = c
		c.Start()
		bodies := []any{nil, &placementpb.Cut{First: true}, &placementpb.Cut{Descriptors: []*rangepb.RangeDescriptor{{}}},
			&placementpb.QueryAnswer{}, &placementpb.TxnResult{}, &placementpb.Grant{}, &placementpb.SplitResult{}}
		var highest uint64
		for i := 0; i+2 < len(script) && i < 300; i += 3 {
			s.say(uint64(script[i]), uint64(script[i+1]), bodies[int(script[i+2])%len(bodies)])
			e, _, _ := c.Session()
			if e < highest {
				t.Fatalf("turned back from S %d to %d", highest, e)
			}
			highest = e
		}
	})
}
