package meta

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/proto/placementpb"
)

// TestScenarios applies commands to a state on an engine (testdata/scenarios).
//
//	new
//	apply [term=N]      each line a command; entries of term 3, from index 1
//	                    ("term" is the entry's, a command's epoch is 3):
//	  bootstrap c,h | bound 50 | hand-over 30 | compact 5
//	  activate 1 2 | deactivate 2 mark=20 | reported 1 index=4
//	  txn 9 1@1 2@1 | split 1 key=c at=9 [id=3] [left=2] [right=2]
//	state               the state, which is also what its rows say
//	delete ROW | flip ROW | copy ROW to=ROW
//	load                what a start says
//
// apply prints the rows that each command sets (+) and deletes (-); a row is h,
// r/ID or d/ID/INDEX.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		var m *machine
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "new":
				m = newMachine(t)
				return "ok\n"
			case "apply":
				term := uint64(3)
				d.MaybeScanArgs(t, "term", &term)
				var out strings.Builder
				for _, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
					m.applyLine(t, &out, term, line)
				}
				return out.String()
			case "state":
				want := dump(m.state)
				loaded, err := Load(m.db)
				if err != nil {
					t.Fatalf("%s: %v", d.Pos, err)
				}
				if got := dump(loaded); got != want {
					t.Errorf("%s: the rows say\n%sthe state is\n%s", d.Pos, got, want)
				}
				return want
			case "load":
				s, err := Load(m.db)
				if err != nil {
					return err.Error() + "\n"
				}
				return dump(s)
			}
			key := parseRow(d.CmdArgs[0].Key)
			value, closer, err := m.db.Get(key)
			if err != nil {
				t.Fatalf("%s: %v", d.Pos, err)
			}
			value = slices.Clone(value)
			if err := closer.Close(); err != nil {
				t.Fatal(err)
			}
			switch d.Cmd {
			case "delete":
				err = m.db.Delete(key, pebble.NoSync)
			case "flip":
				value[len(value)/2] ^= 1
				err = m.db.Set(key, value, pebble.NoSync)
			case "copy":
				err = m.db.Set(parseRow(d.CmdArgs[1].Vals[0]), value, pebble.NoSync)
			default:
				t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
			}
			if err != nil {
				t.Fatal(err)
			}
			return "ok\n"
		})
	})
}

func (m *machine) applyLine(t *testing.T, out *strings.Builder, term uint64, line string) {
	t.Helper()
	m.index++
	cmd := parseCommand(t, m.state, line)
	cmd.Epoch = 3
	cmd, err := DecodeCommand(EncodeCommand(cmd))
	if err != nil {
		t.Fatal(err)
	}
	before := dump(m.state)
	ch, err := m.state.Apply(m.index, term, cmd)
	switch {
	case err != nil:
		fmt.Fprintln(out, err)
	case ch.Ignored:
		fmt.Fprintf(out, "%d: ignored\n", m.index)
	}
	if (err != nil || ch.Ignored) && dump(m.state) != before {
		t.Errorf("%q changed the state to\n%s", line, dump(m.state))
	}
	b := m.db.NewBatch()
	if err := m.state.Stage(b, ch); err != nil {
		t.Fatal(err)
	}
	if !b.Empty() {
		fmt.Fprintf(out, "%d:%s\n", m.index, describeRows(t, b))
	}
	if err := b.Commit(pebble.NoSync); err != nil {
		t.Fatal(err)
	}
}

func describeRows(t *testing.T, b *pebble.Batch) (s string) {
	t.Helper()
	for r := b.Reader(); ; {
		kind, key, _, ok, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return s
		}
		sign := " +"
		if kind == pebble.InternalKeyKindDelete {
			sign = " -"
		}
		key = key[len(rowKey(headerRow))-1:]
		s += sign + string(key[:1])
		for ids := key[1:]; len(ids) > 0; ids = ids[8:] {
			s += fmt.Sprintf("/%d", binary.BigEndian.Uint64(ids))
		}
	}
}

func parseRow(s string) []byte {
	words := strings.Split(s, "/")
	var ids []uint64
	for _, w := range words[1:] {
		ids = append(ids, number(w))
	}
	return rowKey(words[0][0], ids...)
}

func number(s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

func parseCommand(t *testing.T, s *State, line string) *placementpb.MetaCommand {
	t.Helper()
	var plain []string
	named := map[string]string{}
	words := strings.Fields(line)
	for _, w := range words[1:] {
		if k, v, ok := strings.Cut(w, "="); ok {
			named[k] = v
		} else {
			plain = append(plain, w)
		}
	}
	get := func(key string, otherwise uint64) uint64 {
		if v, ok := named[key]; ok {
			return number(v)
		}
		return otherwise
	}
	first := func() uint64 { return number(plain[0]) }
	switch words[0] {
	case "bootstrap":
		if len(plain) == 0 {
			return bootstrap()
		}
		return bootstrap(strings.Split(plain[0], ",")...)
	case "bound":
		return raise(int64(first()))
	case "hand-over":
		return handOver(int64(first()))
	case "compact":
		return compact(int64(first()))
	case "activate":
		var ids []uint64
		for _, w := range plain {
			ids = append(ids, number(w))
		}
		return activate(ids...)
	case "deactivate":
		return deactivate(first(), int64(get("mark", 0)))
	case "reported":
		return reported(first(), get("index", 0))
	case "txn":
		cmd := transaction(int64(first()))
		for _, p := range plain[1:] {
			id, epoch, _ := strings.Cut(p, "@")
			cmd.GetTransaction().Participants = append(cmd.GetTransaction().Participants,
				&placementpb.Participant{RangeId: number(id), Epoch: number(epoch), Effects: []byte(p)})
		}
		return cmd
	case "split":
		of := s.Range(first())
		if of == nil {
			of = &Range{Desc: desc(first(), 1, "", "")}
		}
		left, right := proto.CloneOf(of.Desc), proto.CloneOf(of.Desc)
		left.End, right.Start = []byte(named["key"]), []byte(named["key"])
		left.Epoch, right.Epoch = get("left", of.Desc.Epoch+1), get("right", of.Desc.Epoch+1)
		right.RangeId = get("id", s.NextRangeID)
		return split(int64(get("at", 0)), left, right)
	}
	t.Fatalf("unknown command %q", line)
	return nil
}
