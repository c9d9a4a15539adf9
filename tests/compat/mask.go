package compat

import (
	"fmt"
	"regexp"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// masked is put in place of a value that is the server's own: that there is one is still compared.
const masked = 1

var etcdVersion = regexp.MustCompile(`^3\.7\.[0-9]+$`)

// storageVersion is what a fresh etcd says of its storage: 3.5.0 in its first seconds, then 3.7.0.
var storageVersion = regexp.MustCompile(`^3\.[57]\.0$`)

// mask returns a copy of a response in which everything that is local to a server is masked: the ids and the Raft term of every
// header, also of those nested in a Txn, and what is local in Status and MemberList (etcd/S10, etcd/MA2, etcd/M4).
func mask(response proto.Message) proto.Message {
	if response == nil {
		return nil
	}
	out := proto.Clone(response)
	walk(out.ProtoReflect(), func(m protoreflect.Message) {
		if header, ok := m.Interface().(*pb.ResponseHeader); ok {
			header.ClusterId = maskNumber(header.ClusterId)
			header.MemberId = maskNumber(header.MemberId)
			header.RaftTerm = maskNumber(header.RaftTerm)
		}
	})
	switch r := out.(type) {
	case *pb.StatusResponse:
		r.DbSize = maskNumber(r.DbSize)
		r.DbSizeInUse = maskNumber(r.DbSizeInUse)
		r.DbSizeQuota = maskNumber(r.DbSizeQuota)
		r.Leader = maskNumber(r.Leader)
		r.RaftTerm = maskNumber(r.RaftTerm)
		r.RaftIndex = maskNumber(r.RaftIndex)
		r.RaftAppliedIndex = maskNumber(r.RaftAppliedIndex)
		if etcdVersion.MatchString(r.Version) {
			r.Version = "3.7.x"
		}
		if storageVersion.MatchString(r.StorageVersion) {
			r.StorageVersion = "3.x.0"
		}
	case *pb.MemberListResponse:
		for _, member := range r.Members {
			maskMember(member)
		}
	}
	return out
}

func maskMember(member *pb.Member) {
	member.ID = maskNumber(member.ID)
	member.PeerURLs = maskURLs(member.PeerURLs)
	member.ClientURLs = maskURLs(member.ClientURLs)
}

func maskURLs(urls []string) []string {
	masked := slices.Clone(urls)
	for i := range masked {
		masked[i] = fmt.Sprintf("url %d", i)
	}
	return masked
}

func maskNumber[N uint64 | int64](n N) N {
	if n == 0 {
		return 0
	}
	return masked
}
