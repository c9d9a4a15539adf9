package crash

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/hawser-kv/hawser/tests/history"
)

// watcher is one watch over all processes of the server: it resumes behind the
// last revision it has got.
type watcher struct {
	load   *load
	cancel context.CancelFunc
	done   chan struct{}

	mu       sync.Mutex
	watch    *history.Watch
	next     int64 // first revision wanted; 0: from when it is created
	promised int64
	over     bool
	// ask asks for progress; nil while there is no stream.
	ask func() error
}

type watchOptions struct {
	name, start, end string
	// from is the start revision, 0 for what is new.
	from                    int64
	noPut, noDelete, prevKV bool
	// etcdClient: resuming is left to etcd's client.
	etcdClient bool
}

func (l *load) watch(o watchOptions) *watcher {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watcher{load: l, cancel: cancel, done: make(chan struct{}), next: o.from, watch: &history.Watch{
		Name: o.name, Start: o.start, End: o.end, From: o.from, NoPut: o.noPut, NoDelete: o.noDelete, PrevKV: o.prevKV,
	}}
	l.mu.Lock()
	l.mu.watchers = append(l.mu.watchers, w)
	l.mu.Unlock()
	run := w.resume
	if o.etcdClient {
		run = w.useEtcdClient
	}
	go func() {
		defer close(w.done)
		run(ctx)
	}()
	return w
}

// watchSomething opens a watch at random.
func (l *load) watchSomething(rng *rand.Rand, name string) {
	at := l.truth.position()
	o := watchOptions{name: name, start: string(l.keyAt(rng.IntN(l.keys))), prevKV: rng.IntN(2) == 0,
		noPut: rng.IntN(8) == 0, noDelete: rng.IntN(8) == 0}
	switch rng.IntN(3) {
	case 0:
		o.start, o.end = "k", "l"
	case 1:
		i := rng.IntN(l.keys)
		o.start, o.end = string(l.keyAt(i)), string(l.keyAt(min(i+20, l.keys-1)))+"\x00"
	}
	switch rng.IntN(3) {
	case 0:
		o.from = max(2, at-rng.Int64N(40))
	case 1:
		o.from = at + 1 + rng.Int64N(60) // not yet there
	}
	l.watch(o)
}

func (l *load) watchers() []*watcher {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]*watcher(nil), l.mu.watchers...)
}

// endWatches closes all watches.
func (l *load) endWatches() {
	for _, w := range l.watchers() {
		w.cancel()
		<-w.done
	}
}

// position is the last revision that the watcher has got.
func (w *watcher) position() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(w.next-1, w.promised)
}

// reached says whether the watcher has got everything up to a revision, and
// asks for progress if it cannot tell.
func (w *watcher) reached(revision int64) bool {
	w.mu.Lock()
	there := w.over || w.watch.From > revision || w.next > revision || w.promised >= revision
	w.mu.Unlock()
	if !there {
		w.askProgress()
	}
	return there
}

// askProgress asks how far the watch is; the answer comes as a response.
func (w *watcher) askProgress() {
	w.mu.Lock()
	ask := w.ask
	w.mu.Unlock()
	if ask != nil {
		_ = ask() // a broken stream is made anew
	}
}

// resume watches on one stream after the other.
func (w *watcher) resume(ctx context.Context) {
	client := pb.NewWatchClient(w.load.to.conn(w.load.tb))
	for ctx.Err() == nil && !w.isOver() {
		if err := w.stream(ctx, client); err != nil && ctx.Err() == nil {
			w.mu.Lock()
			w.ask = nil
			w.mu.Unlock()
		}
	}
}

func (w *watcher) isOver() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.over
}

// stream takes what one stream brings.
func (w *watcher) stream(ctx context.Context, client pb.WatchClient) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := client.Watch(ctx, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	w.mu.Lock()
	r := &pb.WatchCreateRequest{Key: []byte(w.watch.Start), RangeEnd: []byte(w.watch.End), PrevKv: w.watch.PrevKV,
		StartRevision: w.next}
	if w.promised > 0 {
		r.StartRevision = max(w.next, w.promised+1) // as etcd's client
	}
	if w.watch.NoPut {
		r.Filters = append(r.Filters, pb.WatchCreateRequest_NOPUT)
	}
	if w.watch.NoDelete {
		r.Filters = append(r.Filters, pb.WatchCreateRequest_NODELETE)
	}
	w.mu.Unlock()
	if err := s.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: r}}); err != nil {
		return err
	}
	for {
		resp, err := s.Recv()
		if err != nil {
			return err
		}
		w.mu.Lock()
		switch {
		case resp.Created && resp.Canceled:
			w.load.tb.Errorf("watch %s from %d: refused: %s", w.watch.Name, w.next, resp.CancelReason)
			w.over = true
		case resp.Created:
			if w.next == 0 {
				w.next = resp.Header.Revision + 1
				w.watch.From = w.next
			}
			var sending sync.Mutex
			w.ask = func() error {
				sending.Lock()
				defer sending.Unlock()
				return s.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}})
			}
		default:
			w.takeLocked(resp.Header.Revision, resp.CompactRevision, resp.Canceled, resp.CancelReason, resp.Events)
		}
		over := w.over
		w.mu.Unlock()
		if over {
			return nil
		}
	}
}

// takeLocked records a response that is not of the creation.
func (w *watcher) takeLocked(revision, compacted int64, canceled bool, reason string, events []*mvccpb.Event) {
	switch {
	case canceled:
		if w == w.load.truth || compacted == 0 {
			w.load.tb.Errorf("watch %s at %d cancelled, compacted at %d: %s", w.watch.Name, w.next, compacted, reason)
		}
		w.watch.Responses = append(w.watch.Responses, history.Response{Compacted: compacted})
		w.over = true
	case len(events) == 0:
		w.promised = max(w.promised, revision)
		w.watch.Responses = append(w.watch.Responses, history.Response{Revision: revision, Progress: true})
	default:
		r := history.Response{Revision: revision}
		for _, e := range events {
			r.Events = append(r.Events, history.Event{Delete: e.Type == mvccpb.Event_DELETE, Kv: e.Kv, PrevKv: e.PrevKv})
			w.next = max(w.next, e.Kv.ModRevision+1)
		}
		w.watch.Responses = append(w.watch.Responses, r)
	}
}

// useEtcdClient watches with etcd's client, which resumes by itself.
func (w *watcher) useEtcdClient(ctx context.Context) {
	client := w.load.to.client(w.load.tb)
	defer func() { _ = client.Close() }() // nothing is under way
	options := []clientv3.OpOption{clientv3.WithRange(w.watch.End), clientv3.WithRev(w.next), clientv3.WithCreatedNotify()}
	if w.watch.PrevKV {
		options = append(options, clientv3.WithPrevKV())
	}
	for resp := range client.Watch(ctx, w.watch.Start, options...) {
		w.mu.Lock()
		var events []*mvccpb.Event
		for _, e := range resp.Events {
			events = append(events, (*mvccpb.Event)(e))
		}
		if resp.Created {
			w.ask = func() error { return client.RequestProgress(ctx) }
		} else {
			w.takeLocked(resp.Header.Revision, resp.CompactRevision, resp.Canceled, fmt.Sprint(resp.Err()), events)
		}
		w.mu.Unlock()
	}
	if ctx.Err() == nil && !w.isOver() {
		w.load.tb.Errorf("watch %s: etcd's client gave it up", w.watch.Name)
	}
}
