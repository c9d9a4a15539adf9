package proxy

import (
	"context"
	"errors"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proxy/router"
)

// kvServer is etcd's KV service.
type kvServer struct {
	pb.UnsafeKVServer
	router  *router.Router
	hdr     *header
	storage Storage
	metrics *Metrics

	limits          mvcc.Limits
	maxRequestBytes int
	// logID is a request id of the size that etcd would put into its log
	// entries: the low half of the member id on top.
	logID uint64
}

// Errors of RangeStream, without etcd's prefix (etcd/RS1).
var (
	errStreamSort    = status.Error(codes.Unimplemented, "RangeStream does not support custom sort orders")
	errStreamFilters = status.Error(codes.Unimplemented, "RangeStream does not support revision filters")
)

// Range reads keys (etcd/R1 to etcd/R11).
func (s *kvServer) Range(ctx context.Context, r *pb.RangeRequest) (resp *pb.RangeResponse, err error) {
	defer s.metrics.observeRange(time.Now(), &err)
	if err := mvcc.CheckRequest(&mvcc.Request{Range: r}, s.limits); err != nil {
		return nil, toGRPC(err)
	}
	res, share, err := s.router.DoShared(ctx, &mvcc.Request{Range: r})
	if err != nil {
		return nil, toGRPC(err)
	}
	s.hdr.fill(res.Range.Header)
	return res.Range, s.attach(res.Range, share)
}

// RangeStream reads keys in chunks (etcd/RS1 to etcd/RS6).
func (s *kvServer) RangeStream(r *pb.RangeRequest, stream pb.KV_RangeStreamServer) error {
	if err := mvcc.CheckRequest(&mvcc.Request{Range: r}, s.limits); err != nil {
		return toGRPC(err)
	}
	if r.SortOrder != pb.RangeRequest_NONE && (r.SortTarget != pb.RangeRequest_KEY || r.SortOrder != pb.RangeRequest_ASCEND) {
		return errStreamSort
	}
	if r.MinModRevision != 0 || r.MaxModRevision != 0 || r.MinCreateRevision != 0 || r.MaxCreateRevision != 0 {
		return errStreamFilters
	}
	err := s.router.RangeStream(stream.Context(), r, s.maxRequestBytes, func(chunk *pb.RangeResponse) error {
		if chunk.Header != nil {
			s.hdr.fillWithoutRevision(chunk.Header)
		}
		return stream.Send(&pb.RangeStreamResponse{RangeResponse: chunk})
	})
	return toGRPC(err)
}

// Put writes a key (etcd/P1 to etcd/P5).
func (s *kvServer) Put(ctx context.Context, r *pb.PutRequest) (resp *pb.PutResponse, err error) {
	defer s.metrics.observe(s.metrics.requests.put, time.Now(), &err)
	// Header, lease and flags of a log entry take less than 128 bytes.
	large := len(r.Key)+len(r.Value)+128 > s.maxRequestBytes
	res, share, err := s.write(ctx, &mvcc.Request{Put: r}, large, func(e *pb.InternalRaftRequest) { e.Put = r })
	if err != nil {
		return nil, err
	}
	s.metrics.puts.Inc()
	s.metrics.putBytes.Add(float64(len(r.Key) + len(r.Value)))
	s.hdr.fill(res.Put.Header)
	return res.Put, s.attach(res.Put, share)
}

// DeleteRange deletes keys (etcd/D1, etcd/D2).
func (s *kvServer) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest) (resp *pb.DeleteRangeResponse, err error) {
	defer s.metrics.observe(s.metrics.requests.deleteRange, time.Now(), &err)
	large := len(r.Key)+len(r.RangeEnd)+128 > s.maxRequestBytes
	res, share, err := s.write(ctx, &mvcc.Request{DeleteRange: r}, large, func(e *pb.InternalRaftRequest) { e.DeleteRange = r })
	if err != nil {
		return nil, err
	}
	s.metrics.deletes.Inc()
	s.hdr.fill(res.DeleteRange.Header)
	return res.DeleteRange, s.attach(res.DeleteRange, share)
}

