package compat

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Kind says what a step does.
type Kind string

// The kinds of steps. All but the last two carry a request.
const (
	Range       Kind = "range"
	RangeStream Kind = "range_stream"
	Put         Kind = "put"
	DeleteRange Kind = "delete_range"
	Txn         Kind = "txn"
	Compact     Kind = "compact"
	HashKV      Kind = "hash_kv"
	Status      Kind = "status"
	Alarm       Kind = "alarm"
	MemberList  Kind = "member_list"
	// Watch sends a request on a watch stream, which is opened if it is not.
	Watch Kind = "watch"
	// WatchClose closes a watch stream.
	WatchClose Kind = "watch_close"
	// Split splits ranges of the target that has ranges.
	Split Kind = "split"
)

// Op is one step of a run.
type Op struct {
	Kind Kind
	// Request is the message to send; nil for WatchClose and Split.
	Request proto.Message
	// Stream names the watch stream of Watch and WatchClose.
	Stream int
	// Keys are the keys of Split.
	Keys [][]byte
	// Burst leaves what watchers receive for a later step to compare, so that events pile up. How events are grouped into
	// responses is then not compared, only their sequence.
	Burst bool
}

// newRequest returns an empty request for a kind of step, or nil.
func newRequest(kind Kind) proto.Message {
	switch kind {
	case Range, RangeStream:
		return &pb.RangeRequest{}
	case Put:
		return &pb.PutRequest{}
	case DeleteRange:
		return &pb.DeleteRangeRequest{}
	case Txn:
		return &pb.TxnRequest{}
	case Compact:
		return &pb.CompactionRequest{}
	case HashKV:
		return &pb.HashKVRequest{}
	case Status:
		return &pb.StatusRequest{}
	case Alarm:
		return &pb.AlarmRequest{}
	case MemberList:
		return &pb.MemberListRequest{}
	case Watch:
		return &pb.WatchRequest{}
	}
	return nil
}

// String prints the step for people: long byte fields are cut.
func (op Op) String() string {
	s := string(op.Kind)
	switch op.Kind {
	case Watch, WatchClose:
		s += fmt.Sprintf(" stream=%d", op.Stream)
	case Split:
		for _, key := range op.Keys {
			s += " " + quote(key)
		}
	}
	if op.Burst {
		s += " (burst)"
	}
	if op.Request != nil {
		s += " " + printMessage(op.Request)
	}
	return s
}

type opJSON struct {
	Kind    Kind            `json:"kind"`
	Request json.RawMessage `json:"request,omitempty"`
	Stream  int             `json:"stream,omitempty"`
	Keys    [][]byte        `json:"keys,omitempty"`
	Burst   bool            `json:"burst,omitempty"`
}

// MarshalJSON implements json.Marshaler.
func (op Op) MarshalJSON() ([]byte, error) {
	out := opJSON{Kind: op.Kind, Stream: op.Stream, Keys: op.Keys, Burst: op.Burst}
	if op.Request != nil {
		request, err := protojson.Marshal(op.Request)
		if err != nil {
			return nil, err
		}
		out.Request = request
	}
	return json.Marshal(out)
}

// UnmarshalJSON implements json.Unmarshaler.
func (op *Op) UnmarshalJSON(data []byte) error {
	var in opJSON
	if err := json.Unmarshal(data, &in); err != nil {
		return err
	}
	*op = Op{Kind: in.Kind, Stream: in.Stream, Keys: in.Keys, Burst: in.Burst, Request: newRequest(in.Kind)}
	if op.Request == nil {
		return nil
	}
	return protojson.Unmarshal(in.Request, op.Request)
}

// WriteOps writes steps to a new file in dir, one JSON object a line, and returns its name.
func WriteOps(dir, pattern string, ops []Op) (string, error) {
	f, err := os.CreateTemp(dir, pattern)
	if err != nil {
		return "", err
	}
	defer f.Close()
	encoder := json.NewEncoder(f)
	for _, op := range ops {
		if err := encoder.Encode(op); err != nil {
			return "", err
		}
	}
	return f.Name(), f.Close()
}

// ReadOps reads a file that WriteOps has written.
func ReadOps(name string) ([]Op, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var ops []Op
	decoder := json.NewDecoder(bytes.NewReader(data))
	for decoder.More() {
		var op Op
		if err := decoder.Decode(&op); err != nil {
			return nil, fmt.Errorf("%s: step %d: %w", name, len(ops), err)
		}
		ops = append(ops, op)
	}
	return ops, nil
}
