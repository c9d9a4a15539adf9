package compat

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// The journal of a server is a watcher of its whole keyspace from revision 1, on a stream of its own. The reference's journal
// tells the runner what has happened, so it knows the number of events every other watcher is owed, and waits for them instead of
// for time. The other server's journal is compared with it like any watcher.
const journalID = 0

// watching is the part of a Runner that is about watchers.
type watching struct {
	journalA, journalB *watchStream
	// journal is what a's journal has shown since the last comparison.
	journal []*pb.WatchResponse
	// watchers by stream and id.
	watchers map[watcherKey]*watcher
	// cancelled are watchers cancelled by compaction that the client has not cancelled since: etcd still holds their ids, and a stream
	// with such a watcher answers no progress request.
	cancelled map[watcherKey]bool
	// burst: the steps since the last comparison were a burst.
	burst bool
	// catchUp: some watcher is catching up, or waits to be cancelled because it cannot.
	catchUp bool
}

type watcherKey struct {
	stream int
	id     int64
}

func (r *Runner) startJournals(ctx context.Context) error {
	r.watching.watchers = make(map[watcherKey]*watcher)
	r.watching.cancelled = make(map[watcherKey]bool)
	for _, j := range []struct {
		side   *side
		stream **watchStream
	}{{r.a, &r.watching.journalA}, {r.b, &r.watching.journalB}} {
		stream, err := j.side.openWatchStream(ctx)
		if err != nil {
			return err
		}
		j.side.streams[-1] = stream
		*j.stream = stream
		all := &pb.WatchCreateRequest{Key: []byte{0}, RangeEnd: []byte{0}, StartRevision: 1}
		if err := stream.client.Send(createRequest(all)); err != nil {
			return err
		}
		created, err := stream.take(ctx, &stream.mu.created)
		if err != nil {
			return fmt.Errorf("%s: create the journal: %w", j.side.name, err)
		}
		if created.Canceled || created.WatchId != journalID {
			return fmt.Errorf("%s: create the journal: %s", j.side.name, printMessage(created))
		}
		// A server catches up before it tells the newest: only then is the journal live.
		if err := stream.client.Send(progressRequest()); err != nil {
			return err
		}
		if err := j.side.awaitProgress(ctx, stream, 1, new(int)); err != nil {
			return fmt.Errorf("%s: first progress of the journal: %w", j.side.name, err)
		}
		if response := printAll(stream.takeWatcher(journalID)); response != "" {
			return fmt.Errorf("%s is not empty: %s", j.side.name, response)
		}
	}
	return nil
}

func createRequest(r *pb.WatchCreateRequest) *pb.WatchRequest {
	return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: r}}
}

func progressRequest() *pb.WatchRequest {
	return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}}
}

// readJournal waits until a's journal shows the current revision.
func (r *Runner) readJournal(ctx context.Context) error {
	journal := r.watching.journalA
	if err := journal.awaitRevision(ctx, r.State.Revision); err != nil {
		return err
	}
	responses := journal.takeWatcher(journalID)
	r.watching.journal = append(r.watching.journal, responses...)
	for _, response := range responses {
		for _, e := range response.Events {
			noted := r.State.add(e)
			for _, w := range r.watching.watchers {
				if w.wants(noted) {
					w.want++
				}
			}
		}
	}
	return nil
}

// awaitRevision waits until the stream's journal has shown a revision.
func (w *watchStream) awaitRevision(ctx context.Context, revision int64) error {
	return w.await(ctx, func() bool {
		responses := w.mu.byWatcher[journalID]
		if len(responses) == 0 {
			return false
		}
		events := responses[len(responses)-1].Events
		return events[len(events)-1].Kv.ModRevision >= revision
	})
}

// settleBefore compares what watchers have received if the step must not begin before: the end of a burst; writes while a watcher
// catches up (whether the write belongs to the history it reads is a matter of time); and what depends on all events being out.
func (r *Runner) settleBefore(ctx context.Context, op Op) *Difference {
	needed := r.watching.burst && !op.Burst
	switch op.Kind {
	case Put, DeleteRange, Txn, Compact:
		needed = needed || r.watching.catchUp || op.Kind == Compact && r.watching.burst
	case WatchClose:
		needed = true
	case Watch:
		request := op.Request.(*pb.WatchRequest)
		needed = needed || request.GetCancelRequest() != nil || request.GetProgressRequest() != nil
	}
	if !needed {
		return nil
	}
	return r.settle(ctx)
}

