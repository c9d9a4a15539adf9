package proxy

import (
	"bytes"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/hawser-kv/hawser/proto/adminpb"
	"github.com/hawser-kv/hawser/proxy/router"
)

// TestStatusIsThatOfTheMetaGroup: etcd/MA2, etcd/S10.
func TestStatusIsThatOfTheMetaGroup(t *testing.T) {
	b := newBackend(t, router.Config{})
	_, addr := startServer(t, b)
	c := newClient(t, addr)
	if _, err := c.Put(t.Context(), "a", "1"); err != nil {
		t.Fatal(err)
	}
	s, err := c.Status(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	if s.Header.Revision != 2 || s.Version != "3.7.3" || s.StorageVersion != "3.7.0" || s.Leader != memberID ||
		s.RaftTerm != 7 || s.RaftIndex != 21 || s.RaftAppliedIndex != 20 || s.DbSize != 4096 || s.DbSizeInUse != 2048 ||
		s.IsLearner || s.DbSizeQuota != 0 || len(s.Errors) != 0 {
		t.Errorf("%v", s)
	}
	b.noLeader.Store(true)
	b.lowSpace.Store(true)
	if s, err = c.Status(t.Context(), addr); err != nil {
		t.Fatal(err)
	}
	if s.Leader != 0 || len(s.Errors) != 2 || s.Errors[0] != "etcdserver: no leader" {
		t.Errorf("errors %q", s.Errors)
	}
}

// TestMemberListHasNoRevision: etcd/X5, etcd/M4.
func TestMemberListHasNoRevision(t *testing.T) {
	b := newBackend(t, router.Config{})
	_, addr := startServer(t, b)
	resp, err := newClient(t, addr).MemberList(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if h := resp.Header; h.Revision != 0 || h.MemberId != memberID || h.RaftTerm != 7 {
		t.Errorf("header %v", h)
	}
	if len(resp.Members) != 1 || resp.Members[0].ID != memberID || resp.Members[0].Name != "default" || resp.Members[0].ClientURLs[0] != "http://localhost:2379" {
		t.Errorf("members %v", resp.Members)
	}
}

func TestHashKVNamesItsRevisions(t *testing.T) { // etcd/MA4
	b := newBackend(t, router.Config{}, "m")
	_, addr := startServer(t, b)
	c := newClient(t, addr)
	for _, k := range []string{"a", "z"} {
		if _, err := c.Put(t.Context(), k, "1"); err != nil {
			t.Fatal(err)
		}
	}
	first, err := c.HashKV(t.Context(), addr, 0)
	if err != nil {
		t.Fatal(err)
	}
	if first.HashRevision != 3 || first.CompactRevision != -1 || first.Header.Revision != 3 || first.Hash == 0 {
		t.Errorf("%v", first)
	}
	if _, err := c.HashKV(t.Context(), addr, 4); status.Code(err) != codes.OutOfRange && err.Error() != "etcdserver: mvcc: required revision is a future revision" {
		t.Errorf("future: %v", err)
	}
	// A split changes no hash.
	if _, _, err := b.router.Split(t.Context(), []byte("b")); err != nil {
		t.Fatal(err)
	}
	again, err := c.HashKV(t.Context(), addr, 3)
	if err != nil || again.Hash != first.Hash {
		t.Errorf("%v, %v; before the split %v", again, err, first)
	}
}

func TestWhatIsMissingSaysSo(t *testing.T) {
	b := newBackend(t, router.Config{})
	_, addr := startServer(t, b)
	conn := dial(t, addr)
	ctx := t.Context()
	lease, auth, cluster, maint := pb.NewLeaseClient(conn), pb.NewAuthClient(conn), pb.NewClusterClient(conn), pb.NewMaintenanceClient(conn)
	for name, call := range map[string]func() error{
		"LeaseGrant":  func() error { _, err := lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{}); return err },
		"LeaseLeases": func() error { _, err := lease.LeaseLeases(ctx, &pb.LeaseLeasesRequest{}); return err },
		"KeepAlive": func() error {
			s, err := lease.LeaseKeepAlive(ctx)
			if err == nil {
				_, err = s.Recv()
			}
			return err
		},
		"AuthEnable": func() error { _, err := auth.AuthEnable(ctx, &pb.AuthEnableRequest{}); return err },
		"UserList":   func() error { _, err := auth.UserList(ctx, &pb.AuthUserListRequest{}); return err },
		"MemberAdd":  func() error { _, err := cluster.MemberAdd(ctx, &pb.MemberAddRequest{}); return err },
		"MoveLeader": func() error { _, err := maint.MoveLeader(ctx, &pb.MoveLeaderRequest{}); return err },
		"Downgrade":  func() error { _, err := maint.Downgrade(ctx, &pb.DowngradeRequest{}); return err },
		"Alarm": func() error {
			_, err := maint.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, Alarm: pb.AlarmType_CORRUPT})
			return err
		},
		"Snapshot": func() error {
			s, err := maint.Snapshot(ctx, &pb.SnapshotRequest{})
			if err == nil {
				_, err = s.Recv()
			}
			return err
		},
		"Lock": func() error {
			return conn.Invoke(ctx, "/v3lockpb.Lock/Lock", &pb.StatusRequest{}, &pb.StatusResponse{})
		},
	} {
		if err := call(); status.Code(err) != codes.Unimplemented {
			t.Errorf("%s: %v", name, err)
		}
	}
	if s, err := auth.AuthStatus(ctx, &pb.AuthStatusRequest{}); err != nil || s.Enabled || s.AuthRevision != 1 {
		t.Errorf("AuthStatus: %v, %v", s, err)
	}
	if _, err := maint.Defragment(ctx, &pb.DefragmentRequest{}); err != nil {
		t.Errorf("Defragment: %v", err)
	}
	h, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	if err != nil || h.Status != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health: %v, %v", h, err)
	}
}

