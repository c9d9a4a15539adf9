package placement

import (
	"encoding/binary"

	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/placement/meta"
)

// Group is what the service needs of the Raft group that replicates its state.
type Group interface {
	Term() uint64
	// Serving says that this node leads and has applied an entry of its term.
	Serving() bool
	// SoleVoter says that the configuration is this node alone.
	SoleVoter() bool
	// Propose offers an entry; an error says that it will never be in the log.
	Propose(data []byte) error
	// ReadIndex begins a round that confirms leadership; the answer comes with
	// the context, or never.
	ReadIndex(ctx []byte) error
	// Resign gives leadership up, so that an election in a later term follows,
	// which this node may win. Without effect if it does not lead any more.
	Resign() error
}

// maxProposedBytes bounds what one Drive proposes, but for the last entry: the group
// stages all of it into one batch of the engine.
const maxProposedBytes = 64 << 20

// Member is the service's side of the meta group's member in the store. The
// one who drives the group (the store's worker) calls, in a loop until the
// group has nothing to do:
//
//	member.Drive()
//	work := group.Ready(batch)      // calls Service.Apply
//	member.Confirmed(ctx)           // for each confirmed round in work
//
// and Drive once more at the end. It is not safe for concurrent use.
type Member struct {
	s     *Service
	group Group
	// led is the newest term in which S was told to lead.
	led uint64
}

// NewMember returns the member of the service on the group.
func NewMember(s *Service, g Group) *Member { return &Member{s: s, group: g} }

// Drive tells S whether this node leads, gives the group what S proposed, begins
// a round if S wants one, brings cuts up to date and delivers what S says.
func (m *Member) Drive() {
	s := m.s
	s.mu.Lock()
	s.mu.awake, s.mu.wanted = false, false
	seq := s.mu.seq
	term, serving := m.group.Term(), m.group.Serving()
	if seq.Leading() && (!serving || term != m.led) {
		s.log.Info("sequencer stepped down", zap.Uint64("epoch", m.led))
		m.stepDownLocked()
	}
	if serving && term > m.led && !s.mu.leaving {
		m.led = term
		s.log.Info("sequencer leads", zap.Uint64("epoch", term), zap.Int64("bound", s.mu.state.Bound),
			zap.Int("ranges", s.mu.state.Len()))
		seq.SetSoleVoter(m.group.SoleVoter())
		seq.Lead(term, s.mu.state)
		s.helloLocked()
	}
	seq.SetSoleVoter(m.group.SoleVoter())
	seq.Cut()
	s.readyLocked()
	bytes := 0
	for len(s.mu.proposals) > 0 && bytes < maxProposedBytes {
		proposals := s.mu.proposals
		s.mu.proposals = nil
		for i, cmd := range proposals {
			if bytes >= maxProposedBytes {
				s.mu.proposals = proposals[i:]
				break
			}
			data := meta.EncodeCommand(cmd)
			bytes += len(data)
			if err := m.group.Propose(data); err != nil {
				// Everything S judged since rests on it (pitfalls: a proposal
				// dropped in the middle).
				s.log.Warn("proposal of the meta group dropped", zap.Uint64("epoch", m.led), zap.Error(err))
				m.stepDownLocked()
				m.resign()
				break
			}
		}
		s.readyLocked()
	}
	if round := s.mu.round; round != 0 {
		s.mu.round = 0
		// An error says that leadership is lost: the next Drive sees it. A
		// round that is lost is begun again by a later tick.
		if err := m.group.ReadIndex(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, m.led), round)); err != nil {
			s.log.Debug("round not begun", zap.Error(err))
		}
	}
	s.mu.wanted = len(s.mu.proposals) > 0
	done := s.takeHandedOverLocked()
	s.unlockAndDeliver()
	for _, f := range done {
		f()
	}
}

func (m *Member) stepDownLocked() {
	m.s.mu.seq.StepDown()
	m.s.mu.proposals, m.s.mu.round = nil, 0
}

// resign ends the node's leadership after S has given up. S cannot begin anew
// in the term: its epoch is the term (R0), and entries of before may still be
// applied. And while this node leads, nobody else can.
func (m *Member) resign() {
	if err := m.group.Resign(); err != nil {
		// A fault of the group: who drives it hears of it and stops the node.
		m.s.log.Error("leadership of the meta group not given up", zap.Uint64("term", m.led), zap.Error(err))
	}
}

// Confirmed says that the round with the context of ReadIndex is confirmed.
// Contexts of earlier terms, and others', are ignored.
func (m *Member) Confirmed(ctx []byte) {
	if len(ctx) != 16 || binary.BigEndian.Uint64(ctx) != m.led {
		return
	}
	m.s.mu.Lock()
	m.s.mu.seq.Confirmed(binary.BigEndian.Uint64(ctx[8:]))
	m.s.mu.Unlock()
}

// Tick passes one tick of the group to S.
func (m *Member) Tick() {
	m.s.mu.Lock()
	m.s.mu.seq.Tick()
	m.s.mu.Unlock()
}
