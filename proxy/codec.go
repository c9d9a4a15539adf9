package proxy

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/encoding"
	encproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/proxy/router"
)

// countingCodec is gRPC's protobuf codec with etcd's byte counters. What a large
// response holds (router.Responses) is released when gRPC has written its last byte.
type countingCodec struct {
	encoding.CodecV2
	sent, received prometheus.Counter
	responses      *router.Responses
}

func newCountingCodec(m *Metrics, responses *router.Responses) encoding.CodecV2 {
	return &countingCodec{
		CodecV2: encoding.GetCodecV2(encproto.Name), sent: m.sentBytes, received: m.receivedBytes, responses: responses,
	}
}

func (c *countingCodec) Marshal(v any) (mem.BufferSlice, error) {
	b, err := c.marshal(v)
	c.sent.Add(float64(b.Len()))
	return b, err
}

func (c *countingCodec) marshal(v any) (mem.BufferSlice, error) {
	if p, ok := v.(*packedResponse); ok {
		return p.buffers(), nil
	}
	var key any = v
	if chunk, ok := v.(*pb.RangeStreamResponse); ok {
		key = chunk.RangeResponse
	}
	share := c.responses.Attached(key)
	if share == nil {
		return c.CodecV2.Marshal(v)
	}
	m := v.(proto.Message) // what is attached is a response
	size := proto.Size(m)
	if mem.IsBelowBufferPoolingThreshold(size) { // gRPC does not say when it has written it
		share.Release()
		return c.CodecV2.Marshal(v)
	}
	// Not from gRPC's pool, which would keep the memory.
	data, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(make([]byte, 0, size), m)
	if err != nil {
		share.Release()
		return nil, err
	}
	held := &data
	// A connection that breaks may leave the buffer to the garbage collector.
	runtime.AddCleanup(held, (*router.Share).Release, share)
	return mem.BufferSlice{mem.NewBuffer(held, releasing{share})}, nil
}

// releasing is the pool of one buffer: what comes back to it has been written.
type releasing struct{ share *router.Share }

func (releasing) Get(length int) *[]byte { b := make([]byte, length); return &b }

func (r releasing) Put(*[]byte) { r.share.Release() }

func (c *countingCodec) Unmarshal(data mem.BufferSlice, v any) error {
	c.received.Add(float64(data.Len()))
	return c.CodecV2.Unmarshal(data, v)
}
