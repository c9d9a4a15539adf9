package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/range/keys"
)

const testGroup = 7

func openDB(t testing.TB) *pebble.DB {
	t.Helper()
	db, err := pebble.Open("", &pebble.Options{
		FS: vfs.NewMem(), Logger: discard{}, FormatMajorVersion: pebble.FormatNewest,
	})
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	return db
}

type discard struct{}

func (discard) Infof(string, ...any)              {}
func (discard) Errorf(string, ...any)             {}
func (discard) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newGroup begins a group and loads it.
func newGroup(t testing.TB, db *pebble.DB, id uint64, voters ...uint64) *Log {
	t.Helper()
	stage(t, db, func(b *pebble.Batch) error { return Bootstrap(db, b, id, voters, []byte("machine")) })
	l, err := Load(db, id)
	must(t, err)
	return l
}

func stage(t testing.TB, db *pebble.DB, fn func(b *pebble.Batch) error) {
	t.Helper()
	b := db.NewBatch()
	must(t, fn(b))
	must(t, db.Apply(b, pebble.NoSync))
	must(t, b.Close())
}

func entry(index, term uint64, data string) *raftpb.Entry {
	typ := raftpb.EntryNormal
	e := &raftpb.Entry{Index: &index, Term: &term, Type: &typ}
	if data != "" {
		e.Data = []byte(data)
	}
	return e
}

func appendMachine(s string) func([]byte) []byte {
	return func(dst []byte) []byte { return append(dst, s...) }
}

func TestGroupBeginsWithAnEmptyLog(t *testing.T) {
	db := openDB(t)
	l := newGroup(t, db, testGroup, 1, 2, 3)
	hs, cs, err := l.InitialState()
	must(t, err)
	if hs.GetTerm() != InitialTerm || hs.GetVote() != 0 || hs.GetCommit() != InitialIndex {
		t.Errorf("hard state %v", hs)
	}
	if fmt.Sprint(cs.GetVoters()) != "[1 2 3]" {
		t.Errorf("conf state %v", cs)
	}
	first, _ := l.FirstIndex()
	last, _ := l.LastIndex()
	term, err := l.Term(InitialIndex)
	if first != InitialIndex+1 || last != InitialIndex || term != InitialTerm || err != nil {
		t.Errorf("first %d last %d term %d, %v", first, last, term, err)
	}
	if _, err := l.Term(InitialIndex - 1); err != raft.ErrCompacted {
		t.Errorf("term below the beginning: %v", err)
	}
	if _, err := l.Entries(first, first+1, math.MaxUint64); err != raft.ErrUnavailable {
		t.Errorf("entries beyond the end: %v", err)
	}
	a, err := ReadApplied(db, testGroup)
	must(t, err)
	if a.Index != InitialIndex || a.Term != InitialTerm || string(a.Machine) != "machine" {
		t.Errorf("applied %+v", a)
	}
}

func TestUnknownGroupIsNotFound(t *testing.T) {
	db := openDB(t)
	if _, err := Load(db, 1); !errors.Is(err, ErrNotFound) {
		t.Errorf("load: %v", err)
	}
	if _, err := ReadApplied(db, 1); !errors.Is(err, ErrNotFound) {
		t.Errorf("applied: %v", err)
	}
}

// revisions.md R11: a split never lowers or overwrites Raft state of the right
// side's replica.
func TestBootstrapKeepsWhatIsThereR11(t *testing.T) {
	db := openDB(t)
	key := keys.Group(testGroup, keys.KindHardState)
	vote := HardState{Term: 9, Vote: 3}
	must(t, db.Set(key, appendHardState(nil, key, vote), pebble.NoSync))
	if _, err := Load(db, testGroup); !errors.Is(err, ErrNotFound) {
		t.Errorf("a vote alone is no group: %v", err)
	}
	l := newGroup(t, db, testGroup, 1, 2, 3)
	if hs := l.HardState(); hs.Term != 9 || hs.Vote != 3 || hs.Commit != InitialIndex {
		t.Errorf("hard state %+v after the beginning", hs)
	}
	b := db.NewBatch()
	defer b.Close()
	if err := Bootstrap(db, b, testGroup, []uint64{1}, nil); !errors.Is(err, ErrExists) {
		t.Errorf("second beginning: %v", err)
	}
	if !b.Empty() {
		t.Error("refused beginning staged rows")
	}
}

