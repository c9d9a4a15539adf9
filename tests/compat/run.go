package compat

import (
	"context"
	"fmt"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// Runner sends steps to two servers and compares what they say. It is not safe for concurrent use: the steps of a run are one sequence.
type Runner struct {
	a, b *side
	// step counts the steps done; op is the one under way.
	step int
	op   Op

	// State is what is known of the keyspace after the steps done; it comes from a's answers.
	State State

	watching watching
	tolerate func(*Difference) bool
	bothEtcd bool
	stats    stats
	ids      [2]serverIDs
}

// serverIDs are the ids a server puts into its headers: they never change.
type serverIDs struct{ cluster, member uint64 }

// Difference is what a run ends with if the servers differ.
type Difference struct {
	// Step is the number of the step, from 0.
	Step int
	Op   Op
	// What says which answers are compared.
	What string
	// A and B are the answers, Lines the fields in which they differ.
	A, B  string
	Lines []string
	// names of a and b.
	names [2]string
}

func (d *Difference) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "step %d: %s\n  %s\n", d.Step, d.What, d.Op)
	if d.A != "" || d.B != "" {
		fmt.Fprintf(&s, "  %s: %s\n  %s: %s\n", d.names[0], d.A, d.names[1], d.B)
	}
	if len(d.Lines) > 0 {
		fmt.Fprintf(&s, "  what differs (%s | %s):\n    %s\n", d.names[0], d.names[1], strings.Join(d.Lines, "\n    "))
	}
	return s.String()
}

// RunnerOptions are the options of NewRunner.
type RunnerOptions struct {
	// Patience bounds the wait for one answer or for the events a watcher is owed; zero means answerWithin.
	Patience time.Duration
	// BothEtcd says that the second server is an etcd, too, and differs as one.
	BothEtcd bool
	// OptionsB are dial options for the second server only, for tests that falsify its answers.
	OptionsB []grpc.DialOption
	// Tolerate, if set, is asked about each difference in answers and events; the run goes on if it says so. Use it to see more
	// than the first difference while both servers still agree on what is in the keyspace.
	Tolerate func(*Difference) bool
}

// NewRunner connects to two fresh servers. a is the reference. Close the runner after use.
func NewRunner(ctx context.Context, a, b Server, names [2]string, opts RunnerOptions) (*Runner, error) {
	if opts.Patience == 0 {
		opts.Patience = answerWithin
	}
	sideA, err := newSide(names[0], a, opts.Patience)
	if err != nil {
		return nil, err
	}
	sideB, err := newSide(names[1], b, opts.Patience, opts.OptionsB...)
	if err != nil {
		sideA.close()
		return nil, err
	}
	r := &Runner{a: sideA, b: sideB, tolerate: opts.Tolerate, bothEtcd: opts.BothEtcd, State: newState(), stats: newStats()}
	if err := r.startJournals(ctx); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Close closes the connections, not the servers.
func (r *Runner) Close() {
	r.a.close()
	r.b.close()
}

// Do does one step and returns the first difference.
func (r *Runner) Do(ctx context.Context, op Op) *Difference {
	r.op = op
	d := r.do(ctx, op)
	if d != nil {
		d.Step, d.Op, d.names = r.step, op, [2]string{r.a.name, r.b.name}
	}
	r.step++
	r.stats.kinds[op.Kind]++
	return d
}

// tolerated tells whether the run may go on in spite of a difference.
func (r *Runner) tolerated(d *Difference) bool {
	d.Step, d.Op, d.names = r.step, r.op, [2]string{r.a.name, r.b.name}
	return r.tolerate != nil && r.tolerate(d)
}

// Finish compares what watchers have received and not yet been asked about. Call it after the last step.
func (r *Runner) Finish(ctx context.Context) *Difference {
	d := r.settle(ctx)
	if d != nil {
		d.Step, d.names = r.step, [2]string{r.a.name, r.b.name}
	}
	return d
}

// Watchers returns the watchers that live, in the order of stream and id.
func (r *Runner) Watchers() []*watcher {
	var watchers []*watcher
	for _, key := range r.sortedWatchers() {
		watchers = append(watchers, r.watching.watchers[key])
	}
	return watchers
}

func (r *Runner) do(ctx context.Context, op Op) *Difference {
	if d := r.settleBefore(ctx, op); d != nil {
		return d
	}
	switch op.Kind {
	case Split:
		if err := r.b.server.Split(ctx, op.Keys); err != nil {
			return &Difference{What: "split failed", Lines: []string{err.Error()}}
		}
		return nil
	case Watch:
		return r.doWatch(ctx, op)
	case WatchClose:
		r.closeStream(op.Stream)
		return nil
	}
	if r.isLeftOut(op) {
		return nil
	}
	answerA, answerB := r.callBoth(ctx, op)
	r.stats.note(answerA)
	if d := r.compareAnswers(ctx, op, answerA, answerB); d != nil && !r.tolerated(d) {
		return d
	}
	return r.advance(ctx, op, answerA)
}

func (r *Runner) callBoth(ctx context.Context, op Op) (a, b *answer) {
	done := make(chan *answer)
	reference := referenceOp(op)
	if r.bothEtcd {
		op = reference
	}
	go func() { done <- r.b.call(ctx, op) }()
	a = r.a.call(ctx, reference)
	return a, <-done
}

// isLeftOut tells whether an exception keeps the step from being done at all.
func (r *Runner) isLeftOut(op Op) bool {
	switch request := op.Request.(type) {
	case *pb.HashKVRequest:
		return r.State.compactions[request.Revision] // D4
	case *pb.CompactionRequest:
		return r.State.putAfterDeleteAt(request.Revision) // D6
	}
	return false
}

// compareAnswers compares the answers to one request. If the request allows an older answer (D2), the second server is asked
// again until it has caught up.
func (r *Runner) compareAnswers(ctx context.Context, op Op, a, b *answer) *Difference {
	if d := r.checkHeaders(a, b); d != nil {
		return d
	}
	if mayBeStale(op.Request) && isOlder(a, b) {
		var d *Difference
		if b, d = r.refreshStale(ctx, op, a, b); d != nil {
			return d
		}
	}
	if lines := diffAnswers(op.Request, a, b); len(lines) > 0 {
		return &Difference{What: "the answers differ", A: a.String(), B: b.String(), Lines: lines}
	}
	return nil
}

// diffAnswers lists the differences that no exception allows.
func diffAnswers(request proto.Message, a, b *answer) []string {
	var lines []string
	for _, side := range []*answer{a, b} {
		if side.violation != "" {
			lines = append(lines, "breaks a rule: "+side.violation)
		}
		if side.code == codes.Unavailable || side.code == codes.DeadlineExceeded {
			lines = append(lines, "a server does not answer: "+side.String())
		}
	}
	if a.code != b.code {
		lines = append(lines, fmt.Sprintf("code: %s | %s", a.code, b.code))
	}
	if a.text != b.text {
		lines = append(lines, fmt.Sprintf("error text: %q | %q", a.text, b.text))
	}
	if a.details != b.details {
		lines = append(lines, fmt.Sprintf("status details: %d | %d", a.details, b.details))
	}
	if a.code == codes.OK && b.code == codes.OK {
		inA, inB := mask(a.message), mask(b.message)
		keepLease(request, inA, inB)
		lines = append(lines, diffMessages(inA, inB)...)
	}
	return lines
}

// refreshStale applies D2. An older answer must be right for its revision, and newer ones must follow.
func (r *Runner) refreshStale(ctx context.Context, op Op, a, b *answer) (*answer, *Difference) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(r.b.patience)
	for isOlder(a, b) && time.Now().Before(deadline) {
		r.stats.stale++
		if d := r.checkStale(ctx, op, b); d != nil {
			return b, d
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return b, nil
		}
		b = r.b.call(ctx, op)
	}
	return b, nil
}

