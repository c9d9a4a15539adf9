package proxy

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/proxy/router"
)

// maintenanceServer is etcd's Maintenance service. What describes the one Raft
// group of an etcd cluster describes the meta group here (etcd/S10): the
// values are those of a real group and only grow.
type maintenanceServer struct {
	pb.UnsafeMaintenanceServer
	hdr        *header
	router     *router.Router
	meta       Meta
	storage    Storage
	metrics    *Metrics
	memberID   uint64
	quotaBytes int64
	logger     *zap.Logger
}

// Status describes this member (etcd/MA2). It needs no quorum.
func (s *maintenanceServer) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	committed, applied := s.meta.Indexes()
	size, inUse := s.storage.Size()
	resp := &pb.StatusResponse{
		Header:           &pb.ResponseHeader{},
		Version:          EtcdVersion,
		StorageVersion:   StorageVersion,
		DbSize:           size,
		DbSizeInUse:      inUse,
		DbSizeQuota:      s.quotaBytes,
		Leader:           s.meta.Leader(),
		RaftIndex:        committed,
		RaftAppliedIndex: applied,
		RaftTerm:         s.meta.Term(),
		DowngradeInfo:    &pb.DowngradeInfo{Enabled: false},
	}
	s.hdr.fill(resp.Header)
	if resp.Leader == 0 {
		resp.Errors = append(resp.Errors, rpctypes.ErrorDesc(rpctypes.ErrGRPCNoLeader))
	}
	for _, a := range alarms(s.storage, s.memberID) {
		resp.Errors = append(resp.Errors, a.String())
	}
	return resp, nil
}

// alarms returns the alarms that are on: NOSPACE while the disk is low on space,
// which unlike etcd's ends by itself when there is room, and CORRUPT when this node
// has found damage, until it starts again. etcd refuses all writes under CORRUPT;
// here those to what is not damaged go on.
func alarms(storage Storage, memberID uint64) (on []*pb.AlarmMember) {
	if storage.LowSpace() {
		on = append(on, &pb.AlarmMember{MemberID: memberID, Alarm: pb.AlarmType_NOSPACE})
	}
	if ranges, outside := storage.Damaged(); len(ranges) > 0 || outside {
		on = append(on, &pb.AlarmMember{MemberID: memberID, Alarm: pb.AlarmType_CORRUPT})
	}
	return on
}

// Alarm lists the alarms (etcd/MA1). They follow the disk and are not set
// or cleared by hand; deactivating what is not active is nothing, as in etcd.
func (s *maintenanceServer) Alarm(ctx context.Context, r *pb.AlarmRequest) (*pb.AlarmResponse, error) {
	active := alarms(s.storage, s.memberID)
	resp := &pb.AlarmResponse{Header: &pb.ResponseHeader{}}
	switch r.Action {
	case pb.AlarmRequest_GET:
		for _, a := range active {
			if r.Alarm == pb.AlarmType_NONE || r.Alarm == a.Alarm {
				resp.Alarms = append(resp.Alarms, a)
			}
		}
	case pb.AlarmRequest_ACTIVATE:
		if r.Alarm != pb.AlarmType_NONE {
			return nil, errAlarmSet
		}
	case pb.AlarmRequest_DEACTIVATE:
		for _, a := range active {
			if r.Alarm == a.Alarm && r.MemberID == a.MemberID {
				return nil, errAlarmSet
			}
		}
	default:
		return nil, errAlarmSet
	}
	s.hdr.fill(resp.Header)
	return resp, nil
}

// HashKV hashes the keyspace at a revision (etcd/MA4).
func (s *maintenanceServer) HashKV(ctx context.Context, r *pb.HashKVRequest) (*pb.HashKVResponse, error) {
	defer observeSince(s.metrics.hashSeconds, time.Now())
	h, err := s.router.HashKV(ctx, r.Revision)
	if err != nil {
		return nil, toGRPC(err)
	}
	resp := &pb.HashKVResponse{
		Header: &pb.ResponseHeader{Revision: h.Revision},
		Hash:   h.Hash, CompactRevision: h.Compacted, HashRevision: h.HashRevision,
	}
	s.hdr.fill(resp.Header)
	return resp, nil
}

// Hash hashes the keyspace at the current revision. etcd hashes its whole
// database file here, for debugging; ours has no such file to compare.
func (s *maintenanceServer) Hash(ctx context.Context, _ *pb.HashRequest) (*pb.HashResponse, error) {
	defer observeSince(s.metrics.wholeHashSeconds, time.Now())
	h, err := s.router.HashKV(ctx, 0)
	if err != nil {
		return nil, toGRPC(err)
	}
	resp := &pb.HashResponse{Header: &pb.ResponseHeader{Revision: h.Revision}, Hash: h.Hash}
	s.hdr.fill(resp.Header)
	return resp, nil
}

// Defragment compacts the engine's key space; unlike etcd's it stalls nobody.
// The response has no header (etcd/MA3).
func (s *maintenanceServer) Defragment(ctx context.Context, _ *pb.DefragmentRequest) (*pb.DefragmentResponse, error) {
	start := time.Now()
	s.metrics.defragInflight.Inc()
	defer s.metrics.defragInflight.Dec()
	defer observeSince(s.metrics.defragSeconds, start)
	s.logger.Info("starting defragment")
	if err := s.storage.Defragment(ctx); err != nil {
		s.logger.Warn("failed to defragment", zap.Error(err))
		return nil, toGRPC(err)
	}
	s.logger.Info("finished defragment", zap.Duration("took", time.Since(start)))
	return &pb.DefragmentResponse{}, nil
}

func observeSince(o prometheus.Observer, start time.Time) { o.Observe(time.Since(start).Seconds()) }

func (s *maintenanceServer) Snapshot(*pb.SnapshotRequest, pb.Maintenance_SnapshotServer) error {
	return errSnapshot
}

func (s *maintenanceServer) MoveLeader(context.Context, *pb.MoveLeaderRequest) (*pb.MoveLeaderResponse, error) {
	return nil, errMoveLeader
}

func (s *maintenanceServer) Downgrade(context.Context, *pb.DowngradeRequest) (*pb.DowngradeResponse, error) {
	return nil, errDowngrade
}