// A vote is kept that another worker commits between the staging of a beginning and
// its commit.
func TestBeginningBesideAVoteKeepsItR11(t *testing.T) {
	db := openDB(t)
	b := db.NewBatch()
	defer b.Close()
	must(t, Bootstrap(db, b, testGroup, []uint64{1, 2, 3}, nil))
	key := keys.Group(testGroup, keys.KindHardState)
	must(t, db.Set(key, appendHardState(nil, key, HardState{Term: 9, Vote: 3}), pebble.NoSync))
	must(t, b.Commit(pebble.NoSync))
	l, err := Load(db, testGroup)
	must(t, err)
	if hs := l.HardState(); hs.Term != 9 || hs.Vote != 3 || hs.Commit != InitialIndex {
		t.Errorf("hard state %+v after the beginning", hs)
	}
}

// The hard state may be missing only where no term has begun since the group did.
func TestMissingHardStateIsDamageOnceATermHasBegun(t *testing.T) {
	db := openDB(t)
	l := newGroup(t, db, testGroup, 1)
	if hs := l.HardState(); hs.Term != InitialTerm || hs.Vote != 0 {
		t.Errorf("hard state %+v at the beginning", hs)
	}
	key := keys.LogEntry(testGroup, InitialIndex+1)
	e := &raftpb.Entry{Index: proto.Uint64(InitialIndex + 1), Term: proto.Uint64(InitialTerm + 1)}
	row := make([]byte, entryRowSize(e))
	putEntry(row, key, e)
	must(t, db.Set(key, row, pebble.NoSync))
	if _, err := Load(db, testGroup); !errors.Is(err, ErrCorrupt) {
		t.Errorf("an entry of a later term without a hard state: %v", err)
	}
}

// An append that conflicts replaces the log's end, and the rows beyond go.
func TestAppendReplacesTheEnd(t *testing.T) {
	db := openDB(t)
	l := newGroup(t, db, testGroup, 1, 2, 3)
	stage(t, db, func(b *pebble.Batch) error {
		return l.Append(b, []*raftpb.Entry{entry(2, 2, "a"), entry(3, 2, "b"), entry(4, 2, "c"), entry(5, 2, "d")})
	})
	stage(t, db, func(b *pebble.Batch) error { return l.Append(b, []*raftpb.Entry{entry(3, 4, "x")}) })
	hs := HardState{Term: 4, Vote: 2, Commit: 2}
	stage(t, db, func(b *pebble.Batch) error { _, err := l.SetHardState(b, hs); return err })
	again, err := Load(db, testGroup)
	must(t, err)
	for _, l := range []*Log{l, again} {
		got, err := l.Entries(2, 4, math.MaxUint64)
		must(t, err)
		if last, _ := l.LastIndex(); last != 3 || len(got) != 2 || string(got[1].GetData()) != "x" || got[1].GetTerm() != 4 {
			t.Errorf("%s: %v", l, got)
		}
	}
}

func TestHardStateOfCommitAloneIsNotWritten(t *testing.T) {
	db := openDB(t)
	l := newGroup(t, db, testGroup, 1)
	stage(t, db, func(b *pebble.Batch) error { return l.Append(b, []*raftpb.Entry{entry(2, 1, "a"), entry(3, 1, "b")}) })
	stage(t, db, func(b *pebble.Batch) error {
		staged, err := l.SetHardState(b, HardState{Term: 1, Commit: 3})
		if staged || !b.Empty() {
			t.Error("staged a row for a commit index")
		}
		return err
	})
	// What is applied is a lower bound of it after a restart.
	stage(t, db, func(b *pebble.Batch) error { return l.SetApplied(b, 2, 1, 0, appendMachine("")) })
	again, err := Load(db, testGroup)
	must(t, err)
	if hs, _, _ := again.InitialState(); hs.GetCommit() != 2 {
		t.Errorf("commit %d after a restart with applied 2", hs.GetCommit())
	}
}

