package compat

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// watchStream is one watch stream to one server with what has arrived on it, sorted by what it is about.
type watchStream struct {
	client pb.Watch_WatchClient
	// patience bounds every wait.
	patience time.Duration
	cancel   context.CancelFunc
	done     chan struct{}
	// repeats counts repeated progress requests whose answers may still come: each request has at most one.
	repeats int

	mu struct {
		sync.Mutex
		// changed is closed and replaced whenever something arrives.
		changed chan struct{}
		// created, canceled and progress are the answers to requests, in order of arrival.
		created, canceled, progress []*pb.WatchResponse
		// byWatcher has events, and the cancellation by compaction, by watch id.
		byWatcher map[int64][]*pb.WatchResponse
		// announced are the ids for which a created response has arrived (etcd/W7).
		announced map[int64]bool
		// violation is the first rule broken by the stream itself.
		violation string
		// err is why the stream ended.
		err error
	}
}

// openWatchStream opens a stream and starts to receive.
func (s *side) openWatchStream(ctx context.Context) (*watchStream, error) {
	ctx, cancel := context.WithCancel(ctx)
	client, err := s.watch.Watch(ctx)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("%s: open a watch stream: %w", s.name, err)
	}
	stream := &watchStream{client: client, patience: s.patience, cancel: cancel, done: make(chan struct{})}
	stream.mu.changed = make(chan struct{})
	stream.mu.byWatcher = make(map[int64][]*pb.WatchResponse)
	stream.mu.announced = make(map[int64]bool)
	go stream.receive()
	return stream, nil
}

func (w *watchStream) close() {
	w.cancel()
	<-w.done
}

func (w *watchStream) receive() {
	defer close(w.done)
	for {
		response, err := w.client.Recv()
		w.mu.Lock()
		if err != nil {
			w.mu.err = err
		} else {
			w.sortLocked(response)
		}
		close(w.mu.changed)
		w.mu.changed = make(chan struct{})
		w.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (w *watchStream) sortLocked(r *pb.WatchResponse) {
	id := r.WatchId
	switch {
	case r.Created:
		w.mu.created = append(w.mu.created, r)
		if !r.Canceled {
			w.mu.announced[id] = true
		}
	case r.Canceled && r.CompactRevision == 0:
		w.mu.canceled = append(w.mu.canceled, r)
		delete(w.mu.announced, id)
	case r.Canceled || len(r.Events) > 0:
		if !w.mu.announced[id] && w.mu.violation == "" {
			w.mu.violation = "etcd/W7: a response for a watcher that was not announced: " + printMessage(r)
		}
		w.mu.byWatcher[id] = append(w.mu.byWatcher[id], r)
	case id == -1:
		w.mu.progress = append(w.mu.progress, r)
	default:
		// A progress notification of one watcher (etcd/W15): when it comes is a matter of time.
	}
}

// errTooLate says that what a server owed a watcher has not arrived in time.
var errTooLate = errors.New("it did not arrive")

// await waits until cond, called with the lock held, is true.
func (w *watchStream) await(ctx context.Context, cond func() bool) error {
	timeout := time.NewTimer(w.patience)
	defer timeout.Stop()
	for {
		w.mu.Lock()
		ok, changed, err := cond(), w.mu.changed, w.mu.err
		w.mu.Unlock()
		switch {
		case ok:
			return nil
		case err != nil:
			return fmt.Errorf("the stream ended: %w", err)
		}
		select {
		case <-changed:
		case <-timeout.C:
			return errTooLate
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// take removes and returns the first response of a queue, waiting for it. queue is a field of mu.
func (w *watchStream) take(ctx context.Context, queue *[]*pb.WatchResponse) (*pb.WatchResponse, error) {
	if err := w.await(ctx, func() bool { return len(*queue) > 0 }); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	first := (*queue)[0]
	*queue = (*queue)[1:]
	return first, nil
}

// takeWatcher removes and returns all responses for a watcher.
func (w *watchStream) takeWatcher(id int64) []*pb.WatchResponse {
	w.mu.Lock()
	defer w.mu.Unlock()
	responses := w.mu.byWatcher[id]
	delete(w.mu.byWatcher, id)
	return responses
}

// eventsLocked counts the events that have arrived for a watcher; complete is false while the rest of a fragmented response is missing.
func (w *watchStream) eventsLocked(id int64) (events int, complete bool) {
	responses := w.mu.byWatcher[id]
	for _, r := range responses {
		events += len(r.Events)
	}
	return events, len(responses) == 0 || !responses[len(responses)-1].Fragment
}

// leftovers removes and describes what has arrived that nobody has asked for: each response must have been taken by the step it answers.
func (w *watchStream) leftovers() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var text string
	switch {
	case w.mu.violation != "":
		text = w.mu.violation
	case len(w.mu.created) > 0:
		text = "a created response nobody asked for: " + printMessage(w.mu.created[0])
	case len(w.mu.canceled) > 0:
		text = "a canceled response nobody asked for: " + printMessage(w.mu.canceled[0])
	case len(w.mu.progress) > w.repeats:
		text = "progress nobody is owed: " + printMessage(w.mu.progress[0])
	default:
		return ""
	}
	w.mu.violation, w.mu.created, w.mu.canceled, w.mu.progress = "", nil, nil, nil
	w.repeats = 0
	return text
}
