package router

import (
	"bytes"
	"cmp"
	"context"
	"math"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

const (
	// firstChunkKeys is the number of keys in the first chunk of a stream (etcd/RS3).
	firstChunkKeys = 10
	// segmentRanges bounds how many ranges one query of a stream names: a chunk
	// seldom needs more, and a keyspace of 10,000 ranges is not asked about for
	// each chunk.
	segmentRanges = 64
)

// RangeStream reads in chunks (etcd/RS1 to etcd/RS5): each of about chunkBytes, the
// number of keys doubling or halving towards it, and never more than twice it
// but for one key. All chunks are read at one revision; header, more and count
// come with the last. What is asked has neither an order other than that of the keys
// nor filters. A sort target without an order sorts, as in Range: then all is read
// before the first chunk is sent. An error of send ends the stream and is returned.
func (r *Router) RangeStream(ctx context.Context, req *pb.RangeRequest, chunkBytes int, send func(*pb.RangeResponse) error) error {
	whole := mvcc.Request{Range: req}
	if req.GetCountOnly() || req.GetSortTarget() != pb.RangeRequest_KEY {
		res, share, err := r.DoShared(ctx, &whole)
		if err != nil {
			return err
		}
		defer share.Release()
		return sendWhole(res.Range, chunkBytes, send)
	}
	span := whole.Spans()[0]
	s := &stream{
		r: r, req: req, next: span.Start, end: span.End,
		rev: max(req.GetRevision(), 0), chunkBytes: chunkBytes,
		left: req.GetLimit(),
	}
	if empty(req) {
		s.next, s.end = span.Start, span.Start
	}
	if s.left <= 0 {
		s.left = math.MaxInt64
	}
	keys := int64(firstChunkKeys)
	for {
		chunk, err := s.read(ctx, min(keys, s.left))
		if err != nil {
			return err
		}
		s.count += int64(len(chunk.kvs))
		s.left -= int64(len(chunk.kvs))
		resp := &pb.RangeResponse{Kvs: chunk.kvs}
		last := !chunk.more || s.left == 0
		if last {
			resp.Header = &pb.ResponseHeader{Revision: s.header}
			resp.More = chunk.more
			resp.Count = s.count
			if chunk.more {
				rest, err := s.countRest(ctx)
				if err != nil {
					return err
				}
				resp.Count += rest
			}
		}
		size := proto.Size(resp)
		if err := r.sendChunk(ctx, resp, size, send); err != nil {
			return err
		}
		if last {
			return nil
		}
		switch {
		case size < chunkBytes/2:
			keys *= 2
		case size > chunkBytes*2:
			keys = max(keys/2, 1)
		}
	}
}

// sendWhole sends an answer in chunks of about chunkBytes.
func sendWhole(resp *pb.RangeResponse, chunkBytes int, send func(*pb.RangeResponse) error) error {
	kvs := resp.Kvs
	for {
		n, size := 0, 0
		for n < len(kvs) && (n == 0 || size < chunkBytes) {
			size += proto.Size(kvs[n])
			n++
		}
		if n == len(kvs) {
			resp.Kvs = kvs
			return send(resp)
		}
		if err := send(&pb.RangeResponse{Kvs: kvs[:n:n]}); err != nil {
			return err
		}
		kvs = kvs[n:]
	}
}

// sendChunk sends a chunk when there is room for it: what slow clients have not
// taken yet counts.
func (r *Router) sendChunk(ctx context.Context, resp *pb.RangeResponse, size int, send func(*pb.RangeResponse) error) error {
	share := r.cfg.Responses.NewShare()
	waiting, cancel := context.WithTimeoutCause(ctx, r.cfg.RequestTimeout/2, ErrTooManyRequests)
	defer cancel()
	if err := r.cfg.Responses.Wait(waiting, share, 2*int64(size)); err != nil {
		share.Release()
		return cmp.Or(context.Cause(waiting), err)
	}
	share.ReleaseAfter(ctx) // gRPC may keep what it does not send any more
	r.cfg.Responses.Attach(resp, share)
	err := send(resp)
	if left := r.cfg.Responses.Attached(resp); left != nil {
		left.Release() // it was not encoded
	}
	return err
}

// empty reports whether the interval of the request holds no key.
func empty(req *pb.RangeRequest) bool {
	end := req.GetRangeEnd()
	if len(end) == 0 || len(end) == 1 && end[0] == 0 {
		return false
	}
	return bytes.Compare(req.GetKey(), end) >= 0
}

// stream is where a RangeStream stands.
type stream struct {
	r   *Router
	req *pb.RangeRequest
	// [next, end) is still to be read; end nil: to the end of the keyspace.
	next, end []byte
	// rev is the revision of all chunks, 0 until the first is read; header is R
	// of the first.
	rev, header int64
	chunkBytes  int
	// left is how many keys may still be sent, count how many were.
	left, count int64
}

type chunk struct {
	kvs []*mvccpb.KeyValue
	// more: there is a key after the last one.
	more bool
}

// read returns the next chunk of at most keys keys and moves on.
func (s *stream) read(ctx context.Context, keys int64) (chunk, error) {
	var c chunk
	size := 0
	for {
		segment := mvcc.Access{Start: s.next, End: s.segmentEnd()}
		kvs, had, first := c.kvs, size, s.header == 0
		err := s.r.readAt(ctx, readPlan{
			spans: []mvcc.Access{segment}, rev: s.rev, serializable: s.req.GetSerializable(),
			eval: func(p Point, v mvcc.OpenView, _ []rangepb.Piece) error {
				if first {
					s.header = p.Revision
				}
				s.rev = p.At
				c = chunk{kvs: kvs}
				size = had
				return forgotten(v.Scan(segment.Start, segment.End, mvcc.ScanOptions{KeysOnly: s.req.GetKeysOnly()},
					func(kv *mvccpb.KeyValue) (bool, error) {
						full := int64(len(c.kvs)) == keys || size >= 2*s.chunkBytes
						if full && len(c.kvs) > 0 {
							c.more = true
							return false, nil
						}
						c.kvs = append(c.kvs, kv)
						size += proto.Size(kv)
						return true, nil
					}))
			},
		})
		if err != nil {
			return chunk{}, err
		}
		switch {
		case c.more:
			s.next = append(bytes.Clone(c.kvs[len(c.kvs)-1].Key), 0)
			return c, nil
		case segment.End == nil || s.end != nil && bytes.Compare(segment.End, s.end) >= 0:
			return c, nil
		}
		s.next = segment.End
	}
}

// segmentEnd returns where the ranges of the next query end.
func (s *stream) segmentEnd() []byte {
	dir := s.r.dir.Load()
	if dir == nil {
		return s.end
	}
	var end []byte
	n := 0
	dir.from(dir.Lookup(s.next), func(r *rangepb.RangeDescriptor) bool {
		end = r.End
		n++
		return n < segmentRanges
	})
	if len(end) == 0 {
		return s.end
	}
	if s.end != nil && bytes.Compare(s.end, end) < 0 {
		return s.end
	}
	return end
}

// countRest counts what the limit cut off.
func (s *stream) countRest(ctx context.Context) (int64, error) {
	var n int64
	err := s.r.readAt(ctx, readPlan{
		spans: []mvcc.Access{{Start: s.next, End: s.end}}, rev: s.rev, serializable: s.req.GetSerializable(),
		eval: func(_ Point, v mvcc.OpenView, _ []rangepb.Piece) (err error) {
			n, err = v.Count(s.next, s.end)
			return forgotten(err)
		},
	})
	return n, err
}