// settle waits until both servers have sent all they owe, and compares it.
func (r *Runner) settle(ctx context.Context) *Difference {
	if d := r.settleJournal(ctx); d != nil && !r.tolerated(d) {
		return d
	}
	if d := r.settleCatchUp(ctx); d != nil {
		return d
	}
	for _, key := range r.sortedWatchers() {
		if d := r.settleWatcher(ctx, r.watching.watchers[key]); d != nil && !r.tolerated(d) {
			return d
		}
	}
	r.watching.burst, r.watching.catchUp = false, false
	if d := r.checkLeftovers(); d != nil && !r.tolerated(d) {
		return d
	}
	return nil
}

func (r *Runner) sortedWatchers() []watcherKey {
	return slices.SortedFunc(maps.Keys(r.watching.watchers), func(x, y watcherKey) int {
		return cmp.Or(cmp.Compare(x.stream, y.stream), cmp.Compare(x.id, y.id))
	})
}

func (r *Runner) settleJournal(ctx context.Context) *Difference {
	fromA := r.watching.journal
	r.watching.journal = nil
	if len(fromA) == 0 {
		return nil
	}
	journal := r.watching.journalB
	err := journal.awaitRevision(ctx, r.State.Revision)
	fromB := journal.takeWatcher(journalID)
	lines := r.diffWatcher(&watcher{request: &pb.WatchCreateRequest{}}, fromA, fromB)
	if err != nil {
		lines = append(lines, fmt.Sprintf("%s does not reach revision %d: %v", r.b.name, r.State.Revision, err))
	}
	if len(lines) > 0 {
		return &Difference{What: "watchers of the whole keyspace (created at revision 1) were told differently", A: printAll(fromA), B: printAll(fromB), Lines: lines}
	}
	return nil
}

// settleCatchUp waits until both servers have read the history for those watchers in which there is nothing for them: only
// progress shows that.
func (r *Runner) settleCatchUp(ctx context.Context) *Difference {
	if !r.watching.catchUp {
		return nil
	}
	asked := make(map[int]bool)
	for _, key := range r.sortedWatchers() {
		if w := r.watching.watchers[key]; !w.catchingUp || w.want > 0 || w.wantCompacted || asked[key.stream] {
			continue
		}
		asked[key.stream] = true
		for _, s := range []*side{r.a, r.b} {
			stream := s.streams[key.stream]
			err := stream.client.Send(progressRequest())
			if err == nil {
				err = s.awaitProgress(ctx, stream, r.State.Revision, new(int))
			}
			if err != nil {
				return &Difference{What: fmt.Sprintf("%s on stream %d: progress after catching up with revision %d: %v", s.name, key.stream, r.State.Revision, err)}
			}
		}
	}
	return nil
}

func (r *Runner) settleWatcher(ctx context.Context, w *watcher) *Difference {
	what := fmt.Sprintf("watcher %d of stream %d was told differently; created with %s", w.id, w.stream, printMessage(w.request))
	streamA, streamB := r.a.streams[w.stream], r.b.streams[w.stream]
	if err := streamA.awaitWatcher(ctx, w); err != nil {
		lines := []string{fmt.Sprintf("%s owes %d events: %v", r.a.name, w.want, err)}
		return &Difference{What: what, A: printAll(streamA.takeWatcher(w.id)), B: printAll(streamB.takeWatcher(w.id)), Lines: lines}
	}
	err := streamB.awaitWatcher(ctx, w)
	fromA, fromB := streamA.takeWatcher(w.id), streamB.takeWatcher(w.id)
	r.stats.noteWatcher(w, fromA)
	lines := r.diffWatcher(w, fromA, fromB)
	if err != nil {
		lines = append(lines, fmt.Sprintf("%s owes %d events: %v", r.b.name, w.want, err))
	}
	r.stats.events += w.want
	w.want, w.catchingUp = 0, false
	if w.wantCompacted {
		key := watcherKey{w.stream, w.id}
		delete(r.watching.watchers, key)
		r.watching.cancelled[key] = true
	}
	if len(lines) > 0 {
		return &Difference{What: what, A: printAll(fromA), B: printAll(fromB), Lines: lines}
	}
	return nil
}

// awaitWatcher waits until the server has sent what it owes a watcher.
func (w *watchStream) awaitWatcher(ctx context.Context, owed *watcher) error {
	return w.await(ctx, func() bool {
		if owed.wantCompacted {
			return len(w.mu.byWatcher[owed.id]) > 0
		}
		events, complete := w.eventsLocked(owed.id)
		return events >= owed.want && complete
	})
}

