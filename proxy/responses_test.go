package proxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hawser-kv/hawser/proxy/router"
)

// wantNothingHeld waits until no response holds memory any more.
func wantNothingHeld(t *testing.T, b *backend) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		held, _ := b.router.Responses().Held()
		if held == 0 {
			return
		}
		select {
		case <-time.After(time.Millisecond):
			runtime.GC() // of connections that broke
		case <-deadline:
			t.Fatalf("%d bytes are still held", held)
		}
	}
}

// TestLargeResponsesShareTheMemory: what is larger than the limit is refused with
// gRPC's error, before it is read to the end; what is not is served, however many
// ask at a time; and all is given back, also by clients that leave without having
// read what they asked for.
func TestLargeResponsesShareTheMemory(t *testing.T) {
	const values, clients = 20, 8
	b := newBackend(t, router.Config{
		Responses: router.NewResponses(router.MinResponseBytes), RequestTimeout: time.Minute,
	}, "k10")
	_, addr := startServer(t, b)
	large := grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32))
	kv := pb.NewKVClient(dial(t, addr, large))
	for i := range values {
		if _, err := kv.Put(t.Context(), &pb.PutRequest{Key: fmt.Appendf(nil, "k%02d", i), Value: bytes.Repeat([]byte{'v'}, 1<<20)}); err != nil {
			t.Fatal(err)
		}
	}
	all := &pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l")}
	txn := &pb.TxnRequest{}
	for range 5 {
		txn.Success = append(txn.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("k02")}}})
	}
	refuses := func(what string, err error) {
		t.Helper()
		if s := status.Convert(err); s.Code() != codes.ResourceExhausted || !strings.HasPrefix(s.Message(), "grpc: trying to send message larger than max (") {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := kv.Range(t.Context(), all)
	refuses("20 MiB", err)
	_, err = kv.Txn(t.Context(), txn)
	refuses("a transaction of 10 MiB", err)
	_, err = kv.DeleteRange(t.Context(), &pb.DeleteRangeRequest{Key: []byte("k"), RangeEnd: []byte("l"), PrevKv: true})
	refuses("a delete with 20 MiB of previous values", err)
	wantNothingHeld(t, b)

	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			resp, err := kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("k04"), RangeEnd: []byte("k10")})
			if err != nil || len(resp.Kvs) != 6 {
				t.Errorf("6 MiB: %d keys, %v", len(resp.GetKvs()), err)
			}
			if held, _ := b.router.Responses().Held(); held > router.MinResponseBytes {
				t.Errorf("%d bytes are held", held)
			}
		})
	}
	wg.Wait()
	stream, err := kv.RangeStream(t.Context(), all)
	if err != nil {
		t.Fatal(err)
	}
	keys := 0
	for {
		chunk, err := stream.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		keys += len(chunk.RangeResponse.Kvs)
	}
	if keys != values {
		t.Errorf("a stream of %d keys", keys)
	}
	wantNothingHeld(t, b)

	// These never read: some of each comes through, then the window is full.
	for _, close := range []bool{false, true} {
		conn := dial(t, addr, large)
		ctx, leave := context.WithCancel(t.Context())
		slow, err := pb.NewKVClient(conn).RangeStream(ctx, all)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := slow.Header(); err != nil {
			t.Fatal(err)
		}
		if held, _ := b.router.Responses().Held(); held == 0 {
			t.Error("nothing is held for a client that does not read")
		}
		// The same with a response of one message.
		go func() {
			_, _ = pb.NewKVClient(conn).Range(ctx, &pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("k01")})
		}()
		if close {
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		}
		leave()
		wantNothingHeld(t, b)
	}
}