// Txn runs a transaction (etcd/T1 to etcd/T12).
func (s *kvServer) Txn(ctx context.Context, r *pb.TxnRequest) (resp *pb.TxnResponse, err error) {
	req := &mvcc.Request{Txn: r}
	duration := s.metrics.requests.txn
	if req.IsReadOnly() {
		duration = s.metrics.requests.readonlyTxn
	}
	defer s.metrics.observe(duration, time.Now(), &err)
	res, share, err := s.write(ctx, req, !req.IsReadOnly(), func(e *pb.InternalRaftRequest) { e.Txn = r })
	if err != nil {
		return nil, err
	}
	s.metrics.countTxn(r, res.Txn)
	s.hdr.fill(res.Txn.Header)
	return res.Txn, s.attach(res.Txn, share)
}

// write checks a request as etcd does and runs it. large: its size may exceed
// the limit and has to be found; entry sets it into etcd's log entry for that.
func (s *kvServer) write(ctx context.Context, req *mvcc.Request, large bool, entry func(*pb.InternalRaftRequest)) (*mvcc.Result, *router.Share, error) {
	if err := mvcc.CheckRequest(req, s.limits); err != nil {
		return nil, nil, toGRPC(err)
	}
	if large {
		e := pb.InternalRaftRequest{Header: &pb.RequestHeader{ID: s.logID}}
		entry(&e)
		if proto.Size(&e) > s.maxRequestBytes {
			return nil, nil, toGRPC(errRequestTooLarge)
		}
	}
	if s.storage.LowSpace() && putsSomething(req) {
		return nil, nil, toGRPC(router.ErrNoSpace)
	}
	res, share, err := s.router.DoShared(ctx, req)
	if err != nil {
		if isFailedProposal(err) && !req.IsReadOnly() {
			s.metrics.proposalsFailed.Inc()
		}
		return nil, nil, toGRPC(err)
	}
	return res, share, nil
}

// attach leaves what a response holds to who encodes it. One that gRPC would not
// send is refused before it is encoded; a write has been applied then, as in etcd.
func (s *kvServer) attach(resp proto.Message, share *router.Share) error {
	if !share.Large() {
		return nil
	}
	if size := proto.Size(resp); size > maxSendBytes {
		share.Release()
		return responseTooLarge(int64(size), maxSendBytes)
	}
	s.router.Responses().Attach(resp, share)
	return nil
}

// isFailedProposal reports whether a write ended without an answer: what etcd
// counts as a failed proposal.
func isFailedProposal(err error) bool {
	return errors.Is(err, router.ErrTimeout) || errors.Is(err, router.ErrUnknownFate) ||
		errors.Is(err, router.ErrCanceled) || errors.Is(err, router.ErrStopped)
}

// putsSomething reports whether the request has a put in any branch: that is
// what a full store refuses (etcd/X12).
func putsSomething(req *mvcc.Request) bool {
	return req.Put != nil || req.Txn != nil && txnPuts(req.Txn)
}

func txnPuts(t *pb.TxnRequest) bool {
	for _, ops := range [2][]*pb.RequestOp{t.GetSuccess(), t.GetFailure()} {
		for _, op := range ops {
			switch u := op.GetRequest().(type) {
			case *pb.RequestOp_RequestPut:
				return true
			case *pb.RequestOp_RequestTxn:
				if txnPuts(u.RequestTxn) {
					return true
				}
			}
		}
	}
	return false
}

// Compact forgets old revisions (etcd/C1 to etcd/C3).
func (s *kvServer) Compact(ctx context.Context, r *pb.CompactionRequest) (resp *pb.CompactionResponse, err error) {
	defer s.metrics.observe(s.metrics.requests.compaction, time.Now(), &err)
	rev, err := s.router.Compact(ctx, r.Revision)
	if err != nil {
		if isFailedProposal(err) {
			s.metrics.proposalsFailed.Inc()
		}
		return nil, toGRPC(err)
	}
	if r.Physical {
		if err := s.storage.WaitCompacted(ctx, r.Revision); err != nil {
			return nil, toGRPC(err)
		}
	}
	resp = &pb.CompactionResponse{Header: &pb.ResponseHeader{Revision: rev}}
	s.hdr.fill(resp.Header)
	return resp, nil
}
