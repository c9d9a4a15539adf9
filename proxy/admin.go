package proxy

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hawser-kv/hawser/proto/adminpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/proxy/router"
)

// maxBoundaryBytes bounds the first key of a range. Boundaries are in every
// descriptor: in memory, in the directory that each node gets, in lists of
// ranges, which must fit into a message. A prefix splits as well as a long key.
const maxBoundaryBytes = 4 << 10

// adminServer is the operators' service.
type adminServer struct {
	adminpb.UnimplementedAdminServer
	router              *router.Router
	replicas            Replicas
	clusterID, memberID uint64
	version             string
}

func (s *adminServer) directory() (*router.Directory, error) {
	if d := s.router.Directory(); d != nil {
		return d, nil
	}
	return nil, status.Error(codes.Unavailable, "hawser: the directory of ranges is not known yet")
}

func (s *adminServer) info(d *rangepb.RangeDescriptor) *adminpb.RangeInfo {
	info := &adminpb.RangeInfo{Desc: d}
	s.replicas.Info(d.RangeId, info)
	return info
}

// ListRanges returns the directory in key order.
func (s *adminServer) ListRanges(ctx context.Context, _ *adminpb.ListRangesRequest) (*adminpb.ListRangesResponse, error) {
	rev, err := s.router.Confirm(ctx)
	if err != nil {
		return nil, toGRPC(err)
	}
	d, err := s.directory()
	if err != nil {
		return nil, err
	}
	resp := &adminpb.ListRangesResponse{Revision: rev}
	for _, r := range d.All() {
		resp.Ranges = append(resp.Ranges, s.info(r))
	}
	return resp, nil
}

func unknownRange(id uint64) error {
	return status.Errorf(codes.NotFound, "hawser: there is no range %d", id)
}

// DescribeRange returns one range.
func (s *adminServer) DescribeRange(_ context.Context, r *adminpb.DescribeRangeRequest) (*adminpb.DescribeRangeResponse, error) {
	d, err := s.directory()
	if err != nil {
		return nil, err
	}
	desc := d.ByID(r.RangeId)
	if desc == nil {
		return nil, unknownRange(r.RangeId)
	}
	return &adminpb.DescribeRangeResponse{Range: s.info(desc), Raft: s.replicas.Raft(r.RangeId)}, nil
}

// SplitRange splits at a key, or halves a range by size.
func (s *adminServer) SplitRange(ctx context.Context, r *adminpb.SplitRangeRequest) (*adminpb.SplitRangeResponse, error) {
	var key []byte
	switch at := r.At.(type) {
	case *adminpb.SplitRangeRequest_Key:
		key = at.Key
	case *adminpb.SplitRangeRequest_RangeId:
		half, err := s.router.HalfKey(ctx, at.RangeId)
		switch {
		case errors.Is(err, router.ErrUnknownRange):
			return nil, unknownRange(at.RangeId)
		case errors.Is(err, router.ErrTooFewKeys):
			return nil, status.Errorf(codes.FailedPrecondition, "hawser: range %d has fewer than two keys and cannot be halved", at.RangeId)
		case err != nil:
			return nil, toGRPC(err)
		}
		key = half
	}
	switch _, half := r.At.(*adminpb.SplitRangeRequest_RangeId); {
	case len(key) == 0:
		return nil, status.Error(codes.InvalidArgument, "hawser: the key to split at is empty")
	case len(key) > maxBoundaryBytes && half:
		return nil, status.Errorf(codes.FailedPrecondition,
			"hawser: the first %d bytes of the keys in the middle are the same, and a range begins with at most %d; split at a key", len(key)-1, maxBoundaryBytes)
	case len(key) > maxBoundaryBytes:
		return nil, status.Errorf(codes.InvalidArgument, "hawser: the key to split at has %d bytes, and a range begins with at most %d", len(key), maxBoundaryBytes)
	}
	left, right, err := s.router.Split(ctx, key)
	if errors.Is(err, router.ErrBoundaryExists) {
		return nil, status.Errorf(codes.AlreadyExists, "hawser: %s is the first key of a range already", adminpb.KeyText(key))
	}
	if err != nil {
		return nil, toGRPC(err)
	}
	return &adminpb.SplitRangeResponse{Left: left, Right: right}, nil
}

// ServerInfo says what the server is.
func (s *adminServer) ServerInfo(context.Context, *adminpb.ServerInfoRequest) (*adminpb.ServerInfoResponse, error) {
	resp := &adminpb.ServerInfoResponse{
		Version: s.version, ClusterId: s.clusterID, NodeId: s.memberID,
		LoadedReplicas: uint64(len(s.replicas.Loaded())),
	}
	if d := s.router.Directory(); d != nil {
		resp.Ranges = uint64(d.Len())
	}
	return resp, nil
}
