package router

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Bounds of responses.
const (
	// smallResponseBytes of a response are not counted: so the small ones, which are
	// nearly all, cost nothing here.
	smallResponseBytes = 64 << 10
	// rowBytes is what a row takes beside key and value: its struct, and its place
	// in the list.
	rowBytes = 192
	// maxMessageBytes is the largest message that gRPC sends (etcd/X7).
	maxMessageBytes = math.MaxInt32
	// MinResponseBytes is the least limit of Responses: a few responses to requests
	// of the usual size.
	MinResponseBytes = 16 << 20
)

// ResponseTooLargeError refuses a response that gRPC could not send, or that is
// larger than all together may be. It comes before the response is complete.
type ResponseTooLargeError struct {
	// Bytes were counted when the reading stopped, and are more than Max.
	Bytes, Max int64
}

func (e *ResponseTooLargeError) Error() string {
	return fmt.Sprintf("router: response of more than %d bytes, at most %d are sent", e.Bytes, e.Max)
}

// errNoRoom: other responses hold what this one would need.
var errNoRoom = errors.New("router: other responses have the memory")

// Responses bounds the memory that the large responses of a node hold together, from
// the reading of their rows until the last byte has been given to the network.
//
// A response that finds no room gives up what it holds and waits for its turn, so no
// two of them wait for each other; what it needs then is reserved for it in one
// piece, twice as much at each try, up to the limit. Turns come in the order of
// waiting, and whoever comes while others wait queues behind them. Safe for
// concurrent use; it never blocks.
type Responses struct {
	limit int64
	// attached has the shares of responses that are on their way to the network, by
	// message.
	attached  sync.Map
	nAttached atomic.Int64
	mu        struct {
		sync.Mutex
		held int64
		// released counts the bytes that were ever given back.
		released int64
		// queue has the *roomWait in the order of their coming.
		queue list.List
	}
}

// NewResponses returns a bound of limit bytes of memory, at least MinResponseBytes.
func NewResponses(limit int64) *Responses { return &Responses{limit: max(limit, MinResponseBytes)} }

// Held returns the bytes held now, and the sum of all that were given back before.
func (r *Responses) Held() (held, released int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.held, r.mu.released
}

// Limit returns the bound in bytes.
func (r *Responses) Limit() int64 { return r.limit }

// roomWait is a response that waits for its turn.
type roomWait struct {
	share *Share
	need  int64
	f     func()
}

// take gives a share n more bytes unless others have or wait for them.
func (r *Responses) take(s *Share, n int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.released || r.mu.queue.Len() > 0 || r.mu.held+n > r.limit {
		return false
	}
	r.mu.held += n
	s.held += n
	return true
}

// giveUp takes back what a share holds, for good or until it is given some again,
// and lets those have their turn that have room now.
func (r *Responses) giveUp(s *Share, forGood bool) {
	r.mu.Lock()
	r.mu.held -= s.held
	r.mu.released += s.held
	s.held, s.released = 0, s.released || forGood
	stop := s.stop
	if forGood {
		s.stop = nil // it would keep the stream, with all that waits there to be sent
	}
	turns := r.turnsLocked()
	r.mu.Unlock()
	if forGood && stop != nil {
		stop()
	}
	for _, w := range turns {
		w.f()
	}
}

func (r *Responses) turnsLocked() (turns []*roomWait) {
	for e := r.mu.queue.Front(); e != nil; e = r.mu.queue.Front() {
		w := e.Value.(*roomWait)
		if !w.share.released {
			if r.mu.held+w.need > r.limit {
				break
			}
			r.mu.held += w.need
			w.share.held = w.need
			w.share.room = w.need
		}
		r.mu.queue.Remove(e)
		turns = append(turns, w)
	}
	return turns
}

// whenRoom has a share give up what it holds and calls f, perhaps at once, when it
// was given what it needs for another try. cancel takes it out of the queue.
func (r *Responses) whenRoom(s *Share, f func()) (cancel func()) {
	w := &roomWait{share: s, need: max(s.need, smallResponseBytes), f: f}
	s.again()
	s.room = 0
	r.mu.Lock()
	e := r.mu.queue.PushBack(w)
	r.mu.Unlock()
	r.giveUp(s, false)
	return func() {
		r.mu.Lock()
		r.mu.queue.Remove(e) // nothing if it had its turn
		turns := r.turnsLocked()
		r.mu.Unlock()
		for _, t := range turns {
			t.f()
		}
	}
}

// Wait has a share hold n bytes more of a response that is there already and is to
// be encoded. It waits for them until ctx ends. *ResponseTooLargeError.
func (r *Responses) Wait(ctx context.Context, s *Share, n int64) error {
	return r.Try(ctx, s, func() error { return s.HoldEncoded(n) })
}

