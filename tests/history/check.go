package history

import (
	"fmt"
	"sort"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
)

// Run is everything that was seen of one server.
type Run struct {
	Ops     []*Op
	Watches []*Watch
	// Truth is the watch over everything, from the first revision to the end.
	Truth []Event
	// Revision is the current one at the end: above the last event's if there
	// are gaps.
	Revision int64
	// Dense: nothing failed, so revisions have no gap (history/K2).
	Dense bool
	// Crashes of the server; for Linearizable. Without any, and without
	// requests of unknown fate, it expects exact revisions.
	Crashes []Crash
}

// Crash is a time without a server: from before it was killed until it served
// again.
type Crash struct {
	Down, Up int64
}

// Check returns what contradicts etcd's promises, at most a few of them.
func Check(r *Run) []error {
	t, err := NewTruth(r.Truth)
	if err != nil {
		return []error{err}
	}
	t.last = max(t.last, r.Revision)
	c := &checker{t: t, owners: map[int64]*Op{}}
	if r.Dense {
		c.checkDense()
	}
	c.checkAnswers(r.Ops)
	c.checkOwners(r.Ops)
	c.checkRealTime(r.Ops)
	for _, w := range r.Watches {
		c.checkWatch(w)
	}
	return c.errs
}

const maxErrors = 10

type checker struct {
	t    *Truth
	errs []error
	// owners says which answered request made a revision.
	owners map[int64]*Op
}

func (c *checker) failf(format string, args ...any) {
	if len(c.errs) < maxErrors {
		c.errs = append(c.errs, fmt.Errorf(format, args...))
	}
}

func (c *checker) checkDense() {
	for r := int64(2); r <= c.t.last; r++ {
		if len(c.t.events[r]) == 0 {
			c.failf("revision %d is missing though nothing failed (history/K2)", r)
		}
	}
}

// clean removes from an answer what the model does not know.
func clean(m proto.Message) proto.Message {
	m = proto.Clone(m)
	type headed interface{ GetHeader() *pb.ResponseHeader }
	if h, ok := m.(headed); ok && h.GetHeader() != nil {
		hdr := h.GetHeader()
		hdr.ClusterId, hdr.MemberId, hdr.RaftTerm = 0, 0, 0
	}
	return m
}

// checkAnswers evaluates every answered request at the revision it names and
// compares (history/K1, history/K3).
func (c *checker) checkAnswers(ops []*Op) {
	for _, o := range ops {
		if o.Outcome != OK {
			continue
		}
		rev := o.header()
		if rev > c.t.last {
			c.failf("%v: the revision was never reached; the last is %d", o, c.t.last)
			continue
		}
		if o.Compact != nil {
			if o.Compact.Revision > rev {
				c.failf("%v: compacted beyond the current revision", o)
			}
			continue
		}
		// As a write at rev: the state before it must lead to exactly the
		// events of rev.
		if o.writes() && c.owners[rev] == nil {
			answer, effects := c.t.apply(o, rev-1)
			if len(effects) > 0 && sameEvents(effects, c.t.events[rev]) && proto.Equal(clean(o.Answer), answer) {
				c.owners[rev] = o
				continue
			}
		}
		// Else it changed nothing, and is a read at rev.
		answer, effects := c.t.apply(o, rev)
		if len(effects) > 0 {
			c.failf("%v: at %d it changes something: %s; but the events of %d are: %s (history/K1)", o, rev, show(effects), rev, show(c.t.events[rev]))
			continue
		}
		if !proto.Equal(clean(o.Answer), answer) {
			c.failf("%v: at %d the answer is %v (history/K1)", o, rev, answer)
		}
	}
}

// checkOwners finds for each revision the request that made it: an answered
// one, or one with an unknown fate, each used once.
func (c *checker) checkOwners(ops []*Op) {
	var unknown []*Op
	for _, o := range ops {
		if o.Outcome == Unknown && o.writes() {
			unknown = append(unknown, o)
		}
	}
	used := map[*Op]bool{}
	for r := int64(2); r <= c.t.last; r++ {
		if len(c.t.events[r]) == 0 || c.owners[r] != nil {
			continue
		}
		found := false
		for _, o := range unknown {
			if used[o] {
				continue
			}
			if _, effects := c.t.apply(o, r-1); sameEvents(effects, c.t.events[r]) {
				used[o], found = true, true
				break
			}
		}
		if !found {
			c.failf("revision %d (%s) was made by no request", r, show(c.t.events[r]))
		}
	}
}

