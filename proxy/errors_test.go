package proxy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/proxy/router"
)

// TestErrorsAreEtcdsOnTheWire holds every error that the layers below give
// against the code and the text that etcd's clients match on.
func TestErrorsAreEtcdsOnTheWire(t *testing.T) {
	kind := func(k rangepb.ErrorKind) error { return &rangepb.Error{Kind: k, RangeID: 3} }
	for _, c := range []struct {
		err  error
		code codes.Code
		text string
	}{
		{mvcc.ErrEmptyKey, codes.InvalidArgument, "etcdserver: key is not provided"},
		{mvcc.ErrInvalidSortOption, codes.InvalidArgument, "etcdserver: invalid sort option"},
		{mvcc.ErrValueProvided, codes.InvalidArgument, "etcdserver: value is provided"},
		{mvcc.ErrLeaseProvided, codes.InvalidArgument, "etcdserver: lease is provided"},
		{mvcc.ErrTooManyOps, codes.InvalidArgument, "etcdserver: too many operations in txn request"},
		{mvcc.ErrDuplicateKey, codes.InvalidArgument, "etcdserver: duplicate key given in txn request"},
		{mvcc.ErrKeyNotFound, codes.InvalidArgument, "etcdserver: key not found"},
		{mvcc.ErrLeaseNotFound, codes.NotFound, "etcdserver: requested lease not found"},
		{mvcc.ErrCompacted, codes.OutOfRange, "etcdserver: mvcc: required revision has been compacted"},
		{mvcc.ErrFutureRev, codes.OutOfRange, "etcdserver: mvcc: required revision is a future revision"},
		{errRequestTooLarge, codes.InvalidArgument, "etcdserver: request is too large"},
		{errNoLeader, codes.Unavailable, "etcdserver: no leader"},
		{errClientAPIVersion, codes.InvalidArgument, "etcdserver: invalid client api version"},
		{router.ErrNoSpace, codes.ResourceExhausted, "etcdserver: mvcc: database space exceeded"},
		{router.ErrTooManyRequests, codes.Unknown, "etcdserver: too many requests"}, // etcd/E3
		{router.ErrTimeout, codes.Unavailable, "etcdserver: request timed out"},
		{router.ErrUnknownFate, codes.Unavailable, "etcdserver: request timed out, possibly due to previous leader failure"},
		{router.ErrCanceled, codes.Canceled, "etcdserver: request canceled"},
		{router.ErrStopped, codes.Unavailable, "etcdserver: server stopped"},
		{kind(rangepb.Corrupt), codes.DataLoss, "etcdserver: corrupt cluster"},
		{kind(rangepb.Stopped), codes.Unavailable, "etcdserver: server stopped"},
		{kind(rangepb.NoSpace), codes.ResourceExhausted, "etcdserver: mvcc: database space exceeded"},
		{kind(rangepb.Busy), codes.Unknown, "etcdserver: too many requests"},
		{context.Canceled, codes.Canceled, "context canceled"},                          // etcd/E2
		{context.DeadlineExceeded, codes.DeadlineExceeded, "context deadline exceeded"}, // etcd/E2
		{errors.New("a bug"), codes.Unknown, "a bug"},                                   // etcd/E4
		{errLeases, codes.Unimplemented, "hawser: leases are not supported by this version"},
	} {
		for _, err := range []error{c.err, fmt.Errorf("wrapped: %w", c.err)} {
			got := status.Convert(toGRPC(err))
			text := c.text
			if strings.HasPrefix(got.Message(), "wrapped: ") && strings.HasSuffix(got.Message(), c.text) {
				text = got.Message() // what is not in the table keeps its text
			}
			if got.Code() != c.code || got.Message() != text {
				t.Errorf("%v: got %v %q, want %v %q", err, got.Code(), got.Message(), c.code, c.text)
			}
		}
	}
	if toGRPC(nil) != nil {
		t.Error("no error became one")
	}
}

func TestEveryRowOfTheTableIsReachable(t *testing.T) {
	for i, row := range errorTable {
		for _, before := range errorTable[:i] {
			if errors.Is(row.ours, before.ours) {
				t.Errorf("%v is hidden by %v", row.ours, before.ours)
			}
		}
	}
}