// Try calls fn, which makes a response that s holds. When there is no room for it fn
// returns that error of s and keeps nothing of what it has made; it is called again,
// from the beginning, when s was given room. Try waits for that until ctx ends.
func (r *Responses) Try(ctx context.Context, s *Share, fn func() error) error {
	for {
		err := fn()
		if !errors.Is(err, errNoRoom) {
			return err
		}
		turn := make(chan struct{})
		cancel := r.whenRoom(s, func() { close(turn) })
		select {
		case <-turn:
		case <-ctx.Done():
			cancel()
			return ctx.Err()
		}
	}
}

// Attach leaves the share of a response, if it is large, for who encodes the
// message (Attached).
func (r *Responses) Attach(message any, s *Share) {
	if s.Large() {
		r.attached.Store(message, s)
		r.nAttached.Add(1)
	}
}

// Attached returns the share of a message, nil if it is small. From then on it is
// the caller's, who releases it.
func (r *Responses) Attached(message any) *Share {
	if r.nAttached.Load() == 0 {
		return nil
	}
	s, ok := r.attached.LoadAndDelete(message)
	if !ok {
		return nil
	}
	r.nAttached.Add(-1)
	return s.(*Share)
}

// Share is what one response holds. It is a mvcc.Holder for one evaluation at a
// time.
type Share struct {
	of *Responses
	// Of the evaluation: used bytes are what the response counts, wire of them, at
	// least, are sent, and room is what it may use. need is what another try needs.
	used, wire, room, need int64
	// Under Responses.mu: what the share was given; and whether it is given nothing
	// any more.
	held     int64
	released bool
	// stop ends ReleaseAfter.
	stop func() bool
}

// NewShare returns the share of a response that holds nothing yet.
func (r *Responses) NewShare() *Share { return &Share{of: r, room: smallResponseBytes} }

// Hold counts a row twice, for it is there as what was read and as what is sent.
// *ResponseTooLargeError; or an error that has the request wait for room.
func (s *Share) Hold(kv *mvccpb.KeyValue) error {
	if s == nil {
		return nil
	}
	n := int64(len(kv.Key) + len(kv.Value))
	return s.holdBytes(n, 2*n+rowBytes)
}

// HoldEncoded counts n bytes that are there as they are sent. Errors are those of
// Hold.
func (s *Share) HoldEncoded(n int64) error { return s.holdBytes(n, n) }

// holdBytes counts n bytes that are sent and take memory.
func (s *Share) holdBytes(n, memory int64) error {
	s.wire += n
	s.used += memory
	switch {
	case s.used <= s.room:
		return nil
	case s.wire > maxMessageBytes:
		return &ResponseTooLargeError{Bytes: s.wire, Max: maxMessageBytes}
	case s.used > s.of.limit:
		return &ResponseTooLargeError{Bytes: s.used, Max: s.of.limit}
	}
	// Some more, so that not every row asks, but no more than there is.
	room := min(s.used+s.used/8+smallResponseBytes, s.of.limit)
	more := room - s.room
	if s.room == smallResponseBytes {
		more = room // what was small counts now, too
	}
	if !s.of.take(s, more) {
		s.need = min(2*s.used, s.of.limit)
		return errNoRoom
	}
	s.room = room
	return nil
}

// again empties the share for another try and keeps what it holds.
func (s *Share) again() {
	if s != nil {
		s.used, s.wire = 0, 0
	}
}

// Large reports whether the share counts.
func (s *Share) Large() bool {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	return s.held > 0
}

// ReleaseAfter has the share released when ctx ends, if it was not before: that of
// the stream that the response is sent on.
func (s *Share) ReleaseAfter(ctx context.Context) {
	stop := context.AfterFunc(ctx, s.Release)
	s.of.mu.Lock()
	if !s.released { // ctx may have ended
		s.stop = stop
	}
	s.of.mu.Unlock()
}

// Release gives back what the share holds, for good. It may be called again.
func (s *Share) Release() { s.of.giveUp(s, true) }

// whenRoom calls f when a share that found no room was given some for another try,
// or with ErrTooManyRequests if that takes half the time of a request.
func (r *Router) whenRoom(s *Share, f func(error)) {
	var ended atomic.Bool
	end := func(err error) {
		if ended.CompareAndSwap(false, true) {
			f(err)
		}
	}
	r.counters.roomWaits.Add(1)
	cancel := r.cfg.Responses.whenRoom(s, func() { end(nil) })
	if ended.Load() {
		return
	}
	r.cfg.After(r.cfg.RequestTimeout/2, func() {
		cancel()
		end(fmt.Errorf("%w (%w)", ErrTooManyRequests, errNoRoom))
	})
}
