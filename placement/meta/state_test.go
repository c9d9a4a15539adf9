package meta

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/proto/placementpb"
	"github.com/hawser-kv/hawser/proto/rangepb"
)

func bootstrap(boundaries ...string) *placementpb.MetaCommand {
	var keys [][]byte
	for _, b := range boundaries {
		keys = append(keys, []byte(b))
	}
	return &placementpb.MetaCommand{Command: &placementpb.MetaCommand_Bootstrap{
		Bootstrap: NewBootstrap(7, keys, []*rangepb.Replica{{NodeId: 1, ReplicaId: 1}})}}
}

func raise(bound int64) *placementpb.MetaCommand {
	return &placementpb.MetaCommand{Command: &placementpb.MetaCommand_RaiseBound{RaiseBound: &placementpb.RaiseBound{Bound: bound}}}
}

func handOver(last int64) *placementpb.MetaCommand {
	return &placementpb.MetaCommand{Command: &placementpb.MetaCommand_HandOver{HandOver: &placementpb.HandOver{Last: last}}}
}

func activate(ids ...uint64) *placementpb.MetaCommand {
	return &placementpb.MetaCommand{Command: &placementpb.MetaCommand_Activate{Activate: &placementpb.Activate{RangeIds: ids}}}
}

func deactivate(id uint64, mark int64) *placementpb.MetaCommand {
	return &placementpb.MetaCommand{Command: &placementpb.MetaCommand_Deactivate{Deactivate: &placementpb.DeactivateRange{RangeId: id, Mark: mark}}}
}

func compact(rev int64) *placementpb.MetaCommand {
	return &placementpb.MetaCommand{Command: &placementpb.MetaCommand_Compact{Compact: &placementpb.Compact{Revision: rev}}}
}

func reported(id, index uint64) *placementpb.MetaCommand {
	return &placementpb.MetaCommand{Command: &placementpb.MetaCommand_Reported{Reported: &placementpb.Reported{RangeId: id, MetaIndex: index}}}
}

func transaction(rev int64, ids ...uint64) *placementpb.MetaCommand {
	t := &placementpb.Transaction{Owner: &placementpb.TxnID{NodeId: 1, Session: 1, Number: uint64(rev)}, Revision: rev}
	for _, id := range ids {
		t.Participants = append(t.Participants, &placementpb.Participant{RangeId: id, Epoch: 1, Effects: []byte{byte(id)}})
	}
	return &placementpb.MetaCommand{Command: &placementpb.MetaCommand_Transaction{Transaction: t}}
}

func split(rev int64, left, right *rangepb.RangeDescriptor) *placementpb.MetaCommand {
	return &placementpb.MetaCommand{Command: &placementpb.MetaCommand_Split{Split: &placementpb.Split{Left: left, Right: right, Revision: rev}}}
}

func desc(id, epoch uint64, start, end string) *rangepb.RangeDescriptor {
	return &rangepb.RangeDescriptor{RangeId: id, Epoch: epoch, Start: []byte(start), End: []byte(end)}
}

// machine is a state on an engine: each command is applied, staged, committed.
type machine struct {
	t     *testing.T
	db    *pebble.DB
	state *State
	index uint64
}

