package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-kv/hawser/proto/adminpb"
)

func (a *app) rangeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "range",
		Short: "Show and split the ranges of a running server",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	conn := &connection{}
	conn.addFlags(cmd)
	cmd.AddCommand(a.rangeListCommand(conn), a.rangeDescribeCommand(conn), a.rangeSplitCommand(conn))
	return cmd
}

func (a *app) rangeListCommand(conn *connection) *cobra.Command {
	var format outputFormat
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the ranges in the order of their keys",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.rangeList(cmd.Context(), conn, format)
		},
	}
	format.addFlag(cmd)
	return cmd
}

func (a *app) rangeList(ctx context.Context, conn *connection, format outputFormat) error {
	srv, err := conn.open(ctx)
	if err != nil {
		return err
	}
	defer closeQuietly(srv.conn)
	resp, err := call(ctx, srv, srv.ListRanges, &adminpb.ListRangesRequest{})
	if err != nil {
		return err
	}
	list := listJSON{Revision: resp.GetRevision(), Ranges: []rangeInfoJSON{}}
	var rows [][]string
	for _, info := range resp.GetRanges() {
		r := rangeInfoOf(info)
		list.Ranges = append(list.Ranges, r)
		rows = append(rows, rangeRow(r))
	}
	if format == outputJSON {
		return writeJSON(a.stdout, list)
	}
	return writeTable(a.stdout, rangeHeader, rows)
}

func (a *app) rangeDescribeCommand(conn *connection) *cobra.Command {
	var format outputFormat
	cmd := &cobra.Command{
		Use:   "describe ID",
		Short: "Show one range and the state of its replica",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := parseRangeID(args[0])
			if err != nil {
				return err
			}
			return a.rangeDescribe(cmd.Context(), conn, id, format)
		},
	}
	format.addFlag(cmd)
	return cmd
}

func (a *app) rangeDescribe(ctx context.Context, conn *connection, id uint64, format outputFormat) error {
	srv, err := conn.open(ctx)
	if err != nil {
		return err
	}
	defer closeQuietly(srv.conn)
	resp, err := call(ctx, srv, srv.DescribeRange, &adminpb.DescribeRangeRequest{RangeId: id})
	if err != nil {
		return err
	}
	d := describeJSON{Range: rangeInfoOf(resp.GetRange())}
	if r := resp.GetRaft(); r != nil {
		d.Raft = &raftJSON{
			Term: r.GetTerm(), LeaderReplicaID: r.GetLeaderReplicaId(),
			CommitIndex: r.GetCommitIndex(), AppliedIndex: r.GetAppliedIndex(),
			FirstIndex: r.GetFirstIndex(), LastIndex: r.GetLastIndex(),
			Queued: r.GetQueued(), Latches: r.GetLatches(),
		}
	}
	if format == outputJSON {
		return writeJSON(a.stdout, d)
	}
	rows := [][]string{
		{"start", boundary(d.Range.Start)},
		{"end", boundary(d.Range.End)},
		{"epoch", strconv.FormatUint(d.Range.Epoch, 10)},
		{"replicas", replicaList(d.Range.Replicas)},
		{"replica set version", strconv.FormatUint(d.Range.ReplicaSetVersion, 10)},
		{"active", strconv.FormatBool(d.Range.Active)},
		{"live keys", strconv.FormatInt(d.Range.LiveKeys, 10)},
		{"approximate bytes", strconv.FormatUint(d.Range.ApproximateBytes, 10)},
		{"resolved revision", strconv.FormatInt(d.Range.Resolved, 10)},
	}
	if d.Range.Damaged {
		rows = append(rows, []string{"damaged", "true"})
	}
	if r := d.Raft; r == nil {
		rows = append(rows, []string{"raft", "not loaded"})
	} else {
		rows = append(rows,
			[]string{"raft term", strconv.FormatUint(r.Term, 10)},
			[]string{"raft leader replica", strconv.FormatUint(r.LeaderReplicaID, 10)},
			[]string{"raft committed", strconv.FormatUint(r.CommitIndex, 10)},
			[]string{"raft applied", strconv.FormatUint(r.AppliedIndex, 10)},
			[]string{"raft log", fmt.Sprintf("%d to %d", r.FirstIndex, r.LastIndex)},
			[]string{"queued writes", strconv.FormatUint(r.Queued, 10)},
			[]string{"latches", strconv.FormatUint(r.Latches, 10)},
		)
	}
	return writeTable(a.stdout, []string{"range", strconv.FormatUint(d.Range.ID, 10)}, rows)
}

// splitOptions are what `range split` was asked for: keys, or one range.
type splitOptions struct {
	keysFile     string
	hexKeys      bool
	id           string
	skipExisting bool
	format       outputFormat
}