// checkRealTime: what was answered before a request began is below it (I3).
func (c *checker) checkRealTime(ops []*Op) {
	var answered []*Op
	for _, o := range ops {
		if o.Outcome == OK && (o.Range == nil || !o.Range.Serializable) {
			answered = append(answered, o)
		}
	}
	// Sweep the calls in order, with the highest revision returned so far.
	byCall := append([]*Op(nil), answered...)
	sort.Slice(byCall, func(i, j int) bool { return byCall[i].Call < byCall[j].Call })
	byReturn := append([]*Op(nil), answered...)
	sort.Slice(byReturn, func(i, j int) bool { return byReturn[i].Return < byReturn[j].Return })
	var low int64
	var lowOp *Op
	next := 0
	for _, o := range byCall {
		for next < len(byReturn) && byReturn[next].Return < o.Call {
			if h := byReturn[next].header(); h > low {
				low, lowOp = h, byReturn[next]
			}
			next++
		}
		rev := o.header()
		if rev < low || rev == low && c.owners[rev] == o && lowOp != o {
			c.failf("%v: revision %d, but %v had been answered with %d before it began (I3)", o, rev, lowOp, low)
		}
	}
	// And nothing is read before it was asked for.
	latest := make([]int64, c.t.last+1)
	for r, o := range c.owners {
		latest[r] = o.Call
	}
	for r := int64(1); r <= c.t.last; r++ {
		latest[r] = max(latest[r], latest[r-1])
	}
	for _, o := range answered {
		if rev := o.header(); rev <= c.t.last && latest[rev] > o.Return {
			c.failf("%v: shows a write that was asked for only at %d", o, latest[rev])
		}
	}
}

// checkWatch checks the guarantees history/W1 to history/W9 for one watcher.
func (c *checker) checkWatch(w *Watch) {
	want := c.wanted(w)
	at, promised, last := 0, int64(0), int64(0)
	for _, resp := range w.Responses {
		if resp.Progress {
			if resp.Revision < promised {
				c.failf("watch %s: progress went back from %d to %d (history/W5)", w.Name, promised, resp.Revision)
			}
			if at < len(want) && want[at].revision() <= resp.Revision {
				c.failf("watch %s: progress at %d, but %s was not sent (history/W5)", w.Name, resp.Revision, want[at])
				return
			}
			promised = resp.Revision
			continue
		}
		for i, e := range resp.Events {
			r := e.revision()
			switch {
			case r < last:
				c.failf("watch %s: %s after revision %d (history/W2)", w.Name, e, last)
				return
			case r <= promised:
				c.failf("watch %s: %s after progress at %d (history/W5)", w.Name, e, promised)
				return
			case i == 0 && r == last:
				c.failf("watch %s: revision %d in two responses (history/W4)", w.Name, r)
				return
			case r > resp.Revision:
				c.failf("watch %s: %s under the header %d", w.Name, e, resp.Revision)
			}
			last = r
			if at >= len(want) || !sameEvents([]Event{e}, want[at:at+1]) {
				expected := "nothing more"
				if at < len(want) {
					expected = want[at].String()
				}
				c.failf("watch %s from %d: got %s, want %s (history/W1, history/W3, history/W6, history/W7, history/W8)", w.Name, w.From, e, expected)
				return
			}
			if w.PrevKV {
				prev := c.t.get(string(e.Kv.Key), r-1)
				if e.PrevKv != nil && !proto.Equal(e.PrevKv, prev) {
					c.failf("watch %s: %s: prev_kv is %v, want %v (history/W9)", w.Name, e, e.PrevKv, prev)
				}
			}
			at++
		}
	}
	if w.Finished {
		for at < len(want) && want[at].revision() <= w.UpTo {
			c.failf("watch %s from %d: %s never came (history/W8)", w.Name, w.From, want[at])
			return
		}
	}
}

func (c *checker) wanted(w *Watch) []Event {
	var want []Event
	for r := w.From; r <= c.t.last; r++ {
		for _, e := range c.t.events[r] {
			if inside(string(e.Kv.Key), w.Start, w.End) && !(e.Delete && w.NoDelete) && (e.Delete || !w.NoPut) {
				want = append(want, e)
			}
		}
	}
	return want
}
