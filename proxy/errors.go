package proxy

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hawser-kv/hawser/mvcc"
	"github.com/hawser-kv/hawser/proto/rangepb"
	"github.com/hawser-kv/hawser/proxy/router"
	"github.com/hawser-kv/hawser/proxy/watch"
)

// Errors of the services themselves.
var (
	// errRequestTooLarge: the request as etcd would log it exceeds
	// max-request-bytes (etcd/X7).
	errRequestTooLarge = errors.New("proxy: request is too large")
	// errNoLeader: this node knows no leader of the meta group (etcd/X1).
	errNoLeader = errors.New("proxy: no leader")
	// errClientAPIVersion: the client's version is not valid UTF-8 (etcd/X2).
	errClientAPIVersion = errors.New("proxy: invalid client api version")
)

// errTooManyRequests is Unknown on the wire: etcd maps it to an error without a
// code (etcd/E3).
var errTooManyRequests = status.Error(codes.Unknown, rpctypes.ErrorDesc(rpctypes.ErrGRPCRequestTooManyRequests))

// errShortage: the server's machine is short of file descriptors, memory or threads.
// Nothing was applied. A client that has other endpoints goes there.
var errShortage = status.Error(codes.Unavailable, "hawser: the server is short of file descriptors, memory or threads, try again later")

// errorTable is the one place where our errors become etcd's: code and text are
// what clients match on. The first row that errors.Is accepts
// counts.
var errorTable = []struct{ ours, etcd error }{
	{mvcc.ErrEmptyKey, rpctypes.ErrGRPCEmptyKey},
	{mvcc.ErrInvalidSortOption, rpctypes.ErrGRPCInvalidSortOption},
	{mvcc.ErrValueProvided, rpctypes.ErrGRPCValueProvided},
	{mvcc.ErrLeaseProvided, rpctypes.ErrGRPCLeaseProvided},
	{mvcc.ErrTooManyOps, rpctypes.ErrGRPCTooManyOps},
	{mvcc.ErrDuplicateKey, rpctypes.ErrGRPCDuplicateKey},
	{mvcc.ErrKeyNotFound, rpctypes.ErrGRPCKeyNotFound},
	{mvcc.ErrLeaseNotFound, rpctypes.ErrGRPCLeaseNotFound},
	{mvcc.ErrCompacted, rpctypes.ErrGRPCCompacted},
	{mvcc.ErrFutureRev, rpctypes.ErrGRPCFutureRev},
	{mvcc.ErrTooLarge, rpctypes.ErrGRPCRequestTooLarge},

	{errRequestTooLarge, rpctypes.ErrGRPCRequestTooLarge},
	{errNoLeader, rpctypes.ErrGRPCNoLeader},
	{errClientAPIVersion, rpctypes.ErrGRPCInvalidClientAPIVersion},

	{router.ErrNoSpace, rpctypes.ErrGRPCNoSpace},
	{router.ErrTooManyRequests, errTooManyRequests},
	{router.ErrTimeout, rpctypes.ErrGRPCTimeout},
	{router.ErrUnknownFate, rpctypes.ErrGRPCTimeoutDueToLeaderFail},
	{router.ErrCanceled, rpctypes.ErrGRPCCanceled},
	{router.ErrStopped, rpctypes.ErrGRPCStopped},

	{watch.ErrDamaged, rpctypes.ErrGRPCCorrupt},
	{watch.ErrShortage, errShortage},
}

// toGRPC returns the error that a client of etcd would see. What is a gRPC
// status already, or the end of the client's context (etcd/E2), passes; what
// the table does not know is Unknown with its text (etcd/E4).
func toGRPC(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	}
	for _, row := range errorTable {
		if errors.Is(err, row.ours) {
			return row.etcd
		}
	}
	var large *router.ResponseTooLargeError
	if errors.As(err, &large) {
		return responseTooLarge(large.Bytes, large.Max)
	}
	var re *rangepb.Error
	if errors.As(err, &re) {
		switch re.Kind {
		case rangepb.Corrupt:
			return rpctypes.ErrGRPCCorrupt
		case rangepb.Stopped:
			return rpctypes.ErrGRPCStopped
		case rangepb.NoSpace:
			return rpctypes.ErrGRPCNoSpace
		case rangepb.Busy:
			return errTooManyRequests
		case rangepb.Shortage:
			return errShortage
		default:
			return rpctypes.ErrGRPCTimeout
		}
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(codes.Unknown, err.Error())
}

// responseTooLarge is what gRPC says in etcd of a response that it does not send. Of
// one that we stop reading, bytes is what was read.
func responseTooLarge(bytes, most int64) error {
	return status.Errorf(codes.ResourceExhausted, "grpc: trying to send message larger than max (%d vs. %d)", bytes, most)
}
