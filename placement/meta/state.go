// Package meta is the replicated state of the meta group and its commands
// (revisions.md section 3): the directory, the bound, which ranges are active,
// the marks of those that are not, the compacted revision and the decided
// entries that a participant has not reported.
//
// The state is a plain value in memory; Apply is a function of (state, index,
// term, command) and Stage writes only the rows that changed. The package
// knows no Raft, no clock and no network.
package meta

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/hawser-kv/hawser/proto/placementpb"
)

// State is the applied state of the meta group. It is not safe for concurrent
// use. Descriptors and decided entries are immutable once they are in it and
// may be shared.
//
// It is made of parts, each with its commands, its kinds of rows and its check;
// State hands each command and each row to the part that knows it.
type State struct {
	Header
	directory directory

	parts []part
	kinds map[byte]rowKind
}

// part is one sub-state. Each command and each kind of row belongs to one part.
type part interface {
	// apply applies the command of an entry, if it is one of the part's, and
	// adds the rows that it changes to the entry. An error is one of
	// entry.invalid, and then nothing has changed.
	apply(e *entry, cmd *placementpb.MetaCommand) (mine bool, err error)
	// rows are the kinds of its rows. They are loaded in the order of their keys.
	rows() []rowKind
	// check verifies, when all rows are loaded, what every applied state keeps.
	// An error is one of corruptState.
	check() error
}

// New returns the state before Bootstrap.
func New() *State {
	s := &State{kinds: map[byte]rowKind{}}
	s.Header = Header{Compacted: NeverCompacted, NextRangeID: 1}
	s.directory = directory{header: &s.Header, ranges: map[uint64]*Range{}}

	// A new part is a type and a line here. Checks run in this order.
	s.add(cluster{&s.Header})
	s.add(&s.directory)
	return s
}

func (s *State) add(p part) {
	s.parts = append(s.parts, p)
	for _, k := range p.rows() {
		if _, ok := s.kinds[k.kind]; ok {
			panic(fmt.Sprintf("meta: two parts have rows of kind %q", k.kind))
		}
		s.kinds[k.kind] = k
	}
}

// Changes says which rows a command changed.
type Changes struct {
	// Ignored: the command's epoch is not the term of its entry; nothing
	// changed (R0).
	Ignored bool

	rows []rowChange
}

// rowChange is a row and what it says now; nil: it is deleted.
type rowChange struct {
	key     []byte
	message proto.Message
}

// entry is the one of the meta log that is being applied.
type entry struct {
	index, term uint64
	changes     Changes
}

// set changes a row. The message must not change any more.
func (e *entry) set(key []byte, m proto.Message) {
	e.changes.rows = append(e.changes.rows, rowChange{key, m})
}

// drop deletes a row.
func (e *entry) drop(key []byte) { e.set(key, nil) }

// invalid returns the error for a command that does not fit the state.
func (e *entry) invalid(format string, args ...any) error {
	return fmt.Errorf("meta entry %d of term %d: %w: %s", e.index, e.term, ErrInvalidCommand, fmt.Sprintf(format, args...))
}

// Apply applies the command of the entry at (index, term) of the meta log. A
// command of another term than its entry's is ignored (R0). A command that
// does not fit the state wraps ErrInvalidCommand and changes nothing: the
// sequencer judges on the state with all it proposed applied, so this is a
// fault, not a refusal.
func (s *State) Apply(index, term uint64, cmd *placementpb.MetaCommand) (Changes, error) {
	if cmd.Epoch != term {
		return Changes{Ignored: true}, nil
	}
	e := &entry{index: index, term: term}
	if _, ok := cmd.Command.(*placementpb.MetaCommand_Bootstrap); !ok && s.ClusterID == 0 {
		return Changes{}, e.invalid("%T before bootstrap", cmd.Command)
	}
	for _, p := range s.parts {
		if mine, err := p.apply(e, cmd); err != nil {
			return Changes{}, err
		} else if mine {
			return e.changes, nil
		}
	}
	return Changes{}, e.invalid("unknown command %T", cmd.Command)
}

// check verifies what every applied state keeps.
func (s *State) check() error {
	for _, p := range s.parts {
		if err := p.check(); err != nil {
			return err
		}
	}
	return nil
}