// checkStale compares an older answer to a plain Range with what the reference says of that revision.
func (r *Runner) checkStale(ctx context.Context, op Op, b *answer) *Difference {
	request, ok := op.Request.(*pb.RangeRequest)
	rev := headerRevision(b.message)
	if !ok || request.Revision > 0 || rev < max(r.State.Compacted, 1) {
		return nil
	}
	then := proto.Clone(request).(*pb.RangeRequest)
	then.Revision = rev
	a := r.a.call(ctx, Op{Kind: op.Kind, Request: then})
	if response, ok := a.message.(*pb.RangeResponse); ok {
		response.Header.Revision = rev
	}
	if lines := diffAnswers(request, a, b); len(lines) > 0 {
		return &Difference{What: fmt.Sprintf("an older answer is not the state at its revision %d", rev), A: a.String(), B: b.String(), Lines: lines}
	}
	return nil
}

// isOlder tells whether b answers from an older revision than a.
func isOlder(a, b *answer) bool {
	if a.code == codes.OK && b.code == codes.OutOfRange && strings.Contains(b.text, "future revision") {
		return true
	}
	return a.code == codes.OK && b.code == codes.OK && headerRevision(b.message) < headerRevision(a.message)
}

// checkHeaders checks that a server's ids in its headers never change (etcd/X5).
func (r *Runner) checkHeaders(answers ...*answer) *Difference {
	for i, answer := range answers {
		header := headerOf(answer.message)
		if header == nil {
			continue
		}
		now := serverIDs{header.ClusterId, header.MemberId}
		if r.ids[i] == (serverIDs{}) {
			r.ids[i] = now
		}
		if r.ids[i] != now || now.cluster == 0 || now.member == 0 || header.RaftTerm == 0 {
			return &Difference{What: "etcd/X5: ids in the header are zero or changed", A: answers[0].String(), B: answers[1].String()}
		}
	}
	return nil
}

// advance notes what a's answer says of the state. If the step has made a revision, it waits for a's journal to show it, and counts
// the events that watchers are owed; they are compared at once, or at the end of the burst.
func (r *Runner) advance(ctx context.Context, op Op, a *answer) *Difference {
	if request, ok := op.Request.(*pb.CompactionRequest); ok && a.code == codes.OK {
		r.State.compact(request.Revision)
	}
	revision := headerRevision(a.message)
	if revision <= r.State.Revision {
		return nil
	}
	r.State.Revision = revision
	if err := r.readJournal(ctx); err != nil {
		return &Difference{What: fmt.Sprintf("the journal of %s does not reach revision %d", r.a.name, revision), Lines: []string{err.Error()}}
	}
	if op.Burst {
		r.watching.burst = true
		return nil
	}
	return r.settle(ctx)
}

type hasHeader interface{ GetHeader() *pb.ResponseHeader }

func headerOf(m proto.Message) *pb.ResponseHeader {
	if m, ok := m.(hasHeader); ok {
		return m.GetHeader()
	}
	return nil
}

func headerRevision(m proto.Message) int64 { return headerOf(m).GetRevision() }