// diffWatcher compares what one watcher has received from both servers.
func (r *Runner) diffWatcher(w *watcher, fromA, fromB []*pb.WatchResponse) []string {
	var lines []string
	if !w.catchingUp && !r.watching.burst {
		// One step at a time: responses are comparable one by one.
		if len(fromA) != len(fromB) {
			lines = append(lines, fmt.Sprintf("number of responses: %d | %d", len(fromA), len(fromB)))
		}
		for i := range min(len(fromA), len(fromB)) {
			for _, line := range diffMessages(mask(fromA[i]), mask(fromB[i])) {
				lines = append(lines, fmt.Sprintf("response %d: %s", i, line))
			}
		}
		return lines
	}
	// In order, but grouped as timing had it.
	merge := func(responses []*pb.WatchResponse) *pb.WatchResponse {
		merged := &pb.WatchResponse{}
		for _, response := range responses {
			merged.Events = append(merged.Events, response.Events...)
			merged.Canceled = merged.Canceled || response.Canceled
			merged.CompactRevision = max(merged.CompactRevision, response.CompactRevision)
		}
		return merged
	}
	lines = append(lines, diffMessages(merge(fromA), merge(fromB))...)
	if !r.watching.burst && len(fromA) > 0 && len(fromB) > 0 {
		lastA, lastB := fromA[len(fromA)-1].Header.GetRevision(), fromB[len(fromB)-1].Header.GetRevision()
		if lastA != lastB {
			lines = append(lines, fmt.Sprintf("header.revision of the last response: %d | %d", lastA, lastB))
		}
	}
	for _, side := range []struct {
		name      string
		responses []*pb.WatchResponse
	}{{r.a.name, fromA}, {r.b.name, fromB}} {
		if broken := checkGrouping(w, side.responses, r.State.Revision); broken != "" {
			lines = append(lines, side.name+" "+broken)
		}
	}
	return lines
}

// checkGrouping checks what etcd/W10 and etcd/W14 say of the responses of one watcher, however they are cut.
func checkGrouping(w *watcher, responses []*pb.WatchResponse, current int64) string {
	last, open := int64(0), false
	for _, response := range responses {
		if response.Fragment && !w.request.Fragment {
			return "etcd/W14: sends fragments to a watcher that did not ask"
		}
		if len(response.Events) == 0 {
			continue
		}
		first, newest := response.Events[0].Kv.ModRevision, response.Events[len(response.Events)-1].Kv.ModRevision
		switch header := response.Header.GetRevision(); {
		case first < last || first == last && !open:
			return fmt.Sprintf("etcd/W10: revision %d is split over responses or goes back", first)
		case header < newest || header > current:
			return fmt.Sprintf("etcd/W10: header.revision %d with events up to %d, current revision %d", header, newest, current)
		}
		last, open = newest, response.Fragment
	}
	if open {
		return "etcd/W14: the last response says that fragments follow"
	}
	return ""
}

// checkLeftovers finds what came though nobody was owed it.
func (r *Runner) checkLeftovers() *Difference {
	for _, s := range []*side{r.a, r.b} {
		for number, stream := range s.streams {
			if text := stream.leftovers(); text != "" {
				return &Difference{What: fmt.Sprintf("%s on stream %d: %s", s.name, number, text), Lines: r.describeStream(number)}
			}
			if number < 0 {
				continue
			}
			stream.mu.Lock()
			var extra []*pb.WatchResponse
			for id, responses := range stream.mu.byWatcher {
				key := watcherKey{number, id}
				if w := r.watching.watchers[key]; w == nil || w.want == 0 {
					extra = append(extra, responses...)
				}
			}
			stream.mu.Unlock()
			if len(extra) > 0 {
				return &Difference{What: fmt.Sprintf("%s on stream %d sends what no watcher is owed: %s", s.name, number, printAll(extra))}
			}
		}
	}
	return nil
}

// describeStream lists the watchers of a stream for a report.
func (r *Runner) describeStream(number int) []string {
	var lines []string
	for _, key := range r.sortedWatchers() {
		if key.stream == number {
			lines = append(lines, fmt.Sprintf("watcher %d: %s", key.id, printMessage(r.watching.watchers[key].request)))
		}
	}
	for key := range r.watching.cancelled {
		if key.stream == number {
			lines = append(lines, fmt.Sprintf("watcher %d: cancelled by compaction", key.id))
		}
	}
	return lines
}