// Whatever the appends, applies and truncations, the log says what a plain one
// says, before and after it is loaded again.
func TestLogEqualsModel(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			db := openDB(t)
			m := &model{log: newGroup(t, db, testGroup, 1, 2), first: 2, term: 1, applied: 1}
			rng := rand.New(rand.NewPCG(seed, 0))
			for range 150 {
				stage(t, db, func(b *pebble.Batch) error { return m.step(rng, b) })
				m.check(t, m.log, rng)
				if rng.IntN(8) == 0 {
					again, err := Load(db, testGroup)
					must(t, err)
					m.check(t, again, rng)
					if rng.IntN(2) == 0 {
						m.log = again
					}
				}
			}
		})
	}
}

type model struct {
	log                  *Log
	first, applied, term uint64
	entries              []*raftpb.Entry // from first
}

func (m *model) last() uint64 { return m.first + uint64(len(m.entries)) - 1 }

func (m *model) step(rng *rand.Rand, b *pebble.Batch) error {
	switch rng.IntN(4) {
	case 0, 1: // append, now and then over the end
		at := m.last() + 1
		if rng.IntN(4) == 0 {
			at = m.applied + 1 + rng.Uint64N(at-m.applied)
			m.term++
		}
		var add []*raftpb.Entry
		for i := range rng.Uint64N(5) {
			data := bytes.Repeat([]byte{byte(rng.Uint32())}, rng.IntN(200))
			add = append(add, entry(at+i, m.term, string(data)))
		}
		if len(add) > 0 {
			m.entries = append(m.entries[:at-m.first:at-m.first], add...)
		}
		if err := m.log.Append(b, add); err != nil {
			return err
		}
		_, err := m.log.SetHardState(b, HardState{Term: m.term, Commit: m.applied})
		return err
	case 2:
		if m.applied == m.last() {
			return nil
		}
		m.applied += 1 + rng.Uint64N(m.last()-m.applied)
		return m.log.SetApplied(b, m.applied, m.entries[m.applied-m.first].GetTerm(), rng.Uint64N(400), appendMachine("m"))
	default:
		limit := m.applied
		if rng.IntN(2) == 0 {
			limit = m.first + rng.Uint64N(m.applied-m.first+2) - 1
		}
		at := m.log.TruncateAt(limit, rng.Uint64N(5), rng.Uint64N(1000))
		if at > limit || at < m.first-1 {
			return fmt.Errorf("truncate at %d, limit %d, first %d", at, limit, m.first)
		}
		m.entries, m.first = m.entries[at+1-m.first:], at+1
		return m.log.Truncate(b, at)
	}
}

func (m *model) check(t *testing.T, l *Log, rng *rand.Rand) {
	t.Helper()
	first, _ := l.FirstIndex()
	last, _ := l.LastIndex()
	applied, _ := l.Applied()
	if first != m.first || last != m.last() || applied != m.applied {
		t.Fatalf("%s, want (%d,%d] applied=%d", l, m.first-1, m.last(), m.applied)
	}
	var size uint64
	for i, e := range m.entries {
		size += uint64(entryRowSize(e))
		term, err := l.Term(m.first + uint64(i))
		if term != e.GetTerm() || err != nil {
			t.Fatalf("%s: term(%d) = %d, %v; want %d", l, m.first+uint64(i), term, err, e.GetTerm())
		}
	}
	if l.Bytes() != size {
		t.Fatalf("%s: %d bytes, want %d", l, l.Bytes(), size)
	}
	if len(m.entries) == 0 {
		return
	}
	lo := m.first + rng.Uint64N(uint64(len(m.entries)))
	hi := lo + 1 + rng.Uint64N(m.last()-lo+1)
	limit := rng.Uint64N(600)
	got, err := l.Entries(lo, hi, limit)
	must(t, err)
	if len(got) == 0 || uint64(len(got)) > hi-lo {
		t.Fatalf("entries [%d,%d): %d", lo, hi, len(got))
	}
	var bytes uint64
	for i, e := range got {
		if want := m.entries[lo-m.first+uint64(i)]; !proto.Equal(e, want) {
			t.Fatalf("entry %d is %v, want %v", lo+uint64(i), e, want)
		}
		bytes += uint64(entryRowSize(e))
	}
	if len(got) > 1 && bytes > limit {
		t.Fatalf("entries [%d,%d): %d bytes, limit %d", lo, hi, bytes, limit)
	}
}