// Keys longer than a boundary may be halve a range all the same, unless they differ
// so late that no shorter one is between them.
func TestHalvingByLongKeys(t *testing.T) {
	b := newBackend(t, router.Config{})
	_, addr := startServer(t, b)
	c := newClient(t, addr)
	admin := adminpb.NewAdminClient(dial(t, addr))
	long := strings.Repeat("\xff", maxBoundaryBytes)
	for k, value := range map[string]string{"a" + long: long, "b" + long: "", "b" + long + long: ""} {
		if _, err := c.Put(t.Context(), k, value); err != nil {
			t.Fatal(err)
		}
	}
	halve := func(id uint64) (*adminpb.SplitRangeResponse, error) {
		return admin.SplitRange(t.Context(), &adminpb.SplitRangeRequest{At: &adminpb.SplitRangeRequest_RangeId{RangeId: id}})
	}
	split, err := halve(1)
	if err != nil || string(split.Right.Start) != "b" || string(split.Left.End) != "b" {
		t.Fatalf("%v, %v, want a split at \"b\"", split, err)
	}
	if _, err := halve(split.Right.RangeId); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "first 4097 bytes of the keys in the middle") {
		t.Errorf("keys that differ after 4097 bytes: %v", err)
	}
	for _, k := range []string{"a", "b"} {
		got, err := c.Get(t.Context(), k, clientv3.WithPrefix())
		if err != nil {
			t.Fatal(err)
		}
		if want := int64(k[0] - 'a' + 1); got.Count != want {
			t.Errorf("%d keys begin with %s, want %d", got.Count, k, want)
		}
	}
}

func TestAdminSplitsAndDescribes(t *testing.T) {
	b := newBackend(t, router.Config{})
	_, addr := startServer(t, b)
	c := newClient(t, addr)
	admin := adminpb.NewAdminClient(dial(t, addr))
	ctx := t.Context()

	halve := &adminpb.SplitRangeRequest{At: &adminpb.SplitRangeRequest_RangeId{RangeId: 1}}
	if _, err := admin.SplitRange(ctx, halve); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("halving an empty range: %v", err)
	}
	// Nearly all bytes are in the last two keys: the middle is between them.
	for _, k := range []string{"a", "b", "c", "y", "z"} {
		value := "small"
		if k > "x" {
			value = string(bytes.Repeat([]byte("v"), 1000))
		}
		if _, err := c.Put(ctx, k, value); err != nil {
			t.Fatal(err)
		}
	}
	split, err := admin.SplitRange(ctx, halve)
	if err != nil {
		t.Fatal(err)
	}
	if string(split.Right.Start) != "z" || string(split.Left.End) != "z" || split.Right.RangeId != 2 {
		t.Errorf("halved into %v and %v", split.Left, split.Right)
	}
	at := func(key string) *adminpb.SplitRangeRequest {
		return &adminpb.SplitRangeRequest{At: &adminpb.SplitRangeRequest_Key{Key: []byte(key)}}
	}
	for _, c := range []struct {
		req  *adminpb.SplitRangeRequest
		want codes.Code
	}{
		{at("z"), codes.AlreadyExists},
		{at(""), codes.InvalidArgument},
		{&adminpb.SplitRangeRequest{}, codes.InvalidArgument},
		{at(strings.Repeat("k", maxBoundaryBytes+1)), codes.InvalidArgument},
		{&adminpb.SplitRangeRequest{At: &adminpb.SplitRangeRequest_RangeId{RangeId: 99}}, codes.NotFound},
		{at("m"), codes.OK},
	} {
		if _, err := admin.SplitRange(ctx, c.req); status.Code(err) != c.want {
			t.Errorf("%v: %v, want %v", c.req, err, c.want)
		}
	}
	long := at(strings.Repeat("\xff", maxBoundaryBytes))
	if _, err := admin.SplitRange(ctx, long); err != nil {
		t.Error(err)
	}
	_, err = admin.SplitRange(ctx, long)
	if text := status.Convert(err).Message(); status.Code(err) != codes.AlreadyExists || len(text) > 500 || !strings.Contains(text, "(4096 bytes)") {
		t.Errorf("refused with %v and %d bytes of text: %.500s", status.Code(err), len(text), text)
	}
	list, err := admin.ListRanges(ctx, &adminpb.ListRangesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Ranges) != 4 || list.Revision != 6 || string(list.Ranges[1].Desc.Start) != "m" {
		t.Errorf("%v", list)
	}
	one, err := admin.DescribeRange(ctx, &adminpb.DescribeRangeRequest{RangeId: 1})
	if err != nil || one.Raft.GetTerm() != 3 || !one.Range.Active {
		t.Errorf("%v, %v", one, err)
	}
	if _, err := admin.DescribeRange(ctx, &adminpb.DescribeRangeRequest{RangeId: 99}); status.Code(err) != codes.NotFound {
		t.Errorf("unknown range: %v", err)
	}
	info, err := admin.ServerInfo(ctx, &adminpb.ServerInfoRequest{})
	if err != nil || info.Version != "v0-test" || info.Ranges != 4 || info.LoadedReplicas != 1 || info.NodeId != memberID {
		t.Errorf("%v, %v", info, err)
	}
	get, err := c.Get(ctx, "", clientv3.WithPrefix())
	if err != nil || len(get.Kvs) != 5 {
		t.Errorf("after the splits: %v, %v", get, err)
	}
}
