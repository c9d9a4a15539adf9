package meta

import (
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2"

	"github.com/hawser-kv/hawser/proto/placementpb"
)

// Every command belongs to exactly one part.
func TestEveryCommandHasOnePart(t *testing.T) {
	fields := (&placementpb.MetaCommand{}).ProtoReflect().Descriptor().Oneofs().ByName("command").Fields()
	for i := range fields.Len() {
		owners := 0
		for at := range New().parts {
			s := New() // before each: the first may have changed it
			cmd := &placementpb.MetaCommand{}
			m := cmd.ProtoReflect()
			m.Set(fields.Get(i), m.NewField(fields.Get(i)))
			if mine, _ := s.parts[at].apply(&entry{index: 1, term: 1}, cmd); mine {
				owners++
			}
		}
		if owners != 1 {
			t.Errorf("%d parts apply the command %s, want one", owners, fields.Get(i).Name())
		}
	}
}

// bells is a part as another might come: it counts commands without a body.
type bells struct {
	count int64
	bad   bool
}

const bellRow byte = 'z'

func (p *bells) apply(e *entry, cmd *placementpb.MetaCommand) (mine bool, err error) {
	if cmd.Command != nil {
		return false, nil
	}
	if p.count == 2 {
		return true, e.invalid("a third bell")
	}
	p.count++
	e.set(rowKey(bellRow, 5), &placementpb.Compact{Revision: p.count})
	return true, nil
}

func (p *bells) rows() []rowKind {
	return []rowKind{{bellRow, 1, func(r *row) error {
		m := &placementpb.Compact{}
		if err := r.decode(m); err != nil {
			return err
		}
		if r.ids[0] != 5 {
			return r.corrupt("bell %d", r.ids[0])
		}
		p.count = m.Revision
		return nil
	}}}
}

func (p *bells) check() error {
	if p.bad {
		return corruptState("bells")
	}
	return nil
}

func TestAPartIsATypeAndALine(t *testing.T) {
	m := newMachine(t)
	p := &bells{}
	m.state.add(p)
	// A command without a body does not decode, so it goes in by hand.
	ring := func() error {
		ch, err := m.state.Apply(9, 3, &placementpb.MetaCommand{Epoch: 3})
		if err != nil {
			return err
		}
		b := m.db.NewBatch()
		if err := m.state.Stage(b, ch); err != nil {
			t.Fatal(err)
		}
		return b.Commit(pebble.NoSync)
	}
	if err := ring(); !errors.Is(err, ErrInvalidCommand) {
		t.Fatalf("before bootstrap: %v", err)
	}
	m.must(bootstrap("h"))
	for range 2 {
		if err := ring(); err != nil {
			t.Fatal(err)
		}
	}
	if err := ring(); !errors.Is(err, ErrInvalidCommand) || p.count != 2 {
		t.Fatalf("a third: %v, count %d", err, p.count)
	}
	load := func(q *bells) error {
		s := New()
		s.add(q)
		return s.load(m.db)
	}
	q := &bells{}
	if err := load(q); err != nil || q.count != 2 {
		t.Fatalf("loaded %d, %v", q.count, err)
	}
	var corrupt *CorruptError
	if err := load(&bells{bad: true}); !errors.As(err, &corrupt) || corrupt.Reason != "bells" {
		t.Fatalf("its check: %v", err)
	}
	// Without the part its rows are of an unknown kind: never passed over.
	if _, err := Load(m.db); !errors.As(err, &corrupt) {
		t.Fatalf("loaded without the part: %v", err)
	}
	defer func() {
		if recover() == nil {
			t.Error("two parts have rows of one kind")
		}
	}()
	m.state.add(&bells{})
}
