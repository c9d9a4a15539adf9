package meta

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// formatVersion is the version of commands and rows that this code writes.
const formatVersion = 1

// EncodeCommand returns the bytes of the command for the meta group's Raft
// log, with the format filled in.
func EncodeCommand(cmd *placementpb.MetaCommand) []byte {
	cmd.Format = formatVersion
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(cmd)
	if err != nil {
		// Only a string that is not UTF-8 or a missing required field can
		// fail; commands have neither.
		panic(fmt.Sprintf("meta command %T: %v", cmd.Command, err))
	}
	return data
}

// DecodeCommand is the opposite of EncodeCommand. It returns *CorruptError or
// *NewerFormatError.
func DecodeCommand(data []byte) (*placementpb.MetaCommand, error) {
	cmd := &placementpb.MetaCommand{}
	if err := proto.Unmarshal(data, cmd); err != nil {
		return nil, &CorruptError{What: "meta log entry", Reason: err.Error()}
	}
	if cmd.Format > formatVersion {
		return nil, &NewerFormatError{What: "meta log entry", Format: cmd.Format}
	}
	if cmd.Format == 0 || cmd.Command == nil {
		return nil, &CorruptError{What: "meta log entry", Reason: "no format or no command"}
	}
	return cmd, nil
}

// NewBootstrap returns the first command of a cluster: one range more than
// there are boundaries, with ids from 1 in key order and epoch 1, each with
// the given replicas. Boundaries must ascend strictly and not be empty.
func NewBootstrap(clusterID uint64, boundaries [][]byte, replicas []*rangepb.Replica) *placementpb.Bootstrap {
	b := &placementpb.Bootstrap{ClusterId: clusterID}
	var start []byte
	for i := 0; i <= len(boundaries); i++ {
		var end []byte
		if i < len(boundaries) {
			end = boundaries[i]
		}
		d := &rangepb.RangeDescriptor{RangeId: uint64(i + 1), Start: start, End: end, Epoch: 1}
		for _, r := range replicas {
			d.Replicas = append(d.Replicas, proto.CloneOf(r))
		}
		b.Ranges = append(b.Ranges, d)
		start = end
	}
	return b
}
