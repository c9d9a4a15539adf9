package proxy

import pb "go.etcd.io/etcd/api/v3/etcdserverpb"

// header fills response headers (etcd/X5, etcd/S12).
type header struct {
	clusterID, memberID uint64
	meta                Meta
	// revision is the current one as far as this node knows.
	revision func() int64
}

// fill completes a header; one without a revision gets the current one.
func (h *header) fill(rh *pb.ResponseHeader) {
	h.fillWithoutRevision(rh)
	if rh.Revision == 0 {
		rh.Revision = h.revision()
	}
}

func (h *header) fillWithoutRevision(rh *pb.ResponseHeader) {
	rh.ClusterId = h.clusterID
	rh.MemberId = h.memberID
	rh.RaftTerm = h.meta.Term()
}