func newMachine(t *testing.T) *machine {
	db, err := pebble.Open("", &pebble.Options{FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return &machine{t: t, db: db, state: New()}
}

func (m *machine) apply(cmd *placementpb.MetaCommand) error {
	m.t.Helper()
	m.index++
	cmd = proto.CloneOf(cmd)
	cmd.Epoch = 3
	cmd, err := DecodeCommand(EncodeCommand(cmd))
	if err != nil {
		m.t.Fatal(err)
	}
	ch, err := m.state.Apply(m.index, 3, cmd)
	if err != nil {
		return err
	}
	b := m.db.NewBatch()
	if err := m.state.Stage(b, ch); err != nil {
		m.t.Fatal(err)
	}
	if err := b.Commit(pebble.NoSync); err != nil {
		m.t.Fatal(err)
	}
	return nil
}

func (m *machine) must(cmds ...*placementpb.MetaCommand) {
	m.t.Helper()
	for _, cmd := range cmds {
		if err := m.apply(cmd); err != nil {
			m.t.Fatal(err)
		}
	}
}

func dump(s *State) string {
	out := fmt.Sprintf("cluster=%d bound=%d compacted=%d next=%d\n", s.ClusterID, s.Bound, s.Compacted, s.NextRangeID)
	for _, r := range s.Ranges() {
		out += fmt.Sprintf("r%d@%d[%s,%s) active=%v mark=%d", r.Desc.RangeId, r.Desc.Epoch, r.Desc.Start, r.Desc.End, r.Active, r.Mark)
		for _, d := range r.Decided {
			out += fmt.Sprintf(" {%d at %d split=%v %s}", d.MetaIndex, d.Revision, d.GetSplit() != nil, d.GetTxn().GetEffects())
		}
		out += "\n"
	}
	return out
}

func TestCommandsThatDoNotFitAreFaultsAndChangeNothing(t *testing.T) {
	m := newMachine(t)
	if err := m.apply(raise(5)); !errors.Is(err, ErrInvalidCommand) {
		t.Fatalf("before bootstrap: %v", err)
	}
	m.must(bootstrap("h"), raise(50), activate(1), transaction(9, 1), compact(3))
	tooWide := bootstrap("q", "h")
	for name, cmd := range map[string]*placementpb.MetaCommand{
		"second bootstrap":              bootstrap("h"),
		"bound not raised":              raise(50),
		"hand-over above the bound":     handOver(51),
		"hand-over below the first":     handOver(0),
		"activation of an active range": activate(2, 1),
		"activation of an unknown one":  activate(2, 9),
		"deactivation with decided":     deactivate(1, 9),
		"deactivation of an inactive":   deactivate(2, 9),
		"transaction over the bound":    transaction(51, 1),
		"transaction on an inactive":    transaction(10, 1, 2),
		"transaction on an unknown":     transaction(10, 9),
		"report of an unknown range":    reported(9, 1),
		"report of an unknown entry":    reported(1, 77),
		"compaction again":              compact(3),
		"compaction over the bound":     compact(51),
		"split of an inactive range":    split(9, desc(2, 2, "h", "m"), desc(3, 2, "m", "")),
		"split to an old epoch":         split(9, desc(1, 1, "", "c"), desc(3, 2, "c", "h")),
		"split with a used id":          split(9, desc(1, 2, "", "c"), desc(2, 2, "c", "h")),
		"split with a gap":              split(9, desc(1, 2, "", "c"), desc(3, 2, "d", "h")),
		"split at the start":            split(9, desc(1, 2, "", ""), desc(3, 2, "", "h")),
		"split at the end":              split(9, desc(1, 2, "", "h"), desc(3, 2, "h", "h")),
		"split over the bound":          split(51, desc(1, 2, "", "c"), desc(3, 2, "c", "h")),
		"split without descriptors":     split(9, nil, nil),
		"descending boundaries":         tooWide,
	} {
		before := dump(m.state)
		if err := m.apply(cmd); !errors.Is(err, ErrInvalidCommand) {
			t.Errorf("%s: %v", name, err)
		}
		if after := dump(m.state); after != before {
			t.Errorf("%s changed the state to\n%s", name, after)
		}
	}
	fresh := newMachine(t)
	for name, cmd := range map[string]*placementpb.MetaCommand{
		"descending boundaries": tooWide,
		"no ranges":             {Command: &placementpb.MetaCommand_Bootstrap{Bootstrap: &placementpb.Bootstrap{ClusterId: 7}}},
		"no cluster id":         {Command: &placementpb.MetaCommand_Bootstrap{Bootstrap: NewBootstrap(0, nil, nil)}},
		"an id twice": {Command: &placementpb.MetaCommand_Bootstrap{Bootstrap: &placementpb.Bootstrap{ClusterId: 7,
			Ranges: []*rangepb.RangeDescriptor{desc(1, 1, "", "c"), desc(1, 1, "c", "")}}}},
		"a bounded keyspace": {Command: &placementpb.MetaCommand_Bootstrap{Bootstrap: &placementpb.Bootstrap{ClusterId: 7,
			Ranges: []*rangepb.RangeDescriptor{desc(1, 1, "", "c")}}}},
	} {
		if err := fresh.apply(cmd); !errors.Is(err, ErrInvalidCommand) {
			t.Errorf("bootstrap with %s: %v", name, err)
		}
	}
}

// R0: an entry whose Raft term is not the command's epoch is ignored.
func TestCommandOfAnotherTermIsIgnored(t *testing.T) {
	m := newMachine(t)
	m.must(bootstrap())
	cmd := raise(50)
	cmd.Epoch = 2
	ch, err := m.state.Apply(2, 3, cmd)
	if err != nil || !ch.Ignored || m.state.Bound != FirstRevision {
		t.Fatalf("ignored=%v bound=%d err=%v", ch.Ignored, m.state.Bound, err)
	}
	b := m.db.NewBatch()
	if err := m.state.Stage(b, ch); err != nil || !b.Empty() {
		t.Fatalf("staged %d rows, %v", b.Count(), err)
	}
}

func TestLoadOfAnEmptyEngineIsTheStateBeforeBootstrap(t *testing.T) {
	s, err := Load(newMachine(t).db)
	if err != nil || s.ClusterID != 0 || s.Len() != 0 || s.Compacted != NeverCompacted {
		t.Fatalf("%+v, %v", s, err)
	}
}

func rows(t *testing.T, db *pebble.DB) (ks, vs [][]byte) {
	t.Helper()
	it, err := db.NewIter(nil)
	if err != nil {
		t.Fatal(err)
	}
	for ok := it.First(); ok; ok = it.Next() {
		ks, vs = append(ks, slices.Clone(it.Key())), append(vs, slices.Clone(it.Value()))
	}
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
	return ks, vs
}

// Every bit of every row is protected: a flip is a CorruptError that names the
// row, never a panic or another state.
func TestDamagedRowsAreNamed(t *testing.T) {
	m := newMachine(t)
	m.must(bootstrap("h"), raise(50), activate(1, 2), transaction(9, 1, 2), reported(2, 4))
	ks, vs := rows(t, m.db)
	if len(ks) != 4 {
		t.Fatalf("%d rows", len(ks))
	}
	check := func(what string, key, value []byte) {
		t.Helper()
		if err := m.db.Set(key, value, pebble.NoSync); err != nil {
			t.Fatal(err)
		}
		_, err := Load(m.db)
		var corrupt *CorruptError
		var newer *NewerFormatError
		if !errors.As(err, &corrupt) && !errors.As(err, &newer) {
			t.Fatalf("%s: %v", what, err)
		}
	}
	for i, v := range vs {
		for bit := range len(v) * 8 {
			bad := slices.Clone(v)
			bad[bit/8] ^= 1 << (bit % 8)
			check(fmt.Sprintf("row %x, bit %d", ks[i], bit), ks[i], bad)
		}
		check(fmt.Sprintf("row %x empty", ks[i]), ks[i], nil)
		check(fmt.Sprintf("row %x under another key", ks[i]), ks[i], vs[(i+1)%len(vs)])
		if err := m.db.Set(ks[i], v, pebble.NoSync); err != nil {
			t.Fatal(err)
		}
	}
	// Rows that are whole but contradict each other.
	for i := range ks {
		if err := m.db.Delete(ks[i], pebble.NoSync); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(m.db); i != 0 && err == nil {
			t.Errorf("row %x is missing and nobody notices", ks[i])
		}
		if err := m.db.Set(ks[i], vs[i], pebble.NoSync); err != nil {
			t.Fatal(err)
		}
	}
	odd := append(slices.Clone(ks[0][:len(rowKey(headerRow))-1]), 'z')
	check("unknown kind", odd, vs[0])
}

func TestNewerFormatsAreTold(t *testing.T) {
	m := newMachine(t)
	m.must(bootstrap())
	var newer *NewerFormatError
	for _, key := range [][]byte{rowKey(headerRow), rowKey(rangeRow, 1)} {
		row := []byte{formatVersion + 1, 'x', 'y'}
		sum := rowSum(key, row)
		row = append(row, byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24))
		if err := m.db.Set(key, row, pebble.NoSync); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(m.db); !errors.As(err, &newer) || newer.Format != formatVersion+1 {
			t.Errorf("row %x: %v", key, err)
		}
	}
	cmd, err := proto.Marshal(&placementpb.MetaCommand{Format: formatVersion + 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := DecodeCommand(cmd); !errors.As(err, &newer) {
		t.Errorf("command: %v", err)
	}
	var corrupt *CorruptError
	for _, bad := range [][]byte{nil, {0xff}, {8, 1}} {
		if _, err := DecodeCommand(bad); !errors.As(err, &corrupt) {
			t.Errorf("command %x: %v", bad, err)
		}
	}
}

// TestRandomCommandsSurviveARestart compares the state with what is loaded from
// its rows, over random commands, fitting ones and others.
func TestRandomCommandsSurviveARestart(t *testing.T) {
	for seed := range uint64(10) {
		rng := rand.New(rand.NewPCG(seed, 3))
		m := newMachine(t)
		m.must(bootstrap("h", "q"))
		applied := 0
		for range 400 {
			s := m.state
			all := s.Ranges()
			r := all[rng.IntN(len(all))]
			var cmd *placementpb.MetaCommand
			switch rng.IntN(8) {
			case 0:
				cmd = raise(s.Bound + rng.Int64N(9) - 1)
			case 1:
				cmd = activate(r.Desc.RangeId)
			case 2:
				cmd = deactivate(r.Desc.RangeId, s.Bound-rng.Int64N(2))
			case 3:
				cmd = transaction(s.Bound, r.Desc.RangeId)
				cmd.GetTransaction().Participants[0].Epoch = r.Desc.Epoch
			case 4:
				key := append(slices.Clone(r.Desc.Start), byte('a'+rng.IntN(26)))
				left, right := proto.CloneOf(r.Desc), proto.CloneOf(r.Desc)
				left.End, right.Start, right.RangeId = key, key, s.NextRangeID
				left.Epoch++
				cmd = split(s.Bound, left, right)
			case 5, 6:
				if len(r.Decided) == 0 {
					continue
				}
				cmd = reported(r.Desc.RangeId, r.Decided[rng.IntN(len(r.Decided))].MetaIndex)
			case 7:
				cmd = compact(rng.Int64N(s.Bound + 1))
			}
			if m.apply(cmd) == nil {
				applied++
			}
			if rng.IntN(10) == 0 {
				loaded, err := Load(m.db)
				if err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				if got, want := dump(loaded), dump(m.state); got != want {
					t.Fatalf("seed %d: loaded\n%swant\n%s", seed, got, want)
				}
			}
		}
		if applied < 50 {
			t.Errorf("seed %d: only %d commands fitted", seed, applied)
		}
	}
}
