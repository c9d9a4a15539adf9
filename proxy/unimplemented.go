package proxy

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// What this version does not have answers Unimplemented with a text that says
// what is missing. Lock and Election are not registered: gRPC answers for them.

func unimplemented(what string) error {
	return status.Error(codes.Unimplemented, "hawser: "+what+" not supported by this version")
}

var (
	errLeases     = unimplemented("leases are")
	errAuth       = unimplemented("authentication is")
	errMembership = unimplemented("changing the members of the cluster is")
	errAlarmSet   = unimplemented("setting alarms by hand is")
	errSnapshot   = unimplemented("the Snapshot RPC is")
	errMoveLeader = unimplemented("moving the leader is")
	errDowngrade  = unimplemented("downgrading is")
)

// leaseServer is etcd's Lease service without leases.
type leaseServer struct{ pb.UnsafeLeaseServer }

func (leaseServer) LeaseGrant(context.Context, *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	return nil, errLeases
}

func (leaseServer) LeaseRevoke(context.Context, *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	return nil, errLeases
}

func (leaseServer) LeaseKeepAlive(pb.Lease_LeaseKeepAliveServer) error { return errLeases }

func (leaseServer) LeaseTimeToLive(context.Context, *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error) {
	return nil, errLeases
}

func (leaseServer) LeaseLeases(context.Context, *pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error) {
	return nil, errLeases
}

// authServer is etcd's Auth service without authentication: it can say that it
// is off.
type authServer struct {
	pb.UnsafeAuthServer
	hdr *header
}

// AuthStatus says that authentication is off, at the auth revision of a server
// that never had any (etcd/A6).
func (s authServer) AuthStatus(context.Context, *pb.AuthStatusRequest) (*pb.AuthStatusResponse, error) {
	resp := &pb.AuthStatusResponse{Header: &pb.ResponseHeader{}, Enabled: false, AuthRevision: 1}
	s.hdr.fill(resp.Header)
	return resp, nil
}

func (authServer) AuthEnable(context.Context, *pb.AuthEnableRequest) (*pb.AuthEnableResponse, error) {
	return nil, errAuth
}

func (authServer) AuthDisable(context.Context, *pb.AuthDisableRequest) (*pb.AuthDisableResponse, error) {
	return nil, errAuth
}

func (authServer) Authenticate(context.Context, *pb.AuthenticateRequest) (*pb.AuthenticateResponse, error) {
	return nil, errAuth
}

func (authServer) UserAdd(context.Context, *pb.AuthUserAddRequest) (*pb.AuthUserAddResponse, error) {
	return nil, errAuth
}

func (authServer) UserGet(context.Context, *pb.AuthUserGetRequest) (*pb.AuthUserGetResponse, error) {
	return nil, errAuth
}

func (authServer) UserList(context.Context, *pb.AuthUserListRequest) (*pb.AuthUserListResponse, error) {
	return nil, errAuth
}

func (authServer) UserDelete(context.Context, *pb.AuthUserDeleteRequest) (*pb.AuthUserDeleteResponse, error) {
	return nil, errAuth
}

func (authServer) UserChangePassword(context.Context, *pb.AuthUserChangePasswordRequest) (*pb.AuthUserChangePasswordResponse, error) {
	return nil, errAuth
}

func (authServer) UserGrantRole(context.Context, *pb.AuthUserGrantRoleRequest) (*pb.AuthUserGrantRoleResponse, error) {
	return nil, errAuth
}

func (authServer) UserRevokeRole(context.Context, *pb.AuthUserRevokeRoleRequest) (*pb.AuthUserRevokeRoleResponse, error) {
	return nil, errAuth
}

func (authServer) RoleAdd(context.Context, *pb.AuthRoleAddRequest) (*pb.AuthRoleAddResponse, error) {
	return nil, errAuth
}

func (authServer) RoleGet(context.Context, *pb.AuthRoleGetRequest) (*pb.AuthRoleGetResponse, error) {
	return nil, errAuth
}

func (authServer) RoleList(context.Context, *pb.AuthRoleListRequest) (*pb.AuthRoleListResponse, error) {
	return nil, errAuth
}

func (authServer) RoleDelete(context.Context, *pb.AuthRoleDeleteRequest) (*pb.AuthRoleDeleteResponse, error) {
	return nil, errAuth
}

func (authServer) RoleGrantPermission(context.Context, *pb.AuthRoleGrantPermissionRequest) (*pb.AuthRoleGrantPermissionResponse, error) {
	return nil, errAuth
}

func (authServer) RoleRevokePermission(context.Context, *pb.AuthRoleRevokePermissionRequest) (*pb.AuthRoleRevokePermissionResponse, error) {
	return nil, errAuth
}
