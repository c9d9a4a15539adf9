package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// watchWork measures how fast the events of puts reach all watchers of the whole prefix: an operation is one event at
// one watcher. Latencies are those of the puts.
func watchWork(ctx context.Context, b *bench, s *server, p pool) (*result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	streams := min(len(p), b.Watchers)
	total := make(chan error, streams)
	var created sync.WaitGroup
	for i := range streams {
		mine := b.Watchers / streams
		if i < b.Watchers%streams {
			mine++
		}
		created.Add(1)
		go func() { total <- receiveEvents(ctx, p[i], mine, mine*b.WatchPuts, created.Done) }()
	}
	created.Wait()
	r, err := b.measure(s, func() (*measured, error) {
		begin := time.Now()
		m, err := closedLoop(ctx, p, b.Clients, b.WatchPuts, b.WorkLimit, func(ctx context.Context, kv pb.KVClient, i int) error {
			_, err := kv.Put(ctx, &pb.PutRequest{Key: keyOf(i * 7 % b.Keys), Value: b.values.of(i)})
			return err
		})
		if err != nil {
			return nil, err
		}
		if len(m.latencies) != b.WatchPuts {
			return nil, fmt.Errorf("%d puts within %s instead of %d", len(m.latencies), b.WorkLimit, b.WatchPuts)
		}
		for range streams {
			select {
			case err := <-total:
				if err != nil {
					return nil, err
				}
			case <-time.After(b.WorkLimit):
				return nil, errors.New("events are missing")
			}
		}
		m.elapsed = time.Since(begin)
		return m, nil
	})
	if err != nil {
		return nil, err
	}
	r.scale(float64(b.Watchers)) // each put is an event at each watcher
	return r, nil
}

// receiveEvents makes watchers on a stream of their own and returns when it has counted the wanted events over all of
// them. created is called once, when all watchers are made or the stream has failed.
func receiveEvents(ctx context.Context, conn *grpc.ClientConn, watchers, want int, created func()) error {
	once := sync.OnceFunc(created)
	defer once()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, pb.Watch_Watch_FullMethodName,
		grpc.ForceCodecV2(frameCodec{}))
	if err != nil {
		return err
	}
	for range watchers {
		err := stream.SendMsg(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
			CreateRequest: &pb.WatchCreateRequest{Key: []byte(keyPrefix), RangeEnd: prefixEnd()},
		}})
		if err != nil {
			return err
		}
	}
	made, events := 0, 0
	for events < want {
		var f frame
		if err := stream.RecvMsg(&f); err != nil {
			return err
		}
		if f.canceled {
			return errors.New("a watcher was cancelled")
		}
		if f.created {
			if made++; made == watchers {
				once()
			}
		}
		events += f.events
	}
	if events != want {
		return fmt.Errorf("%d events instead of %d", events, want)
	}
	return nil
}

// frame is a WatchResponse of which only the events are counted: decoding a hundred copies of each event would cost
// this process more than the server.
type frame struct {
	created, canceled bool
	events            int
}

// Field numbers of etcdserverpb.WatchResponse.
const (
	fieldCreated  = 3
	fieldCanceled = 4
	fieldEvents   = 11
)

func (f *frame) parse(b []byte) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		switch number {
		case fieldCreated:
			f.created = true
		case fieldCanceled:
			f.canceled = true
		case fieldEvents:
			f.events++
		}
		if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
	}
	return nil
}

// frameCodec sends messages and receives frames.
type frameCodec struct{}

func (frameCodec) Name() string { return "proto" }

func (frameCodec) Marshal(v any) (mem.BufferSlice, error) {
	b, err := proto.Marshal(v.(proto.Message))
	return mem.BufferSlice{mem.SliceBuffer(b)}, err
}

func (frameCodec) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*frame)
	if !ok {
		return fmt.Errorf("frameCodec cannot receive a %T", v)
	}
	if len(data) == 1 {
		return f.parse(data[0].ReadOnlyData())
	}
	return f.parse(slices.Clip(data.Materialize()))
}
