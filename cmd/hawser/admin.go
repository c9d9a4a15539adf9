package main

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/hawser-kv/hawser/proto/adminpb"
)

// connection is how a sub-command reaches a server.
type connection struct {
	endpoints      []string
	dialTimeout    time.Duration
	commandTimeout time.Duration
}

func (c *connection) addFlags(cmd *cobra.Command) {
	f := cmd.PersistentFlags()
	f.StringSliceVar(&c.endpoints, "endpoints", []string{"127.0.0.1:2379"}, "servers to ask; the first that answers is taken")
	f.DurationVar(&c.dialTimeout, "dial-timeout", 2*time.Second, "how long to wait for each server's first answer")
	f.DurationVar(&c.commandTimeout, "command-timeout", 5*time.Second, "how long to wait for each answer")
}

// admin is the admin service of one server that has answered.
type admin struct {
	adminpb.AdminClient
	conn     *grpc.ClientConn
	endpoint string
	timeout  time.Duration
}

// open returns the admin service of the first endpoint that answers. The caller
// closes its conn.
func (c *connection) open(ctx context.Context) (*admin, error) {
	if len(c.endpoints) == 0 {
		return nil, failf(exitUsage, "--endpoints: must not be empty")
	}
	if c.dialTimeout <= 0 || c.commandTimeout <= 0 {
		return nil, failf(exitUsage, "--dial-timeout and --command-timeout must be above zero")
	}
	var silent []string
	for _, endpoint := range c.endpoints {
		address, err := addressOf(endpoint)
		if err != nil {
			return nil, err
		}
		conn, err := grpc.NewClient("passthrough:///"+address,
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)))
		if err != nil {
			return nil, failf(exitUsage, "--endpoints: %s: %w", endpoint, err)
		}
		a := &admin{AdminClient: adminpb.NewAdminClient(conn), conn: conn, endpoint: endpoint, timeout: c.commandTimeout}
		probe, cancel := context.WithTimeout(ctx, c.dialTimeout)
		_, err = a.ServerInfo(probe, &adminpb.ServerInfoRequest{})
		cancel()
		switch status.Code(err) {
		case codes.OK:
			return a, nil
		case codes.Unavailable, codes.DeadlineExceeded:
			silent = append(silent, fmt.Sprintf("%s: %s", endpoint, status.Convert(err).Message()))
		default:
			err = a.explain(err)
			closeQuietly(conn)
			return nil, err
		}
		closeQuietly(conn)
	}
	return nil, failf(exitNoAnswer, "no server answers:\n  %s", strings.Join(silent, "\n  "))
}

// closeQuietly closes a connection whose work is done; an error there changes
// nothing for the user.
func closeQuietly(conn *grpc.ClientConn) { _ = conn.Close() }

// addressOf turns an endpoint as etcdctl takes it into host:port.
func addressOf(endpoint string) (string, error) {
	scheme, rest, found := strings.Cut(endpoint, "://")
	if !found {
		rest = endpoint
	} else if scheme != "http" {
		return "", failf(exitUsage, "--endpoints: %s: only http is supported yet", endpoint)
	}
	rest = strings.TrimSuffix(rest, "/")
	if rest == "" || strings.Contains(rest, "/") {
		return "", failf(exitUsage, "--endpoints: %q is not of the form host:port", endpoint)
	}
	return rest, nil
}

// call gives one request its deadline and explains what went wrong.
func call[Req, Resp any](ctx context.Context, a *admin, f func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req) (Resp, error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	resp, err := f(ctx, req)
	return resp, a.explain(err)
}

// explain turns an error of the admin service into words and an exit code.
func (a *admin) explain(err error) error {
	if err == nil {
		return nil
	}
	s := status.Convert(err)
	switch s.Code() {
	case codes.Unimplemented:
		return failf(exitNotHawser, "%s has no admin service: it is not a Hawser server (a plain etcd?), or an older one", a.endpoint)
	case codes.Unavailable, codes.DeadlineExceeded:
		return failf(exitNoAnswer, "%s does not answer any more: %s", a.endpoint, s.Message())
	case codes.NotFound:
		return failf(exitNotFound, "%s", s.Message())
	case codes.AlreadyExists:
		return failf(exitBoundary, "%s", s.Message())
	case codes.FailedPrecondition:
		return failf(exitPrecondition, "%s", s.Message())
	case codes.InvalidArgument:
		return failf(exitUsage, "%s", s.Message())
	default:
		return failf(exitFailed, "%s: %s", a.endpoint, s.Message())
	}
}
