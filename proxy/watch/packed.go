package watch

import (
	"iter"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// The events of one revision are one response, however many they are: a delete may have
// millions. As messages each of them takes some hundred bytes beside its key. So what a
// read of history finds of a revision, once its watchers have enough, is *packed*: each
// event is encoded once, as it stands in a WatchResponse, for all watchers that ride in
// the read, and they refer to pieces of that. Watchers that want previous values get
// these read and encoded one after the other, when the response is sent.

// eventsField is the number of the field "events" in a WatchResponse.
const eventsField protowire.Number = 11

const (
	// chunkBytes is how much is packed in one piece of memory: what one watcher holds of
	// it keeps all of it.
	chunkBytes = 64 << 10
	// firstChunkBytes is the first piece where there may be few events; each that
	// follows is twice as large.
	firstChunkBytes = 4 << 10
	// chunkSlack is room behind a chunk that is not used: gRPC tells that it has
	// written a buffer only if its capacity is more than 1 KiB.
	chunkSlack = 2 << 10
	// runBytes is the memory of a run.
	runBytes = 24
)

// chunk has encoded events, one after the other.
type chunk struct {
	b []byte
	// counted is as an event's.
	counted uint64
}

// packer encodes the events of one read of history.
type packer struct {
	last *chunk
	// next is the size of the next chunk if that is not chunkBytes.
	next int
}

// add encodes an event and returns its place.
func (p *packer) add(e *mvccpb.Event) (run, error) {
	size := proto.Size(e)
	whole := protowire.SizeTag(eventsField) + protowire.SizeBytes(size)
	if p.last == nil || len(p.last.b)+whole > cap(p.last.b)-chunkSlack {
		size := chunkBytes
		if p.next > 0 {
			size, p.next = p.next, min(2*p.next, chunkBytes)
		}
		p.last = &chunk{b: make([]byte, 0, max(size, whole)+chunkSlack)}
	}
	c := p.last
	from := len(c.b)
	b := protowire.AppendTag(c.b, eventsField, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(size))
	b, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, e)
	if err != nil {
		return run{}, err
	}
	c.b = b
	return run{c, int32(from), int32(len(b))}, nil
}

// run is the place of events that are neighbours in a chunk.
type run struct {
	of       *chunk
	from, to int32
}

func (r run) bytes() []byte { return r.of.b[r.from:r.to] }

// packed are events of one revision, in order.
type packed struct {
	revision int64
	n        int
	runs     []run
}

func (p *packed) add(revision int64, r run) {
	p.revision = revision
	p.n++
	if last := len(p.runs) - 1; last >= 0 && p.runs[last].of == r.of && p.runs[last].to == r.from {
		p.runs[last].to = r.to
		return
	}
	p.runs = append(p.runs, r)
}

// Packed says whether the response has events that are encoded, or are to be one by
// one: then Encoded gives all of them as they are to be sent.
func (r *Response) Packed() bool { return r.packed.n > 0 || r.ReadsPrevious() }

// ReadsPrevious says whether Encoded reads previous values, of which there may be any
// amount. Then it can be called again.
func (r *Response) ReadsPrevious() bool { return r.prevKV && len(r.events) > 1 }

// NumEvents is the number of events in the response.
func (r *Response) NumEvents() int { return len(r.events) + r.packed.n }

// Encoded gives the events as they stand in an encoded WatchResponse, in order, each
// piece with whole ones, with previous values where they were asked for. Nobody may
// change a piece. What was given the response does not hold any more, so it can be
// called once, but see ReadsPrevious.
func (r *Response) Encoded(previous PreviousReader) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		p := packer{next: firstChunkBytes}
		for events := r.events; len(events) > 0; events = events[1:] {
			m := new(mvccpb.Event)
			err := r.message(m, events[0], previous)
			if !r.prevKV {
				r.events = events[1:]
			}
			var place run
			if err == nil {
				place, err = p.add(m)
			}
			if err != nil {
				yield(nil, err)
				return
			}
			if !yield(place.bytes(), nil) {
				return
			}
		}
		for i, place := range r.packed.runs {
			r.packed.runs[i] = run{}
			if !yield(place.bytes(), nil) {
				return
			}
		}
		r.packed = packed{}
	}
}

// unpack makes messages of the packed events.
func (p *packed) unpack() ([]*mvccpb.Event, error) {
	if p.n == 0 {
		return nil, nil
	}
	out := make([]*mvccpb.Event, 0, p.n)
	for _, r := range p.runs {
		for b := r.bytes(); len(b) > 0; {
			_, _, n := protowire.ConsumeTag(b)
			body, m := protowire.ConsumeBytes(b[max(n, 0):])
			if n < 0 || m < 0 {
				return nil, protowire.ParseError(min(n, m))
			}
			e := &mvccpb.Event{}
			if err := proto.Unmarshal(body, e); err != nil {
				return nil, err
			}
			out = append(out, e)
			b = b[n+m:]
		}
	}
	return out, nil
}
