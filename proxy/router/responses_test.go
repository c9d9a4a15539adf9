package router

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/hawser-kv/hawser/mvcc"
)

const mib = 1 << 20

// fill has a share hold rows of 1 MiB of memory each until it has n or an error.
func fill(s *Share, n int) error {
	s.again()
	kv := &mvccpb.KeyValue{Value: make([]byte, (mib-rowBytes)/2)}
	for range n {
		if err := s.Hold(kv); err != nil {
			return err
		}
	}
	return nil
}

func (r *Responses) wantHeld(t *testing.T, low, high int64) {
	t.Helper()
	if held, _ := r.Held(); held < low || held > high {
		t.Errorf("%d bytes are held, want %d to %d", held, low, high)
	}
}

// A response that finds no room gives up what it holds, waits behind those that
// came before, and has what it needs reserved in one piece: all are served in the
// end, and never more than the limit is held.
func TestResponsesTakeTurns(t *testing.T) {
	r := NewResponses(16 * mib)
	a, b, c, small := r.NewShare(), r.NewShare(), r.NewShare(), r.NewShare()
	if err := fill(a, 9); err != nil {
		t.Fatal(err)
	}
	r.wantHeld(t, 9*mib, 11*mib)
	if err := fill(b, 9); !errors.Is(err, errNoRoom) {
		t.Fatalf("no room: %v", err)
	}
	var turns []string
	turn := func(name string) func() { return func() { turns = append(turns, name) } }
	r.whenRoom(b, turn("b"))
	r.wantHeld(t, 9*mib, 11*mib)
	if err := fill(c, 1); !errors.Is(err, errNoRoom) {
		t.Errorf("it goes past who waits: %v", err)
	}
	r.whenRoom(c, turn("c"))
	if err := small.Hold(&mvccpb.KeyValue{Value: make([]byte, 1000)}); err != nil || small.Large() {
		t.Errorf("a small response counts: %v", err)
	}
	if len(turns) != 0 {
		t.Fatalf("turns %v before there is room", turns)
	}
	a.Release()
	a.Release()
	if !slices.Equal(turns, []string{"b", "c"}) {
		t.Fatalf("turns %v", turns)
	}
	// Each try needs at most twice as much as the one before.
	tries := 0
	for err := fill(b, 12); err != nil; err = fill(b, 12) {
		if tries++; tries > 3 || !errors.Is(err, errNoRoom) {
			t.Fatalf("try %d: %v", tries, err)
		}
		again := false
		cancel := r.whenRoom(b, func() { again = true })
		c.Release()
		if !again {
			cancel()
			t.Fatal("it waits though nobody holds anything")
		}
	}
	r.wantHeld(t, 12*mib, 16*mib)
	b.Release()
	c.Release()
	r.wantHeld(t, 0, 0)
	if _, released := r.Held(); released < 21*mib {
		t.Errorf("%d bytes were given back", released)
	}
}

func TestResponsesThatAreLeft(t *testing.T) {
	r := NewResponses(16 * mib)
	a, b, c := r.NewShare(), r.NewShare(), r.NewShare()
	if err := fill(a, 10); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Share{b, c} {
		if err := fill(s, 10); !errors.Is(err, errNoRoom) {
			t.Fatal(err)
		}
	}
	served := false
	cancel := r.whenRoom(b, func() {})
	r.whenRoom(c, func() { served = true })
	b.Release() // its client has left; it is still in the queue
	a.Release()
	if !served {
		t.Error("who has left is waited for")
	}
	cancel()
	c.Release()
	if err := fill(b, 1); err == nil {
		t.Error("a share that was released holds something")
	}
	r.wantHeld(t, 0, 0)
}

func TestResponseThatNeverFits(t *testing.T) {
	r := NewResponses(16 * mib)
	s := r.NewShare()
	var large *ResponseTooLargeError
	if err := fill(s, 17); !errors.As(err, &large) || large.Max != 16*mib || large.Bytes > 17*mib {
		t.Errorf("%v", err)
	}
	s.Release()
	r.wantHeld(t, 0, 0)
	r = NewResponses(1 << 40)
	s = r.NewShare()
	row := &mvccpb.KeyValue{Value: make([]byte, 256*mib)}
	var err error
	rows := 0
	for ; err == nil; rows++ {
		err = s.Hold(row)
	}
	if !errors.As(err, &large) || large.Max != maxMessageBytes || rows != 8 {
		t.Errorf("after %d rows of 256 MiB: %v", rows, err)
	}
	s.Release()
	r.wantHeld(t, 0, 0)
}

// Requests wait for the memory that others hold, also over several ranges, and are
// refused when that takes too long. Nothing is left held.
func TestRequestsWaitForRoom(t *testing.T) {
	w := newWorld(t, 1, "m")
	w.sendCut()
	value := strings.Repeat("v", mib)
	for i := range 8 {
		w.must(put(fmt.Sprintf("k%d", i), value))
	}
	w.must(put("x", value))
	r := w.router.Responses()
	if r.Limit() != 1<<30 {
		t.Fatalf("limit %d", r.Limit())
	}
	r.limit = MinResponseBytes
	other := r.NewShare()
	if err := fill(other, 10); err != nil {
		t.Fatal(err)
	}
	del := &mvcc.Request{DeleteRange: &pb.DeleteRangeRequest{Key: []byte("k5"), RangeEnd: []byte("z"), PrevKv: true}}
	for _, refused := range []bool{true, false} {
		before := w.router.Stats().RoomWaits
		o, d := w.start(get("k", "k5")), w.start(del)
		for w.router.Stats().RoomWaits < before+2 {
			w.step()
		}
		if o.done || d.done {
			t.Fatalf("answered without room: %v, %v", o.err, d.err)
		}
		if !refused {
			other.Release()
		}
		w.run(o)
		w.run(d)
		switch {
		case refused && (!errors.Is(o.err, ErrTooManyRequests) || !errors.Is(d.err, ErrTooManyRequests)):
			t.Errorf("without room: %v, %v", o.err, d.err)
		case !refused && (o.err != nil || d.err != nil):
			t.Errorf("with room: %v, %v", o.err, d.err)
		case !refused && (len(o.res.Range.Kvs) != 5 || len(d.res.DeleteRange.PrevKvs) != 4):
			t.Errorf("%d keys, %d deleted", len(o.res.Range.Kvs), len(d.res.DeleteRange.PrevKvs))
		}
	}
	r.wantHeld(t, 0, 0)
}

// A share that is released keeps nothing of the stream that its response was sent
// on: what waits there to be sent could never be freed, for the share is released
// when that is.
func TestReleasedSharesForgetTheirStream(t *testing.T) {
	r := NewResponses(MinResponseBytes)
	ctx, end := context.WithCancel(t.Context())
	s := r.NewShare()
	s.ReleaseAfter(ctx)
	end()
	s.Release() // that of ReleaseAfter may still be on its way
	keeps := func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return s.stop != nil
	}
	if keeps() {
		t.Error("the share keeps its stream after the stream has ended")
	}
	s.ReleaseAfter(ctx)
	if keeps() {
		t.Error("the share takes a stream when it was released")
	}
}