// doWatch sends a watch request and compares the answers to it.
func (r *Runner) doWatch(ctx context.Context, op Op) *Difference {
	request := op.Request.(*pb.WatchRequest)
	if create := request.GetCreateRequest(); create != nil {
		w := r.newWatcher(op.Stream, create)
		if r.watching.catchUp && (w.wantCompacted || w.from > r.State.Revision) {
			// From now on the stream shows no progress, which watchers on it may need.
			if d := r.settle(ctx); d != nil {
				return d
			}
		}
		if r.endIsUnknowable(w) {
			return nil
		}
	}
	var streams [2]*watchStream
	for i, s := range []*side{r.a, r.b} {
		if s.streams[op.Stream] == nil {
			stream, err := s.openWatchStream(ctx)
			if err != nil {
				return &Difference{What: err.Error()}
			}
			s.streams[op.Stream] = stream
		}
		streams[i] = s.streams[op.Stream]
		if err := streams[i].client.Send(request); err != nil {
			return &Difference{What: fmt.Sprintf("%s: send on stream %d: %v", s.name, op.Stream, err)}
		}
	}
	switch {
	case request.GetCreateRequest() != nil:
		return r.created(ctx, op.Stream, streams, request.GetCreateRequest())
	case request.GetCancelRequest() != nil:
		return r.canceled(ctx, op.Stream, streams, request.GetCancelRequest().WatchId)
	case request.GetProgressRequest() != nil:
		return r.progressed(ctx, op.Stream, streams)
	}
	return r.handled(ctx, streams) // etcd/W1: ignored by both.
}

// handled waits until both servers have handled a request to which there is no answer, so that what comes next cannot overtake it:
// it sends a create request that is refused at once (etcd/W2).
func (r *Runner) handled(ctx context.Context, streams [2]*watchStream) *Difference {
	refused := createRequest(&pb.WatchCreateRequest{Key: []byte("b"), RangeEnd: []byte("a")})
	for i, stream := range streams {
		if err := stream.client.Send(refused); err != nil {
			return &Difference{What: fmt.Sprintf("%s: send: %v", []*side{r.a, r.b}[i].name, err)}
		}
	}
	_, d := r.takeBoth(ctx, "watch create, refused", streams, func(w *watchStream) *[]*pb.WatchResponse { return &w.mu.created })
	return d
}

// takeBoth takes the answers of both servers to a watch request and compares them.
func (r *Runner) takeBoth(ctx context.Context, what string, streams [2]*watchStream, queue func(*watchStream) *[]*pb.WatchResponse) (a *pb.WatchResponse, d *Difference) {
	answers := make([]*pb.WatchResponse, 2)
	for i, stream := range streams {
		var err error
		if answers[i], err = stream.take(ctx, queue(stream)); err != nil {
			return nil, &Difference{What: fmt.Sprintf("%s: no answer from %s: %v", what, []*side{r.a, r.b}[i].name, err), A: printResponse(answers[0]), B: printResponse(answers[1])}
		}
	}
	if lines := diffMessages(mask(answers[0]), mask(answers[1])); len(lines) > 0 {
		return nil, &Difference{What: what + ": the answers differ", A: printMessage(answers[0]), B: printMessage(answers[1]), Lines: lines}
	}
	return answers[0], nil
}

func (r *Runner) created(ctx context.Context, number int, streams [2]*watchStream, request *pb.WatchCreateRequest) *Difference {
	answer, d := r.takeBoth(ctx, "watch create", streams, func(w *watchStream) *[]*pb.WatchResponse { return &w.mu.created })
	if d != nil {
		return d
	}
	if answer.Canceled {
		r.stats.texts["watch: "+answer.CancelReason]++
		return nil
	}
	r.stats.watchers++
	w := r.newWatcher(number, request)
	w.id = answer.WatchId
	r.watching.catchUp = r.watching.catchUp || w.catchingUp || w.wantCompacted
	r.watching.watchers[watcherKey{number, w.id}] = w
	return nil
}

// newWatcher returns what a watcher created now is owed.
func (r *Runner) newWatcher(number int, request *pb.WatchCreateRequest) *watcher {
	w := &watcher{stream: number, request: request, from: request.StartRevision}
	switch {
	case w.from == 0:
		w.from = r.State.Revision + 1
	case w.from > r.State.Revision:
	case w.from < r.State.Compacted:
		w.wantCompacted = true
	default:
		w.catchingUp = true
		for _, e := range r.State.eventsFrom(w.from) {
			if w.wants(e) {
				w.want++
			}
		}
	}
	return w
}

// mayShowProgress tells whether no watcher of a stream is in the way of progress, as those are that wait for a revision to come (etcd/W5)
// and, in etcd, those that were cancelled by compaction and not by the client since.
func (r *Runner) mayShowProgress(number int) bool {
	for key := range r.watching.cancelled {
		if key.stream == number {
			return false
		}
	}
	for key, w := range r.watching.watchers {
		if key.stream == number && (w.request.StartRevision > r.State.Revision || w.wantCompacted) {
			return false
		}
	}
	return true
}