func (a *app) rangeSplitCommand(conn *connection) *cobra.Command {
	var o splitOptions
	cmd := &cobra.Command{
		Use:   "split KEY... | --keys-file FILE | --id N",
		Short: "Split ranges at keys, or halve one by size",
		Long: `Each KEY becomes the first key of a new range. The keys may be in any order: the
ranges are cut by halves, so that one that clients use is not cut again and
again. The first split that fails ends the command, and what was done is printed.
With --id the range is cut where its size halves, at the shortest key there.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.rangeSplit(cmd.Context(), conn, args, o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.keysFile, "keys-file", "", "file with one key per line, - for standard input; empty lines are skipped")
	f.BoolVar(&o.hexKeys, "hex", false, "keys are given in hexadecimal")
	f.StringVar(&o.id, "id", "", "halve this range instead")
	f.BoolVar(&o.skipExisting, "skip-existing", false, "a key that is a boundary already counts as done")
	o.format.addFlag(cmd)
	return cmd
}

func (a *app) rangeSplit(ctx context.Context, conn *connection, args []string, o splitOptions) error {
	requests, err := a.splitRequests(args, o)
	if err != nil {
		return err
	}
	srv, err := conn.open(ctx)
	if err != nil {
		return err
	}
	defer closeQuietly(srv.conn)
	s := &splits{srv: srv, skipExisting: o.skipExisting}
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	stop := a.tellProgress(s, len(requests), tick.C)
	done, err := s.run(ctx, byHalves(requests))
	stop()
	// What was done is printed in either case: it stays done.
	return errors.Join(err, a.writeSplits(done, o.format))
}

// describeSplitFailure says which of several splits failed, that one whose answer
// is missing may have been done, and how to go on past a boundary.
func describeSplitFailure(err error, req *adminpb.SplitRangeRequest) error {
	var exit *exitError
	if !errors.As(err, &exit) {
		return err
	}
	what := fmt.Sprintf("split of range %d", req.GetRangeId())
	if key := req.GetKey(); key != nil {
		what = "split at " + adminpb.KeyText(key)
	}
	switch exit.code {
	case exitNoAnswer:
		return failf(exit.code, "%s: %w; it may have been done all the same", what, exit.err)
	case exitBoundary:
		return failf(exit.code, "%s: %w; with --skip-existing it counts as done", what, exit.err)
	}
	return failf(exit.code, "%s: %w", what, exit.err)
}

func (a *app) writeSplits(done splitsJSON, format outputFormat) error {
	if format == outputJSON {
		return writeJSON(a.stdout, done)
	}
	for _, key := range done.Existing {
		if _, err := fmt.Fprintf(a.stdout, "%s is a boundary already\n", boundary(key)); err != nil {
			return err
		}
	}
	if len(done.Splits) == 0 {
		return nil
	}
	var rows [][]string
	for _, s := range done.Splits {
		rows = append(rows, []string{
			boundary(s.Right.Start), strconv.FormatUint(s.Left.ID, 10), strconv.FormatUint(s.Right.ID, 10),
		})
	}
	return writeTable(a.stdout, []string{"SPLIT AT", "LEFT", "RIGHT"}, rows)
}

// splitRequests checks everything that can be checked before the first split.
func (a *app) splitRequests(args []string, o splitOptions) ([]*adminpb.SplitRangeRequest, error) {
	keys := make([][]byte, len(args))
	for i, arg := range args {
		keys[i] = []byte(arg)
	}
	if o.keysFile != "" {
		fromFile, err := a.readKeys(o.keysFile)
		if err != nil {
			return nil, failf(exitUsage, "--keys-file: %w", err)
		}
		keys = append(keys, fromFile...)
	}
	if o.id != "" {
		if len(keys) > 0 {
			return nil, failf(exitUsage, "--id and keys exclude each other")
		}
		id, err := parseRangeID(o.id)
		if err != nil {
			return nil, err
		}
		return []*adminpb.SplitRangeRequest{{At: &adminpb.SplitRangeRequest_RangeId{RangeId: id}}}, nil
	}
	if len(keys) == 0 {
		return nil, failf(exitUsage, "name at least one key, or --keys-file, or --id")
	}
	requests := make([]*adminpb.SplitRangeRequest, len(keys))
	for i, key := range keys {
		if o.hexKeys {
			decoded, err := hex.DecodeString(string(key))
			if err != nil {
				return nil, failf(exitUsage, "key %s is not hexadecimal: %w", adminpb.KeyText(key), err)
			}
			key = decoded
		}
		if len(key) == 0 {
			return nil, failf(exitUsage, "the empty key is the start of the keyspace; nothing can be split there")
		}
		requests[i] = &adminpb.SplitRangeRequest{At: &adminpb.SplitRangeRequest_Key{Key: key}}
	}
	return requests, nil
}

// maxKeyLine bounds a line of a keys file; a key is at most a request long.
const maxKeyLine = 4 << 20

func (a *app) readKeys(path string) ([][]byte, error) {
	var r io.Reader = a.stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		r = f
	}
	var keys [][]byte
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxKeyLine)
	for lines.Scan() {
		if line := lines.Bytes(); len(line) > 0 {
			keys = append(keys, bytes.Clone(line))
		}
	}
	return keys, lines.Err()
}

func parseRangeID(text string) (uint64, error) {
	id, err := strconv.ParseUint(text, 10, 64)
	if err != nil || id == 0 {
		return 0, failf(exitUsage, "%q is not a range id: a whole number from 1", text)
	}
	return id, nil
}