// raft cannot survive damage that it runs into: the log remembers it, so that
// the group can.
func TestDamageFoundWhileReadingSticks(t *testing.T) {
	db := openDB(t)
	l := newGroup(t, db, testGroup, 1, 2)
	stage(t, db, func(b *pebble.Batch) error { return l.Append(b, []*raftpb.Entry{entry(2, 1, "a"), entry(3, 1, "b")}) })
	stage(t, db, func(b *pebble.Batch) error { return l.SetApplied(b, 3, 1, 0, appendMachine("")) })
	must(t, db.Delete(keys.LogEntry(testGroup, 2), pebble.NoSync))
	if _, err := l.Entries(2, 4, math.MaxUint64); !errors.Is(err, ErrCorrupt) || !errors.Is(l.Corrupt(), ErrCorrupt) {
		t.Errorf("entries %v, sticky %v", err, l.Corrupt())
	}
}

func TestBrokenOrderPanics(t *testing.T) {
	for name, fn := range map[string]func(l *Log, b *pebble.Batch){
		"gap":                     func(l *Log, b *pebble.Batch) { _ = l.Append(b, []*raftpb.Entry{entry(5, 1, "")}) },
		"append below applied":    func(l *Log, b *pebble.Batch) { _ = l.Append(b, []*raftpb.Entry{entry(2, 1, "")}) },
		"falling term":            func(l *Log, b *pebble.Batch) { _ = l.Append(b, []*raftpb.Entry{entry(4, 0, "")}) },
		"applied beyond the end":  func(l *Log, b *pebble.Batch) { _ = l.SetApplied(b, 9, 1, 0, appendMachine("")) },
		"applied goes back":       func(l *Log, b *pebble.Batch) { _ = l.SetApplied(b, 1, 1, 0, appendMachine("")) },
		"truncate what is needed": func(l *Log, b *pebble.Batch) { _ = l.Truncate(b, 3) },
		"hard state goes back":    func(l *Log, b *pebble.Batch) { _, _ = l.SetHardState(b, HardState{Term: 0}) },
		"second vote in one term": func(l *Log, b *pebble.Batch) { _, _ = l.SetHardState(b, HardState{Term: 1, Vote: 2, Commit: 2}) },
		"commit index goes back":  func(l *Log, b *pebble.Batch) { _, _ = l.SetHardState(b, HardState{Term: 1, Vote: 1, Commit: 0}) },
	} {
		t.Run(name, func(t *testing.T) {
			db := openDB(t)
			l := newGroup(t, db, testGroup, 1, 2)
			stage(t, db, func(b *pebble.Batch) error {
				return errors.Join(
					l.Append(b, []*raftpb.Entry{entry(2, 1, "a"), entry(3, 1, "b")}),
					l.SetApplied(b, 2, 1, 0, appendMachine("")))
			})
			stage(t, db, func(b *pebble.Batch) error {
				_, err := l.SetHardState(b, HardState{Term: 1, Vote: 1, Commit: 2})
				return err
			})
			b := db.NewBatch()
			defer b.Close()
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			fn(l, b)
		})
	}
}
