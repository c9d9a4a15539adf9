package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/hawser-kv/hawser/proto/adminpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

// outputFormat is --output. It checks itself when the flag is parsed.
type outputFormat string

const (
	outputTable outputFormat = "table"
	outputJSON  outputFormat = "json"
)

func (f *outputFormat) String() string { return string(*f) }
func (f *outputFormat) Type() string   { return "table|json" }
func (f *outputFormat) Set(s string) error {
	switch v := outputFormat(s); v {
	case outputTable, outputJSON:
		*f = v
		return nil
	}
	return fmt.Errorf("must be table or json")
}

func (f *outputFormat) addFlag(cmd *cobra.Command) {
	*f = outputTable
	cmd.Flags().VarP(f, "output", "o", "how to print the answer")
}

// The JSON of the commands. Keys are base64, as in etcdctl's JSON.
type (
	rangeJSON struct {
		ID                uint64        `json:"id"`
		Start             []byte        `json:"start"`
		End               []byte        `json:"end"`
		Epoch             uint64        `json:"epoch"`
		ReplicaSetVersion uint64        `json:"replica_set_version"`
		Replicas          []replicaJSON `json:"replicas"`
	}
	replicaJSON struct {
		NodeID    uint64 `json:"node_id"`
		ReplicaID uint64 `json:"replica_id"`
	}
	rangeInfoJSON struct {
		rangeJSON
		Active           bool   `json:"active"`
		LiveKeys         int64  `json:"live_keys"`
		ApproximateBytes uint64 `json:"approximate_bytes"`
		Resolved         int64  `json:"resolved"`
		Damaged          bool   `json:"damaged,omitempty"`
	}
	raftJSON struct {
		Term            uint64 `json:"term"`
		LeaderReplicaID uint64 `json:"leader_replica_id"`
		CommitIndex     uint64 `json:"commit_index"`
		AppliedIndex    uint64 `json:"applied_index"`
		FirstIndex      uint64 `json:"first_index"`
		LastIndex       uint64 `json:"last_index"`
		Queued          uint64 `json:"queued"`
		Latches         uint64 `json:"latches"`
	}
	listJSON struct {
		Revision int64           `json:"revision"`
		Ranges   []rangeInfoJSON `json:"ranges"`
	}
	describeJSON struct {
		Range rangeInfoJSON `json:"range"`
		// Raft is null while the replica is not loaded.
		Raft *raftJSON `json:"raft"`
	}
	splitJSON struct {
		Left  rangeJSON `json:"left"`
		Right rangeJSON `json:"right"`
	}
	splitsJSON struct {
		Splits []splitJSON `json:"splits"`
		// Existing are the keys that were boundaries already.
		Existing [][]byte `json:"existing"`
	}
)

func rangeOf(d *rangepb.RangeDescriptor) rangeJSON {
	r := rangeJSON{
		ID: d.GetRangeId(), Start: notNil(d.GetStart()), End: notNil(d.GetEnd()), Epoch: d.GetEpoch(),
		ReplicaSetVersion: d.GetReplicaSetVersion(), Replicas: []replicaJSON{},
	}
	for _, replica := range d.GetReplicas() {
		r.Replicas = append(r.Replicas, replicaJSON{NodeID: replica.GetNodeId(), ReplicaID: replica.GetReplicaId()})
	}
	return r
}

func rangeInfoOf(i *adminpb.RangeInfo) rangeInfoJSON {
	return rangeInfoJSON{
		rangeJSON: rangeOf(i.GetDesc()), Active: i.GetActive(), LiveKeys: i.GetLiveKeys(),
		ApproximateBytes: i.GetApproximateBytes(), Resolved: i.GetResolved(), Damaged: i.GetDamaged(),
	}
}

// notNil makes an empty key "" in JSON, not null.
func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// table prints rows under a header, in columns.
func writeTable(w io.Writer, header []string, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{header}, rows...) {
		if _, err := fmt.Fprintln(t, strings.Join(row, "\t")); err != nil {
			return err
		}
	}
	return t.Flush()
}

// boundary prints an end of a span, in short if it is long. It is quoted, so no key
// looks like the "-" of the end of the keyspace.
func boundary(key []byte) string {
	if len(key) == 0 {
		return "-"
	}
	return adminpb.KeyText(key)
}

func replicaList(replicas []replicaJSON) string {
	texts := make([]string, len(replicas))
	for i, r := range replicas {
		texts[i] = fmt.Sprintf("%d@%x", r.ReplicaID, r.NodeID)
	}
	return strings.Join(texts, ",")
}

var rangeHeader = []string{"ID", "START", "END", "EPOCH", "ACTIVE", "KEYS", "BYTES", "RESOLVED", "REPLICAS"}

func rangeRow(r rangeInfoJSON) []string {
	active := strconv.FormatBool(r.Active)
	if r.Damaged {
		active = "damaged"
	}
	return []string{
		strconv.FormatUint(r.ID, 10), boundary(r.Start), boundary(r.End), strconv.FormatUint(r.Epoch, 10),
		active, strconv.FormatInt(r.LiveKeys, 10), strconv.FormatUint(r.ApproximateBytes, 10),
		strconv.FormatInt(r.Resolved, 10), replicaList(r.Replicas),
	}
}