// endIsUnknowable tells whether a watcher would catch up without a sign that it has: its history has nothing for it, and its stream
// shows no progress. Or how much it is owed is a matter of time: it starts at the compacted revision, see changedTwiceAt. The
// generator makes few of these; they are left out.
func (r *Runner) endIsUnknowable(w *watcher) bool {
	if !w.catchingUp {
		return false
	}
	return w.want == 0 && !r.mayShowProgress(w.stream) || w.from == r.State.Compacted && r.State.changedTwiceAt(w.from)
}

func (r *Runner) canceled(ctx context.Context, number int, streams [2]*watchStream, id int64) *Difference {
	key := watcherKey{number, id}
	if r.watching.watchers[key] == nil && !r.watching.cancelled[key] {
		return r.handled(ctx, streams) // etcd/W8: an unknown id is ignored.
	}
	delete(r.watching.watchers, key)
	delete(r.watching.cancelled, key)
	_, d := r.takeBoth(ctx, "watch cancel", streams, func(w *watchStream) *[]*pb.WatchResponse { return &w.mu.canceled })
	return d
}

// progressed checks the answer to a progress request (etcd/W16).
func (r *Runner) progressed(ctx context.Context, number int, streams [2]*watchStream) *Difference {
	if !r.progressOwed(number) {
		return r.handled(ctx, streams)
	}
	for i, s := range []*side{r.a, r.b} {
		if err := s.awaitProgress(ctx, streams[i], r.State.Revision, &r.stats.progressRepeats); err != nil {
			return &Difference{What: fmt.Sprintf("%s on stream %d: progress at revision %d: %v", s.name, number, r.State.Revision, err)}
		}
	}
	return nil
}

// progressOwed tells whether a progress request on a stream is answered: there is a watcher, and none is in the way.
func (r *Runner) progressOwed(number int) bool {
	for key := range r.watching.watchers {
		if key.stream == number {
			return r.mayShowProgress(number)
		}
	}
	return false
}

// progressRepeatInterval is how often an unanswered progress request is repeated: to drop one is legal (etcd/W16).
const progressRepeatInterval = 20 * time.Millisecond

// awaitProgress waits for progress at a revision, for which a request has been sent. It repeats the request now and then.
func (s *side) awaitProgress(ctx context.Context, stream *watchStream, revision int64, repeats *int) error {
	deadline := time.Now().Add(s.patience)
	for {
		waitCtx, cancel := context.WithTimeout(ctx, progressRepeatInterval)
		response, err := stream.take(waitCtx, &stream.mu.progress)
		cancel()
		switch {
		case err == nil && response.Header.GetRevision() == revision:
			return nil
		case err == nil && response.Header.GetRevision() > revision:
			return fmt.Errorf("it promises revision %d", response.Header.GetRevision())
		case err == nil && stream.repeats > 0:
			stream.repeats-- // The answer to an earlier request that was repeated.
			continue
		case err == nil:
			return fmt.Errorf("it promises revision %d only", response.Header.GetRevision())
		case !errors.Is(err, context.DeadlineExceeded) || time.Now().After(deadline):
			return err
		}
		*repeats++
		stream.repeats++
		if err := stream.client.Send(progressRequest()); err != nil {
			return err
		}
	}
}

func (r *Runner) closeStream(number int) {
	for _, s := range []*side{r.a, r.b} {
		if stream := s.streams[number]; stream != nil {
			stream.close()
			delete(s.streams, number)
		}
	}
	ofStream := func(key watcherKey) bool { return key.stream == number }
	maps.DeleteFunc(r.watching.watchers, func(key watcherKey, _ *watcher) bool { return ofStream(key) })
	maps.DeleteFunc(r.watching.cancelled, func(key watcherKey, _ bool) bool { return ofStream(key) })
}

func printResponse(response *pb.WatchResponse) string {
	if response == nil {
		return "(none)"
	}
	return printMessage(response)
}

// maxPrintedResponses bounds the responses that a report shows of a watcher.
const maxPrintedResponses = 5

func printAll(responses []*pb.WatchResponse) string {
	s := ""
	for i, response := range responses {
		if i == maxPrintedResponses {
			return s + fmt.Sprintf(" ... and %d more", len(responses)-i)
		}
		if i > 0 {
			s += "\n      "
		}
		s += printMessage(response)
	}
	return s
}
