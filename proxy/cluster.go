package proxy

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/hawser-kv/hawser/proxy/router"
)

// clusterServer is etcd's Cluster service: it lists the members; they cannot be
// changed yet.
type clusterServer struct {
	pb.UnsafeClusterServer
	hdr     *header
	router  *router.Router
	members []Member
}

// MemberList lists the members (etcd/M4, etcd/M5). Its header has no revision
// (etcd/X5).
func (s *clusterServer) MemberList(ctx context.Context, r *pb.MemberListRequest) (*pb.MemberListResponse, error) {
	if r.Linearizable {
		if _, err := s.router.Confirm(ctx); err != nil {
			return nil, toGRPC(err)
		}
	}
	resp := &pb.MemberListResponse{Header: &pb.ResponseHeader{}}
	s.hdr.fillWithoutRevision(resp.Header)
	for _, m := range s.members {
		resp.Members = append(resp.Members, &pb.Member{ID: m.ID, Name: m.Name, PeerURLs: m.PeerURLs, ClientURLs: m.ClientURLs})
	}
	return resp, nil
}

func (s *clusterServer) MemberAdd(context.Context, *pb.MemberAddRequest) (*pb.MemberAddResponse, error) {
	return nil, errMembership
}

func (s *clusterServer) MemberRemove(context.Context, *pb.MemberRemoveRequest) (*pb.MemberRemoveResponse, error) {
	return nil, errMembership
}

func (s *clusterServer) MemberUpdate(context.Context, *pb.MemberUpdateRequest) (*pb.MemberUpdateResponse, error) {
	return nil, errMembership
}

func (s *clusterServer) MemberPromote(context.Context, *pb.MemberPromoteRequest) (*pb.MemberPromoteResponse, error) {
	return nil, errMembership
}
