package compat

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// answerWithin bounds the time a server may take to answer a step. It is far above what any step needs.
const answerWithin = 30 * time.Second

// side is one of the two servers of a run, as its client sees it.
type side struct {
	name   string
	server Server
	// patience bounds every wait.
	patience time.Duration
	conn     *grpc.ClientConn
	kv       pb.KVClient
	watch    pb.WatchClient
	maint    pb.MaintenanceClient
	cluster  pb.ClusterClient

	// streams are the open watch streams. journalStream is one of them.
	streams map[int]*watchStream
}

func newSide(name string, server Server, patience time.Duration, options ...grpc.DialOption) (*side, error) {
	conn, err := grpc.NewClient(server.Endpoint(), append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)),
	}, options...)...)
	if err != nil {
		return nil, err
	}
	return &side{
		name: name, server: server, patience: patience, conn: conn,
		kv: pb.NewKVClient(conn), watch: pb.NewWatchClient(conn), maint: pb.NewMaintenanceClient(conn), cluster: pb.NewClusterClient(conn),
		streams: make(map[int]*watchStream),
	}, nil
}

func (s *side) close() {
	for _, stream := range s.streams {
		stream.close()
	}
	s.conn.Close()
}

// answer is what a server said to a request.
type answer struct {
	// message is nil if the call failed; for RangeStream it is all messages merged.
	message proto.Message
	// code and text are those of the gRPC status; code OK has no text. details counts the status's details.
	code    codes.Code
	text    string
	details int
	// violation is a rule that the answer breaks by itself, whatever the other server says.
	violation string
}

func newAnswer[M proto.Message](message M, err error) *answer {
	if err != nil {
		st := status.Convert(err)
		return &answer{code: st.Code(), text: st.Message(), details: len(st.Details())}
	}
	return &answer{message: message}
}

func (a *answer) String() string {
	s := printMessage(a.message)
	if a.code != codes.OK {
		s = fmt.Sprintf("error %s %q", a.code, a.text)
	}
	if a.violation != "" {
		s += " (breaks a rule: " + a.violation + ")"
	}
	return s
}

// call sends the request of a step that is not about watches.
func (s *side) call(ctx context.Context, op Op) *answer {
	ctx, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	switch request := op.Request.(type) {
	case *pb.RangeRequest:
		if op.Kind == RangeStream {
			return s.rangeStream(ctx, request)
		}
		return newAnswer(s.kv.Range(ctx, request))
	case *pb.PutRequest:
		return newAnswer(s.kv.Put(ctx, request))
	case *pb.DeleteRangeRequest:
		return newAnswer(s.kv.DeleteRange(ctx, request))
	case *pb.TxnRequest:
		return newAnswer(s.kv.Txn(ctx, request))
	case *pb.CompactionRequest:
		return newAnswer(s.kv.Compact(ctx, request))
	case *pb.HashKVRequest:
		return newAnswer(s.maint.HashKV(ctx, request))
	case *pb.StatusRequest:
		return newAnswer(s.maint.Status(ctx, request))
	case *pb.AlarmRequest:
		return newAnswer(s.maint.Alarm(ctx, request))
	case *pb.MemberListRequest:
		return newAnswer(s.cluster.MemberList(ctx, request))
	}
	panic(fmt.Sprintf("compat: no call for step %s", op))
}

// rangeStream merges the chunks of a stream and checks the rules for chunks (etcd/RS2, etcd/RS3). Where chunks are cut is the server's choice.
func (s *side) rangeStream(ctx context.Context, request *pb.RangeRequest) *answer {
	stream, err := s.kv.RangeStream(ctx, request)
	if err != nil {
		return newAnswer[*pb.RangeResponse](nil, err)
	}
	merged := &pb.RangeResponse{}
	var violation string
	chunks := 0
	for ended := false; ; chunks++ {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			a := newAnswer[*pb.RangeResponse](nil, err)
			a.violation = violation
			return a
		}
		part := chunk.GetRangeResponse()
		switch {
		case ended:
			violation = "a chunk after the one with the header"
		case part.GetHeader() == nil && (part.GetMore() || part.GetCount() != 0):
			violation = "more or count in a chunk without header"
		case part.GetHeader() == nil && len(part.GetKvs()) == 0:
			violation = "an empty chunk"
		}
		ended = part.GetHeader() != nil
		proto.Merge(merged, part)
	}
	if merged.Header == nil && violation == "" {
		violation = "the stream ended without a chunk with a header"
	}
	if request.CountOnly && chunks != 1 && violation == "" {
		violation = fmt.Sprintf("count_only answered in %d messages", chunks)
	}
	return &answer{message: merged, violation: violation}
}
